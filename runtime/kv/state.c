/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/state.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"

static int allocate(kt_states *s) {
    const size_t n = (size_t)s->n, pages = (size_t)s->n_pages;

    s->free = malloc(n * sizeof *s->free);
    s->page = malloc(n * sizeof *s->page);
    s->older = malloc(n * sizeof *s->older);
    s->young = malloc(n * sizeof *s->young);
    s->of_page = malloc(pages * sizeof *s->of_page);
    return s->free && s->page && s->older && s->young && s->of_page;
}

kt_status kt_states_init(kt_states *s, int64_t n, int64_t floats, int64_t n_pages, kt_err *err) {
    uint64_t bytes;
    kt_status st = KT_OK;

    *s = (kt_states){.n = n,
                     .floats = (floats + 15) / 16 * 16,
                     .n_pages = n_pages,
                     .oldest = KT_STATE_NONE,
                     .youngest = KT_STATE_NONE};
    if (kt_mul_overflow((uint64_t)s->floats * sizeof(float), (uint64_t)n, &bytes))
        return kt_fail(err, KT_E_INVALID, "%lld states of %lld numbers are not possible",
                       (long long)n, (long long)floats);
    if (!allocate(s)) st = kt_fail(err, KT_E_NOMEM, "no memory for %lld states", (long long)n);
    if (st == KT_OK) st = kt_buffer_reserve((size_t)bytes, KT_PAGES_ADVISED, -1, &s->buffer, err);
    if (st != KT_OK) {
        kt_states_deinit(s);
        return st;
    }
    for (int64_t i = 0; i < n; i++) {
        s->free[i] = (int32_t)(n - 1 - i);
        s->page[i] = KT_STATE_NONE;
    }
    memset(s->of_page, 0xff, (size_t)n_pages * sizeof *s->of_page); /* KT_STATE_NONE */
    s->n_free = n;
    return KT_OK;
}

void kt_states_deinit(kt_states *s) {
    kt_buffer_destroy(&s->buffer);
    free(s->free);
    free(s->page);
    free(s->older);
    free(s->young);
    free(s->of_page);
    memset(s, 0, sizeof *s);
}

float *kt_states_at(const kt_states *s, int32_t slot) {
    return (float *)s->buffer.data + slot * s->floats;
}

void kt_states_copy(const kt_states *s, int32_t from, int32_t to) {
    if (!s->elsewhere.has_all)
        memcpy(kt_states_at(s, to), kt_states_at(s, from), (size_t)s->floats * sizeof(float));
    if (s->elsewhere.arg) s->elsewhere.copy_state(s->elsewhere.arg, from, to);
}

void kt_states_clear(const kt_states *s, int32_t slot) {
    if (!s->elsewhere.has_all) memset(kt_states_at(s, slot), 0, (size_t)s->floats * sizeof(float));
    if (s->elsewhere.arg) s->elsewhere.clear_state(s->elsewhere.arg, slot);
}

int64_t kt_states_room(const kt_states *s) {
    return s->n_free + s->n_kept;
}

static void join(kt_states *s, int32_t older, int32_t young) {
    if (older == KT_STATE_NONE)
        s->oldest = young;
    else
        s->young[older] = young;
    if (young == KT_STATE_NONE)
        s->youngest = older;
    else
        s->older[young] = older;
}

static void append(kt_states *s, int32_t slot) {
    join(s, s->youngest, slot);
    join(s, slot, KT_STATE_NONE);
}

void kt_states_drop(kt_states *s, uint32_t page) {
    const int32_t slot = s->of_page[page];

    if (slot == KT_STATE_NONE) return;
    join(s, s->older[slot], s->young[slot]);
    s->of_page[page] = s->page[slot] = KT_STATE_NONE;
    s->n_kept--;
    s->free[s->n_free++] = slot;
}

int32_t kt_states_take(kt_states *s) {
    if (s->n_free == 0 && s->oldest != KT_STATE_NONE)
        kt_states_drop(s, (uint32_t)s->page[s->oldest]);
    return s->n_free ? s->free[--s->n_free] : KT_STATE_NONE;
}

void kt_states_give(kt_states *s, int32_t slot) {
    if (slot != KT_STATE_NONE) s->free[s->n_free++] = slot;
}

void kt_states_keep(kt_states *s, int32_t slot, uint32_t page) {
    s->page[slot] = (int32_t)page;
    s->of_page[page] = slot;
    s->n_kept++;
    append(s, slot);
}

int32_t kt_states_use(kt_states *s, uint32_t page) {
    const int32_t slot = s->of_page[page];

    if (slot == KT_STATE_NONE || slot == s->youngest) return slot;
    join(s, s->older[slot], s->young[slot]);
    append(s, slot);
    return slot;
}

bool kt_states_has(const kt_states *s, uint32_t page) {
    return s->of_page[page] != KT_STATE_NONE;
}
