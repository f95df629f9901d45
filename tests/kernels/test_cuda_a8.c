/* Kernels with 8-bit activations, under the emulator: quantising against its definition, products
 * against double precision on the very codes that they multiply, and a whole layer against what it
 * would be without quantised activations.
 *
 * Bounds of products: a group's sum is exact for integers and loses 2 * 128 u S for E4M3 (S = sum
 * |a w|, u = 2^-24); scales and the sum over groups add 2 (groups + 4) u S. SwiGLU's exponential is
 * good to 2^-20, h is rounded to bfloat16. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "tests/support/emulate_on.h"
#include "tests/support/dev_ending.h"

static void *guarded(kt_guard *g, size_t bytes, unsigned char fill) {
    kt_err err;
    cr_assert_eq(kt_guard_create(bytes, 16, fill, g, &err), KT_OK, "%s", err.message);
    return g->data;
}

static const kt_cuda_kernel *find(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

static void launch(const char *kernel, int entry, const void *call, int x, int y,
                   const kt_config *config, uint32_t seed) {
    const kt_cuda_kernel *k = find(kernel);
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = kt_cuda_threads(k, config, entry),
                         .shared_bytes = k->shared_bytes(config, 0),
                         .constant = config->value};
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

/* ---- quantising ---- */

/* Where input i of a row lies, and how long a row of scales is. */
static int place_of(int format, int i) {
    static const int place[8] = {0, 2, 16, 18, 1, 3, 17, 19};
    if (format != KT_A8_INT8_NIBBLES) return i;
    return i / 32 * 32 + i % 32 / 8 * 4 + place[i % 8];
}

static int scales_of(int group, int k) {
    return group ? (k + 127) / 128 * (128 / group) : 1;
}

static double code_value(int format, uint8_t code) {
    return format == KT_A8_E4M3 ? (double)kt_f8e4m3_to_f32(code) : (int8_t)code;
}

static float largest(const float *v, int n) {
    float most = 0;
    for (int i = 0; i < n; i++) most = v[i] != v[i] ? NAN : fmaxf(most, fabsf(v[i]));
    for (int i = 0; i < n; i++)
        if (v[i] != v[i]) return NAN;
    return most;
}

static uint8_t code_of(int format, float v) {
    return format == KT_A8_E4M3 ? kt_f32_to_f8e4m3(v) : (uint8_t)(int8_t)lrintf(v);
}

/* A row of codes and scales is what the definition says of the values v, each of which may be off
 * by the factor `slack`. */
static void check_row(const float *v, int k, int format, int group, float slack,
                      const uint8_t *code, const float *scale, const char *what) {
    const float top = format == KT_A8_E4M3 ? 448 : 127;
    const int size = group ? group : k;

    for (int g = 0; g < (group ? scales_of(group, k) : 1); g++) {
        const int n = g * size >= k ? 0 : k - g * size < size ? k - g * size : size;
        const float most = largest(v + g * size, n);
        const float want = most < 1e-30f ? 0 : most / top, inverse = want == 0 ? 0 : top / most;
        cr_assert(isnan(want) ? isnan(scale[g]) : fabsf(scale[g] - want) <= slack * want,
                  "%s: scale %d: %.9g, expected %.9g", what, g, (double)scale[g], (double)want);
        for (int i = g * size; i < g * size + n && !isnan(want); i++) {
            const uint8_t got = code[place_of(format, i)];
            const uint8_t right = code_of(format, v[i] * inverse);
            cr_assert(got == right ||
                          (slack > 0 && (got == code_of(format, v[i] * inverse * (1 - 2 * slack)) ||
                                         got == code_of(format, v[i] * inverse * (1 + 2 * slack)))),
                      "%s: input %d: %d, expected %d", what, i, got, right);
        }
    }
}

