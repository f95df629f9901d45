/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm/gemm_ref.h"

#include <math.h>
#include <stdbool.h>

#include "kernels/formats/acts.h"
#include "kernels/formats/blocks.h"
#include "kernels/formats/requant8.h"

/* The largest weight of a block of row j as requant8.h has it, and the largest error among its
 * groups, of a step. */
static double largest_of(const kt_matrix *w, int64_t j, int64_t first, int64_t end, double *error) {
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    double largest = 0;
    kt_block block;

    for (int64_t i = first; i < end; i += s.group) {
        const int g = (int)(i % s.span) / s.group;
        if (g == 0) kt_format_find(w->format)->unpack(w, j, i / s.span, &block);
        const kt_group_terms t = kt_block_terms(&s, &block, g);
        const int offset = s.minimum == KT_P64_MIN_ZERO ? (int)block.minimum[0] : s.offset;
        largest = fmax(largest, kt_r8_largest_of(s, offset, t.scale, t.minimum));
        *error = fmax(*error, kt_r8_error(s, offset));
    }
    return largest;
}

/* What requant8 may move the product of row j of w with each row of a: by block, the most that a
 * weight moves times the sum of |a|. */
static void add_moves(const kt_matrix *w, int64_t j, const double *a, int64_t m, kt_ref_sum *c) {
    double error = 0;
    const double least = fmax(largest_of(w, j, 0, w->k, &error) * KT_R8_RANGE, 127 * 0x1p-119);

    for (int64_t first = 0; first < w->k; first += KT_R8_BLOCK) {
        const int64_t end = first + KT_R8_BLOCK < w->k ? first + KT_R8_BLOCK : w->k;
        const double most = fmax(largest_of(w, j, first, end, &error), least) / 127 * error;
        for (int64_t i = 0; i < m; i++) {
            kt_ref_sum *sum = &c[i * w->n + j];
            double a_sum = 0;
            for (int64_t l = first; l < end; l++) a_sum += fabs(a[i * w->k + l]);
            sum->moved += most * a_sum;
            sum->move_max = fmax(sum->move_max, most);
        }
    }
}

/* The largest terms that the scales of row j of w allow, whatever the codes: scale * (code -
 * offset) and the minimum. Of formats of codes and scales. */
static double top_of(const kt_matrix *w, int64_t j) {
    const kt_p64_spec s = kt_p64_spec_of(w->format);
    const kt_format *format = kt_format_find(w->format);
    const double most = s.values == KT_P64_IQ4 ? 127 : s.values == KT_P64_E2M1 ? 12 : 256;
    double top = 0;

    if (w->format == KT_W_INT8_CHANNEL) top = 128 * fabs((double)((const float *)w->scales)[j]);
    if (w->format == KT_W_FP8_CHANNEL) top = 448 * fabs((double)((const float *)w->scales)[j]);
    for (int64_t b = 0; w->format == KT_W_FP8_B128 && b < (w->k + 127) / 128; b++) {
        const float *scales = w->scales;
        top = fmax(top, 448 * fabs((double)scales[j / 128 * ((w->k + 127) / 128) + b]));
    }
    for (int64_t g = 0; w->format == KT_W_MXFP8 && g < w->k / 32; g++)
        top = fmax(top, ldexp(448, ((const uint8_t *)w->scales)[j * (w->k / 32) + g] - 127));
    for (int64_t b = 0; s.low && b < w->k / s.span; b++) {
        kt_block block;
        format->unpack(w, j, b, &block);
        for (int g = 0; g < s.span / s.group; g++) {
            const kt_group_terms t = kt_block_terms(&s, &block, g);
            top = fmax(top, most * fabs(t.scale) + fabs(t.minimum));
        }
        if (kt_p64_head_bytes(s)) /* kernels look at heads alone */
            top = fmax(top, 128 * most * fabs((double)kt_f16_to_f32(block.d)));
        if (kt_p64_head_bytes(s) > 128)
            top = fmax(top, 256 * fabs((double)kt_f16_to_f32(block.dmin)));
    }
    if (kt_p64_tail_bytes(s) && w->scales) top *= fabs((double)((const float *)w->scales)[j]);
    return top;
}

