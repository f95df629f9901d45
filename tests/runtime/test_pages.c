/* Pages: where keys, values and their scales lie, who has which page, and which beginnings of texts
 * are found again. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdint.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/kv/page_tier.h"

static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};
enum { TOKENS = KT_PREFIX_TOKENS };

/* ---- memory ---- */

Test(pages, have_the_bytes_of_their_rows_and_scales) {
    static const struct {
        kt_weight_format format;
        size_t bytes; /* of 2 layers, 3 heads of 8, one page: 768 rows */
    } cases[] = {{KT_W_BF16, 768 * 16},
                 {KT_W_INT8_CHANNEL, 768 * (8 + 4)},
                 {KT_W_FP8_CHANNEL, 768 * (8 + 4)}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_kv_shape s = {cases[i].format, 2, 3, 8, 0, 0, {0}, 0}, shared = s, indexed = s;
        size_t got = kt_kv_page_bytes(&s);
        shared.has_shared_rows = 1;
        indexed.index_dim = 32;
        cr_expect_eq(got, cases[i].bytes, "%s: %zu bytes", kt_weight_format_name(s.format), got);
        cr_expect_eq(kt_kv_bytes(&s, 64), got);
        cr_expect_eq(kt_kv_bytes(&s, 65), 2 * got);
        cr_expect_eq(kt_kv_page_bytes(&shared), got / 2);
        cr_expect_eq(kt_kv_page_bytes(&indexed), got + 2 * TOKENS * 32 * sizeof(uint16_t));
        indexed.bare[0] = 2; /* the second repeats what the first one picks */
        cr_expect_eq(kt_kv_page_bytes(&indexed), got + TOKENS * 32 * sizeof(uint16_t));
    }
}

Test(pages, refuse_what_cannot_be) {
    static const struct {
        kt_kv_shape shape;
        int64_t pages;
    } bad[] = {{{KT_W_BF16, 2, 3, 8, 0, 0, {0}, 0}, 0},
               {{KT_W_BF16, 2, 3, 8, 0, 0, {0}, 0}, -1},
               {{KT_W_BF16, 0, 3, 8, 0, 0, {0}, 0}, 5},
               {{KT_W_BF16, 2, 0, 8, 0, 0, {0}, 0}, 5},
               {{KT_W_BF16, 2, 3, 0, 0, 0, {0}, 0}, 5},
               {{KT_W_BF16, 2, 3, 8, 0, 0, {0}, 0}, INT64_MAX},
               {{KT_W_BF16, 2, 3, 8, 0, 0, {0}, 0}, (int64_t)1 << 31},
               {{KT_W_BF16, (int64_t)1 << 31, (int64_t)1 << 31, 8, 0, 0, {0}, 0}, 5},
               {{KT_W_INT8_CHANNEL, 1, 1, (int64_t)1 << 55, 0, 0, {0}, 0}, 5},
               {{KT_W_INT8_CHANNEL, 1, (int64_t)1 << 30, (int64_t)1 << 30, 0, 0, {0}, 0}, 5}};

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_page_pool p;
        kt_err err = {0};
        cr_expect_eq(kt_pages_init(&p, &bad[i].shape, bad[i].pages, NULL, &err), KT_E_INVALID,
                     "case %zu", i);
        cr_expect(strstr(err.message, "not possible"), "case %zu: %s", i, err.message);
        kt_pages_deinit(&p);
    }
}

/* The value of a row's element as the page holds it. */
static float element(const kt_page_pool *p, int64_t layer, int which, int64_t head, uint32_t page,
                     int64_t at, int64_t i) {
    const float *scales = kt_pages_scales(p, layer, which, head);
    const uint8_t *rows = (uint8_t *)kt_pages_rows(p, layer, which, head) + page * p->page_bytes;
    float x = kt_attn_item(p->shape.format, rows, at * p->shape.head_dim + i);
    return scales ? x * scales[(int64_t)page * TOKENS + at] : x;
}

enum { LAYERS = 2, HEADS = 3, DIM = 8, PAGES = 3 };

/* A number of its own for every row of a page and its like in the others, exact in each format. */
static float value_of(int64_t row) {
    return (float)(1 + row % 7) * (row % 2 ? -1 : 1) * (float)(1 << (row / 7 % 20));
}

static int64_t number(int64_t layer, int which, int64_t head, uint32_t page, int64_t at) {
    return (((layer * 2 + which) * HEADS + head) * PAGES + page) * TOKENS + at;
}

