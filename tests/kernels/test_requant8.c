/* Panels rounded once more to 8 bits: every weight within the error that the header derives.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/blocks.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "kernels/formats/requant8.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

static const kt_weight_format formats[] = {
    KT_W_INT4_G32, KT_W_INT4_G64, KT_W_INT4_G128, KT_W_INT4Z_G32, KT_W_INT4Z_G64, KT_W_INT4Z_G128,
    KT_W_Q4_0,     KT_W_Q4_1,     KT_W_Q5_0,      KT_W_Q5_1,      KT_W_IQ4_NL,    KT_W_Q2_K,
    KT_W_Q3_K,     KT_W_Q4_K,     KT_W_Q5_K,      KT_W_Q6_K,      KT_W_IQ4_XS};
enum { N_FORMATS = sizeof formats / sizeof *formats, N_SYMMETRIC = 3 };

/* Reductions of any length for formats of short blocks, twice that for those of 256. */
static int64_t length_of(kt_weight_format format, int64_t k) {
    return k * (kt_p64_spec_of(format).span == 256 ? 2 : 1);
}

static float step_of(const uint8_t *out, int64_t k, int64_t i, int row) {
    float step;
    memcpy(&step, out + 64 * k + i / KT_R8_BLOCK * 256 + 4 * row, sizeof step);
    return step;
}

static int value_of(const uint8_t *out, int64_t i, int row) {
    return out[i / 4 * 256 + 4 * row + i % 4] - 128;
}

/* Step of the block of input i from the plain matrix: 1/127 of the largest weight that the lowest
 * and the highest code of a group of it would make. `error` is what input i may be off by, of the
 * step. */
static double plain_step(const kt_matrix *w, int64_t row, int64_t i, double *error) {
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    const int64_t first = i / KT_R8_BLOCK * KT_R8_BLOCK;
    double largest = 0;

    for (int64_t j = first; j < first + KT_R8_BLOCK && j < w->k; j += s.group) {
        const int in = (int)(j % s.span), at[2] = {in, in + 1};
        const int codes[2] = {0, (1 << (s.low + s.high)) - 1};
        kt_block block;
        kt_format_find(w->format)->unpack(w, row, j / s.span, &block);
        const kt_group_terms t = kt_block_terms(&s, &block, in / s.group);
        for (int c = 0; c < 2; c++) {
            block.code[at[c]] = (uint8_t)codes[c];
            largest = fmax(largest, fabs(t.scale * kt_block_value(&s, &block, at[c]) + t.minimum));
        }
        if (i / s.group == j / s.group) {
            const double low = fabs((double)kt_block_value(&s, &block, at[0]));
            const double high = fabs((double)kt_block_value(&s, &block, at[1]));
            *error = 0.5 + 0.503 / 256 * (fmax(low, high) + (t.minimum != 0));
        }
    }
    return fmax(largest / 127, 0x1p-119);
}

static void check_row(const kt_matrix *w, int64_t row, const uint8_t *out) {
    double *want = malloc(sizeof *want * (size_t)w->k);

    kt_format_find(w->format)->decode_row(w, row, want);
    for (int64_t i = 0; i < w->k; i++) {
        double error = 0;
        const double exact = plain_step(w, row, i, &error), step = step_of(out, w->k, i, (int)row);
        const double got = step * value_of(out, i, (int)row);
        cr_assert(fabs(step - exact) <= 0x1p-22 * exact, "%s row %lld input %lld: step %g, want %g",
                  kt_weight_format_name(w->format), (long long)row, (long long)i, step, exact);
        cr_assert(fabs(got - want[i]) <= step * error, "%s row %lld input %lld: %g for %g, step %g",
                  kt_weight_format_name(w->format), (long long)row, (long long)i, got, want[i],
                  step);
    }
    free(want);
}

Test(requant8, every_weight_moves_by_half_a_step_and_little_more) {
    static const int64_t sizes[] = {128, 256, 384, 896};
    for (size_t f = 0; f < N_FORMATS; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const int64_t k = length_of(formats[f], sizes[s]);
            kt_problem q = {.op = KT_OP_GEMM, .weights = formats[f], .n = 64, .k = k};
            kt_gate_matrix w;
            kt_err err = {0};
            cr_assert(kt_r8_takes(kt_p64_spec_of(q.weights)));
            cr_assert_eq(kt_gate_matrix_create(q.weights, q.n, k, s + 1, &w, &err), KT_OK, "%s",
                         err.message);
            uint8_t *panel = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0xAA);
            uint8_t *out = kt_guard_alloc(kt_r8_panel_bytes(k), 64, 0xAA);
            kt_p64_pack_gemm(&q, &w.matrix, panel);
            kt_r8_panel(kt_p64_spec_of(q.weights), panel, k, out);
            for (int64_t row = 0; row < 64; row++) check_row(&w.matrix, row, out);
            kt_guard_free(panel);
            kt_guard_free(out);
            kt_gate_matrix_destroy(&w);
        }
}

