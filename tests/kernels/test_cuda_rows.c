/* Kernels of rows for GPUs, under the emulator, against the references of the CPU's operations;
 * what only moves numbers must be equal. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "kernels/attn/attn_common.h"
#include "kernels/cuda/row_calls.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/norm/norm_ref.h"
#include "kernels/rope/rope_ref.h"
#include "kernels/rope/rope_table.h"
#include "tests/kernels/cuda_launch.h"

static const double u = 0x1p-24;

static void expect_near(double got, double want, double bound, const char *what, int64_t row,
                        int64_t i) {
    cr_assert(fabs(got - want) <= bound, "%s: row %d, number %d: %g, expected %g +- %g", what,
              (int)row, (int)i, got, want, bound);
}

/* ---- norms ---- */

typedef struct norm_case {
    int rows, pieces, k;
} norm_case;

static const norm_case norms[] = {{3, 1, 7}, {2, 1, 300}, {1, 1, 2048}, {3, 5, 16}, {2, 3, 128}};

static void check_norm(const norm_case *c, int warps, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("rows_norm");
    const kt_config config = {{warps}};
    const int width = c->pieces * c->k, ld = width + 3;
    double want[2048], bound[2048];
    cuda_memory m = {.n = 0};
    kt_rng rng;
    kt_rows_norm call;
    float *x, *y;
    uint16_t *y16;

    kt_rng_seed(&rng, seed);
    x = cuda_floats(&m, (int64_t)c->rows * ld, seed % 2 ? 1.0f : 1e-4f, &rng);
    y = cuda_floats(&m, (int64_t)c->rows * ld, 0, &rng);
    y16 = cuda_bytes(&m, (size_t)(c->rows * width) * 2, 0xff);
    call = (kt_rows_norm){.x = x,
                          .w = cuda_floats(&m, c->k, 1, &rng),
                          .y = y,
                          .y16 = y16,
                          .ldx = ld,
                          .ldy = ld,
                          .ldy16 = width,
                          .k = c->k,
                          .pieces = c->pieces,
                          .rows = c->rows,
                          .eps = 1e-6f};
    if (c->pieces == 1)
        cuda_launch(k, "rows_norm_rms", &config, &call, c->rows, 1, c->k, seed);
    else
        cuda_launch(k, "rows_norm_heads", &config, &call, cuda_cut(c->rows * c->pieces, warps), 1,
                    c->k, seed);
    for (int r = 0; r < c->rows; r++)
        for (int piece = 0; piece < c->pieces; piece++) {
            const int at = r * ld + piece * c->k;
            const kt_norm_call ref = {
                .x = x + at, .w = call.w, .eps = call.eps, .k = c->k, .kind = KT_NORM_RMS};
            kt_norm_ref_row(&ref, 0, want, bound);
            for (int i = 0; i < c->k; i++) {
                expect_near((double)y[at + i], want[i], bound[i], "rms", r, i);
                cr_assert_eq(y16[r * width + piece * c->k + i], kt_emulator_bf16(y[at + i]));
            }
        }
    for (int r = 0; r < c->rows; r++)
        for (int i = width; i < ld; i++) cr_assert(isnan(y[r * ld + i]), "behind row %d", r);
    cuda_release(&m);
}

Test(cuda_rows, rms_of_rows_and_heads, .timeout = 60) {
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        for (uint32_t seed = 1; seed <= 3; seed++) check_norm(&norms[i], 1 << seed, seed);
}