static void expect_rows(const kt_page_pool *p, uint32_t page, uint32_t as, int64_t n) {
    for (int64_t row = 0; row < LAYERS * 2 * HEADS * n; row++) {
        int64_t at = row % n, head = row / n % HEADS, layer = row / n / HEADS / 2;
        int which = (int)(row / n / HEADS % 2);
        float want = value_of(number(layer, which, head, as, at));
        for (int i = 0; i < DIM; i++) {
            float got = element(p, layer, which, head, page, at, i);
            cr_assert_float_eq(got, want, 1e-6f * (want < 0 ? -want : want),
                               "%s: layer %d %c head %d page %d place %d: %g, expected %g",
                               kt_weight_format_name(p->shape.format), (int)layer, "kv"[which],
                               (int)head, (int)page, (int)at, (double)got, (double)want);
        }
    }
}

/* Every row is written once; none disturbs another, index keys neither; a copy has the rows that
 * were asked for and no more. */
Test(pages, rows_scales_and_index_keys_do_not_overlap) {
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++) {
        kt_kv_shape shape = {formats[f], LAYERS, HEADS, DIM, 0, 16, {0}, 0};
        kt_page_pool p;
        kt_err err = {0};

        cr_assert_eq(kt_pages_init(&p, &shape, PAGES, NULL, &err), KT_OK, "%s", err.message);
        cr_assert_eq(p.scales != NULL, kt_attn_has_scales(formats[f]) != 0);
        for (int layer = 0; layer < LAYERS; layer++)
            for (uint32_t page = 0; page < PAGES; page++)
                memset(kt_pages_index(&p, layer, page), (int)(1 + layer * PAGES + (int)page),
                       TOKENS * 16 * sizeof(uint16_t));
        for (int64_t row = 0; row < LAYERS * 2 * HEADS * PAGES * TOKENS; row++) {
            int64_t at = row % TOKENS, page = row / TOKENS % PAGES;
            int64_t head = row / TOKENS / PAGES % HEADS, layer = row / TOKENS / PAGES / HEADS / 2;
            float x[DIM];
            for (int i = 0; i < DIM; i++) x[i] = value_of(row);
            kt_pages_put(&p, layer, (int)(row / TOKENS / PAGES / HEADS % 2), head, (uint32_t)page,
                         at, x);
        }
        for (uint32_t page = 0; page < PAGES; page++) expect_rows(&p, page, page, TOKENS);
        kt_pages_copy(&p, 0, 2, 5);
        expect_rows(&p, 2, 0, 5);
        cr_expect_float_eq(element(&p, 1, 1, 2, 2, 5, 0), value_of(number(1, 1, 2, 2, 5)), 1e-3f);
        for (int layer = 0; layer < LAYERS; layer++) {
            const uint8_t *index = (const uint8_t *)kt_pages_index(&p, layer, 2);
            cr_expect_eq(index[0], 1 + layer * PAGES);
            cr_expect_eq(index[5 * 16 * sizeof(uint16_t) - 1], 1 + layer * PAGES);
            cr_expect_eq(index[5 * 16 * sizeof(uint16_t)], 3 + layer * PAGES);
            cr_expect_eq(index[TOKENS * 16 * sizeof(uint16_t) - 1], 3 + layer * PAGES);
        }
        kt_pages_deinit(&p);
    }
}