enum { AT_ONCE = 4 }; /* rows whose sums do not wait for each other */

/* sum_l a[i, l] w[l], or of its terms' magnitudes, of AT_ONCE rows from i on, each in the order of
 * l; past the last row that row again. Sanitizers leave it as it is, since it reads whole rows and
 * a fifth of the gates' time under them would go here. */
__attribute__((no_sanitize("address", "undefined"))) static void
add_up(const double *a, int64_t i, int64_t m, int64_t k, const double *w, bool of_magnitudes,
       double sum[AT_ONCE]) {
    const double *row[AT_ONCE];

    for (int r = 0; r < AT_ONCE; r++) row[r] = a + (i + r < m ? i + r : m - 1) * k, sum[r] = 0;
    if (of_magnitudes) {
        for (int64_t l = 0; l < k; l++)
            for (int r = 0; r < AT_ONCE; r++) sum[r] += fabs(row[r][l] * w[l]);
    } else {
        for (int64_t l = 0; l < k; l++)
            for (int r = 0; r < AT_ONCE; r++) sum[r] += row[r][l] * w[l];
    }
}

static double largest(const double *row, int64_t k) {
    double most = 0;
    for (int64_t l = 0; l < k; l++) most = fabs(row[l]) > most ? fabs(row[l]) : most;
    return most;
}

void kt_gemm_ref(const kt_matrix *w, const double *a, int64_t m, double *w_row, kt_ref_sum *c) {
    const kt_format *format = kt_format_find(w->format);
    double sum[AT_ONCE];

    for (int64_t j = 0; j < w->n; j++) {
        const double w_top = top_of(w, j);
        double w_sum = 0;
        if (format->terms_row)
            format->terms_row(w, j, w_row);
        else
            format->decode_row(w, j, w_row);
        for (int64_t i = 0; i < m; i += AT_ONCE) {
            add_up(a, i, m, w->k, w_row, true, sum);
            for (int r = 0; r < AT_ONCE && i + r < m; r++)
                c[(i + r) * w->n + j] = (kt_ref_sum){.magnitude = sum[r]};
        }
        if (format->terms_row) format->decode_row(w, j, w_row);
        for (int64_t l = 0; l < w->k; l++) w_sum += fabs(w_row[l]);
        for (int64_t i = 0; i < m; i += AT_ONCE) {
            add_up(a, i, m, w->k, w_row, false, sum);
            for (int r = 0; r < AT_ONCE && i + r < m; r++) {
                kt_ref_sum *to = &c[(i + r) * w->n + j];
                to->value = sum[r];
                to->a_max = j > 0 ? c[(i + r) * w->n].a_max : largest(a + (i + r) * w->k, w->k);
                to->w_sum = w_sum;
                to->w_top = w_top;
            }
        }
        if (kt_r8_takes(kt_p64_spec_of(w->format))) add_moves(w, j, a, m, c);
    }
}

/* Float terms of an integer kernel: G products of scales and integer sums, or twice as many
 * where each group adds a minimum times a sum of activations; a scale over more inputs than an
 * activation's multiplies the sum of its parts once more. Each term sees three roundings of its
 * own at most, and so does the sum. */
static double integer_roundings(kt_weight_format weights, int a_group, double k) {
    const kt_p64_spec s = kt_p64_spec_of(weights);
    const int has_minimum = s.minimum != KT_P64_MIN_NONE && s.minimum != KT_P64_MIN_ZERO;

    if (!s.low || (weights == KT_W_INT4_G32 && a_group == 32)) return k / a_group + 3;
    return k / (s.group < a_group ? s.group : a_group) * (1 + has_minimum) +
           (s.group > a_group ? k / s.group : 0) + 4;
}

