/* The indexer: scores against the double reference, and which keys they pick.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/indexer/index_pick.h"
#include "kernels/indexer/index_gate.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

ParameterizedTestParameters(indexer, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_INDEX);
}

ParameterizedTest(size_t *index, indexer, every_variant_is_within_its_bound, .timeout = 60) {
    /* rows, heads, numbers, keys */
    static const int64_t shapes[][4] = {{1, 1, 32, 1},    {1, 64, 128, 130}, {2, 4, 64, 64},
                                        {3, 5, 32, 63},   {1, 7, 96, 65},    {5, 2, 32, 17},
                                        {1, 3, 256, 200}, {2, 13, 64, 15},   {1, 2, 7, 9}};
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = {{0}};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++)
        for (uint64_t seed = 1; seed <= 6; seed++) {
            const int64_t *shape = shapes[i / 2];
            const kt_problem p = {.op = KT_OP_INDEX,
                                  .weights = KT_W_BF16,
                                  .m = shape[0],
                                  .n = shape[1],
                                  .k = shape[2],
                                  .kv_heads = i % 2 ? shape[1] : 0, /* of each head, or summed */
                                  .context = shape[3]};
            if (p.k % 32 != 0 && v->accepts(&p, &config, NULL) == KT_E_UNSUPPORTED) continue;
            cr_assert(kt_index_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "%s", err.message);
        }
}

ParameterizedTestParameters(indexer, reads_and_writes_nothing_past_its_keys) {
    return kt_variants_of(KT_OP_INDEX);
}

ParameterizedTest(size_t *index, indexer, reads_and_writes_nothing_past_its_keys) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_problem p = {.op = KT_OP_INDEX, .weights = KT_W_BF16, .n = 3, .k = 32};
    const kt_config config = {{0}};
    size_t bytes = v->workspace_bytes ? v->workspace_bytes(&p, &config) : 0;
    void *scratch = kt_guard_alloc(bytes + 64, 64, 0);

    kt_skip_without_isa(v->isa, v->name);
    for (int64_t n = 1; n < 70; n += 3) {
        uint16_t *keys = kt_guard_alloc((size_t)n * 32 * 2, 2, 0x3e);
        float *q = kt_guard_alloc(3 * 32 * 4, 4, 0x3e), *w = kt_guard_alloc(3 * 4, 4, 0x3e);
        float *score = kt_guard_alloc((size_t)n * 4, 4, 0);
        v->index(&(kt_index_call){.problem = &p,
                                  .config = &config,
                                  .q = q,
                                  .ldq = 96,
                                  .w = w,
                                  .ldw = 3,
                                  .keys = keys,
                                  .ldk = 32,
                                  .n_keys = n,
                                  .row_end = 1,
                                  .score = score,
                                  .lds = n,
                                  .scratch = scratch});
        for (int64_t i = 0; i < n; i++) cr_assert_gt(score[i], 0);
        kt_guard_free(keys);
        kt_guard_free(q);
        kt_guard_free(w);
        kt_guard_free(score);
    }
    kt_guard_free(scratch);
}

/* Both vector widths name the same class of bits: which keys are picked does not depend on them. */
Test(indexer, widths_agree_to_the_bit) {
    enum { N = 200, HEADS = 9, DIM = 64 };
    const kt_problem p = {.op = KT_OP_INDEX, .weights = KT_W_BF16, .n = HEADS, .k = DIM};
    const kt_config config = {{0}};
    static uint16_t keys[N * DIM];
    static float q[HEADS * DIM], w[HEADS], first[N], score[N];
    const kt_variant *of_first = NULL;
    void *scratch = kt_guard_alloc(DIM * 64 * 4, 64, 0);
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    for (int i = 0; i < N * DIM; i++) keys[i] = (uint16_t)(0x3f00 + kt_rng_below(&rng, 0x100));
    for (int i = 0; i < HEADS * DIM; i++) q[i] = kt_rng_normal(&rng);
    for (int i = 0; i < HEADS; i++) w[i] = kt_rng_normal(&rng);
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op != KT_OP_INDEX || (v->isa & ~kt_isa_available()) || !v->isa) continue;
        v->index(&(kt_index_call){.problem = &p,
                                  .config = &config,
                                  .q = q,
                                  .ldq = HEADS * DIM,
                                  .w = w,
                                  .ldw = HEADS,
                                  .keys = keys,
                                  .ldk = DIM,
                                  .n_keys = N,
                                  .row_end = 1,
                                  .score = of_first ? score : first,
                                  .lds = N,
                                  .scratch = scratch});
        if (of_first && kt_variant_same_bits(v, of_first))
            cr_expect_arr_eq(score, first, sizeof score, "%s and %s", v->name, of_first->name);
        if (!of_first) of_first = v;
    }
    kt_guard_free(scratch);
}