static void check_quantise(int entry, int rows, int k, const kt_config *config, uint32_t seed) {
    const int format = config->value[1], group = config->value[2], ld = k + 6;
    const int n_scales = scales_of(group, k);
    kt_guard x, up, of, out, scale;
    kt_quantise_rows call;
    float *v = malloc((size_t)k * sizeof *v);
    char what[96];
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    guarded(&x, (size_t)(rows * ld) * (entry == 1 ? 2 : 4), 0);
    guarded(&up, (size_t)(rows * ld) * 4, 0);
    guarded(&of, (size_t)rows * 4, 0);
    guarded(&out, (size_t)(rows * k), 0xee);
    guarded(&scale, (size_t)(rows * n_scales) * 4, 0xff);
    for (int i = 0; i < rows * ld; i++) {
        const float a = kt_rng_normal(&rng) * (i % ld / 32 == 1 && i % 3 == 0 ? 0 : 2);
        if (entry == 1)
            ((uint16_t *)x.data)[i] = (uint16_t)kt_emulator_bf16(a);
        else
            ((float *)x.data)[i] = i / ld == 1 && i % ld < 32 ? 0 : a;
        ((float *)up.data)[i] = kt_rng_normal(&rng);
    }
    if (entry == 0) ((float *)x.data)[2 * ld + k - 1] = NAN;
    for (int r = 0; r < rows; r++) ((int32_t *)of.data)[r] = (r + 1) % rows;
    call = (kt_quantise_rows){x.data, up.data, seed % 3 ? of.data : NULL, out.data, scale.data, ld,
                              k,      0};
    launch("quantise_rows", entry, &call, rows, 1, config, seed);
    for (int r = 0; r < rows; r++) {
        const int from = (call.of ? call.of[r] : r) * ld;
        for (int i = 0; i < k; i++) {
            v[i] = entry == 1 ? kt_float_bits((uint32_t)((const uint16_t *)x.data)[from + i] << 16)
                              : ((const float *)x.data)[from + i];
            if (entry == 2) v[i] = kt_silu(v[i]) * ((const float *)up.data)[from + i];
        }
        snprintf(what, sizeof what, "entry %d, k=%d, format %d, group %d, seed %u, row %d", entry,
                 k, format, group, seed, r);
        check_row(v, k, format, group, entry == 2 && kt_emulates_on_gpu() ? 0x1p-20f : 0,
                  (const uint8_t *)out.data + r * k, (const float *)scale.data + r * n_scales,
                  what);
    }
    kt_guard_destroy(&x), kt_guard_destroy(&up), kt_guard_destroy(&of);
    kt_guard_destroy(&out), kt_guard_destroy(&scale);
    free(v);
}

Test(cuda_a8, rows_become_8_bits_as_defined, .timeout = 60) {
    static const int sizes[] = {32, 160, 128, 544}, groups[] = {0, 32, 128};
    uint32_t seed = 1;

    for (int format = 0; format < 3; format++)
        for (int g = 0; g < 3; g++)
            for (int i = 0; i < 4; i++, seed++)
                check_quantise((int)seed % 3, 3, sizes[i],
                               &(kt_config){{i % 2 ? 2 : 1, format, groups[g]}}, seed);
}

/* ---- products ---- */

/* A matrix as the format says, and as the device has it. */
typedef struct a8_weights {
    kt_gate_matrix plain;
    kt_guard records;
    double *row;
} a8_weights;

/* One scale for all, so that no few rows make up the whole of a mean. */
static void level_scales(const kt_matrix *m) {
    const int group = kt_weight_spec_of((int)m->format).group;
    const bool is_block = m->format == KT_W_FP8_B128;
    const int64_t bf16s = m->n * (m->k / (group ? group : m->k));
    const int64_t floats = is_block ? (m->n + 127) / 128 * ((m->k + 127) / 128) : m->n;

    if (is_block || !group)
        for (int64_t i = 0; i < floats; i++) ((float *)(uintptr_t)m->scales)[i] = 0x1p-9f;
    else
        for (int64_t i = 0; i < bf16s; i++) ((uint16_t *)(uintptr_t)m->scales)[i] = 0x3c00;
}

static void make_weights(a8_weights *w, int format, int64_t n, int64_t k, bool is_level,
                         uint64_t seed) {
    size_t bytes;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create((kt_weight_format)format, n, k, seed, &w->plain, &err),
                 KT_OK, "%s", err.message);
    if (is_level) level_scales(&w->plain.matrix);
    cr_assert_eq(kt_device_weights_bytes((kt_weight_format)format, n, k, &bytes, &err), KT_OK);
    guarded(&w->records, bytes, 0xff);
    cr_assert_eq(kt_device_weights_pack(&w->plain.matrix, 0, n, w->records.data, &err), KT_OK);
    w->row = malloc((size_t)k * sizeof *w->row);
}

