/* Kernels of rows for GPUs, under the emulator, against the references of the CPU's operations;
 * what only moves numbers must be equal. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>

#include "kernels/attn/attn_common.h"
#include "kernels/compress/entries_ref.h"
#include "kernels/cuda/gather_calls.h"
#include "kernels/hyper/hyper.h"
#include "kernels/hyper/hyper_ref.h"
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
    static float ones[2048];
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
    for (int i = 0; i < 2048; i++) ones[i] = 1;
    if (c->pieces > 1 && seed == 2) call.w = NULL;
    if (c->pieces == 1)
        cuda_launch(k, "rows_norm_rms", &config, &call, c->rows, 1, c->k, seed);
    else
        cuda_launch(k, "rows_norm_heads", &config, &call, cuda_cut(c->rows * c->pieces, warps), 1,
                    c->k, seed);
    for (int r = 0; r < c->rows; r++)
        for (int piece = 0; piece < c->pieces; piece++) {
            const int at = r * ld + piece * c->k;
            const kt_norm_call ref = {.x = x + at,
                                      .w = call.w ? call.w : ones,
                                      .eps = call.eps,
                                      .k = c->k,
                                      .kind = KT_NORM_RMS};
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
        call = (kt_rows_rope){x, table, position, ld, heads, dim, rotary, rows, seed % 2, 0, 0};
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
        call.is_inverse = 1; /* back: where it came from, within what both ways round */
        cuda_launch(kernel, "rows_rope_turn", &config, &call,
                    cuda_cut(heads * rotary / 2, 32 * config.value[0]), rows, 0, seed);
        for (int i = 0; i < rows * ld; i++)
            if (i % ld < heads * dim)
                expect_near((double)x[i], (double)before[i], 64 * u, "back", i / ld, i % ld);
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

