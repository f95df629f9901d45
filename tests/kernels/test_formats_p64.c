/* Packing: every weight of every format lies where p64.h and p64_spec.h say.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/grid.h"
#include "kernels/formats/iq1.h"
#include "kernels/formats/p64.h"
#include "tests/support/guard.h"

static double half_at(const uint8_t *p, int bf16) {
    uint16_t bits;
    memcpy(&bits, p, 2);
    return bf16 ? kt_bf16_to_f32(bits) : kt_f16_to_f32(bits);
}

static double single_at(const uint8_t *p) {
    float v;
    memcpy(&v, p, 4);
    return v;
}

/* The b bits of plane input `in` (0..31) of a row. */
static int plane_bits(const uint8_t *plane, int b, int row, int in) {
    int quad = in / 4;
    return plane[(quad % b * 64 + row) * 4 + in % 4] >> (quad / b * b) & ((1 << b) - 1);
}

/* Formats with a grid, likewise. */
static double packed_grid_value(kt_p64_spec s, const uint8_t *panel, int row, int64_t input) {
    const kt_grid *g = kt_grid_of(s.grid);
    const int of_point = s.grid == KT_P64_IQ3_XXS || s.grid == KT_P64_IQ3_S ? 4 : 8;
    const int bits = g->points == 1024 ? 2 : g->points == 512;
    const int scales = 256 / s.group * 32, more_bytes = 256 / of_point * bits * 8;
    const int quarter = 64 * 8 / of_point + 64, in = (int)(input % 256), point = in / of_point;
    const int place = kt_grid_place(s.grid, row), column = row / 16;
    const uint8_t *block = panel + input / 256 * (128 + scales + more_bytes + 32 * quarter);
    const uint8_t *more = block + 128 + scales + 8 * bits * point;
    const uint8_t *at = block + 128 + scales + more_bytes + in / 8 * quarter;
    const uint8_t *sign = at + quarter - 64 + in / 4 % 2 * 32 + 8 * column;
    const int bit = 4 * (row % 16) + in % 4;
    const int scale = block[128 + in / s.group * 32 + row % 32] >> row / 32 * 4 & 15;
    const double unit = s.grid == KT_P64_IQ3_S ? 1 : s.grid == KT_P64_IQ3_XXS ? 0.25 : 0.125;
    int index = at[64 * (point % (8 / of_point)) + place], value;

    for (int b = 0; b < bits; b++) index |= (more[8 * b + place / 8] >> place % 8 & 1) << (8 + b);
    value = g->point[of_point * index + in % of_point];
    if (sign[bit / 8] >> bit % 8 & 1) value = -value;
    return half_at(block + 2 * row, 0) * unit * (2 * scale + 1) * value;
}

