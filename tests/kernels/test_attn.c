/* Attention variants against the double reference; how work is cut does not change a bit.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_gate.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

static kt_config config_at(const kt_variant *v, int i) {
    kt_config c = {{0}};
    for (int p = 0; p < v->n_params; p++) c.value[p] = v->params[p].values[i];
    return c;
}

static const kt_weight_format caches[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};

ParameterizedTestParameters(attn, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, every_variant_is_within_its_bound) {
    /* rows, heads, kv heads, head size, context, size of a value, window */
    static const int64_t shapes[][7] = {{1, 1, 1, 16, 1},
                                        {1, 4, 1, 32, 63},
                                        {1, 8, 1, 128, 64},
                                        {2, 3, 1, 48, 65},
                                        {5, 7, 7, 64, 70},
                                        {9, 6, 2, 80, 131},
                                        {67, 4, 1, 32, 200},
                                        {3, 16, 2, 256, 257},
                                        {40, 8, 1, 128, 90},
                                        {1, 5, 1, 32, 1024},
                                        {4, 5, 1, 32, 1026},
                                        {1, 8, 1, 64, 2500},
                                        {3, 2, 2, 16, 3100},
                                        {5, 3, 1, 37, 90},
                                        {1, 2, 1, 1, 66},
                                        {1, 20, 1, 576, 70, 512},
                                        {3, 4, 2, 96, 150, 64},
                                        {4, 6, 2, 40, 131, 24},
                                        {2, 2, 1, 32, 80, 48},
                                        {5, 3, 1, 37, 90, 19},
                                        {3, 5, 1, 64, 90, 64},
                                        {1, 4, 1, 32, 200, 0, 1},
                                        {9, 6, 2, 80, 131, 0, 17},
                                        {67, 4, 1, 32, 200, 0, 64},
                                        {5, 2, 1, 32, 40, 0, 64},
                                        {40, 8, 1, 128, 190, 0, 70},
                                        {3, 2, 2, 16, 3100, 0, 1500},
                                        {4, 5, 1, 32, 1100, 0, 99},
                                        {1, 5, 1, 32, 2100, 16, 1030},
                                        {70, 3, 1, 48, 1090, 32, 65},
                                        {3, 5, 1, 20, 70, 36},
                                        {2, 9, 3, 76, 67},
                                        {2, 3, 3, 160, 77, 144},
                                        {1, 2, 1, 4, 130, 12},
                                        {6, 4, 1, 56, 100, 44, 50}};
    const kt_variant *v = kt_builtin_variants[*index];
    kt_err err;

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < v->params[0].count; c++) {
            const int64_t *s = shapes[i];
            kt_config config = config_at(v, c);
            kt_problem p = {.op = KT_OP_ATTN,
                            .m = s[0],
                            .n = s[1],
                            .kv_heads = s[2],
                            .k = s[3],
                            .context = s[4],
                            .v = s[5],
                            .window = s[6]};
            if ((s[3] | s[5]) % 4 != 0 && v->accepts(&p, &config, NULL) == KT_E_UNSUPPORTED)
                continue;
            for (uint64_t seed = 1; seed <= 6; seed++) {
                p.weights = caches[seed / 2 % 3]; /* each with an odd and an even seed */
                if (!(v->weights & KT_W_BIT(p.weights))) continue;
                cr_assert(kt_attn_gate(v, &config, &p, seed, NULL, &err) == KT_OK,
                          "%s queries=%d: %s", kt_weight_format_name(p.weights), config.value[0],
                          err.message);
            }
        }
}

/* q, cache and result of one problem, ending at inaccessible pages. */
typedef struct fixture {
    kt_problem p;
    kt_config config;
    float *q, *out, *k_scale, *v_scale;
    uint8_t *k, *v;
    int32_t *position;
    void *scratch;
} fixture;