/* Layers without index keys take no room, and those behind them are found. */
Test(pages, bare_layers_have_no_index_keys) {
    kt_kv_shape shape = {KT_W_BF16, 70, 1, 8, 1, 16, {0}, 0};
    kt_page_pool p;
    kt_err err = {0};

    shape.bare[0] = 6 | (uint64_t)1 << 62; /* layers 1, 2, 62 and 64 */
    shape.bare[1] = 1;
    cr_assert_eq(kt_pages_init(&p, &shape, 2, NULL, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_pages_index(&p, 3, 0) - kt_pages_index(&p, 0, 0), 2 * TOKENS * 16);
    cr_expect_eq(kt_pages_index(&p, 65, 1) - kt_pages_index(&p, 63, 1), 2 * TOKENS * 16);
    memset(kt_pages_index(&p, 69, 0), 1, TOKENS * 16 * sizeof(uint16_t));
    memset(kt_pages_index(&p, 69, 1), 2, TOKENS * 16 * sizeof(uint16_t));
    kt_pages_copy(&p, 0, 1, 3);
    cr_expect_eq(kt_pages_index(&p, 69, 1)[3 * 16 - 1], 0x0101);
    cr_expect_eq(kt_pages_index(&p, 69, 1)[3 * 16], 0x0202);
    kt_pages_deinit(&p);
}

Test(pages, memory_of_a_size_holds_so_many) {
    const kt_kv_shape s = {KT_W_BF16, 2, 3, 8, 0, 0, {0}, 0};
    const size_t page = kt_kv_page_bytes(&s), slot = 1600 * sizeof(float);
    kt_kv_plan p;

    cr_assert(kt_kv_plan_least(kt_kv_sizes_of(&s, 0), 100, &p));
    cr_expect_eq(p.pages, 2);
    cr_expect_eq(p.slots, 0);
    cr_expect_eq(p.bytes, 2 * page);
    cr_assert(kt_kv_plan_least(kt_kv_sizes_of(&s, 1590), 100, &p));
    cr_expect_eq(p.slots, KT_LEAST_SLOTS);
    cr_expect_eq(p.bytes, 2 * page + KT_LEAST_SLOTS * slot);
    cr_expect_not(kt_kv_plan_least(kt_kv_sizes_of(&s, 0), INT64_MAX, &p));
    kt_kv_plan_within(kt_kv_sizes_of(&s, 0), 7 * page + page / 2, &p);
    cr_expect_eq(p.pages, 7);
    cr_expect_eq(p.bytes, 7 * page);
    kt_kv_plan_within(kt_kv_sizes_of(&s, 1590), KT_LEAST_SLOTS * slot - 1, &p);
    cr_expect_eq(p.pages, 0);
    kt_kv_plan_within(kt_kv_sizes_of(&s, 1590), KT_LEAST_SLOTS * slot + 6 * slot + 3 * page, &p);
    cr_expect_eq(p.slots, KT_LEAST_SLOTS + (int64_t)((6 * slot + 3 * page) / 2 / slot));
    cr_expect_leq(p.bytes, KT_LEAST_SLOTS * slot + 6 * slot + 3 * page);
    cr_expect_geq(p.pages, 2);
    kt_kv_plan_within(kt_kv_sizes_of(&s, 1590), 1000 * slot, &p);
    cr_expect_eq(p.slots, KT_MOST_SLOTS);
}

/* ---- texts that were seen ---- */

static void fill(int32_t *tokens, int32_t first) {
    for (int i = 0; i < TOKENS; i++) tokens[i] = first + i;
}

/* However few bits of a key count, only the very same text is found. */
Test(pages, texts_with_equal_keys_are_told_apart) {
    for (int bits = 0; bits <= 64; bits += 32) {
        int32_t a[TOKENS], b[TOKENS], c[TOKENS];
        kt_prefix *p;

        fill(a, 0), fill(b, 0), fill(c, 1000);
        b[TOKENS - 1]++;
        cr_assert_eq(kt_prefix_create(8, 1, bits, &p, NULL), KT_OK);
        kt_prefix_add(p, 0, KT_PREFIX_NONE, a);
        cr_expect_eq(kt_prefix_find(p, KT_PREFIX_NONE, b), KT_PREFIX_NONE, "%d bits", bits);
        kt_prefix_add(p, 5, KT_PREFIX_NONE, b);
        kt_prefix_add(p, 2, 0, c);
        kt_prefix_add(p, 3, 5, c);
        cr_expect_eq(kt_prefix_find(p, KT_PREFIX_NONE, a), 0, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, KT_PREFIX_NONE, b), 5, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, 0, c), 2, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, 5, c), 3, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, 2, c), KT_PREFIX_NONE, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, KT_PREFIX_NONE, c), KT_PREFIX_NONE, "%d bits", bits);
        kt_prefix_remove(p, 2);
        cr_expect_eq(kt_prefix_find(p, 0, c), KT_PREFIX_NONE, "%d bits", bits);
        cr_expect_eq(kt_prefix_find(p, 5, c), 3, "%d bits", bits);
        kt_prefix_destroy(p);
    }
}

/* Take a page for a text behind `before` and make it known. */
static uint32_t learn(kt_page_pool *p, int64_t before, int32_t first) {
    int32_t tokens[TOKENS];
    int64_t page = kt_pages_take(p);

    cr_assert_geq(page, 0);
    fill(tokens, first);
    kt_prefix_add(p->prefix, (uint32_t)page, before, tokens);
    return (uint32_t)page;
}

/* Of unused pages those go first that were unused for longest, the end of a text before its
 * beginning; pages with a user stay. A snapshot goes with its page. */