/* Block formats, spelled out from the text of p64_spec.h. */
/* Row r's f32 factor lies behind the blocks of a panel with E4M3 scales. */
static double packed_block_value(kt_weight_format format, const uint8_t *panel, int64_t k, int row,
                                 int64_t input) {
    static const double iq4[] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};
    static const double e2m1[] = {0, 1, 2, 3, 4, 6, 8, 12, -0.0, -1, -2, -3, -4, -6, -8, -12};
    const kt_p64_spec s = kt_p64_spec_of(format);
    const int run_inputs = s.group > 32 ? s.group : 32, groups = run_inputs / s.group;
    const int scale_bytes = s.scale == KT_P64_F32                             ? 256
                            : s.scale == KT_P64_BF16 || s.scale == KT_P64_F16 ? 128
                                                                              : 64;
    const int min_bytes = s.minimum == KT_P64_MIN_F32                                  ? 256
                          : s.minimum == KT_P64_MIN_F16                                ? 128
                          : s.minimum == KT_P64_MIN_U8 || s.minimum == KT_P64_MIN_ZERO ? 64
                                                                                       : 0;
    const int head = s.scale == KT_P64_S8 || s.scale == KT_P64_NIBBLES
                         ? s.minimum == KT_P64_MIN_NONE ? 128 : 256
                         : 0;
    const int run_bytes =
        run_inputs / 32 * 256 * (s.low + s.high) + groups * (scale_bytes + min_bytes);
    const uint8_t *block = panel + input / s.span * (head + s.span / run_inputs * run_bytes);
    const int in = (int)(input % s.span), of_run = in % run_inputs, g = of_run / s.group;
    const uint8_t *run = block + head + in / run_inputs * run_bytes;
    const uint8_t *planes = run + of_run / 32 * 256 * (s.low + s.high);
    const uint8_t *scale = run + run_inputs / 32 * 256 * (s.low + s.high) + g * scale_bytes;
    const uint8_t *min =
        run + run_inputs / 32 * 256 * (s.low + s.high) + groups * scale_bytes + g * min_bytes;
    int code = plane_bits(planes + 256 * s.high, s.low, row, of_run % 32);
    double d = 0, value, minimum = 0;

    if (s.high) code |= plane_bits(planes, s.high, row, of_run % 32) << s.low;
    value = s.values == KT_P64_IQ4    ? iq4[code]
            : s.values == KT_P64_E2M1 ? e2m1[code]
                                      : code - s.offset;
    if (s.scale == KT_P64_BF16) d = half_at(scale + 2 * row, 1);
    if (s.scale == KT_P64_F16) d = half_at(scale + 2 * row, 0);
    if (s.scale == KT_P64_F32) d = single_at(scale + 4 * row);
    if (s.scale == KT_P64_E4M3) {
        const int block_bytes = head + s.span / run_inputs * run_bytes;
        d = scale[row] < 8 ? ldexp(scale[row], -10)
                           : ldexp(8 + scale[row] % 8, scale[row] / 8 - 11);
        d *= single_at(panel + k / s.span * block_bytes + 4 * row);
    }
    if (s.scale == KT_P64_E8M0) d = ldexp(1, scale[row] - 128);
    if (s.scale == KT_P64_S8) d = half_at(block + 2 * row, 0) * (int8_t)scale[row];
    if (s.scale == KT_P64_NIBBLES) d = half_at(block + 2 * row, 0) * (scale[row] & 15);
    if (s.minimum == KT_P64_MIN_F16) minimum = half_at(min + 2 * row, 0);
    if (s.minimum == KT_P64_MIN_F32) minimum = single_at(min + 4 * row);
    if (s.minimum == KT_P64_MIN_U8) minimum = -half_at(block + 128 + 2 * row, 0) * min[row];
    if (s.minimum == KT_P64_MIN_NIBBLE)
        minimum = -half_at(block + 128 + 2 * row, 0) * (scale[row] >> 4);
    if (s.minimum == KT_P64_MIN_ZERO) value -= min[row];
    return d * value + minimum;
}

/* IQ1, spelled out from the text of iq1.h. */
static double packed_iq1_value(int is_m, const uint8_t *panel, int row, int64_t input) {
    const int in = (int)(input % 256), p = in % 32 / 8, j = in % 8, front = is_m ? 768 : 384;
    const uint8_t *block = panel + input / 256 * (front + 8 * 384);
    const uint8_t *unit = block + front + in / 32 * 384, *more = block + 640 + in / 16 * 8;
    const int field = block[128 + in / (is_m ? 16 : 32) * 32 + row % 32] >> row / 32 * 4;
    const int below = is_m && p % 2 ? more[row / 8] >> row % 8 : field >> 3;
    const int place = row / 16 * 2 + row % 16 / 2 * 8 + row % 2, key = unit[64 * p + place];
    const int rank = unit[256 + p / 2 * 64 + place] >> p % 2 * 4 & 15;
    const int digits = j < 4 ? kt_iq1_first[key] : kt_iq1_last[(kt_iq1_at[key] + rank) % 128];

    return half_at(block + 2 * row, 0) * (2 * (field & 7) + 1) *
           ((digits >> j % 4 * 2 & 3) - 1 + (below & 1 ? -.125 : .125));
}