/* All sixteen codes under one scale come out as the scale says: the largest magnitude is 127. */
Test(requant8, codes_keep_their_order_and_the_largest_is_127) {
    kt_matrix w = {.format = KT_W_INT4_G32, .n = 1, .k = 32};
    uint8_t data[16], panel[1152], out[64 * 32 + 256];
    uint16_t scale = kt_f32_to_bf16(-0.375f);
    kt_problem q = {.op = KT_OP_GEMM, .weights = w.format, .n = 1, .k = 32};

    for (int i = 0; i < 16; i++) data[i] = (uint8_t)(i | i << 4);
    w.data = data;
    w.scales = &scale;
    kt_p64_pack_gemm(&q, &w, panel);
    kt_r8_panel(kt_p64_spec_of(w.format), panel, 32, out);
    for (int i = 0; i < 32; i++) {
        int want = (int)floor(-(i / 2 - 8) * 127.0 / 8 + 0.5);
        cr_expect_eq(value_of(out, i, 0), want, "code %d: %d, want %d", i / 2, value_of(out, i, 0),
                     want);
    }
    cr_expect_float_eq(step_of(out, 32, 0, 0), 0.375f * 8 / 127, 1e-9);
}

/* A row of zero scales is zero, and a scale that is no number spoils its own row's block alone. */
Test(requant8, scales_that_are_zero_or_no_numbers) {
    enum { K = 512 };
    kt_problem q = {.op = KT_OP_GEMM, .weights = KT_W_INT4_G32, .n = 3, .k = K};
    static uint8_t data[3 * K / 2], panel[K / 32 * 1152], out[64 * K + 512];
    static uint16_t scales[3 * K / 32];
    kt_matrix w = {KT_W_INT4_G32, 3, K, data, scales};

    memset(data, 0x1f, sizeof data);
    for (int g = 0; g < K / 32; g++) scales[g] = scales[2 * K / 32 + g] = kt_f32_to_bf16(0.5f);
    scales[3] = 0x7fc0;
    kt_p64_pack_gemm(&q, &w, panel);
    kt_r8_panel(kt_p64_spec_of(w.format), panel, K, out);
    cr_expect(isnan(step_of(out, K, 0, 0)));
    cr_expect_float_eq(step_of(out, K, 256, 0), 4.0f / 127, 1e-9);
    cr_expect_float_eq(step_of(out, K, 0, 2), 4.0f / 127, 1e-9);
    for (int i = 0; i < K; i++) {
        cr_expect_eq(value_of(out, i, 1), 0);
        cr_expect_eq(value_of(out, i, 63), 0);
    }
}

/* Weights of a normal distribution, encoded as we encode them: the error is that of rounding
 * evenly within a step (a twelfth of its square, and a hundredth more for the ratios), the step
 * a few deviations / 127. */
Test(requant8, normal_weights_lose_what_the_header_says) {
    enum { N = 64, K = 2048 };
    const kt_format *format = kt_format_find(KT_W_INT4_G32);
    kt_problem q = {.op = KT_OP_GEMM, .weights = KT_W_INT4_G32, .n = N, .k = K};
    float *src = malloc(sizeof *src * N * K);
    uint8_t *data = malloc(N * K / 2), *panel = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0);
    uint8_t *out = kt_guard_alloc(kt_r8_panel_bytes(K), 64, 0);
    uint16_t *scales = malloc(sizeof *scales * N * K / 32);
    kt_matrix w = {KT_W_INT4_G32, N, K, data, scales};
    double *row = malloc(sizeof *row * K), error = 0, rounding = 0, energy = 0;
    uint64_t x = 1;

    for (int i = 0; i < N * K; i++) {
        double sum = -6;
        for (int t = 0; t < 12; t++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            sum += (double)(x >> 11) * 0x1p-53;
        }
        src[i] = (float)sum;
    }
    format->encode_rows(src, N, K, NULL, 0, N, data, scales, NULL);
    kt_p64_pack_gemm(&q, &w, panel);
    kt_r8_panel(kt_p64_spec_of(w.format), panel, K, out);
    for (int r = 0; r < N; r++) {
        format->decode_row(&w, r, row);
        for (int i = 0; i < K; i++) {
            const double step = step_of(out, K, i, r), e = step * value_of(out, i, r) - row[i];
            error += e * e;
            rounding += step * step / 12;
            energy += row[i] * row[i];
        }
    }
    cr_expect(error <= 1.01 * rounding, "%g, rounding alone %g", error, rounding);
    cr_expect(sqrt(error / energy) < 0.007, "relative error %g", sqrt(error / energy));
    cr_log_info("relative error %.5f", sqrt(error / energy));
    free(src);
    free(data);
    free(scales);
    free(row);
    kt_guard_free(panel);
    kt_guard_free(out);
}