static fixture fixture_make(const kt_variant *v, kt_problem p) {
    fixture f = {.p = p, .config = config_at(v, 0)};
    int64_t d = kt_attn_value_size(&p);
    size_t item = kt_attn_item_bytes(p.weights), heads = (size_t)(p.m * p.n);
    size_t row = (size_t)p.k * item, value = (size_t)d * item;
    float x[256];
    kt_rng rng;

    f.q = kt_guard_alloc(heads * (size_t)p.k * sizeof *f.q, 4, 0);
    f.out = kt_guard_alloc(heads * (size_t)d * sizeof *f.out, 4, 0x11);
    f.k = kt_guard_alloc((size_t)p.context * row, item, 0);
    f.v = kt_guard_alloc((size_t)p.context * value, item, 0);
    f.k_scale = kt_guard_alloc((size_t)p.context * sizeof *f.k_scale, 4, 0);
    f.v_scale = kt_guard_alloc((size_t)p.context * sizeof *f.v_scale, 4, 0);
    f.position = kt_guard_alloc((size_t)p.m * sizeof *f.position, 4, 0);
    f.scratch = kt_guard_alloc(v->workspace_bytes(&p, &f.config), 64, 0xff);
    kt_rng_seed(&rng, 7);
    for (int64_t i = 0; i < p.m * p.n * p.k; i++) f.q[i] = kt_rng_normal(&rng);
    for (int64_t i = 0; i < p.context; i++) {
        for (int64_t j = 0; j < p.k; j++) x[j] = kt_rng_normal(&rng);
        kt_attn_store(p.weights, x, p.k, f.k + (size_t)i * row, &f.k_scale[i]);
        for (int64_t j = 0; j < d; j++) x[j] = kt_rng_normal(&rng);
        kt_attn_store(p.weights, x, d, f.v + (size_t)i * value, &f.v_scale[i]);
    }
    for (int64_t r = 0; r < p.m; r++) f.position[r] = (int32_t)(p.context - p.m + r);
    return f;
}

static void fixture_free(fixture *f) {
    kt_guard_free(f->q);
    kt_guard_free(f->out);
    kt_guard_free(f->k);
    kt_guard_free(f->v);
    kt_guard_free(f->k_scale);
    kt_guard_free(f->v_scale);
    kt_guard_free(f->position);
    kt_guard_free(f->scratch);
}

static kt_attn_call fixture_call(const fixture *f) {
    return (kt_attn_call){.problem = &f->p,
                          .config = &f->config,
                          .q = f->q,
                          .ldq = f->p.n * f->p.k,
                          .k = f->k,
                          .v = f->v,
                          .k_scale = f->k_scale,
                          .v_scale = f->v_scale,
                          .ldkv = f->p.k,
                          .ldv = kt_attn_value_size(&f->p),
                          .scale = 0.2f,
                          .position = f->position,
                          .row_begin = 0,
                          .row_end = f->p.m,
                          .out = f->out,
                          .ldo = f->p.n * kt_attn_value_size(&f->p),
                          .scratch = f->scratch};
}

/* values in the keys' rows, too */
static void expect_same_bits(const kt_variant *v, kt_problem p, bool is_shared) {
    size_t bytes = (size_t)(p.m * p.n * kt_attn_value_size(&p)) * sizeof(float);
    float *want[3] = {malloc(bytes), malloc(bytes), malloc(bytes)};

    for (int c = 0; c < v->params[0].count * 3; c++) {
        if (!(v->weights & KT_W_BIT(caches[c % 3]))) continue;
        fixture f = fixture_make(v, (p.weights = caches[c % 3], p));
        kt_guard_free(f.scratch);
        f.config = config_at(v, c / 3);
        f.scratch = kt_guard_alloc(v->workspace_bytes(&p, &f.config), 64, 0xff);
        for (int64_t step = 1; step <= p.m; step = step * 3 + 1) {
            memset(f.out, 0, bytes);
            for (int64_t row = 0; row < p.m; row += step) {
                kt_attn_call call = fixture_call(&f);
                if (is_shared) call.v = call.k, call.v_scale = call.k_scale, call.ldv = 0;
                call.row_begin = row;
                call.row_end = row + step < p.m ? row + step : p.m;
                v->attn(&call);
            }
            if (c < 3 && step == 1) memcpy(want[c], f.out, bytes);
            cr_assert(memcmp(want[c % 3], f.out, bytes) == 0,
                      "%s: %lld rows at a time, queries=%d, values %lld, window %lld", v->name,
                      (long long)step, f.config.value[0], (long long)p.v, (long long)p.window);
        }
        fixture_free(&f);
    }
    for (int i = 0; i < 3; i++) free(want[i]);
}