static double packed_value(kt_weight_format format, const uint8_t *panel, int64_t k, int row,
                           int64_t input) {
    const uint8_t *tail = panel + 64 * k;

    switch (format) {
    case KT_W_F32: return single_at(panel + 4 * (input * 64 + row));
    case KT_W_BF16: return half_at(panel + 2 * ((input / 2 * 64 + row) * 2 + input % 2), 1);
    case KT_W_F16: return half_at(panel + 2 * ((input / 2 * 64 + row) * 2 + input % 2), 0);
    case KT_W_INT8_CHANNEL:
        return single_at(tail + 4 * row) * (panel[(input / 4 * 64 + row) * 4 + input % 4] - 128);
    case KT_W_FP8_CHANNEL:
    case KT_W_MXFP8:
    case KT_W_FP8_B128: {
        int64_t at =
            (((input / 4 * 16 + row / 4) * 2 + input % 4 / 2) * 4 + row % 4) * 2 + input % 2;
        if (format == KT_W_MXFP8)
            return ldexp(kt_f8e4m3_to_f32(panel[at]), tail[input / 32 * 64 + row] - 127);
        int64_t scale = format == KT_W_FP8_CHANNEL ? row : input / 128 * 2 + row / 32;
        return single_at(tail + 4 * scale) * kt_f8e4m3_to_f32(panel[at]);
    }
    case KT_W_IQ1_S: return packed_iq1_value(0, panel, row, input);
    case KT_W_IQ1_M: return packed_iq1_value(1, panel, row, input);
    default:
        if (kt_p64_spec_of(format).grid)
            return packed_grid_value(kt_p64_spec_of(format), panel, row, input);
        return packed_block_value(format, panel, k, row, input);
    }
}

static void check_panel_row(const kt_matrix *w, int64_t row, const uint8_t *panel, int panel_row) {
    const kt_format *format = kt_format_find(w->format);
    double *want = calloc((size_t)w->k, sizeof *want);

    if (row < w->n) format->decode_row(w, row, want);
    for (int64_t i = 0; i < w->k; i++) {
        double got = packed_value(w->format, panel, w->k, panel_row, i);
        cr_assert(got == want[i], "%s n=%lld k=%lld row %lld input %lld: %.17g, want %.17g",
                  format->name, (long long)w->n, (long long)w->k, (long long)row, (long long)i, got,
                  want[i]);
    }
    free(want);
}

static kt_gate_matrix random_matrix(int id, int64_t n, int64_t k, uint64_t seed) {
    kt_gate_matrix w;
    kt_err err = {0};
    cr_assert_eq(kt_gate_matrix_create((kt_weight_format)id, n, k, seed, &w, &err), KT_OK, "%s",
                 err.message);
    return w;
}

Test(p64, dense_panels_hold_the_weights_where_the_header_says) {
    static const int64_t sizes[][2] = {{1, 1}, {63, 2}, {64, 3}, {65, 1}, {131, 7}};
    for (int id = 1; id < KT_W_COUNT; id++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int64_t n = sizes[s][0], k = sizes[s][1] * kt_p64_k_multiple((kt_weight_format)id);
            kt_gate_matrix w = random_matrix(id, n, k, s);
            kt_problem q = {.op = KT_OP_GEMM, .weights = w.matrix.format, .n = n, .k = k};
            size_t panel_bytes = kt_p64_panel_bytes(w.matrix.format, k);
            uint8_t *packed = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0xAA);
            kt_p64_pack_gemm(&q, &w.matrix, packed);
            for (int64_t row = 0; row < 64 * kt_p64_panels(n); row++)
                check_panel_row(&w.matrix, row, packed + (size_t)(row / 64) * panel_bytes,
                                (int)(row % 64));
            kt_guard_free(packed);
            kt_gate_matrix_destroy(&w);
        }
}