static void drop_weights(a8_weights *w) {
    kt_gate_matrix_destroy(&w->plain);
    kt_guard_destroy(&w->records);
    free(w->row);
}

/* Rows quantised by the kernel itself, and what they are worth. */
typedef struct a8_rows {
    kt_guard code, scale;
    double *value; /* [rows, k] */
    int k, group, format;
} a8_rows;

static int acts_format(int weights) {
    const kt_weight_spec s = kt_weight_spec_of(weights);
    if (s.values == KT_CODE_E4M3) return KT_A8_E4M3;
    return s.low == 4 ? KT_A8_INT8_NIBBLES : KT_A8_INT8;
}

static int acts_group(int weights) {
    const kt_weight_spec s = kt_weight_spec_of(weights);
    return s.group == 0 ? 0 : s.group == 128 && s.low == 8 ? 128 : 32;
}

static void make_rows(a8_rows *r, int weights, const uint16_t *x, int rows, int k, uint32_t seed) {
    kt_quantise_rows call;

    *r = (a8_rows){.k = k, .group = acts_group(weights), .format = acts_format(weights)};
    guarded(&r->code, (size_t)(rows * k), 0xee);
    guarded(&r->scale, (size_t)(rows * scales_of(r->group, k)) * 4, 0xff);
    call = (kt_quantise_rows){x, NULL, NULL, r->code.data, r->scale.data, k, k, 0};
    launch("quantise_rows", 1, &call, rows, 1, &(kt_config){{1, r->format, r->group}}, seed);
    r->value = malloc((size_t)(rows * k) * sizeof *r->value);
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < k; i++) {
            const int at = row * scales_of(r->group, k) + (r->group ? i / r->group : 0);
            r->value[row * k + i] =
                (double)((const float *)r->scale.data)[at] *
                code_value(r->format,
                           ((const uint8_t *)r->code.data)[row * k + place_of(r->format, i)]);
        }
}

static void drop_rows(a8_rows *r) {
    kt_guard_destroy(&r->code);
    kt_guard_destroy(&r->scale);
    free(r->value);
}

typedef struct a8_dot {
    double value, bound;
} a8_dot;

/* What the tensor cores of a GPU may lose of sums of E4M3, beside rounding. For each 32 inputs they
 * bring the products and what they add to under the exponent of the largest, and cut off behind 13
 * bits of a fraction: 33 numbers, each off by 2^-13 of a power of two that is at most the largest.
 * Sums begin anew after 128 inputs (Hopper's, by Khattak and Mikaitis, arXiv 2512.07004). */
static double lost_in_tensor_cores(const double *w, const double *x, int64_t k) {
    double lost = 0, before = 0;

    for (int64_t i = 0; i < k; i += 32) {
        double most, all = 0;
        if (i % 128 == 0) before = 0;
        most = before;
        for (int64_t j = i; j < i + 32 && j < k; j++) {
            most = fmax(most, fabs(w[j] * x[j]));
            all += fabs(w[j] * x[j]);
        }
        lost += 33 * 0x1p-13 * most;
        before += all;
    }
    return lost;
}

static a8_dot multiply(const a8_weights *w, int64_t row, const double *x, int inside) {
    const kt_matrix *m = &w->plain.matrix;
    double magnitude = 0;
    a8_dot d = {0, 0};

    kt_format_find(m->format)->decode_row(m, row, w->row);
    for (int64_t i = 0; i < m->k; i++) {
        d.value += w->row[i] * x[i];
        magnitude += fabs(w->row[i] * x[i]);
    }
    d.bound = 2 * ((double)m->k / 32 + 4 + inside) * 0x1p-24 * magnitude + 1e-37;
    if (inside && kt_emulates_on_gpu()) d.bound += lost_in_tensor_cores(w->row, x, m->k);
    return d;
}

typedef struct a8_case {
    int tokens, slots, experts, n, k;
} a8_case;

typedef struct a8_layer {
    a8_case c;
    int format, inside; /* of E4M3: sums inside of tensor cores */
    int32_t row_token[96], row_expert[96];
    float route[96];
    kt_moe_tile tile[64];
    int n_rows, n_tiles;
    uint16_t *x, *h;
    float *y;
    a8_weights gate, up, down;
    a8_rows xq, hq;
    kt_test_ending ending;
} a8_layer;