ParameterizedTestParameters(attn, rows_in_any_grouping_give_the_same_bits) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, rows_in_any_grouping_give_the_same_bits) {
    static const int64_t sizes[][2] = {{0, 0}, {32, 0}, {0, 40}, {32, 100}}; /* values, window */
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int i = 0; i < 4; i++) {
        kt_problem p = {.op = KT_OP_ATTN,
                        .m = 150,
                        .n = 3,
                        .kv_heads = 1,
                        .k = 48,
                        .context = 150,
                        .v = sizes[i][0],
                        .window = sizes[i][1]};
        expect_same_bits(v, p, false);
        if (p.v) expect_same_bits(v, p, true);
    }
}

ParameterizedTestParameters(attn, reads_no_key_past_the_position_and_stays_inside) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, reads_no_key_past_the_position_and_stays_inside) {
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int64_t context = 1; context <= 140; context += context < 60 ? 3 : 1)
        for (int64_t d = 16; d <= 112; d += 32) {
            kt_problem p = {.op = KT_OP_ATTN,
                            .m = context < 3 ? 1 : 3,
                            .n = 5,
                            .kv_heads = 1,
                            .k = d + context % 4 * 4,
                            .weights = caches[(context + d / 32) % 3],
                            .context = context,
                            .v = context % 2 ? 0 : 44};
            if (!(v->weights & KT_W_BIT(p.weights))) continue;
            fixture f = fixture_make(v, p);
            int64_t width = p.n * kt_attn_value_size(&p);
            float canary = f.out[0];
            kt_attn_call call = fixture_call(&f);
            call.row_begin = context % 5 ? p.m / 2 : p.m - 1;
            v->attn(&call);
            for (int64_t i = 0; i < p.m * width; i++)
                cr_assert((f.out[i] == canary) == (i < call.row_begin * width),
                          "%s: d=%lld index %lld", v->name, (long long)d, (long long)i);
            fixture_free(&f);
        }
}

ParameterizedTestParameters(attn, a_window_hides_what_is_before_it) {
    return kt_variants_of(KT_OP_ATTN);
}

/* What stands before the first row's window makes no difference, were it NaN. */
ParameterizedTest(size_t *index, attn, a_window_hides_what_is_before_it) {
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int64_t window = 1; window <= 160; window += 7)
        for (int i = 0; i < 3; i++) {
            kt_problem p = {.op = KT_OP_ATTN,
                            .m = 9,
                            .n = 3,
                            .kv_heads = 1,
                            .k = 32,
                            .weights = caches[i],
                            .context = 1130,
                            .window = window};
            int64_t hidden = kt_attn_first_key(&p, p.context - p.m), width = p.n * p.k;
            size_t bytes = (size_t)hidden * (size_t)p.k * kt_attn_item_bytes(p.weights);
            float want[9 * 3 * 32];
            if (!(v->weights & KT_W_BIT(p.weights))) continue;
            fixture f = fixture_make(v, p);
            kt_attn_call call = fixture_call(&f);
            v->attn(&call);
            memcpy(want, f.out, sizeof want);
            memset(f.k, 0xff, bytes);
            memset(f.v, 0xff, bytes);
            memset(f.k_scale, 0xff, (size_t)hidden * sizeof *f.k_scale);
            memset(f.v_scale, 0xff, (size_t)hidden * sizeof *f.v_scale);
            v->attn(&call);
            cr_assert(memcmp(want, f.out, sizeof want) == 0, "%s: window %lld", v->name,
                      (long long)window);
            f.k_scale[hidden] = f.v_scale[hidden] = NAN;
            memset(f.k + bytes, 0xff, (size_t)p.k * kt_attn_item_bytes(p.weights));
            v->attn(&call);
            for (int64_t x = 0; x < p.m * width; x++)
                cr_assert((isnan(f.out[x]) != 0) == (x < width), "%s: window %lld: index %lld",
                          v->name, (long long)window, (long long)x);
            fixture_free(&f);
        }
}