static kt_kept_heads kept_at(uint8_t *to, float *scale, int format, int64_t row_bytes) {
    return (kt_kept_heads){.to = to,
                           .scale = format ? scale : NULL,
                           .head_stride = PAGES * 64 * row_bytes,
                           .page_stride = 64 * row_bytes,
                           .row_bytes = row_bytes,
                           .scale_head_stride = PAGES * 64,
                           .scale_page_stride = 64};
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
                          .kept = kept_at(got, scale, format, row_bytes),
                          .ldx = ld,
                          .heads = HEADS,
                          .size = size,
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
    for (size_t i = 0; i < bytes && format == 2; i++) /* nor does the sign of one of E4M3 */
        if ((want[i] & 0x7f) == 0x7f) want[i] = got[i] | 0x7f;
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

/* ---- heads, all at once ---- */

enum { HEADS_ROWS = 5, MOST_HEAD = 320 };

/* Which of the parts have what. */
typedef struct heads_case {
    int size[KT_HEAD_PARTS], heads[KT_HEAD_PARTS], rotary;
    bool is_normed[KT_HEAD_PARTS], is_weighted, is_rotated[KT_HEAD_PARTS], is_kept[KT_HEAD_PARTS];
} heads_case;

static const heads_case head_cases[] = {
    /* queries, keys and values of Qwen3 */
    {{128, 128, 128}, {6, 2, 2}, 128, {true, true}, true, {true, true}, {false, true, true}},
    /* norms without weights, and rotations of a part; heads longer than what lanes keep */
    {{320, 320, 40}, {1, 2, 3}, 300, {true, true}, false, {true, true}, {false, true, true}},
    {{24, 24, 0}, {3, 1, 0}, 10, {false, true}, true, {true, false}, {false, true}},
    {{64, 0, 0}, {5, 0, 0}, 64, {false}, false, {false}, {true}},
};

typedef struct heads_memory {
    cuda_memory m;
    float *x[KT_HEAD_PARTS], *w, *table, *scale[KT_HEAD_PARTS];
    uint8_t *page[KT_HEAD_PARTS];
} heads_memory;

static int heads_width(const heads_case *c, int part) {
    return c->heads[part] * c->size[part] + 3;
}

static void fill_heads(heads_memory *h, const heads_case *c, int format, uint32_t seed) {
    kt_rng rng;

    h->m.n = 0;
    kt_rng_seed(&rng, seed);
    h->w = cuda_floats(&h->m, MOST_HEAD, 1, &rng);
    h->table = cuda_floats(&h->m, (int64_t)128 * c->rotary, 0, &rng);
    kt_rope_table(10000, c->rotary, 0, 128, h->table);
    for (int i = 0; i < KT_HEAD_PARTS && c->heads[i]; i++) {
        const int64_t rows = (int64_t)c->heads[i] * PAGES * 64;
        h->x[i] = cuda_floats(&h->m, (int64_t)HEADS_ROWS * heads_width(c, i), 1, &rng);
        h->page[i] = cuda_bytes(&h->m, (size_t)rows * (size_t)c->size[i] * (format ? 1 : 2), 0x5a);
        h->scale[i] = cuda_bytes(&h->m, (size_t)rows * sizeof(float), 0x5a);
    }
}

static const int32_t head_position[] = {63, 64, 65, 0, 127}, head_span[] = {0, 0, 0, 1, 1},
                     head_first_page[] = {0, 2};
static const uint32_t head_page[] = {4, 1, 0, 3};
static const kt_row_places head_places = {head_position, head_span, head_first_page, head_page};

static kt_kept_heads heads_kept(const heads_memory *h, const heads_case *c, int part, int format) {
    return kept_at(h->page[part], h->scale[part], format, c->size[part] * (format ? 1 : 2));
}

static void heads_at_once(const heads_memory *h, const heads_case *c, int format, int warps,
                          uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("rows_heads");
    const kt_config config = {{format, warps}};
    kt_rows_heads call = {.places = head_places, .rows = HEADS_ROWS};
    int longest = 0;

    for (int i = 0; i < KT_HEAD_PARTS && c->heads[i]; i++) {
        call.part[i] = (kt_head_part){.x = h->x[i],
                                      .w = c->is_weighted ? h->w : NULL,
                                      .cos_sin = c->is_rotated[i] ? h->table : NULL,
                                      .ld = heads_width(c, i),
                                      .heads = c->heads[i],
                                      .size = c->size[i],
                                      .rotary_dim = c->is_rotated[i] ? c->rotary : 0,
                                      .is_interleaved = seed % 2 == 0,
                                      .is_inverse = seed % 3 == 0,
                                      .has_norm = c->is_normed[i],
                                      .eps = 1e-6f};
        if (c->is_kept[i]) call.part[i].kept = heads_kept(h, c, i, format);
        call.heads += c->heads[i];
        if (c->size[i] > longest) longest = c->size[i];
    }
    cuda_launch(k, "rows_heads", &config, &call, cuda_cut(call.heads, warps), HEADS_ROWS, longest,
                seed);
}

static void heads_one_by_one(const heads_memory *h, const heads_case *c, int format,
                             uint32_t seed) {
    const kt_cuda_kernel *norm = cuda_find("rows_norm"), *rope = cuda_find("rows_rope"),
                         *keep = cuda_find("rows_keep");
    const kt_config norms_config = {{2}}, rope_config = {{2}}, keep_config = {{format, 1}};

    for (int i = 0; i < KT_HEAD_PARTS && c->heads[i]; i++) {
        const kt_rows_norm of_norm = {.x = h->x[i],
                                      .w = c->is_weighted ? h->w : NULL,
                                      .y = h->x[i],
                                      .ldx = heads_width(c, i),
                                      .ldy = heads_width(c, i),
                                      .k = c->size[i],
                                      .pieces = c->heads[i],
                                      .rows = HEADS_ROWS,
                                      .eps = 1e-6f};
        const kt_rows_rope of_rope = {
            h->x[i],    h->table,  head_position, heads_width(c, i), c->heads[i],
            c->size[i], c->rotary, HEADS_ROWS,    seed % 2 == 0,     seed % 3 == 0,
            0};
        const kt_rows_keep of_keep = {.x = h->x[i],
                                      .places = head_places,
                                      .kept = heads_kept(h, c, i, format),
                                      .ldx = heads_width(c, i),
                                      .heads = c->heads[i],
                                      .size = c->size[i],
                                      .rows = HEADS_ROWS};
        if (c->is_normed[i])
            cuda_launch(norm, "rows_norm_heads", &norms_config, &of_norm,
                        cuda_cut(HEADS_ROWS * c->heads[i], 2), 1, c->size[i], seed);
        if (c->is_rotated[i])
            cuda_launch(rope, "rows_rope_turn", &rope_config, &of_rope,
                        cuda_cut(c->heads[i] * c->rotary / 2, 64), HEADS_ROWS, 0, seed);
        if (c->is_kept[i])
            cuda_launch(keep, "rows_keep_put", &keep_config, &of_keep, c->heads[i], HEADS_ROWS, 0,
                        seed);
    }
}

static void check_heads(const heads_case *c, int format, int warps, uint32_t seed) {
    static heads_memory one, other;

    fill_heads(&one, c, format, seed);
    fill_heads(&other, c, format, seed);
    heads_at_once(&one, c, format, warps, seed);
    heads_one_by_one(&other, c, format, seed);
    cr_assert_eq(one.m.n, other.m.n);
    for (int i = 0; i < one.m.n; i++)
        cr_assert_arr_eq(one.m.guard[i].data, other.m.guard[i].data, one.m.guard[i].bytes,
                         "format %d, %d warps, seed %d: array %d", format, warps, (int)seed, i);
    cuda_release(&one.m);
    cuda_release(&other.m);
}

Test(cuda_rows, heads_at_once_are_those_one_by_one, .timeout = 60) {
    uint32_t seed = 1;

    for (size_t i = 0; i < sizeof head_cases / sizeof *head_cases; i++)
        for (int format = KT_KEPT_BF16; format <= KT_KEPT_FP8; format++, seed++)
            check_heads(&head_cases[i], format, 1 << seed % 4, seed);
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
    cuda_launch(k, "rows_misc_bias", &config, &(kt_rows_bias){y, w, ld, width, rows, 0}, blocks,
                rows, 0, seed);
    for (int i = 0; i < rows * ld; i++)
        cr_assert_eq(y[i], i % ld < width ? x[i] + w[i % ld] : x[i], "bias, number %d", i);
    for (int is_wide = 0; is_wide < 2; is_wide++) {
        const kt_rows_gate call = {y, gate, ld, width, width, is_wide ? width : 1, rows, 0};
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
        &(kt_rows_embed){is_bf16 ? (void *)table16 : (void *)table, token, out, ld, width, 3, 0},
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
                &(kt_rows_copy){x, row, y, y16, ldx, ldy, width, width, 4, 0}, cuda_cut(width, 64),
                4, 0, 1);
    cuda_launch(k, "rows_copy_rows", &config,
                &(kt_rows_copy){x, NULL, z, NULL, ldx, ldy, 0, width, 4, 0}, cuda_cut(width, 64), 4,
                0, 2);
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

/* ---- residual streams ---- */

/* Products in double, rounded once. */
static void multiply(const float *streams, const float *fn, int outputs, int n, float *product) {
    for (int o = 0; o < outputs; o++) {
        double sum = 0;
        for (int i = 0; i < n; i++) sum += (double)fn[o * n + i] * streams[i];
        product[o] = (float)sum;
    }
}

static void expect_join(const float *got, const float *before, const float *y, const double *c,
                        int count, int hidden, const float *mean) {
    double want[KT_HYPER_MOST * 70];

    kt_hyper_ref_join(before, y, c, count, hidden, want);
    for (int i = 0; i < hidden; i++) {
        double all = 0;
        for (int s = 0; s < count; s++) {
            expect_near((double)got[s * hidden + i], want[s * hidden + i], 2e-3, "join", s, i);
            all += want[s * hidden + i] / count;
        }
        expect_near((double)mean[i], all, 2e-3, "mean", 0, i);
    }
}

/* The bounds of test_hyper: a hundred roundings of numbers below 2, of streams below 12. */
static void check_streams(int count, int hidden, uint32_t seed) {
    const kt_cuda_kernel *k = cuda_find("hyper_streams");
    const kt_config config = {{seed % 2 ? 2 : 8}};
    const int outputs = (int)kt_hyper_outputs(count), n = count * hidden, rows = 2;
    const int result = hidden + outputs + 3, ldo = result + hidden;
    double want[2 * KT_HYPER_MOST + KT_HYPER_MOST * KT_HYPER_MOST];
    cuda_memory m = {.n = 0};
    kt_rng rng;
    float *x, *before, *fn, *base, *scale, *product, *out, *end, *y, *mean;

    kt_rng_seed(&rng, seed);
    x = cuda_floats(&m, rows * n, 3, &rng), before = cuda_floats(&m, rows * n, 0, &rng);
    memcpy(before, x, (size_t)(rows * n) * sizeof *x);
    fn = cuda_floats(&m, outputs * n, 1 / sqrtf((float)n), &rng);
    base = cuda_floats(&m, outputs, 1, &rng), scale = cuda_floats(&m, 3, 1, &rng);
    product = cuda_floats(&m, rows * outputs, 0, &rng);
    out = cuda_floats(&m, rows * ldo, 0, &rng), end = cuda_floats(&m, rows * hidden, 0, &rng);
    y = cuda_floats(&m, rows * hidden, 1, &rng), mean = cuda_floats(&m, rows * hidden, 0, &rng);
    for (int r = 0; r < rows; r++) multiply(x + r * n, fn, outputs, n, product + r * outputs);
    kt_streams_mix call = {x,   product, base,  scale,         out,     n,
                           ldo, hidden,  count, (int)seed * 3, outputs, result,
                           0,   rows,    1e-6f, 1e-6f,         0};
    cuda_launch(k, "hyper_streams_mix", &config, &call, rows, 1, 0, seed);
    call.out = end, call.ldo = hidden, call.is_end = 1;
    cuda_launch(k, "hyper_streams_mix", &config, &call, rows, 1, 0, seed);
    cuda_launch(k, "hyper_streams_join", &config,
                &(kt_streams_join){x, y, out + hidden, mean, n, hidden, ldo, hidden, hidden, count,
                                   rows, 0},
                cuda_cut(hidden, 32 * config.value[0]), rows, 0, seed);
    for (int r = 0; r < rows; r++) {
        const float *row = out + r * ldo;
        kt_hyper_ref_coefficients(before + r * n, fn, base, scale, count, hidden, seed * 3, 1e-6,
                                  1e-6, want);
        for (int o = 0; o < outputs; o++)
            expect_near((double)row[hidden + o], want[o], 4e-5, "coefficient", r, o);
        for (int i = 0; i < hidden; i++) {
            double sum = 0;
            for (int s = 0; s < count; s++) sum += want[s] * before[r * n + s * hidden + i];
            expect_near((double)row[i], sum, 2e-3, "mix", r, i);
            expect_near((double)end[r * hidden + i], sum, 2e-3, "end", r, i);
            cr_assert_eq(row[result + i], 0.0f);
        }
        expect_join(x + r * n, before + r * n, y + r * hidden, want, count, hidden,
                    mean + r * hidden);
    }
    cuda_launch(k, "hyper_streams_begin", &config,
                &(kt_streams_begin){y, x, hidden, n, hidden, count, rows, 0},
                cuda_cut(n, 32 * config.value[0]), rows, 0, seed);
    for (int i = 0; i < rows * n; i++) cr_assert_eq(x[i], y[i / n * hidden + i % hidden]);
    cuda_release(&m);
}

Test(cuda_rows, residual_streams_are_mixed_and_joined, .timeout = 60) {
    check_streams(4, 70, 1);
    check_streams(1, 5, 2);
    check_streams(8, 33, 3);
}

/* ---- windows and entries ---- */

enum { POOLED = 30, DIM = 37, SEQUENCES = 2 };

/* Two sequences in two steps, of which one goes on in another slot. */
static void check_pool(int halves, int ratio, uint32_t seed) {
    static const int cut[SEQUENCES][3] = {{0, 13, POOLED}, {0, 5, POOLED}};
    const int width = halves * DIM, stride = halves * 3 * DIM + 7, rows = POOLED * SEQUENCES;
    const kt_cuda_kernel *k = cuda_find("entry_pool");
    const kt_config config = {{seed % 2 ? 1 : 2}};
    cuda_memory m = {.n = 0};
    kt_rng rng;
    float *values, *gates, *states, *out;

    kt_rng_seed(&rng, seed);
    values = cuda_floats(&m, rows * width, 1, &rng), gates = cuda_floats(&m, rows * width, 2, &rng);
    for (int i = 0; i < rows * width; i += 3) gates[i] *= 20;
    states = cuda_floats(&m, 3 * stride, 0, &rng), out = cuda_floats(&m, rows * DIM, 0, &rng);
    memset(states, 0, (size_t)stride * sizeof *states);
    memset(states + 2 * stride, 0, (size_t)stride * sizeof *states);
    kt_entry_pool call = {.values = values,
                          .gates = gates,
                          .ape = cuda_floats(&m, ratio * width, 1, &rng),
                          .out = out,
                          .states = states,
                          .stride = stride,
                          .ldv = width,
                          .ldg = width,
                          .ldo = DIM,
                          .dim = DIM,
                          .halves = halves,
                          .ratio = ratio};
    for (int step = 0; step < 2; step++) {
        kt_state_span span[SEQUENCES];
        for (int s = 0; s < SEQUENCES; s++)
            span[s] = (kt_state_span){s * POOLED + cut[s][step], cut[s][step + 1] - cut[s][step],
                                      cut[s][step], s ? 2 : step, s ? 2 : 1};
        call.spans = span;
        cuda_launch(k, "entry_pool_rows", &config, &call, cuda_cut(DIM, 32 * config.value[0]),
                    SEQUENCES, 0, seed);
    }
    for (int r = 0; r < rows; r++) {
        const int s = r / POOLED, t = r % POOLED;
        double want[DIM];
        if ((t + 1) % ratio == 0)
            kt_entry_ref(values + s * POOLED * width, gates + s * POOLED * width, call.ape, DIM,
                         halves, ratio, t / ratio, want);
        for (int i = 0; i < DIM; i++)
            if ((t + 1) % ratio == 0) /* weights and values round at every token */
                expect_near((double)out[r * DIM + i], want[i], 8e-7 * (2 * ratio + 8), "entry", r,
                            i);
            else
                cr_assert(isnan(out[r * DIM + i]), "row %d ends no window", r);
    }
    cuda_release(&m);
}

Test(cuda_rows, windows_are_pooled_to_entries, .timeout = 60) {
    check_pool(2, 4, 1);
    check_pool(1, 5, 2);
    check_pool(2, 1, 3);
}

enum { KEPT = 48, TURNED = 16, ENTRY_ROWS = 6, RATIO = 4, ENTRY_PAGE = 16 * KEPT * 2 + 16 * 4 };

/* x, normed and rotated at the beginning of the window, in double. */
static void expect_entry(const float *x, const float *got, const kt_rows_keep_entry *c,
                         int position, int row) {
    const float *angle = c->cos_sin + (position + 1 - RATIO) * TURNED;
    double sum = 0, y[KEPT];

    for (int i = 0; i < KEPT; i++) sum += (double)x[i] * x[i];
    for (int i = 0; i < KEPT; i++) y[i] = x[i] / sqrt(sum / KEPT + (double)c->eps) * c->norm[i];
    for (int i = 0; i < TURNED / 2; i++) {
        double *first = y + KEPT - TURNED + (c->is_interleaved ? 2 * i : i);
        double *second = first + (c->is_interleaved ? 1 : TURNED / 2), a = *first;
        *first = a * angle[i] - *second * angle[TURNED / 2 + i];
        *second = *second * angle[i] + a * angle[TURNED / 2 + i];
    }
    for (int i = 0; i < KEPT; i++)
        expect_near((double)got[i], y[i], 2 * KEPT * u * 8, "kept", row, i);
}

static void check_entries(int format, uint32_t seed) {
    static const kt_weight_format formats[] = {KT_W_BF16, KT_W_INT8_CHANNEL, KT_W_FP8_CHANNEL};
    static const uint32_t page[] = {2, 0, 1};
    static const int32_t first_page[] = {0, 2}, span[] = {0, 0, 0, 0, 1, 1},
                         position[] = {3, 4, 63, 67, 7, 8};
    const kt_cuda_kernel *k = cuda_find("rows_keep");
    const kt_config config = {{format, seed % 2 ? 4 : 1}};
    const int row_bytes = KEPT * (format ? 1 : 2), scales_at = 16 * row_bytes, ld = KEPT + 1;
    cuda_memory m = {.n = 0};
    kt_rng rng;
    uint8_t *to, *want;
    float *x, *before, *packed;

    kt_rng_seed(&rng, seed);
    x = cuda_floats(&m, ENTRY_ROWS * ld, 2, &rng),
    before = cuda_floats(&m, ENTRY_ROWS * ld, 0, &rng);
    memcpy(before, x, ENTRY_ROWS * (size_t)ld * sizeof *x);
    packed = cuda_floats(&m, ENTRY_ROWS * ld, 0, &rng);
    to = cuda_bytes(&m, 3 * ENTRY_PAGE, 0x5a), want = cuda_bytes(&m, 3 * ENTRY_PAGE, 0x5a);
    kt_rows_keep_entry call = {.x = x,
                               .norm = cuda_floats(&m, KEPT, 1, &rng),
                               .cos_sin = cuda_floats(&m, 80 * TURNED, 1, &rng),
                               .places = {position, span, first_page, page},
                               .to = to,
                               .scale = format ? (float *)(void *)(to + scales_at) : NULL,
                               .page_bytes = ENTRY_PAGE,
                               .ldx = ld,
                               .size = KEPT,
                               .rotary = TURNED,
                               .is_interleaved = seed % 2,
                               .ratio = RATIO,
                               .row_bytes = row_bytes,
                               .rows = ENTRY_ROWS,
                               .eps = 1e-6f};
    cuda_launch(k, "rows_keep_pack", &config,
                &(kt_rows_pack){before, packed, ld, ld, KEPT, KEPT, ENTRY_ROWS, 0},
                cuda_cut(ENTRY_ROWS, config.value[1]), 1, 0, seed);
    cuda_launch(k, "rows_keep_entry", &config, &call, cuda_cut(ENTRY_ROWS, config.value[1]), 1, 0,
                seed);
    for (int r = 0; r < ENTRY_ROWS; r++) {
        const int t = position[r];
        uint8_t *at = want + page[first_page[span[r]] + t / 64] * ENTRY_PAGE, row[KEPT * 2];
        float scale = 0;
        kt_attn_store(formats[format], before + r * ld, KEPT, row, &scale);
        cr_assert_arr_eq(packed + r * ld, row, (size_t)row_bytes, "row %d, packed", r);
        cr_assert(!format || packed[r * ld + KEPT] == scale);
        if ((t + 1) % RATIO) {
            cr_assert_arr_eq(x + r * ld, before + r * ld, KEPT * sizeof *x);
            continue;
        }
        expect_entry(before + r * ld, x + r * ld, &call, t, r);
        kt_attn_store(formats[format], x + r * ld, KEPT, at + t % 64 / RATIO * row_bytes,
                      (float *)(void *)(at + scales_at) + t % 64 / RATIO);
    }
    cr_assert_arr_eq(to, want, 3 * ENTRY_PAGE, "format %d", format);
    cuda_release(&m);
}

Test(cuda_rows, entries_are_kept_where_their_window_ends, .timeout = 60) {
    for (int format = 0; format < 3; format++)
        for (uint32_t seed = 1; seed <= 2; seed++) check_entries(format, seed);
}