/* ---- picking ---- */

static const float *sorted_scores; /* of descending: qsort has no argument for it */

static int descending(const void *a, const void *b) {
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    const float s = sorted_scores[x], t = sorted_scores[y];

    if (isnan(s) || isnan(t)) return isnan(s) != isnan(t) ? isnan(s) - isnan(t) : x - y;
    return s > t ? -1 : s < t ? 1 : x - y;
}

static int ascending(const void *a, const void *b) {
    return *(const int32_t *)a - *(const int32_t *)b;
}

static void check_pick(const float *score, int64_t n, int64_t count) {
    int32_t *want = malloc((size_t)n * sizeof *want);
    int32_t *got = kt_guard_alloc((size_t)count * sizeof *got, 4, 0xff);

    for (int64_t i = 0; i < n; i++) want[i] = (int32_t)i;
    sorted_scores = score;
    qsort(want, (size_t)n, sizeof *want, descending);
    qsort(want, (size_t)count, sizeof *want, ascending);
    kt_index_pick(score, n, count, got);
    cr_assert_arr_eq(got, want, (size_t)count * sizeof *got, "%lld of %lld", (long long)count,
                     (long long)n);
    free(want);
    kt_guard_free(got);
}

Test(index_pick, picks_what_a_sort_would) {
    enum { N = 3000 };
    static float score[N];
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (int kind = 0; kind < 5; kind++) {
        for (int i = 0; i < N; i++) {
            const float x = kt_rng_normal(&rng);
            score[i] = kind == 0   ? x
                       : kind == 1 ? roundf(2 * x)          /* many equals of both signs */
                       : kind == 2 ? 1.0f + x * 0x1p-22f    /* differ in the last bits */
                       : kind == 3 ? (i % 3 ? 0.0f : -0.0f) /* equal zeros */
                                   : (i % 5 ? x * 1e30f : -x * 1e-42f); /* tails, denormals */
        }
        for (int64_t n = 1; n <= N; n = n * 3 + 1)
            for (int64_t count = 0; count <= n; count = count * 2 + 1) check_pick(score, n, count);
        check_pick(score, N, N);
    }
}

Test(index_pick, what_is_not_finite_has_its_place) {
    static const float score[] = {NAN, 1, -INFINITY, NAN, INFINITY, 0, -1, INFINITY};

    for (int64_t count = 0; count <= 8; count++) check_pick(score, 8, count);
}

static void write_queries(const kt_index_call *c) {
    for (int64_t r = c->row_begin; r < c->row_end; r++)
        memcpy(c->score + r * c->lds, c->q, (size_t)c->n_keys * sizeof *c->score);
}

Test(indexer, the_gate_finds_wrong_scores) {
    const kt_variant wrong = {
        .name = "wrong", .op = KT_OP_INDEX, .bits = "w", .index = write_queries};
    const kt_problem p = {
        .op = KT_OP_INDEX, .weights = KT_W_BF16, .m = 1, .n = 2, .k = 16, .context = 5};
    const kt_config config = {{0}};

    cr_expect_eq(kt_index_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
}

ParameterizedTestParameters(indexer, refuses_what_it_cannot_score) {
    return kt_variants_of(KT_OP_INDEX);
}

ParameterizedTest(size_t *index, indexer, refuses_what_it_cannot_score) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = {{0}};
    kt_problem p = {.op = KT_OP_INDEX, .weights = KT_W_FP8_CHANNEL, .n = 2, .k = 64};
    kt_err why;

    kt_skip_without_isa(v->isa, v->name);
    cr_expect_eq(v->accepts(&p, &config, &why), KT_E_UNSUPPORTED);
    cr_expect(strstr(why.message, "wf8c"), "%s", why.message);
    p.weights = KT_W_BF16;
    p.n = 0;
    cr_expect_eq(v->accepts(&p, &config, &why), KT_E_UNSUPPORTED);
    p.n = 1;
    p.k = 7;
    cr_expect_eq(v->accepts(&p, &config, &why), v->isa ? KT_E_UNSUPPORTED : KT_OK);
}