/* Each difference from the mean is off by what the mean is: (k + 2) u of the largest number. */
Test(cuda_rows, layer_norm_in_place, .timeout = 60) {
    static const int sizes[] = {5, 128, 300};
    const kt_cuda_kernel *kernel = cuda_find("rows_norm");

    for (uint32_t seed = 1; seed <= 6; seed++) {
        const int k = sizes[seed % 3], rows = 3;
        const kt_config config = {{seed % 2 ? 2 : 8}};
        cuda_memory m = {.n = 0};
        float *x, *before, *want, *bias;
        kt_rows_norm call;
        kt_rng rng;
        kt_rng_seed(&rng, seed);
        x = cuda_floats(&m, (int64_t)rows * k, 1, &rng);
        before = cuda_floats(&m, (int64_t)rows * k, 0, &rng);
        want = cuda_floats(&m, (int64_t)rows * k, 0, &rng);
        bias = cuda_floats(&m, k, 1, &rng);
        for (int i = 0; i < rows * k; i++) before[i] = x[i] = x[i] + 3;
        call = (kt_rows_norm){.x = x,
                              .w = cuda_floats(&m, k, 1, &rng),
                              .bias = bias,
                              .y = x,
                              .ldx = k,
                              .ldy = k,
                              .k = k,
                              .pieces = 1,
                              .rows = rows,
                              .eps = 1e-5f};
        kt_layer_norm_rows(&(kt_norm_call){.x = before,
                                           .ldx = k,
                                           .w = call.w,
                                           .eps = call.eps,
                                           .y = want,
                                           .ldy = k,
                                           .k = k,
                                           .row_end = rows},
                           bias);
        cuda_launch(kernel, "rows_norm_layer", &config, &call, rows, 1, k, seed);
        for (int i = 0; i < rows * k; i++) {
            const double w = fabs((double)call.w[i % k]), size = fabs((double)want[i]);
            expect_near((double)x[i], (double)want[i],
                        2 * (k + 8) * u * (8 * w + size + fabs((double)bias[i % k])), "layer",
                        i / k, i % k);
        }
        cuda_release(&m);
    }
}

/* ---- rotary embedding ---- */

Test(cuda_rows, rotary_embedding_of_heads, .timeout = 60) {
    const kt_cuda_kernel *kernel = cuda_find("rows_rope");

    for (uint32_t seed = 1; seed <= 6; seed++) {
        const int heads = 5, dim = 24, rotary = seed % 3 ? 24 : 10, rows = 4, ld = heads * dim + 5;
        const int positions[4] = {0, 7, 3, 31};
        const kt_config config = {{seed % 2 ? 2 : 4}};
        double want[5 * 24], bound[5 * 24];
        cuda_memory m = {.n = 0};
        kt_rows_rope call;
        kt_rope_call ref;
        float *x, *before, *table;
        int32_t *position;
        kt_rng rng;
        kt_rng_seed(&rng, seed);
        x = cuda_floats(&m, rows * ld, 1, &rng);
        before = cuda_floats(&m, rows * ld, 0, &rng);
        memcpy(before, x, (size_t)(rows * ld) * sizeof *x);
        table = cuda_floats(&m, 32 * rotary, 0, &rng);
        kt_rope_table(10000, rotary, 0, 32, table);
        position = cuda_bytes(&m, sizeof positions, 0);
        memcpy(position, positions, sizeof positions);
        call = (kt_rows_rope){x, table, position, ld, heads, dim, rotary, rows, seed % 2};
        cuda_launch(kernel, "rows_rope_turn", &config, &call,
                    cuda_cut(heads * rotary / 2, 32 * config.value[0]), rows, 0, seed);
        ref = (kt_rope_call){.x = before,
                             .ld = ld,
                             .heads = heads,
                             .head_dim = dim,
                             .rotary_dim = rotary,
                             .cos_sin = table,
                             .positions = position,
                             .interleaved = seed % 2};
        for (int r = 0; r < rows; r++) {
            kt_rope_ref_row(&ref, r, want, bound);
            for (int i = 0; i < heads * dim; i++)
                expect_near((double)x[r * ld + i], want[i], bound[i], "rope", r, i);
        }
        cuda_release(&m);
    }
}

/* ---- pages ---- */

enum { PAGES = 5, HEADS = 3 };

