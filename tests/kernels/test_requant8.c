/* INT4 panels rounded once more to 8 bits: every weight within the error that the header derives.
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

static const kt_weight_format formats[] = {KT_W_INT4_G32,  KT_W_INT4_G64,  KT_W_INT4_G128,
                                           KT_W_INT4Z_G32, KT_W_INT4Z_G64, KT_W_INT4Z_G128};

static float step_of(const uint8_t *out, int64_t k, int64_t i, int row) {
    float step;
    memcpy(&step, out + 64 * k + i / KT_R8_BLOCK * 256 + 4 * row, sizeof step);
    return step;
}

static int value_of(const uint8_t *out, int64_t i, int row) {
    return out[i / 4 * 256 + 4 * row + i % 4] - 128;
}

/* Step of the block of input i from the plain matrix, and the reach of that input's group. */
static double plain_step(const kt_matrix *w, int64_t row, int64_t i, int *reach) {
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    const int64_t first = i / KT_R8_BLOCK * KT_R8_BLOCK;
    double largest = 0;

    for (int64_t j = first; j < first + KT_R8_BLOCK && j < w->k; j += s.group) {
        kt_block block;
        kt_format_find(w->format)->unpack(w, row, j / s.group, &block);
        const int offset = s.minimum == KT_P64_MIN_ZERO ? (int)block.minimum[0] : s.offset;
        const double scale =
            s.scale == KT_P64_BF16 ? kt_bf16_to_f32(block.scale[0]) : kt_f16_to_f32(block.scale[0]);
        largest = fmax(largest, fabs(scale) * fmax(offset, 15 - offset));
        if (i / s.group == j / s.group) *reach = (int)fmax(offset, 15 - offset);
    }
    return fmax(largest / 127, 0x1p-119);
}

static void check_row(const kt_matrix *w, int64_t row, const uint8_t *out) {
    double *want = malloc(sizeof *want * (size_t)w->k);

    kt_format_find(w->format)->decode_row(w, row, want);
    for (int64_t i = 0; i < w->k; i++) {
        int reach = 0;
        const double exact = plain_step(w, row, i, &reach), step = step_of(out, w->k, i, (int)row);
        const double got = step * value_of(out, i, (int)row);
        cr_assert(fabs(step - exact) <= 0x1p-22 * exact, "%s row %lld input %lld: step %g, want %g",
                  kt_weight_format_name(w->format), (long long)row, (long long)i, step, exact);
        cr_assert(fabs(got - want[i]) <= step * kt_r8_error(reach),
                  "%s row %lld input %lld: %g for %g, step %g", kt_weight_format_name(w->format),
                  (long long)row, (long long)i, got, want[i], step);
    }
    free(want);
}

Test(requant8, every_weight_moves_by_half_a_step_and_little_more) {
    static const int64_t sizes[] = {128, 256, 384, 896};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const int64_t k = sizes[s];
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

/* What a vector kernel widens to is kt_r8_panel bit for bit: rows of activations that hold a
 * single 1 read the weights out, but for the rounding of their steps. */
Test(requant8, vector_kernels_write_the_very_bytes) {
    enum { K = 384, N = 64 };
    const kt_variant *v = NULL;
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!strcmp(kt_builtin_variants[i]->name, "w4groups_a8p_r8_p64__avx512vnni"))
            v = kt_builtin_variants[i];
    cr_assert_not_null(v);
    kt_skip_without_isa(v->isa, v->name);
    for (int f = 0; f < 3; f++) {
        kt_problem q = {.op = KT_OP_GEMM,
                        .weights = formats[f],
                        .acts = KT_A_INT8_G16P2,
                        .m = K,
                        .n = N,
                        .k = K};
        kt_config config = {{4}};
        kt_gate_matrix w;
        kt_err err = {0};
        const size_t stride = kt_act_row_bytes(q.acts, K);
        cr_assert_eq(kt_gate_matrix_create(q.weights, N, K, 5, &w, &err), KT_OK);
        uint8_t *panel = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0);
        uint8_t *out = kt_guard_alloc(kt_r8_panel_bytes(K), 64, 0);
        uint8_t *scratch = kt_guard_alloc(v->workspace_bytes(&q, &config), 64, 0xAA);
        uint8_t *a = kt_guard_alloc(stride * K, 64, 0);
        float *c = malloc(sizeof *c * K * N), row[K] = {0};
        for (int i = 0; i < K; i++) {
            row[i] = 1;
            for (int g = 0; g < K / 16; g++)
                kt_a8p_encode_group(row + 16 * g, a + stride * i, K, g);
            row[i] = 0;
        }
        v->pack_gemm(&q, &w.matrix, panel);
        kt_r8_panel(kt_p64_spec_of(q.weights), panel, K, out);
        v->gemm(&(kt_gemm_call){.problem = &q,
                                .config = &config,
                                .weights = panel,
                                .a = a,
                                .a_stride = stride,
                                .m = K,
                                .panel_end = 1,
                                .c = c,
                                .ldc = N,
                                .scratch = scratch});
        for (int i = 0; i < K; i++)
            for (int r = 0; r < N; r++) {
                const double got = c[i * N + r] / step_of(out, K, i, r);
                cr_assert(fabs(got - value_of(out, i, r)) < 1e-4,
                          "%s row %d input %d: %.9g, want %d", kt_weight_format_name(q.weights), r,
                          i, got, value_of(out, i, r));
            }
        free(c);
        kt_guard_free(panel);
        kt_guard_free(out);
        kt_guard_free(scratch);
        kt_guard_free(a);
        kt_gate_matrix_destroy(&w);
    }
}