Test(pages, the_longest_unused_is_given_up_first) {
    const kt_kv_shape shape = {KT_W_BF16, 1, 1, 8, 0, 0, {0}, 0};
    kt_page_pool p;
    kt_states states;
    uint32_t a, a2, b, b2, shared;

    cr_assert_eq(kt_states_init(&states, 2, 10, 5, NULL), KT_OK);
    cr_assert_eq(kt_pages_init(&p, &shape, 5, &states, NULL), KT_OK);
    a = learn(&p, KT_PREFIX_NONE, 0), a2 = learn(&p, a, 100);
    b = learn(&p, KT_PREFIX_NONE, 200), b2 = learn(&p, b, 300);
    shared = learn(&p, b, 400);
    kt_states_keep(&states, kt_states_take(&states), a2);
    kt_states_keep(&states, kt_states_take(&states), b2);
    cr_expect_eq(kt_pages_take(&p), -1);
    kt_pages_share(&p, b); /* the text b, shared is another sequence's */
    kt_pages_give(&p, b2), kt_pages_give(&p, b);
    kt_pages_give(&p, a2), kt_pages_give(&p, a);
    cr_expect_eq(kt_pages_room(&p), 3);
    kt_pages_share(&p, a), kt_pages_share(&p, a2); /* used again and given back: now the latest */
    kt_pages_give(&p, a2), kt_pages_give(&p, a);
    cr_expect_eq(kt_pages_take(&p), b2);
    cr_expect_not(kt_states_has(&states, b2));
    cr_expect_eq(kt_pages_take(&p), a2);
    cr_expect_eq(kt_states_room(&states), 2);
    cr_expect_eq(kt_pages_take(&p), a);
    cr_expect_eq(kt_pages_take(&p), -1, "b and its follower have users");
    kt_pages_give(&p, shared), kt_pages_give(&p, b);
    kt_pages_drop(&p);
    cr_expect_eq(p.n_free, 2);
    kt_pages_deinit(&p);
    kt_states_deinit(&states);
}

Test(pages, snapshots_make_way_for_states_of_sequences) {
    kt_states s;
    int32_t a, b, c;

    cr_assert_eq(kt_states_init(&s, 3, 10, 8, NULL), KT_OK);
    a = kt_states_take(&s), b = kt_states_take(&s), c = kt_states_take(&s);
    cr_expect_eq(kt_states_take(&s), KT_STATE_NONE);
    cr_expect_eq((uintptr_t)kt_states_at(&s, b) % 64, 0);
    kt_states_keep(&s, a, 7), kt_states_keep(&s, b, 1);
    cr_expect_eq(kt_states_use(&s, 7), a);
    cr_expect_eq(kt_states_use(&s, 3), KT_STATE_NONE);
    cr_expect_eq(kt_states_take(&s), b, "page 7 was used after page 1");
    cr_expect_not(kt_states_has(&s, 1));
    kt_states_give(&s, c);
    kt_states_drop(&s, 7);
    kt_states_drop(&s, 7);
    cr_expect_eq(kt_states_room(&s), 2);
    cr_expect_eq(s.n_kept, 0);
    kt_states_give(&s, KT_STATE_NONE);
    kt_states_deinit(&s);
}

/* ---- behind the pool ---- */

enum { DEPTH = 4, KINDS = 3 }; /* pages of a text at most; different 64 tokens */

/* What somebody else keeps: of each page one number that stands for all of its text. */
typedef struct keeper {
    uint64_t text[16];
    int saved, loaded;
} keeper;

static void save_number(void *arg, uint32_t page, uint8_t *to) {
    keeper *k = arg;
    memcpy(to, &k->text[page], sizeof k->text[page]);
    k->saved++;
}
static void load_number(void *arg, uint32_t page, uint8_t *from) {
    keeper *k = arg;
    memcpy(&k->text[page], from, sizeof k->text[page]);
    k->loaded++;
}

static kt_status open_behind(kt_page_pool *p, keeper *k, int64_t pages, int64_t behind,
                             kt_err *err) {
    const kt_kv_shape shape = {KT_W_BF16, 1, 1, 8, 0, 0, {0}, 0};

    cr_assert_eq(kt_pages_init(p, &shape, pages, NULL, err), KT_OK, "%s", err->message);
    p->elsewhere = (kt_kept_elsewhere){
        .arg = k, .has_all = true, .save_page = save_number, .load_page = load_number};
    return kt_page_tier_create(p, behind, err);
}

