/* Each block is a mapping of its own: [free bytes, 0xff] [data] [up to the alignment, 0xff] [page
 * without access]. Large ones are not filled, so that a pool of which little is used takes little.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/device/emulated_memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/err.h"

enum { PAGE = 4096, FILL = 0xff, FILLED = 1 << 20 };

static size_t round_up(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

/* Where p is, or would be: the first block that ends behind it. */
static size_t place_of(const kt_emulated_memory *m, const uint8_t *p) {
    size_t low = 0, high = m->n;

    while (low < high) {
        const size_t at = (low + high) / 2;
        if (m->block[at].mapped + m->block[at].mapped_bytes <= p)
            low = at + 1;
        else
            high = at;
    }
    return low;
}

static kt_status make_room(kt_emulated_memory *m, const char *name, kt_err *err) {
    const size_t capacity = m->capacity ? 2 * m->capacity : 64;
    kt_emulated_block *more;

    if (m->n < m->capacity) return KT_OK;
    more = realloc(m->block, capacity * sizeof *more);
    if (!more)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a list of %zu blocks", name, capacity);
    m->block = more;
    m->capacity = capacity;
    return KT_OK;
}

static kt_status map_block(const char *name, size_t bytes, kt_emulated_block *b, kt_err *err) {
    const size_t whole = round_up(bytes, KT_EMULATED_ALIGN), pages = round_up(whole, PAGE);
    void *p = mmap(NULL, pages + PAGE, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory to map %zu bytes", name, pages + PAGE);
    b->mapped = p;
    b->mapped_bytes = pages + PAGE;
    b->data = b->mapped + (pages - whole);
    b->bytes = bytes;
    mprotect(b->mapped + pages, PAGE, PROT_NONE);
    memset(b->mapped, FILL, pages - whole + (bytes < FILLED ? bytes : FILLED));
    memset(b->data + bytes, FILL, whole - bytes);
    return KT_OK;
}

static void insert(kt_emulated_memory *m, size_t at, const kt_emulated_block *b) {
    memmove(m->block + at + 1, m->block + at, (m->n - at) * sizeof *b);
    m->block[at] = *b;
    m->n++;
}

kt_status kt_emulated_alloc(kt_emulated_memory *m, const char *name, size_t bytes, bool is_host,
                            void **out, kt_err *err) {
    const uint64_t whole = round_up(bytes, KT_EMULATED_ALIGN);
    kt_emulated_block b = {.is_host = is_host};

    *out = NULL;
    if (bytes > SIZE_MAX / 4 || (!is_host && whole > m->limit - m->used))
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu bytes: %llu of %llu are free", name,
                       bytes, (unsigned long long)(m->limit - m->used),
                       (unsigned long long)m->limit);
    KT_TRY(make_room(m, name, err));
    KT_TRY(map_block(name, bytes, &b, err));
    insert(m, place_of(m, b.mapped), &b);
    if (!is_host) m->used += whole;
    *out = b.data;
    return KT_OK;
}

kt_status kt_emulated_pin(kt_emulated_memory *m, const char *name, void *p, size_t bytes,
                          kt_err *err) {
    const kt_emulated_block b = {.data = p,
                                 .bytes = bytes,
                                 .mapped = p,
                                 .mapped_bytes = bytes,
                                 .is_host = true,
                                 .is_pinned = true};
    size_t at;

    KT_TRY(make_room(m, name, err));
    at = place_of(m, p);
    if (at < m->n && m->block[at].mapped < b.data + bytes)
        return kt_fail(err, KT_E_INVALID,
                       "%s: %zu bytes at %p to be pinned, of which some are known", name, bytes, p);
    insert(m, at, &b);
    return KT_OK;
}

static bool is_filled(const uint8_t *p, const uint8_t *end) {
    while (p < end && *p == FILL) p++;
    return p == end;
}

static bool is_damaged(const kt_emulated_block *b) {
    const uint8_t *end = b->data + round_up(b->bytes, KT_EMULATED_ALIGN);
    return !b->is_pinned && (!is_filled(b->mapped, b->data) || !is_filled(b->data + b->bytes, end));
}

const kt_emulated_block *kt_emulated_find(const kt_emulated_memory *m, const void *p) {
    const size_t at = place_of(m, p);
    const kt_emulated_block *b = m->block + at;

    if (at == m->n || (const uint8_t *)p < b->data) return NULL;
    return (const uint8_t *)p < b->data + b->bytes ? b : NULL;
}

kt_status kt_emulated_check(const kt_emulated_memory *m, const char *name, const char *what,
                            const void *p, size_t bytes, kt_err *err) {
    const kt_emulated_block *b = kt_emulated_find(m, p);

    if (!b)
        return kt_fail(err, KT_E_INVALID, "%s: %s of %zu bytes at %p, where nothing is allocated",
                       name, what, bytes, p);
    if (bytes > b->bytes - (size_t)((const uint8_t *)p - b->data))
        return kt_fail(err, KT_E_INVALID,
                       "%s: %s of %zu bytes at byte %zu of the block of %zu bytes at %p", name,
                       what, bytes, (size_t)((const uint8_t *)p - b->data), b->bytes,
                       (const void *)b->data);
    return KT_OK;
}

kt_status kt_emulated_check_host(const kt_emulated_memory *m, const char *name, const char *what,
                                 const void *p, size_t bytes, kt_err *err) {
    const kt_emulated_block *b = kt_emulated_find(m, p);

    if (!b) return KT_OK;
    if (b->is_host) return kt_emulated_check(m, name, what, p, bytes, err);
    return kt_fail(err, KT_E_INVALID, "%s: %s whose host's side, %p, is the device's own memory",
                   name, what, p);
}

static void unmap(const kt_emulated_block *b) {
    if (!b->is_pinned) munmap(b->mapped, b->mapped_bytes);
}

bool kt_emulated_free(kt_emulated_memory *m, void *p, bool *damaged) {
    const size_t at = place_of(m, p);
    const kt_emulated_block b = at < m->n ? m->block[at] : (kt_emulated_block){0};

    *damaged = false;
    if (at == m->n || b.data != p) return false;
    *damaged = is_damaged(&b);
    unmap(&b);
    if (!b.is_host) m->used -= round_up(b.bytes, KT_EMULATED_ALIGN);
    m->n--;
    memmove(m->block + at, m->block + at + 1, (m->n - at) * sizeof b);
    return true;
}

void kt_emulated_free_all(kt_emulated_memory *m) {
    for (size_t i = 0; i < m->n; i++) unmap(&m->block[i]);
    free(m->block);
    m->block = NULL;
    m->n = m->capacity = 0;
    m->used = 0;
}

const kt_emulated_block *kt_emulated_damaged(const kt_emulated_memory *m) {
    for (size_t i = 0; i < m->n; i++)
        if (is_damaged(&m->block[i])) return &m->block[i];
    return NULL;
}

/* Programs and their libraries, heaps and stacks lie from here on; below are the large maps of
 * sanitizers, where two small numbers side by side would look like an address. */
#define LOWEST UINT64_C(0x550000000000)

/* The kernel knows what is mapped: numbers that merely look like addresses hardly ever are. But two
 * counts side by side may be the beginning of a thread's heap, where the first is small. */
bool kt_emulated_is_foreign(const kt_emulated_memory *m, uint64_t address) {
    uint8_t *p = (uint8_t *)(uintptr_t)address;
    unsigned char resident;

    if ((uint32_t)address < 1 << 16 || address < LOWEST || address >> 47 || kt_emulated_find(m, p))
        return false;
    return mincore(p - address % PAGE, 1, &resident) == 0;
}
