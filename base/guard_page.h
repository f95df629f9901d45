/* Memory that ends at an inaccessible page: reads and writes past the end fault, writes elsewhere
 * around it are found. For correctness gates and tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_GUARD_PAGE_H
#define KT_BASE_GUARD_PAGE_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/status.h"

/* Owned by the creator. Zeroed = nothing. */
typedef struct kt_guard {
    void *data;
    size_t bytes;
    void *mapped;
    size_t mapped_bytes;
    unsigned char fill;
} kt_guard;

/* bytes (may be 0) aligned to align (a power of two <= 4096). The block's end, rounded up to align,
 * touches an inaccessible page; everything readable, block included, is filled with `fill`. */
kt_status kt_guard_create(size_t bytes, size_t align, unsigned char fill, kt_guard *out,
                          kt_err *err);
void kt_guard_destroy(kt_guard *guard);

/* Do the readable bytes before and after the block still hold the fill? */
bool kt_guard_intact(const kt_guard *guard);

#endif
