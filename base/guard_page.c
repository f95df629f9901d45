/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/guard_page.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

#define PAGE ((size_t)4096) /* x86-64's smallest; larger pages are not used here */

kt_status kt_guard_create(size_t bytes, size_t align, unsigned char fill, kt_guard *out,
                          kt_err *err) {
    size_t body, mapped_bytes;
    char *base, *end;

    *out = (kt_guard){0};
    if (align == 0 || align > PAGE || (align & (align - 1)) != 0)
        return kt_fail(err, KT_E_INVALID,
                       "guarded block: alignment %zu is not a power of two <= %zu", align, PAGE);
    if (bytes > SIZE_MAX / 2) return kt_fail(err, KT_E_NOMEM, "guarded block: %zu bytes", bytes);
    body = (bytes + align - 1) / align * align;
    mapped_bytes =
        (body + PAGE - 1) / PAGE * PAGE + 2 * PAGE; /* one page of canary, one of guard */
    base = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return kt_fail(err, KT_E_NOMEM, "guarded block: no memory for %zu bytes", bytes);
    end = base + mapped_bytes - PAGE;
    if (mprotect(end, PAGE, PROT_NONE) != 0) {
        munmap(base, mapped_bytes);
        return kt_fail(err, KT_E_IO, "guarded block: the guard page could not be protected");
    }
    memset(base, fill, (size_t)(end - base));
    *out = (kt_guard){end - body, bytes, base, mapped_bytes, fill};
    return KT_OK;
}

void kt_guard_destroy(kt_guard *guard) {
    if (guard->mapped) munmap(guard->mapped, guard->mapped_bytes);
    *guard = (kt_guard){0};
}

/* The first byte is `fill`, and each is as the one before. */
static bool holds(const unsigned char *from, const unsigned char *to, unsigned char fill) {
    return from >= to || (*from == fill && memcmp(from, from + 1, (size_t)(to - from) - 1) == 0);
}

bool kt_guard_intact(const kt_guard *guard) {
    const unsigned char *base = guard->mapped, *data = guard->data;
    return !base || (holds(base, data, guard->fill) &&
                     holds(data + guard->bytes, base + guard->mapped_bytes - PAGE, guard->fill));
}