/* Sorted rows of experts, of which the last but one has none, and a tile of no rows at the end. */
static void sort_rows(a8_layer *l, int bm, kt_rng *rng) {
    for (int e = 0; e < l->c.experts; e++) {
        const int first = l->n_rows;
        for (int t = 0; t < l->c.tokens; t++) {
            if ((l->c.experts > 1 && e == l->c.experts - 2) || kt_rng_below(rng, 9) < 2) continue;
            l->row_token[l->n_rows] = l->c.tokens - 1 - t;
            l->row_expert[l->n_rows] = e;
            l->route[l->n_rows++] = kt_rng_uniform(rng, 0.1f, 1);
        }
        for (int at = first; at < l->n_rows; at += bm)
            l->tile[l->n_tiles++] = (kt_moe_tile){e, at, l->n_rows - at < bm ? l->n_rows - at : bm};
    }
    l->tile[l->n_tiles++] = (kt_moe_tile){0, 0, 0};
}

static void make_layer(a8_layer *l, const a8_case *c, int format, int bm, bool is_level,
                       uint32_t seed) {
    kt_rng rng;

    memset(l, 0, sizeof *l);
    l->c = *c;
    l->format = format;
    l->inside = kt_weight_spec_of(format).values == KT_CODE_E4M3 ? 128 : 0;
    kt_rng_seed(&rng, seed);
    sort_rows(l, bm, &rng);
    kt_test_ending_make(&l->ending, is_level ? 0 : seed, c->experts, c->n, c->k);
    make_weights(&l->gate, format, (int64_t)c->experts * c->n, c->k, is_level, seed);
    make_weights(&l->up, format, (int64_t)c->experts * c->n, c->k, is_level, seed + 1);
    make_weights(&l->down, format, (int64_t)c->experts * c->k, c->n, is_level, seed + 2);
    l->x = malloc((size_t)(c->tokens * c->k) * 2);
    l->h = malloc((size_t)(l->n_rows * c->n) * 2);
    l->y = malloc((size_t)(l->n_rows * (c->k + 3)) * sizeof *l->y);
    for (int i = 0; i < c->tokens * c->k; i++)
        l->x[i] = (uint16_t)kt_emulator_bf16(kt_rng_normal(&rng));
    for (int i = 0; i < l->n_rows * (c->k + 3); i++) l->y[i] = 7;
    make_rows(&l->xq, format, l->x, c->tokens, c->k, seed);
}

static void drop_layer(a8_layer *l) {
    drop_weights(&l->gate), drop_weights(&l->up), drop_weights(&l->down);
    drop_rows(&l->xq), drop_rows(&l->hq);
    free(l->x), free(l->h), free(l->y);
    kt_test_ending_drop(&l->ending);
}

static double bf16(uint16_t bits) {
    return (double)kt_float_bits((uint32_t)bits << 16);
}

static double silu(double x) {
    return x / (1 + exp(-x));
}

static void check_h(a8_layer *l, const char *what) {
    const int n = l->c.n;

    for (int row = 0; row < l->n_rows; row++)
        for (int i = 0; i < n; i++) {
            const double *x = l->xq.value + l->row_token[row] * l->c.k;
            const int64_t at = (int64_t)l->row_expert[row] * n + i;
            const a8_dot g = multiply(&l->gate, at, x, l->inside);
            const a8_dot u = multiply(&l->up, at, x, l->inside);
            const double got = bf16(l->h[row * n + i]);
            double bound;
            const double want = kt_test_ending_h(&l->ending, l->row_expert[row], i, g.value,
                                                 g.bound, u.value, u.bound, &bound);
            cr_assert(fabs(got - want) <= bound,
                      "%s: h of row %d, column %d: %g, expected %g +- %g", what, row, i, got, want,
                      bound);
        }
}