Test(p64, an_expert_interleaves_gate_and_up_in_panels_of_32) {
    for (int id = 1; id < KT_W_COUNT; id++) {
        int64_t inter = kt_p64_k_multiple((kt_weight_format)id), hidden = inter;
        kt_gate_matrix gate, up, down;
        kt_problem q = {.op = KT_OP_MOE_FFN, .weights = (kt_weight_format)id};
        uint8_t *packed;

        if (inter < 256) inter = 256 / inter * inter; /* two blocks of rows for wf8b128 */
        if (hidden == 32) hidden = 96;
        q.n = inter, q.k = hidden;
        gate = random_matrix(id, inter, hidden, 1);
        up = random_matrix(id, inter, hidden, 2);
        down = random_matrix(id, hidden, inter, 3);
        packed = kt_guard_alloc(kt_p64_expert_bytes(&q), 64, 0xAA);
        kt_p64_pack_expert(&q, &gate.matrix, &up.matrix, &down.matrix, packed);
        for (int64_t r = 0; r < inter; r++) {
            check_panel_row(&gate.matrix, r, kt_p64_gate_up(&q, packed, r / 32), (int)(r % 32));
            check_panel_row(&up.matrix, r, kt_p64_gate_up(&q, packed, r / 32), 32 + (int)(r % 32));
        }
        for (int64_t r = 0; r < 64 * kt_p64_panels(hidden); r++)
            check_panel_row(&down.matrix, r,
                            kt_p64_down(&q, packed + kt_p64_gate_up_bytes(&q), r / 64),
                            (int)(r % 64));
        kt_guard_free(packed);
        kt_gate_matrix_destroy(&gate);
        kt_gate_matrix_destroy(&up);
        kt_gate_matrix_destroy(&down);
    }
}

Test(p64, panels_are_as_small_as_their_codes_and_scales) {
    for (int id = 1; id < KT_W_COUNT; id++) {
        const kt_format *f = kt_format_find((kt_weight_format)id);
        double bits = (double)kt_p64_panel_bytes(f->id, 7168) * 8 / (64.0 * 7168);
        cr_assert_eq(kt_p64_panel_bytes(f->id, 7168) % 64, 0, "%s", f->name);
        /* Scales of K-quants are unpacked from 6 bits to 8, and digits of TQ1_0 to two bits */
        cr_assert(bits <= f->bits + (f->id == KT_W_TQ1_0 ? 0.376 : 0.126),
                  "%s: %.4f bits, plain %.4f", f->name, bits, f->bits);
    }
}

Test(p64, sizes_that_do_not_fit_a_format_are_refused) {
    for (int id = 1; id < KT_W_COUNT; id++) {
        const kt_format *f = kt_format_find((kt_weight_format)id);
        int64_t k = kt_p64_k_multiple(f->id);
        kt_problem q = {.op = KT_OP_GEMM, .weights = f->id, .acts = f->acts, .n = 5, .k = k};
        kt_config config = {{0}};
        kt_err err = {0};
        cr_assert_eq(kt_p64_accepts(&q, &config, &err), KT_OK, "%s: %s", f->name, err.message);
        q.k = k + k / 2;
        cr_assert_eq(kt_p64_accepts(&q, &config, &err), KT_E_UNSUPPORTED, "%s", f->name);
        cr_assert_not_null(strstr(err.message, "multiple of"), "%s", err.message);
        q.k = 0;
        cr_assert_eq(kt_p64_accepts(&q, &config, &err), KT_E_UNSUPPORTED, "%s", f->name);
        q = (kt_problem){
            .op = KT_OP_MOE_FFN, .weights = f->id, .acts = f->acts, .n = k / 2, .k = k};
        cr_assert_eq(kt_p64_accepts(&q, &config, &err), KT_E_UNSUPPORTED, "%s", f->name);
        q = (kt_problem){.op = KT_OP_GEMM, .weights = f->id, .n = 5, .k = k};
        cr_assert_eq(kt_p64_accepts(&q, &config, &err), KT_E_UNSUPPORTED, "%s", f->name);
        cr_assert_not_null(strstr(err.message, "activations"), "%s", err.message);
    }
}