ParameterizedTestParameters(attn, a_row_knows_nothing_of_the_next_one) {
    return kt_variants_of(KT_OP_ATTN);
}

/* The last row alone sees the last key, which is no number: the others are as they were, also where
 * all of them meet the block at once. */
ParameterizedTest(size_t *index, attn, a_row_knows_nothing_of_the_next_one) {
    static const int64_t rows[] = {2, 3, 4, 7, 40};
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (int64_t context = 64; context <= 128; context += 32) {
            const kt_problem p = {.op = KT_OP_ATTN,
                                  .m = rows[r],
                                  .n = 4,
                                  .kv_heads = 1,
                                  .k = 64,
                                  .weights = KT_W_BF16,
                                  .context = context};
            const size_t width = 4 * 64, last = (size_t)(context - 1) * 64 * 2;
            const size_t before = (size_t)(rows[r] - 1) * width;
            float *want;
            if (!(v->weights & KT_W_BIT(p.weights))) continue;
            want = malloc(before * sizeof *want);
            fixture f = fixture_make(v, p);
            kt_attn_call call = fixture_call(&f);
            v->attn(&call);
            memcpy(want, f.out, before * sizeof *want);
            memset(f.k + last, 0xff, 64 * 2);
            memset(f.v + last, 0xff, 64 * 2);
            v->attn(&call);
            cr_assert(memcmp(want, f.out, before * sizeof *want) == 0, "%s: %lld rows of %lld",
                      v->name, (long long)rows[r], (long long)context);
            for (size_t i = 0; i < width; i++) cr_assert(isnan(f.out[before + i]), "%s", v->name);
            fixture_free(&f);
            free(want);
        }
}

ParameterizedTestParameters(attn, rows_need_not_follow_each_other) {
    return kt_variants_of(KT_OP_ATTN);
}

/* Rows whose positions leave gaps meet the last block one by one: as when each is a call. */
ParameterizedTest(size_t *index, attn, rows_need_not_follow_each_other) {
    static const int32_t positions[][4] = {
        {90, 100, 127, 127}, {64, 66, 68, 127}, {3, 64, 90, 120}};
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int i = 0; i < 9; i++)
        for (int64_t heads = 1; heads <= 4; heads += 3) {
            const kt_problem p = {.op = KT_OP_ATTN,
                                  .m = 4,
                                  .n = heads,
                                  .kv_heads = 1,
                                  .k = 64,
                                  .weights = caches[i % 3],
                                  .context = 128};
            const size_t bytes = (size_t)(p.m * heads * 64) * sizeof(float);
            float *want;
            if (!(v->weights & KT_W_BIT(p.weights))) continue;
            want = malloc(bytes);
            fixture f = fixture_make(v, p);
            kt_attn_call call = fixture_call(&f);
            memcpy(f.position, positions[i / 3], sizeof positions[0]);
            for (int64_t row = 0; row < p.m; row++) {
                call.row_begin = row, call.row_end = row + 1;
                v->attn(&call);
            }
            memcpy(want, f.out, bytes);
            call.row_begin = 0, call.row_end = p.m;
            v->attn(&call);
            cr_assert(memcmp(want, f.out, bytes) == 0, "%s: positions %d, %lld heads, %s", v->name,
                      i / 3, (long long)heads, kt_weight_format_name(p.weights));
            fixture_free(&f);
            free(want);
        }
}