/* y had 7 everywhere, to which it is added or not. */
static void check_y(a8_layer *l, bool adds, const char *what) {
    const int k = l->c.k, ld = k + 3;

    for (int row = 0; row < l->n_rows; row++)
        for (int i = 0; i < ld; i++) {
            const double got = (double)l->y[row * ld + i];
            a8_dot d = {0, 0};
            if (i < k)
                d = multiply(&l->down, (int64_t)l->row_expert[row] * k + i,
                             l->hq.value + row * l->c.n, l->inside);
            if (i < k) d.value += kt_test_ending_down(&l->ending, l->row_expert[row], i);
            d.value = d.value * (double)l->route[row] + (adds || i >= k ? 7 : 0);
            d.bound = d.bound * 1.1 + 4 * 0x1p-24 * (fabs(d.value) + 7);
            cr_assert(fabs(got - d.value) <= d.bound,
                      "%s: y of row %d, column %d: %g, expected %g +- %g", what, row, i, got,
                      d.value, d.bound);
        }
}

static int cut(int n, int by) {
    return (n + by - 1) / by;
}

static void run_layer(a8_layer *l, const char *kernel, const kt_config *config, bool adds,
                      uint32_t seed) {
    const a8_case *c = &l->c;
    const kt_weight_format f = (kt_weight_format)l->format;
    kt_a8_tiles call = {.x = l->xq.code.data,
                        .x_scale = l->xq.scale.data,
                        .row_token = l->row_token,
                        .route = l->route,
                        .tile = l->tile,
                        .gate = l->gate.records.data,
                        .up = l->up.records.data,
                        .down = l->down.records.data,
                        .h = l->h,
                        .y = l->y,
                        .ldy = c->k + 3,
                        .gate_bytes = c->n * (int64_t)kt_device_row_bytes(f, c->k),
                        .down_bytes = c->k * (int64_t)kt_device_row_bytes(f, c->n),
                        .n = c->n,
                        .k = c->k,
                        .accumulate = adds,
                        .ending = l->ending.ending};

    launch(kernel, 0, &call, cut(c->n, config->value[1] / 2), l->n_tiles, config, seed);
    make_rows(&l->hq, l->format, l->h, l->n_rows, c->n, seed);
    call.h8 = l->hq.code.data;
    call.h_scale = l->hq.scale.data;
    launch(kernel, 1, &call, cut(c->k, config->value[1]), l->n_tiles, config, seed);
}

static void check_layer(const char *kernel, const a8_case *c, const kt_config *config, int format,
                        int most, uint32_t seed) {
    char what[128];
    a8_layer l;

    cr_assert_null(find(kernel)->refuse(config, &kt_cuda_targets[5]));
    make_layer(&l, c, format, most, false, seed);
    snprintf(what, sizeof what, "%s, format %d, n=%d k=%d bm=%d bn=%d, %d, %d, %d, seed %u", kernel,
             l.format, c->n, c->k, (int)config->value[0], (int)config->value[1],
             (int)config->value[2], (int)config->value[3], (int)config->value[4], seed);
    run_layer(&l, kernel, config, seed % 2, seed);
    check_h(&l, what);
    check_y(&l, seed % 2, what);
    drop_layer(&l);
}

static const a8_case cases[] = {{15, 2, 3, 32, 160}, {17, 2, 2, 96, 96}};

/* Of blocks of 128 x 128 and 4 bits in groups of 128, more than one. */
static const a8_case wide = {19, 2, 2, 128, 384};

static void check_formats(const char *kernel, const int *formats, int n) {
    static const int configs[][5] = {
        {16, 64, 1, 1, 2}, {32, 128, 2, 2, 3}, {16, 64, 1, 2, 4}, {64, 64, 4, 2, 2}};
    uint32_t seed = 1;

    for (int f = 0; f < n; f++)
        for (int i = 0; i < 4; i++, seed++) {
            const bool is_wide = kt_weight_spec_of(formats[f]).group >= 64;
            kt_config config = {{0}};
            memcpy(config.value, configs[i], sizeof configs[i]);
            config.value[5] = formats[f];
            check_layer(kernel, is_wide ? &wide : &cases[i % 2], &config, formats[f],
                        config.value[0] / 2 + 3, seed);
        }
}

Test(cuda_a8, integers_of_many_tokens, .timeout = 120) {
    static const int formats[] = {KT_W_INT4_G32,  KT_W_INT4_G64, KT_W_INT4_G128, KT_W_INT8_CHANNEL,
                                  KT_W_INT8_G128, KT_W_Q4_0,     KT_W_Q8_0};
    check_formats("moe_s8_tiles", formats, 7);
}

Test(cuda_a8, e4m3_of_many_tokens, .timeout = 120) {
    static const int formats[] = {KT_W_FP8_B128, KT_W_FP8_CHANNEL};
    check_formats("moe_fp8_tiles", formats, 2);
}