/* Rows of all sizes, of zeros, and with what is not finite. */
static void fill_kept(float *x, int rows, int ld, kt_rng *rng) {
    static const float scale[] = {1, 1e-3f, 300, 0, 1e-35f, 1, 1, 1};

    for (int r = 0; r < rows; r++)
        for (int i = 0; i < ld; i++)
            x[r * ld + i] = kt_rng_normal(rng) * scale[r % 8] * (i % 11 == 3 ? 20.0f : 1.0f);
    x[5 * ld + 1] = INFINITY;
    x[6 * ld + 2] = NAN;
}

static void check_keep(int format, int size, uint32_t seed) {
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};
    static const uint32_t page[] = {4, 1, 0, 3};
    static const int32_t first_page[] = {0, 2}, span[] = {0, 0, 0, 0, 0, 1, 1, 1, 1},
                         position[] = {62, 63, 64, 65, 66, 0, 1, 2, 127};
    const kt_cuda_kernel *kernel = cuda_find("rows_keep");
    const kt_config config = {{format, seed % 2 ? 4 : 1}};
    const int rows = 9, ld = HEADS * size + 2, row_bytes = size * (format ? 1 : 2);
    const size_t bytes = (size_t)(HEADS * PAGES * 64 * row_bytes);
    cuda_memory m = {.n = 0};
    kt_rows_keep call;
    kt_rng rng;
    uint8_t *got, *want;
    float *x, *scale, *want_scale;

    kt_rng_seed(&rng, seed);
    x = cuda_floats(&m, rows * ld, 1, &rng);
    fill_kept(x, rows, ld, &rng);
    got = cuda_bytes(&m, bytes, 0x5a), want = cuda_bytes(&m, bytes, 0x5a);
    scale = cuda_bytes(&m, HEADS * PAGES * 64 * sizeof *scale, 0x5a);
    want_scale = cuda_bytes(&m, HEADS * PAGES * 64 * sizeof *scale, 0x5a);
    call = (kt_rows_keep){.x = x,
                          .places = {position, span, first_page, page},
                          .to = got,
                          .scale = format ? scale : NULL,
                          .head_stride = PAGES * 64 * row_bytes,
                          .page_stride = 64 * row_bytes,
                          .scale_head_stride = PAGES * 64,
                          .scale_page_stride = 64,
                          .ldx = ld,
                          .heads = HEADS,
                          .size = size,
                          .row_bytes = row_bytes,
                          .rows = rows};
    cuda_launch(kernel, "rows_keep_put", &config, &call, cuda_cut(HEADS, config.value[1]), rows, 0,
                seed);
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < HEADS; h++) {
            const int64_t at =
                ((int64_t)h * PAGES + page[first_page[span[r]] + position[r] / 64]) * 64 +
                position[r] % 64;
            kt_attn_store(formats[format], x + r * ld + h * size, size, want + at * row_bytes,
                          want_scale + at);
        }
    if (format == 0) /* which NaN a NaN is does not count */
        for (size_t i = 0; i < bytes / 2; i++)
            if ((((uint16_t *)(void *)want)[i] & 0x7fff) > 0x7f80)
                ((uint16_t *)(void *)want)[i] = ((uint16_t *)(void *)got)[i] | 0x40;
    for (size_t i = 0; i < bytes; i++)
        cr_assert_eq(got[i], want[i], "format %d, byte %d: %d, expected %d", format, (int)i, got[i],
                     want[i]);
    for (int i = 0; format && i < HEADS * PAGES * 64; i++)
        cr_assert(scale[i] == want_scale[i] || (isnan(scale[i]) && isnan(want_scale[i])),
                  "scale %d: %g, expected %g", i, (double)scale[i], (double)want_scale[i]);
    cuda_release(&m);
}