/* 64 keys seen through a window are the first 64 keys of a cache: a block that begins at the first
 * key. */
ParameterizedTestParameters(attn, a_window_begins_a_block) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, a_window_begins_a_block) {
    const kt_variant *v = kt_builtin_variants[*index];
    kt_problem p = {.op = KT_OP_ATTN, .m = 1, .n = 3, .kv_heads = 1, .k = 32, .context = 127};

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int i = 0; i < 3; i++)
        for (p.window = 1; p.window <= 63; p.window += 2) { /* keys 127 - window .. 126 */
            float want[3 * 32];
            p.weights = caches[i];
            if (!(v->weights & KT_W_BIT(p.weights))) continue;
            fixture f = fixture_make(v, p);
            kt_attn_call call = fixture_call(&f);
            int64_t first = p.context - p.window, row = first * p.k;
            v->attn(&call);
            memcpy(want, f.out, sizeof want);
            call.k = f.k + (size_t)row * kt_attn_item_bytes(p.weights);
            call.v = f.v + (size_t)row * kt_attn_item_bytes(p.weights);
            call.k_scale += first, call.v_scale += first;
            f.position[0] -= (int32_t)first;
            v->attn(&call);
            cr_assert(memcmp(want, f.out, sizeof want) == 0, "%s: window %lld", v->name,
                      (long long)p.window);
            fixture_free(&f);
        }
}

ParameterizedTestParameters(attn, refuses_negative_sizes_by_name) {
    return kt_variants_of(KT_OP_ATTN);
}

ParameterizedTest(size_t *index, attn, refuses_negative_sizes_by_name) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_config config = config_at(v, 0);
    const kt_problem good = {.op = KT_OP_ATTN,
                             .m = 1,
                             .n = 4,
                             .kv_heads = 2,
                             .k = 32,
                             .context = 9,
                             .v = 16,
                             .window = 5};
    kt_problem bad = good;
    kt_err err = {0};

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    cr_expect_eq(v->accepts(&good, &config, &err), KT_OK, "%s", err.message);
    bad.v = -16;
    cr_expect_eq(v->accepts(&bad, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "value heads of size -16"), "%s", err.message);
    bad = good, bad.window = -1;
    cr_expect_eq(v->accepts(&bad, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "window of -1"), "%s", err.message);
    bad = good, bad.n = 3;
    cr_expect_eq(v->accepts(&bad, &config, &err), KT_E_UNSUPPORTED);
    if (v->isa != KT_ISA_AVX2) return;
    bad = good, bad.v = 26;
    cr_expect_eq(v->accepts(&bad, &config, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "value size 26"), "%s", err.message);
}

ParameterizedTestParameters(attn, hands_on_a_scale_that_is_no_number) {
    return kt_variants_of(KT_OP_ATTN);
}

/* How NaN in a row of an INT8 cache stays visible (kt_attn_store): of keys and of values, of
 * either sign. */
ParameterizedTest(size_t *index, attn, hands_on_a_scale_that_is_no_number) {
    const kt_variant *v = kt_builtin_variants[*index];
    const kt_problem p = {.op = KT_OP_ATTN,
                          .m = 2,
                          .n = 5,
                          .kv_heads = 1,
                          .k = 48,
                          .weights = KT_W_INT8_CHANNEL,
                          .context = 90};

    kt_skip_without_isa_or_tiles(v->isa, v->name);
    for (int i = 0; i < 4; i++) {
        if (!(v->weights & KT_W_BIT(p.weights))) continue;
        fixture f = fixture_make(v, p);
        kt_attn_call call = fixture_call(&f);
        (i % 2 ? f.k_scale : f.v_scale)[89] = i / 2 ? -NAN : NAN;
        v->attn(&call);
        for (int64_t x = 0; x < p.m * p.n * p.k; x++)
            cr_assert((isnan(f.out[x]) != 0) == (x >= p.n * p.k), "%s: %d: index %lld is %g",
                      v->name, i, (long long)x, f.out[x]);
        fixture_free(&f);
    }
}