/* With u = 2^-24 and S = sum |a_k w_k| (|w_k| of the terms that w_k is made of:
 * kt_format.terms_row), to first order in u (k u < 0.01 for any real k; the factor 1.01 pays for
 * the rest):
 *
 * Exact integers. The sum is over G = k / 32 groups of terms t_g = s_a s_w d_g; d_g is an
 * integer below 32 * 128 * 127 < 2^24, so exact in f32 too. A term sees at most two roundings of
 * its own (a factor times a factor times d_g), then at most G additions in whatever order, then
 * perhaps one multiplication by a scale common to the row: |error| <= (G + 3) u sum |t_g| <= (G
 * + 3) u S. Formats with more terms than that: integer_roundings. With a8p G = k / 16, and s_a
 * d_g comes without rounding.
 *
 * f32. Each of k products rounds once and passes at most k additions: (k + 1) u S <= 2 k u S.
 *
 * bf16. The same, since products of two bf16 are exact (E4M3 is exact in bf16); a kernel that
 * first rounds inputs of another type to bf16 moves each factor by 2^-8 of itself: 2 * 2^-8 S
 * more.
 *
 * Weights rounded once more to 8 bits with a step per 256 inputs: what
 * kernels/formats/requant8.h derives, times |a_k|, and as many roundings of the moved sum as an
 * exact kernel of the same activations has, with two more for each step that it is carried through.
 *
 * Activations rounded once more, to 1/256 of the largest scale s among the codes of a block
 * (p64/amx_planes.h): by one such unit at most, and max|a| >= 63.5 s (a8p; 127 s of a8). The
 * weights that they meet may have moved, too.
 *
 * Weights opened to bfloat16 (p64/tiles_lines.h): scale, minimum and their sum with the code are
 * rounded to halves, 3 * 2^-11 of the terms at most, and the half to 7 bits of fraction: to nearest
 * 2^-8, or cut off after a factor of 1.0029, 2^-7 less that; together below 2^-7. What lies below a
 * half's normal numbers, while the row's largest term is 2^14 or more (a term that its heads allow,
 * of K-quants), is lost or worth up to 2^-14 times a code, below 2^-20 of the largest. Integer
 * activations become bfloat16: 2^-8 of each.
 *
 * Denormals. Products of scales, products of inputs and sums may be flushed below 2^-126; each
 * loss is multiplied by at most one integer dot d_g < 2^19 per group. 2^-107 k covers both. */
double kt_gemm_bound(const kt_problem *q, kt_numerics numerics, const kt_ref_sum *sum) {
    const double u = 0x1p-24, k = (double)q->k;
    const uint64_t bf16s = 1u << KT_W_BF16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL |
                           1u << KT_W_MXFP8; /* codes are bfloat16 numbers */
    int bf16_weights = bf16s >> q->weights & 1;
    int bf16_inputs = bf16_weights && q->acts == KT_A_BF16;
    const int is_integer = numerics == KT_NUM_EXACT_INT32 || numerics == KT_NUM_REQUANT;
    double roundings = 2 * k, extra = 0, magnitude = sum->magnitude;

    if (is_integer && (q->acts == KT_A_INT8_G32 || q->acts == KT_A_INT8_G16P2))
        roundings = integer_roundings(q->weights, kt_a8_group_inputs(q->acts), k);
    if (numerics == KT_NUM_BF16_F32 && !bf16_inputs) extra = 0x1p-7 * sum->magnitude;
    if (numerics == KT_NUM_OPENED) {
        if (q->weights != KT_W_BF16) extra = 0x1p-7 * sum->magnitude;
        if (q->acts != KT_A_BF16) extra += 1.01 * 0x1p-8 * sum->magnitude;
        extra += 0x1p-20 * fmax(sum->w_top, 0x1p-97) * k * sum->a_max;
    }
    if (numerics == KT_NUM_REQUANT) {
        extra = sum->moved;
        magnitude += sum->moved;
        roundings += k / 128;
    }
    if (numerics == KT_NUM_ACTS16 || numerics == KT_NUM_REQUANT)
        extra += sum->a_max / (63.5 * 256) * (sum->w_sum + k * sum->move_max);
    return 1.01 * (roundings * u * magnitude + extra) + 0x1p-107 * k;
}
