/* Huge-page, NUMA-placed memory. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/buffer.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/err.h"

/* Names of newer kernels that the system's headers may lack. */
enum { MADV_POPULATE_WRITE_ = 23, MAP_HUGE_2MB_ = 21 << 26 };
enum { MPOL_PREFERRED_ = 1, NODE_WORDS = 16 };

static const size_t small_page = 4096;
static const size_t huge_page = (size_t)2 << 20;

/* Is the transparent kind switched off for the whole machine? Then advice would be ignored. */
static int transparent_is_off(void) {
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/enabled", "re");
    char text[64] = "";
    int off = 1;

    if (f) {
        off = !fgets(text, sizeof text, f) || strstr(text, "[never]") != NULL;
        fclose(f);
    }
    return off;
}

/* Preferred, not bound: on a full node the kernel then takes the next one, where a strict binding
 * would call the out-of-memory killer. Without NUMA support the call fails and nothing is lost. */
static void prefer_node(void *p, size_t bytes, int node) {
    unsigned long mask[NODE_WORDS] = {0};
    const int word_bits = (int)(8 * sizeof *mask);

    if (node < 0 || node >= NODE_WORDS * word_bits) return;
    mask[node / word_bits] = 1ul << (node % word_bits);
    syscall(SYS_mbind, p, bytes, MPOL_PREFERRED_, mask, (unsigned long)(NODE_WORDS * word_bits), 0);
}

/* Give every page its memory now, so that the hot path never faults. Kernels before 5.14 lack the
 * advice; touching does the same, only that it cannot report a failure. */
static int populate(void *p, size_t bytes, size_t page) {
    if (madvise(p, bytes, MADV_POPULATE_WRITE_) == 0) return 0;
    if (errno != EINVAL) return -1;
    for (size_t i = 0; i < bytes; i += page) ((volatile char *)p)[i] = 0;
    return 0;
}

static int map_hugetlb(kt_buffer *b, size_t bytes, int node) {
    size_t size = (bytes + huge_page - 1) & ~(huge_page - 1);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB_;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, flags, -1, 0);

    if (p == MAP_FAILED) return -1;
    prefer_node(p, size, node);
    if (madvise(p, size, MADV_POPULATE_WRITE_) != 0) { /* a touch would end in SIGBUS */
        munmap(p, size);
        return -1;
    }
    *b = (kt_buffer){p, bytes, size, p, KT_PAGES_HUGETLB};
    return 0;
}

/* Ordinary memory, at the alignment of the page size that is hoped for. */
static int map_ordinary(kt_buffer *b, size_t bytes, kt_pages pages, int node, bool is_lazy) {
    size_t page = pages == KT_PAGES_SMALL ? small_page : huge_page;
    size_t size = (bytes + page - 1) & ~(page - 1);
    size_t mapped = size + page - small_page;
    char *p = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    size_t skip;

    if (p == (char *)MAP_FAILED) return -1;
    skip = (size_t)(-(uintptr_t)p & (page - 1));
    if (skip) munmap(p, skip);
    p += skip;
    mapped -= skip;
    if (mapped > size) munmap(p + size, mapped - size);
    if (pages == KT_PAGES_SMALL)
        madvise(p, size, MADV_NOHUGEPAGE);
    else if (madvise(p, size, MADV_HUGEPAGE) != 0)
        pages = KT_PAGES_SMALL;
    prefer_node(p, size, node);
    if (!is_lazy && populate(p, size, small_page) != 0) {
        munmap(p, size);
        return -1;
    }
    *b = (kt_buffer){p, bytes, size, p, pages};
    return 0;
}

static kt_status create(size_t bytes, kt_pages want, int node, bool is_lazy, kt_buffer *out,
                        kt_err *err) {
    uint64_t available;

    memset(out, 0, sizeof *out);
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2)
        return kt_fail(err, KT_E_NOMEM, "buffer of %zu bytes: more than an address space", bytes);
    /* Reserved huge pages are not part of what the kernel calls available. */
    if (want == KT_PAGES_HUGETLB && map_hugetlb(out, bytes, node) == 0) return KT_OK;
    available = kt_memory_available_bytes();
    if (bytes > available)
        return kt_fail(err, KT_E_NOMEM, "buffer of %zu MiB: only %llu MiB of memory available",
                       bytes >> 20, (unsigned long long)available >> 20);
    if (want != KT_PAGES_SMALL && transparent_is_off()) want = KT_PAGES_SMALL;
    if (want == KT_PAGES_HUGETLB) want = KT_PAGES_ADVISED;
    if (map_ordinary(out, bytes, want, node, is_lazy) != 0)
        return kt_fail(err, KT_E_NOMEM, "buffer of %zu MiB: %s", bytes >> 20, strerror(errno));
    return KT_OK;
}

kt_status kt_buffer_create(size_t bytes, kt_pages want, int node, kt_buffer *out, kt_err *err) {
    return create(bytes, want, node, false, out, err);
}

kt_status kt_buffer_reserve(size_t bytes, kt_pages want, int node, kt_buffer *out, kt_err *err) {
    return create(bytes, want, node, true, out, err);
}

/* Reserved huge pages have their memory already. */
kt_status kt_buffer_populate(const kt_buffer *b, size_t offset, size_t bytes, kt_err *err) {
    if (b->pages == KT_PAGES_HUGETLB || offset >= b->mapped_bytes) return KT_OK;
    if (bytes > b->mapped_bytes - offset) bytes = b->mapped_bytes - offset;
    if (populate((char *)b->data + offset, bytes, small_page) == 0) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "buffer of %zu MiB: %s", b->bytes >> 20, strerror(errno));
}

void kt_buffer_destroy(kt_buffer *buffer) {
    if (buffer->mapped) munmap(buffer->mapped, buffer->mapped_bytes);
    memset(buffer, 0, sizeof *buffer);
}
