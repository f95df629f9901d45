/* Large memory: huge-page, NUMA-placed buffers and read-only file mappings. Nothing else maps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_BUFFER_H
#define KT_BASE_BUFFER_H

#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

typedef enum kt_pages {
    KT_PAGES_SMALL = 0, /* 4 KiB, huge pages declined */
    KT_PAGES_ADVISED,   /* MADV_HUGEPAGE: transparent 2 MiB pages */
    KT_PAGES_HUGETLB    /* from the reserved pool */
} kt_pages;

/* Owned by the creator; plain struct so that hot paths read data directly. */
typedef struct kt_buffer {
    void *data; /* 2 MiB aligned when pages != KT_PAGES_SMALL, else 4 KiB */
    size_t bytes;
    size_t mapped_bytes;
    void *mapped;
    kt_pages pages; /* what was obtained */
} kt_buffer;

/* Zeroed memory of at least `bytes`, populated before return, on NUMA node `node` (-1 = any). Tries
 * the wanted page kind and falls back to the next smaller. Refuses (KT_E_NOMEM) when the request
 * exceeds what the kernel calls available (MemAvailable, cgroup limit), so that nothing swaps. */
kt_status kt_buffer_create(size_t bytes, kt_pages want, int node, kt_buffer *out, kt_err *err);
/* The same, but pages get their memory when they are first touched: for pools of which only a part
 * may ever be used. Whoever does so has counted it: nothing is taken off what is available. */
kt_status kt_buffer_reserve(size_t bytes, kt_pages want, int node, kt_buffer *out, kt_err *err);
/* Memory for [offset, offset + bytes) of a reserved buffer, both multiples of 2 MiB; several
 * threads may ask for several parts. Zeroing large memory takes as long as filling it: all should.
 */
kt_status kt_buffer_populate(const kt_buffer *buffer, size_t offset, size_t bytes, kt_err *err);
void kt_buffer_destroy(kt_buffer *buffer); /* accepts a zeroed buffer */

/* Bytes this process may still take without swapping: min of MemAvailable and the cgroup limit. */
uint64_t kt_memory_available_bytes(void);

/* A file mapped read-only. Zeroed = empty. */
typedef struct kt_mapping {
    const uint8_t *data;
    size_t bytes;
} kt_mapping;

kt_status kt_mapping_open(const char *path, kt_mapping *out, kt_err *err);
/* Tell the kernel that [offset, offset+bytes) will not be read again. */
void kt_mapping_release(const kt_mapping *mapping, size_t offset, size_t bytes);
/* Map in large pages where the file system keeps files in such. Before anything is read. */
void kt_mapping_prefer_large(const kt_mapping *mapping);
/* Read [offset, offset+bytes) into memory now: what is used for long faults no more. */
void kt_mapping_populate(const kt_mapping *mapping, size_t offset, size_t bytes);
void kt_mapping_close(kt_mapping *mapping);

/* A whole file into malloc'd, NUL-terminated memory (owned by the caller); refuses over max_bytes.
 */
kt_status kt_file_read(const char *path, size_t max_bytes, char **out, size_t *size, kt_err *err);
/* Write a whole file atomically: temporary name in the same folder, fsync, rename. A link's target
 * is replaced, not the link; into pipes and devices the bytes are written as they are. */
kt_status kt_file_write(const char *path, const void *data, size_t size, kt_err *err);

#endif