/* One text as a sequence takes it: known pages, the others computed, all given back. Returns the
 * pages that were computed. */
static int run_text(kt_page_pool *p, keeper *k, const int *kind, int depth) {
    int32_t token[DEPTH * TOKENS];
    int64_t page[DEPTH], before = KT_PREFIX_NONE;
    uint64_t text = 7;
    int computed = 0;

    for (int i = 0; i < depth * TOKENS; i++) token[i] = kind[i / TOKENS];
    kt_page_tier_restore(p, token, depth * TOKENS + 5);
    for (int i = 0; i < depth; i++, before = page[i - 1]) {
        text = text * 31 + (uint64_t)kind[i];
        page[i] = computed ? KT_PREFIX_NONE : kt_prefix_find(p->prefix, before, token + i * TOKENS);
        if (page[i] != KT_PREFIX_NONE) {
            kt_pages_share(p, (uint32_t)page[i]);
        } else {
            page[i] = kt_pages_take(p);
            cr_assert_geq(page[i], 0);
            k->text[page[i]] = text;
            kt_prefix_add(p->prefix, (uint32_t)page[i], before, token + i * TOKENS);
            kt_page_tier_keep(p, (uint32_t)page[i], before, token + i * TOKENS);
            computed++;
        }
        cr_assert_eq(k->text[page[i]], text, "page %d of a text of %d is another's", i, depth);
    }
    while (depth-- > 0) kt_pages_give(p, (uint32_t)page[depth]);
    return computed;
}

/* Texts at random over pools and tiers of a few pages: whatever comes back is of that very text. */
Test(pages, come_back_from_behind_the_pool_as_they_were) {
    static const int64_t behind[] = {1, 3, 6, 200};
    kt_rng rng;

    kt_rng_seed(&rng, 11);
    for (size_t b = 0; b < sizeof behind / sizeof *behind; b++) {
        keeper k = {.saved = 0};
        kt_page_pool p;
        kt_err err;
        cr_assert_eq(open_behind(&p, &k, DEPTH + 1, behind[b], &err), KT_OK, "%s", err.message);
        for (int round = 0; round < 600; round++) {
            const int depth = 1 + (int)kt_rng_below(&rng, DEPTH);
            int kind[DEPTH];
            for (int i = 0; i < depth; i++) kind[i] = (int)kt_rng_below(&rng, KINDS);
            run_text(&p, &k, kind, depth);
        }
        cr_expect_gt(k.loaded, 0, "nothing came back from %lld pages", (long long)behind[b]);
        /* All texts fit: each page was computed, and copied down, once. */
        if (behind[b] == 200) cr_expect_leq(k.saved, 3 + 9 + 27 + 81, "%d copies", k.saved);
        kt_pages_deinit(&p);
    }
}

/* Nothing is computed again while the tier has it. */
Test(pages, a_text_that_was_given_up_is_not_computed_again) {
    static const int a[DEPTH] = {0, 1, 2, 0}, b[DEPTH] = {1, 1, 1, 1};
    keeper k = {.saved = 0};
    kt_page_pool p;
    kt_err err;

    cr_assert_eq(open_behind(&p, &k, DEPTH, 2 * DEPTH, &err), KT_OK, "%s", err.message);
    cr_expect_eq(run_text(&p, &k, a, DEPTH), DEPTH);
    cr_expect_eq(run_text(&p, &k, b, DEPTH), DEPTH);
    cr_expect_eq(run_text(&p, &k, a, DEPTH), 0);
    cr_expect_eq(k.loaded, DEPTH);
    cr_expect_eq(run_text(&p, &k, a, DEPTH), 0);
    cr_expect_eq(k.loaded, DEPTH, "what the pool has does not cross");
    kt_pages_deinit(&p);
}

Test(pages, only_a_device_that_keeps_all_has_pages_behind_it) {
    const kt_kv_shape shape = {KT_W_BF16, 1, 1, 8, 0, 0, {0}, 0};
    keeper k = {.saved = 0};
    kt_page_pool p;
    kt_err err;

    cr_assert_eq(kt_pages_init(&p, &shape, 2, NULL, &err), KT_OK);
    cr_expect_eq(kt_page_tier_create(&p, 3, &err), KT_E_UNSUPPORTED);
    cr_expect_null(p.tier);
    kt_pages_deinit(&p);
    cr_expect_eq(open_behind(&p, &k, 2, 0, &err), KT_E_INVALID);
    kt_pages_deinit(&p);
}