/* Every code of a row that has them all comes back as it went in, by every variant's widening. */
Test(attn, a_stored_row_has_the_value_of_its_codes) {
    const int64_t d = 255;
    for (size_t f = 1; f < 3; f++) {
        float x[256], scale = -1;
        uint8_t row[256];
        float top = f == 1 ? 127.0f : 448.0f, least = f == 1 ? 0.5f : 0x1p-10f;
        for (int64_t i = 0; i < d; i++) {
            uint8_t code = (uint8_t)(i < 128 ? i : i + 1); /* not -128, nor one of the NaN */
            x[i] =
                (code & 0x7f) == 0x7f && f == 2 ? 0.0f : 0.25f * kt_attn_item(caches[f], &code, 0);
        }
        kt_attn_store(caches[f], x, d, row, &scale);
        cr_assert_eq(scale, 0.25f);
        for (int64_t i = 0; i < d; i++)
            cr_assert(kt_attn_item(caches[f], row, i) * scale == x[i], "%zu %lld", f, (long long)i);
        for (int64_t i = 0; i < d; i++) x[i] = (float)i / 300.0f * (i % 2 ? 1.0f : -1.0f);
        kt_attn_store(caches[f], x, d, row, &scale);
        for (int64_t i = 0; i < d; i++) { /* half a step, of a code's own binade with FP8 */
            float got = kt_attn_item(caches[f], row, i) * scale;
            float step = f == 1 ? least : fmaxf(least, 0x1p-4f * fabsf(x[i]) / scale);
            cr_assert(fabsf(got - x[i]) <= 1.001f * step * scale, "%zu: %g for %g", f, got, x[i]);
            cr_assert(fabsf(kt_attn_item(caches[f], row, i)) <= top);
        }
        memset(x, 0, sizeof x);
        kt_attn_store(caches[f], x, d, row, &scale);
        cr_assert(scale == 0 && kt_attn_item(caches[f], row, 7) == 0);
    }
}

/* A number that is none does not vanish in a cache: it, or its whole row, comes back as NaN. */
Test(attn, a_stored_row_does_not_hide_what_is_not_finite) {
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY};
    for (size_t f = 1; f < 3; f++)
        for (size_t b = 0; b < 4; b++)
            for (int64_t at = 0; at < 3; at++)
                for (int tiny = 0; tiny < 2; tiny++) {
                    float x[3] = {0.0f, 0.0f, 0.0f}, scale = -1;
                    uint8_t row[3];
                    if (!tiny) x[(at + 1) % 3] = 2.0f;
                    x[at] = bad[b];
                    kt_attn_store(caches[f], x, 3, row, &scale);
                    cr_assert(isnan(kt_attn_item(caches[f], row, at) * scale), "%zu %zu %lld", f, b,
                              (long long)at);
                }
}

static void write_one_value(const kt_attn_call *call) {
    int64_t width = call->ldo;
    for (int64_t r = call->row_begin; r < call->row_end; r++)
        for (int64_t i = 0; i < width; i++)
            call->out[r * width + i] = kt_attn_item(KT_W_BF16, call->v, 0);
}

Test(attn, the_gate_rejects_a_wrong_kernel) {
    kt_problem p = {.op = KT_OP_ATTN, .m = 2, .n = 2, .kv_heads = 1, .k = 32, .context = 80};
    kt_config config = {{16}};
    kt_variant wrong = *kt_builtin_variants[0];
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, "bf16_online__scalar"))
            wrong = *kt_builtin_variants[i];
    cr_assert_eq(kt_attn_gate(&wrong, &config, &p, 2, NULL, NULL), KT_OK);
    wrong.attn = write_one_value;
    cr_assert_eq(kt_attn_gate(&wrong, &config, &p, 2, NULL, NULL), KT_E_MISMATCH);
}