Test(cuda_a8, e4m3_by_warpgroups, .timeout = 120) {
    static const a8_case small = {15, 2, 2, 32, 160}, full = {75, 1, 1, 32, 256},
                         long_rows = {9, 2, 2, 160, 416};

    check_layer("moe_fp8_wgmma", &small, &(kt_config){{64, 64, 3, KT_W_FP8_CHANNEL}},
                KT_W_FP8_CHANNEL, 9, 1);
    check_layer("moe_fp8_wgmma", &wide, &(kt_config){{64, 128, 4, KT_W_FP8_B128}}, KT_W_FP8_B128,
                64, 2);
    check_layer("moe_fp8_wgmma", &full, &(kt_config){{128, 64, 3, KT_W_FP8_B128}}, KT_W_FP8_B128,
                128, 3);
    check_layer("moe_fp8_wgmma", &long_rows, &(kt_config){{64, 128, 3, KT_W_FP8_B128}},
                KT_W_FP8_B128, 9, 4);
    check_layer("moe_fp8_wgmma", &long_rows, &(kt_config){{128, 128, 5, KT_W_FP8_CHANNEL}},
                KT_W_FP8_CHANNEL, 9, 5);
}

/* ---- dense, and the accuracy of a layer ---- */

/* Rows in order through one expert's matrices, with neither tiles nor routes. */
static void run_dense(a8_layer *l, const char *kernel, const kt_config *config, uint32_t seed) {
    const a8_case *c = &l->c;
    kt_a8_tiles call = {.x = l->xq.code.data,
                        .x_scale = l->xq.scale.data,
                        .gate = l->gate.records.data,
                        .up = l->up.records.data,
                        .down = l->down.records.data,
                        .h = l->h,
                        .y = l->y,
                        .ldy = c->k + 3,
                        .n = c->n,
                        .k = c->k,
                        .rows = c->tokens,
                        .ending = l->ending.ending};
    const int tiles = cut(c->tokens, config->value[0]);

    launch(kernel, 0, &call, cut(c->n, config->value[1] / 2), tiles, config, seed);
    make_rows(&l->hq, l->format, l->h, c->tokens, c->n, seed);
    call.h8 = l->hq.code.data;
    call.h_scale = l->hq.scale.data;
    launch(kernel, 1, &call, cut(c->k, config->value[1]), tiles, config, seed);
}

static void make_dense(a8_layer *l, const a8_case *c, int format, bool is_level, uint32_t seed) {
    make_layer(l, c, format, 64, is_level, seed);
    l->n_rows = c->tokens;
    l->h = realloc(l->h, (size_t)(c->tokens * c->n) * 2);
    l->y = realloc(l->y, (size_t)(c->tokens * (c->k + 3)) * sizeof *l->y);
    for (int i = 0; i < c->tokens * (c->k + 3); i++) l->y[i] = 7;
    for (int i = 0; i < c->tokens; i++) {
        l->row_token[i] = i;
        l->row_expert[i] = 0;
        l->route[i] = 1;
    }
}

Test(cuda_a8, dense_rows_need_no_lists, .timeout = 60) {
    static const a8_case c = {35, 1, 1, 32, 96};
    static const struct {
        const char *kernel;
        int format;
    } all[] = {{"moe_s8_tiles", KT_W_INT8_CHANNEL},
               {"moe_s8_tiles", KT_W_INT4_G32},
               {"moe_fp8_tiles", KT_W_FP8_CHANNEL}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const kt_config config = {{16, 64, 1, 2, 3, all[i].format}};
        a8_layer l;
        make_dense(&l, &c, all[i].format, false, 5);
        run_dense(&l, all[i].kernel, &config, (uint32_t)i);
        check_h(&l, all[i].kernel);
        check_y(&l, false, all[i].kernel);
        drop_layer(&l);
    }
}