Test(cuda_rows, pages_hold_what_the_host_would_write, .timeout = 60) {
    static const int sizes[] = {16, 72, 128};

    for (int format = 0; format < 3; format++)
        for (uint32_t seed = 1; seed <= 3; seed++) check_keep(format, sizes[seed - 1], seed);
}

/* ---- small work ---- */

static void check_misc(uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("rows_misc");
    const kt_config config = {{seed % 2 ? 2 : 4}};
    const int rows = 5, width = 150, ld = 153, blocks = cuda_cut(width, 32 * config.value[0]);
    cuda_memory m = {.n = 0};
    kt_rng rng;
    float *x, *y, *w, *gate, *out;

    kt_rng_seed(&rng, seed);
    x = cuda_floats(&m, rows * ld, 2, &rng);
    y = cuda_floats(&m, rows * ld, 0, &rng);
    w = cuda_floats(&m, width, 1, &rng);
    gate = cuda_floats(&m, rows * width, 10, &rng);
    out = cuda_floats(&m, rows * 2, 0, &rng);
    memcpy(y, x, (size_t)(rows * ld) * sizeof *x);
    cuda_launch(k, "rows_misc_bias", &config, &(kt_rows_bias){y, w, ld, width, rows}, blocks, rows,
                0, seed);
    for (int i = 0; i < rows * ld; i++)
        cr_assert_eq(y[i], i % ld < width ? x[i] + w[i % ld] : x[i], "bias, number %d", i);
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        const kt_rows_gate call = {y, gate, ld, width, width, is_wide ? width : 1, rows};
        memcpy(y, x, (size_t)(rows * ld) * sizeof *x);
        cuda_launch(k, "rows_misc_gate", &config, &call, blocks, rows, 0, seed);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < width; i++) {
                const double g = (double)gate[r * width + (is_wide ? i : 0)];
                const double want = (double)x[r * ld + i] / (1 + exp(-g));
                expect_near((double)y[r * ld + i], want, 8 * u * fabs(want) + 1e-37, "gate", r, i);
            }
    }
    cuda_launch(k, "rows_misc_dot", &config, &(kt_rows_dot){x, w, out, ld, 2, width, rows},
                cuda_cut(rows, config.value[0]), 1, 0, seed);
    for (int r = 0; r < rows; r++) {
        double sum = 0, size = 0;
        for (int i = 0; i < width; i++) {
            sum += (double)x[r * ld + i] * w[i];
            size += fabs((double)x[r * ld + i] * w[i]);
        }
        expect_near((double)out[2 * r], 1 / (1 + exp(-sum)), 0.5 * width * u * size + 4 * u, "dot",
                    r, 0);
        cr_assert(isnan(out[2 * r + 1]));
    }
    cuda_release(&m);
}

Test(cuda_rows, bias_gate_and_dot, .timeout = 60) {
    for (uint32_t seed = 1; seed <= 3; seed++) check_misc(seed);
}

Test(cuda_rows, columns_of_groups_become_parts) {
    static const int32_t parts[3][4] = {{4, 4, 8, 8}, {3, 0, 5, 1}, {7, 0, 0, 0}};
    const kt_cuda_kernel *k = cuda_find("rows_misc");

    for (uint32_t seed = 0; seed < 3; seed++) {
        const int32_t *part = parts[seed];
        const int rows = 3, groups = 6, width = part[0] + part[1] + part[2] + part[3];
        const int all = groups * width, ld = all + 1;
        cuda_memory m = {.n = 0};
        kt_rows_regroup call = {.ldx = ld, .ldo = ld, .groups = groups, .rows = rows};
        kt_rng rng;
        kt_rng_seed(&rng, seed);
        call.x = cuda_floats(&m, rows * ld, 1, &rng);
        call.out = cuda_floats(&m, rows * ld, 0, &rng);
        memcpy(call.parts, part, sizeof call.parts);
        cuda_launch(k, "rows_misc_regroup", &(kt_config){{2}}, &call, cuda_cut(all, 64), rows, 0,
                    seed);
        for (int r = 0; r < rows; r++) {
            const float *to = call.out + r * ld;
            for (int p = 0, at = 0; p < 4; at += part[p++])
                for (int g = 0; part[p] && g < groups; g++)
                    for (int i = 0; i < part[p]; i++)
                        cr_assert_eq(*to++, call.x[r * ld + g * width + at + i]);
            cr_assert(isnan(*to));
        }
        cuda_release(&m);
    }
}

