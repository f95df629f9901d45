/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/page_tier.h"

#include <stdlib.h>

#include "base/err.h"

/* Where a page of the pool is here; it is while the place has that age. */
typedef struct copy_of_page {
    int32_t place;
    uint32_t age;
} copy_of_page;

struct kt_page_tier {
    kt_prefix *prefix; /* of places; all of them are idle, the longest unused first */
    kt_buffer memory;
    size_t page_bytes;
    int64_t n, n_used;
    int32_t *before;    /* [n] the place of the page before, or KT_PREFIX_NONE */
    uint32_t *age;      /* [n] counts what was there; 0 = nothing was */
    copy_of_page *copy; /* [pages of the pool] */
};

static kt_status allocate(kt_page_tier *t, const kt_page_pool *p, kt_err *err) {
    t->before = calloc((size_t)t->n, sizeof *t->before);
    t->age = calloc((size_t)t->n, sizeof *t->age);
    t->copy = calloc((size_t)p->n, sizeof *t->copy);
    if (!t->before || !t->age || !t->copy)
        return kt_fail(err, KT_E_NOMEM, "no memory for %lld pages behind the cache",
                       (long long)t->n);
    KT_TRY(kt_prefix_create(t->n, (uint64_t)p->shape.format, 64, &t->prefix, err));
    return kt_buffer_reserve((size_t)t->n * t->page_bytes, KT_PAGES_ADVISED, -1, &t->memory, err);
}

kt_status kt_page_tier_create(kt_page_pool *p, int64_t n, kt_err *err) {
    kt_page_tier *t;
    kt_status st;

    if (!p->elsewhere.has_all || !p->elsewhere.save_page || p->states || p->shape.entry_bytes)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "pages in the host's memory behind the cache, expected a device that keeps "
                       "all keys and values of a model without recurrent layers");
    if (n < 1 || n > INT32_MAX)
        return kt_fail(err, KT_E_INVALID, "%lld pages behind the cache, expected 1 to %d",
                       (long long)n, INT32_MAX);
    t = calloc(1, sizeof *t);
    if (!t) return kt_fail(err, KT_E_NOMEM, "no memory for pages behind the cache");
    t->n = n;
    t->page_bytes = kt_kv_page_bytes(&p->shape);
    st = allocate(t, p, err);
    if (st != KT_OK) {
        kt_page_tier_destroy(t);
        return st;
    }
    p->tier = t;
    return KT_OK;
}

void kt_page_tier_destroy(kt_page_tier *t) {
    if (!t) return;
    kt_buffer_destroy(&t->memory);
    kt_prefix_destroy(t->prefix);
    free(t->before);
    free(t->age);
    free(t->copy);
    free(t);
}

kt_buffer *kt_page_tier_memory(kt_page_tier *t) {
    return &t->memory;
}

/* ---- places ---- */

static uint8_t *bytes_of(const kt_page_tier *t, int64_t place) {
    return (uint8_t *)t->memory.data + (size_t)place * t->page_bytes;
}

/* Pages before a page become younger than it, so that the oldest place is always the last of its
 * text. */
static void touch(kt_page_tier *t, int64_t place) {
    for (; place != KT_PREFIX_NONE; place = t->before[place]) {
        kt_prefix_set_idle(t->prefix, (uint32_t)place, false);
        kt_prefix_set_idle(t->prefix, (uint32_t)place, true);
    }
}

/* The oldest one when all are used; none if that is the page before: this text fills the tier. */
static int64_t take_place(kt_page_tier *t, int64_t before) {
    int64_t place;

    if (t->n_used < t->n) return t->n_used++;
    place = kt_prefix_oldest(t->prefix);
    if (place == before) return KT_PREFIX_NONE;
    kt_prefix_remove(t->prefix, (uint32_t)place);
    return place;
}

static void note(kt_page_tier *t, uint32_t page, int64_t place) {
    t->copy[page] = (copy_of_page){(int32_t)place, t->age[place]};
}

/* ---- down ---- */

void kt_page_tier_keep(kt_page_pool *p, uint32_t page, int64_t before, const int32_t *tokens) {
    kt_page_tier *t = p->tier;
    int64_t behind = KT_PREFIX_NONE, place;

    if (!t) return;
    t->copy[page].age = 0; /* whatever it held before */
    if (before != KT_PREFIX_NONE) {
        const copy_of_page *c = &t->copy[before];
        if (c->age == 0 || t->age[c->place] != c->age) return;
        behind = c->place;
    }
    place = kt_prefix_find(t->prefix, behind, tokens);
    if (place == KT_PREFIX_NONE) {
        place = take_place(t, behind);
        if (place == KT_PREFIX_NONE) return;
        t->before[place] = (int32_t)behind;
        t->age[place]++;
        kt_prefix_add(t->prefix, (uint32_t)place, behind, tokens);
        p->elsewhere.save_page(p->elsewhere.arg, page, bytes_of(t, place));
    }
    touch(t, place);
    note(t, page, place);
}

/* ---- up ---- */

/* The next page of the text, which is held; KT_PREFIX_NONE = neither has it, or there is no
 * room. */
static int64_t hold(kt_page_pool *p, int64_t before, int64_t *place, const int32_t *tokens,
                    int64_t *restored) {
    kt_page_tier *t = p->tier;
    int64_t page = kt_prefix_find(p->prefix, before, tokens);

    *place = kt_prefix_find(t->prefix, *place, tokens);
    if (page != KT_PREFIX_NONE) {
        kt_pages_share(p, (uint32_t)page);
        return page;
    }
    if (*place == KT_PREFIX_NONE) return KT_PREFIX_NONE;
    page = kt_pages_take(p);
    if (page < 0) return KT_PREFIX_NONE;
    p->elsewhere.load_page(p->elsewhere.arg, (uint32_t)page, bytes_of(t, *place));
    kt_prefix_add(p->prefix, (uint32_t)page, before, tokens);
    note(t, (uint32_t)page, *place);
    ++*restored;
    return page;
}

int64_t kt_page_tier_restore(kt_page_pool *p, const int32_t *tokens, int64_t n) {
    const int64_t most = n / KT_PREFIX_TOKENS;
    int64_t place = KT_PREFIX_NONE, page = KT_PREFIX_NONE, held = 0, restored = 0;
    uint32_t *pages;

    if (!p->tier || most < 1) return 0;
    pages = malloc((size_t)most * sizeof *pages);
    if (!pages) return 0; /* the text is computed again */
    for (; held < most; held++) {
        const int64_t last = place;
        page = hold(p, page, &place, tokens + held * KT_PREFIX_TOKENS, &restored);
        if (page == KT_PREFIX_NONE) break;
        pages[held] = (uint32_t)page;
        if (place != KT_PREFIX_NONE) continue;
        touch(p->tier, last);
        held++;
        break; /* what the pool knows behind it needs no help */
    }
    if (place != KT_PREFIX_NONE) touch(p->tier, place);
    while (held > 0) kt_pages_give(p, pages[--held]);
    free(pages);
    return restored;
}