/* Relative error of y, in the mean, against the layer on activations that nothing rounds. */
static double layer_error(a8_layer *l) {
    const a8_case *c = &l->c;
    double *x = malloc((size_t)(c->k + c->n) * sizeof *x), *h = x + c->k, lost = 0, whole = 0;

    for (int row = 0; row < c->tokens; row++) {
        for (int i = 0; i < c->k; i++) x[i] = bf16(l->x[row * c->k + i]);
        for (int i = 0; i < c->n; i++)
            h[i] = silu(multiply(&l->gate, i, x, 0).value) * multiply(&l->up, i, x, 0).value;
        for (int i = 0; i < c->k; i++) {
            const double want = multiply(&l->down, i, h, 0).value;
            const double off = (double)l->y[row * (c->k + 3) + i] - want;
            lost += off * off;
            whole += want * want;
        }
    }
    free(x);
    return sqrt(lost / whole);
}

/* Activations in groups of 32: 1.5 %. One scale for a row costs more, because few values of h =
 * SwiGLU are much larger than the others. E4M3 has 3 bits behind the point: 2^-4 at worst and 2 %
 * in the mean of one rounding, three of which come together in a layer. */
Test(cuda_a8, a_layer_stays_accurate, .timeout = 60) {
    static const a8_case c = {16, 1, 1, 128, 256};
    static const struct {
        const char *kernel;
        int format;
        double most;
    } all[] = {{"moe_s8_tiles", KT_W_INT4_G32, 0.015},
               {"moe_s8_tiles", KT_W_INT4_G128, 0.015},
               {"moe_s8_tiles", KT_W_INT8_CHANNEL, 0.03},
               {"moe_fp8_tiles", KT_W_FP8_B128, 0.06}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        const kt_config config = {{16, 64, 1, 1, 2, all[i].format}};
        double error;
        a8_layer l;
        make_dense(&l, &c, all[i].format, true, 9);
        run_dense(&l, all[i].kernel, &config, 2);
        error = layer_error(&l);
        cr_log_info("%s, format %d: %.2f %%", all[i].kernel, all[i].format, 100 * error);
        cr_expect(error <= all[i].most && error > 0, "%s, format %d: %.2f %%, at most %.2f %%",
                  all[i].kernel, all[i].format, 100 * error, 100 * all[i].most);
        drop_layer(&l);
    }
}

/* Half a fragment of E4M3 codes against the definition: all codes, both ways. */
typedef struct e4m3_call {
    float c[16 * 8];
} e4m3_call;

static uint32_t codes_from(int first) {
    uint32_t word = 0;
    for (int i = 0; i < 4; i++) word |= (uint32_t)((first + i) * 7 % 126) << 8 * i;
    return word ^ (first % 3 ? 0x80000080u : 0u);
}

static void multiply_e4m3(const e4m3_call *p) {
    const int g = kt_lane() / 4, t = kt_lane() % 4;
    const uint32_t a[4] = {codes_from(g * 32 + t * 4), codes_from((g + 8) * 32 + t * 4),
                           codes_from(g * 32 + t * 4 + 16), codes_from((g + 8) * 32 + t * 4 + 16)};
    float c[4] = {1, 1, 1, 1};

    kt_mma_e4m3(c, a, codes_from(g * 32 + t * 4 + 5), codes_from(g * 32 + t * 4 + 21));
    for (int j = 0; j < 4; j++)
        ((e4m3_call *)(uintptr_t)p)->c[(g + j / 2 * 8) * 8 + 2 * t + j % 2] = c[j];
}
KT_ENTRY(run_multiply_e4m3, e4m3_call, multiply_e4m3, 32)

Test(cuda_a8, tensor_cores_multiply_e4m3) {
    static e4m3_call call;
    const kt_launch l = {"multiply_e4m3", run_multiply_e4m3, &call, 1, 1, 32, 0, NULL};
    const kt_emulator_options options = {7, true, true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            double sum = 1, magnitude = 1;
            for (int k = 0; k < 32; k++) {
                const uint32_t a = codes_from(row * 32 + k / 4 * 4) >> k % 4 * 8 & 255;
                const uint32_t b = codes_from(column * 32 + k / 4 * 4 + 5) >> k % 4 * 8 & 255;
                const double v =
                    (double)kt_f8e4m3_to_f32((uint8_t)a) * (double)kt_f8e4m3_to_f32((uint8_t)b);
                sum += v;
                magnitude += fabs(v);
            }
            cr_expect(fabs((double)call.c[row * 8 + column] - sum) <= 64 * 0x1p-24 * magnitude,
                      "(%d, %d): %g, expected %g", row, column, (double)call.c[row * 8 + column],
                      sum);
        }
}