/* ---- copies ---- */

static void check_embed(int is_bf16, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("rows_copy");
    const kt_config config = {{is_bf16, 2}};
    static const int32_t token[] = {3, 0, 6};
    const int width = 100, ld = 102;
    cuda_memory m = {.n = 0};
    kt_rng rng;
    uint16_t *table16;
    float *table, *out;

    kt_rng_seed(&rng, seed);
    table = cuda_floats(&m, 7 * width, 1, &rng);
    table16 = cuda_bytes(&m, 7 * (size_t)width * 2, 0);
    for (int i = 0; i < 7 * width; i++) table16[i] = (uint16_t)kt_emulator_bf16(table[i]);
    out = cuda_floats(&m, 3 * ld, 0, &rng);
    cuda_launch(
        k, "rows_copy_embed", &config,
        &(kt_rows_embed){is_bf16 ? (void *)table16 : (void *)table, token, out, ld, width, 3},
        cuda_cut(width, 64), 3, 0, seed);
    for (int r = 0; r < 3; r++)
        for (int i = 0; i < ld; i++) {
            const int at = token[r] * width + i;
            if (i < width)
                cr_assert_eq(out[r * ld + i],
                             is_bf16 ? kt_float_bits((uint32_t)table16[at] << 16) : table[at]);
            else
                cr_assert(isnan(out[r * ld + i]));
        }
    cuda_release(&m);
}

Test(cuda_rows, embeddings_of_tokens) {
    for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) check_embed(is_bf16, 5);
}

Test(cuda_rows, sums_and_copies) {
    static const int32_t row[] = {2, -1, 0, 2};
    const kt_cuda_kernel *k = cuda_find("rows_copy");
    const kt_config config = {{1, 2}};
    const int width = 70, ldx = 73, ldy = 71;
    cuda_memory m = {.n = 0};
    kt_rng rng;
    uint16_t *y16;
    float *x, *y, *z;

    kt_rng_seed(&rng, 9);
    x = cuda_floats(&m, 4 * ldx, 1, &rng), y = cuda_floats(&m, 4 * ldy, 0, &rng);
    z = cuda_floats(&m, 4 * ldy, 0, &rng), y16 = cuda_bytes(&m, 4 * (size_t)width * 2, 0xff);
    cuda_launch(k, "rows_copy_rows", &config,
                &(kt_rows_copy){x, row, y, y16, ldx, ldy, width, width, 4}, cuda_cut(width, 64), 4,
                0, 1);
    cuda_launch(k, "rows_copy_rows", &config,
                &(kt_rows_copy){x, NULL, z, NULL, ldx, ldy, 0, width, 4}, cuda_cut(width, 64), 4, 0,
                2);
    cuda_launch(k, "rows_copy_add", &config, &(kt_rows_add){x, z, ldx, ldy, width, 4},
                cuda_cut(width, 64), 4, 0, 3);
    for (int r = 0; r < 4; r++) {
        for (int i = 0; i < width; i++) {
            const float want = row[r] < 0 ? 0 : x[row[r] * ldx + i];
            cr_assert_eq(y[r * ldy + i], want);
            cr_assert_eq(y16[r * width + i], kt_emulator_bf16(want));
            cr_assert_eq(z[r * ldy + i], 2 * x[r * ldx + i]);
        }
        cr_assert(isnan(y[r * ldy + width]) && isnan(z[r * ldy + width]));
    }
    cuda_release(&m);
}