/* Rows that each hold a single 1, encoded. */
static void encode_units(kt_act_format acts, int64_t k, uint8_t *a) {
    const size_t stride = kt_act_row_bytes(acts, k);
    float group[32] = {0};

    for (int64_t i = 0; i < k; i++, a += stride)
        for (int64_t g = 0; g < k / 32; g++) {
            if (i / 32 == g) group[i % 32] = 1;
            if (acts == KT_A_INT8_G32)
                kt_a8_encode_group(group, (int8_t *)a + 32 * g, kt_a8_scales_mut(a, k) + g,
                                   kt_a8_comps_mut(a, k) + g);
            for (int64_t half = 0; half < 2 && acts == KT_A_INT8_G16P2; half++)
                kt_a8p_encode_group(group + 16 * half, a, k, 2 * g + half);
            group[i % 32] = 0;
        }
}

static const kt_variant *variant_named(const char *name) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, name)) return kt_builtin_variants[i];
    cr_assert_fail("no variant %s", name);
    return NULL;
}

enum { SPOILED = 5 };

/* What a vector kernel widens to is kt_r8_panel bit for bit: rows of activations that hold a
 * single 1 read the weights out, but for the rounding of their steps. With block_bytes, of a format
 * whose blocks begin with d, d of the second block of row SPOILED is no number. */
static void reads_out(const kt_variant *v, kt_weight_format weights, kt_act_format acts, int64_t k,
                      int64_t block_bytes) {
    enum { N = 64 };
    kt_problem q = {.op = KT_OP_GEMM, .weights = weights, .acts = acts, .m = k, .n = N, .k = k};
    const size_t stride = kt_act_row_bytes(acts, k);
    kt_config config = {{4}};
    kt_gate_matrix w;
    kt_err err = {0};

    cr_assert_eq(kt_gate_matrix_create(weights, N, k, 5, &w, &err), KT_OK, "%s", err.message);
    uint8_t *panel = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0);
    uint8_t *out = kt_guard_alloc(kt_r8_panel_bytes(k), 64, 0);
    uint8_t *scratch = kt_guard_alloc(v->workspace_bytes(&q, &config), 64, 0xAA);
    uint8_t *a = kt_guard_alloc(stride * (size_t)k, 64, 0);
    float *c = malloc(sizeof *c * (size_t)k * N);
    encode_units(acts, k, a);
    if (block_bytes) {
        const int64_t blocks = k / kt_p64_spec_of(weights).span;
        uint8_t *data = (uint8_t *)(uintptr_t)w.matrix.data;
        memcpy(data + (SPOILED * blocks + 1) * block_bytes, &(uint16_t){0x7e00}, 2);
    }
    v->pack_gemm(&q, &w.matrix, panel);
    kt_r8_panel(kt_p64_spec_of(weights), panel, k, out);
    v->gemm(&(kt_gemm_call){.problem = &q,
                            .config = &config,
                            .weights = panel,
                            .a = a,
                            .a_stride = stride,
                            .m = k,
                            .panel_end = 1,
                            .c = c,
                            .ldc = N,
                            .scratch = scratch});
    for (int64_t i = 0; i < k; i++)
        for (int r = 0; r < N; r++) {
            const double got = c[i * N + r] / step_of(out, k, i, r);
            if (block_bytes && r == SPOILED) {
                cr_assert(isnan(c[i * N + r]), "%s input %lld: %g", kt_weight_format_name(weights),
                          (long long)i, c[i * N + r]);
                continue;
            }
            cr_assert(fabs(got - value_of(out, i, r)) < 1e-4, "%s row %d input %lld: %.9g, want %d",
                      kt_weight_format_name(weights), r, (long long)i, got, value_of(out, i, r));
        }
    free(c);
    kt_guard_free(panel);
    kt_guard_free(out);
    kt_guard_free(scratch);
    kt_guard_free(a);
    kt_gate_matrix_destroy(&w);
}

Test(requant8, vector_kernels_write_the_very_bytes) {
    const kt_variant *groups = variant_named("w4groups_a8p_r8_p64__avx512vnni");
    const kt_variant *blocks = variant_named("wblocks_a8_r8_p64__avx512vnni");

    kt_skip_without_isa(groups->isa | blocks->isa, groups->name);
    for (int f = 0; f < N_SYMMETRIC; f++) reads_out(groups, formats[f], KT_A_INT8_G16P2, 384, 0);
    for (int f = N_SYMMETRIC; f < N_FORMATS; f++)
        reads_out(blocks, formats[f], KT_A_INT8_G32, length_of(formats[f], 384), 0);
}

Test(requant8, a_scale_that_is_no_number_spoils_its_row_and_no_other) {
    const kt_variant *blocks = variant_named("wblocks_a8_r8_p64__avx512vnni");

    kt_skip_without_isa(blocks->isa, blocks->name);
    reads_out(blocks, KT_W_Q4_0, KT_A_INT8_G32, 384, 18);
    reads_out(blocks, KT_W_Q4_K, KT_A_INT8_G32, 768, 144);
}
