/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/gate_inputs.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"

/* "<variant> rows=4: gemm w4g32 x a8 m=3 n=65 k=96 seed=7: " */
static size_t describe(const kt_gate_run *run, char *text, size_t size) {
    const kt_variant *v = run->variant;
    const kt_problem *q = run->problem;
    int used = snprintf(text, size, "%s", v->name);

    for (int i = 0; i < v->n_params && run->config && used > 0 && (size_t)used < size; i++)
        used += snprintf(text + used, size - (size_t)used, "%c%s=%d", i ? ',' : ' ',
                         v->params[i].name, (int)run->config->value[i]);
    if (used > 0 && (size_t)used < size)
        used += snprintf(text + used, size - (size_t)used,
                         ": %s %s x %s m=%lld n=%lld k=%lld seed=%llu: ", kt_op_name(q->op),
                         kt_weight_format_name(q->weights), kt_act_format_name(q->acts),
                         (long long)q->m, (long long)q->n, (long long)q->k,
                         (unsigned long long)run->seed);
    return used < 0 ? 0 : (size_t)used < size ? (size_t)used : size - 1;
}

kt_status kt_gate_refuse(const kt_gate_run *run, kt_err *err, const char *format, ...) {
    char text[KT_ERR_SIZE];
    size_t used = describe(run, text, sizeof text);
    va_list args;

    va_start(args, format);
    vsnprintf(text + used, sizeof text - used, format, args);
    va_end(args);
    return kt_fail(err, KT_E_MISMATCH, "%s", text);
}

kt_status kt_gate_element(const kt_gate_run *run, int64_t row, int64_t column, double got,
                          double want, double bound, kt_gate_sums *sums, kt_err *err) {
    double error = fabs(got - want);

    sums->compared++;
    sums->error_sq += error * error;
    sums->want_sq += want * want;
    if (error > 0 && bound > 0) sums->worst = fmax(sums->worst, error / bound);
    if (error <= bound) return KT_OK; /* false for NaN */
    return kt_gate_refuse(run, err, "%s[%lld, %lld] = %.9g, want %.9g, bound %.3g", run->what,
                          (long long)row, (long long)column, got, want, bound);
}

void kt_gate_finish(const kt_gate_sums *sums, kt_gate_report *report) {
    if (!report) return;
    report->rel_rms = sums->want_sq > 0 ? sqrt(sums->error_sq / sums->want_sq) : 0;
    snprintf(report->detail, sizeof report->detail,
             "%lld values, relative RMS error %.2e, largest error %.0f %% of its bound",
             (long long)sums->compared, report->rel_rms, 100 * sums->worst);
}

kt_status kt_gate_accepts(const kt_variant *v, const kt_problem *q, const kt_config *config,
                          kt_err *err) {
    if (v->op != q->op || !(v->weights & 1u << q->weights) || !(v->acts & 1u << q->acts))
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: not for %s %s x %s", v->name, kt_op_name(q->op),
                       kt_weight_format_name(q->weights), kt_act_format_name(q->acts));
    return v->accepts ? v->accepts(q, config, err) : KT_OK;
}

/* --- weights ------------------------------------------------------------------------------- */

enum { W_RANDOM, W_EXTREME, W_HEAVY, W_ZERO_SCALE, W_ONE_GROUP, W_LOWEST, W_PATTERNS };

/* A code in lo..hi by the row's pattern. */
static int draw_code(kt_rng *rng, int pattern, int lo, int hi) {
    if (pattern == W_EXTREME) return kt_rng_below(rng, 2) ? lo : hi;
    if (pattern == W_LOWEST) return lo;
    return lo + (int)kt_rng_below(rng, (uint64_t)(hi - lo + 1));
}

/* The scale of group g, either sign, within a decade of the row's size. */
static float draw_scale(kt_rng *rng, int pattern, float size, int64_t g, int64_t groups) {
    float s = size * (float)pow(10, -kt_rng_double(rng));
    if (pattern == W_HEAVY) s = (float)exp(1.5 * kt_rng_normal(rng));
    if (kt_rng_below(rng, 2)) s = -s;
    if (pattern == W_ZERO_SCALE) s = 0;
    if (pattern == W_ONE_GROUP && g != groups / 2) s = 0;
    return s;
}

/* A float weight within the row's size, or a tail of the normal's cube. */
static float draw_float(kt_rng *rng, int pattern, float size, int64_t i, int64_t k) {
    float v = kt_rng_uniform(rng, -size, size), tail;
    if (pattern == W_EXTREME) v = kt_rng_below(rng, 2) ? 3.0e4f : -3.0e4f;
    if (pattern == W_HEAVY) tail = kt_rng_normal(rng), v = tail * tail * tail;
    if (pattern == W_ZERO_SCALE) v = kt_rng_below(rng, 2) ? 0.0f : -0.0f;
    if (pattern == W_ONE_GROUP && i / 32 != k / 64) v = 0;
    if (pattern == W_LOWEST) v = -size;
    return v;
}

static void fill_row(const kt_matrix *w, int64_t row, int pattern, kt_rng *rng, void *data,
                     void *scales) {
    int64_t k = w->k, groups = k / 32;
    float size = (float)pow(10, -3 * kt_rng_double(rng)); /* some sums small, others large */

    for (int64_t i = 0; i < k && w->format == KT_W_F32; i++)
        ((float *)data)[row * k + i] = draw_float(rng, pattern, size, i, k);
    for (int64_t i = 0; i < k && w->format == KT_W_BF16; i++)
        ((uint16_t *)data)[row * k + i] = kt_f32_to_bf16(draw_float(rng, pattern, size, i, k));
    if (w->format == KT_W_INT8_CHANNEL) {
        ((float *)scales)[row] = draw_scale(rng, pattern, size, 0, 1);
        for (int64_t i = 0; i < k; i++) {
            int code = draw_code(rng, pattern, -128, 127);
            if (pattern == W_ONE_GROUP && i / 32 != groups / 2) code = 0;
            ((int8_t *)data)[row * k + i] = (int8_t)code;
        }
    }
    if (w->format == KT_W_INT4_G32) {
        for (int64_t g = 0; g < groups; g++)
            ((uint16_t *)scales)[row * groups + g] =
                kt_f32_to_bf16(draw_scale(rng, pattern, size, g, groups));
        for (int64_t i = 0; i < k / 2; i++) {
            int even = draw_code(rng, pattern, -8, 7) + 8, odd = draw_code(rng, pattern, -8, 7) + 8;
            ((uint8_t *)data)[row * (k / 2) + i] = (uint8_t)(even | odd << 4);
        }
    }
}

kt_status kt_gate_matrix_create(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                                kt_gate_matrix *out, kt_err *err) {
    const kt_format *f = kt_format_find(format);
    size_t data_bytes, scale_bytes;
    kt_status st;
    kt_rng rng;

    *out = (kt_gate_matrix){0};
    if (!f || n <= 0 || k <= 0 || k % 32 != 0 || n > 1 << 20 || k > 1 << 20)
        return kt_fail(err, KT_E_INVALID, "gate: no %s matrix of %lld x %lld",
                       kt_weight_format_name(format), (long long)n, (long long)k);
    f->plain_bytes(n, k, &data_bytes, &scale_bytes);
    st = kt_guard_create(data_bytes, 4, 0xAA, &out->data, err);
    if (st == KT_OK) st = kt_guard_create(scale_bytes, 4, 0xAA, &out->scales, err);
    if (st != KT_OK) {
        kt_gate_matrix_destroy(out);
        return st;
    }
    out->matrix = (kt_matrix){format, n, k, out->data.data, scale_bytes ? out->scales.data : NULL};
    kt_rng_seed(&rng, seed);
    for (int64_t row = 0; row < n; row++)
        fill_row(&out->matrix, row, (int)(row % W_PATTERNS), &rng, out->data.data,
                 out->scales.data);
    return KT_OK;
}

void kt_gate_matrix_destroy(kt_gate_matrix *w) {
    kt_guard_destroy(&w->data);
    kt_guard_destroy(&w->scales);
    *w = (kt_gate_matrix){0};
}

/* --- activations --------------------------------------------------------------------------- */

enum { A_NORMAL, A_EXTREME, A_HEAVY, A_OUTLIER, A_ZERO, A_LARGEST, A_GROUPS, A_PATTERNS };

static void draw_group(kt_rng *rng, int pattern, int64_t g, int64_t groups, float x[32]) {
    float size = A_GROUPS == pattern ? (float)exp(2 * kt_rng_normal(rng)) : 1;
    if (pattern == A_GROUPS && kt_rng_below(rng, 4) == 0) size = 0;
    for (int i = 0; i < 32; i++) {
        float v = kt_rng_normal(rng);
        if (pattern == A_EXTREME) v = kt_rng_below(rng, 2) ? 1 : -1;
        if (pattern == A_HEAVY) v = v * v * v;
        if (pattern == A_OUTLIER) v = g == groups / 2 && i == 13 ? 1000 : 0.01f * v;
        if (pattern == A_ZERO) v = 0;
        if (pattern == A_LARGEST) v = 1;
        x[i] = size * v;
    }
}

static void encode_group(kt_act_format format, const float x[32], int64_t g, int64_t k, char *row) {
    if (format == KT_A_INT8_G32)
        kt_a8_encode_group(x, (int8_t *)row + 32 * g, kt_a8_scales_mut(row, k) + g,
                           kt_a8_comps_mut(row, k) + g);
    for (int i = 0; i < 32 && format == KT_A_BF16; i++)
        ((uint16_t *)(void *)row)[32 * g + i] = kt_f32_to_bf16(x[i]);
    if (format == KT_A_F32) memcpy((float *)(void *)row + 32 * g, x, 32 * sizeof *x);
}

kt_status kt_gate_acts_create(kt_act_format format, int64_t m, int64_t k, uint64_t seed,
                              kt_gate_acts *out, kt_err *err) {
    kt_status st;
    kt_rng rng;

    *out = (kt_gate_acts){.stride = kt_act_row_bytes(format, k)};
    if (m < 0 || m > 1 << 16 || k <= 0 || k % 32 != 0 || k > 1 << 20)
        return kt_fail(err, KT_E_INVALID, "gate: no %lld rows of %lld", (long long)m, (long long)k);
    st = kt_guard_create((size_t)m * out->stride, 64, 0xAA, &out->rows, err);
    if (st != KT_OK) return st;
    out->decoded = malloc(sizeof(double) * (size_t)(m * k) + 1);
    if (!out->decoded) {
        kt_gate_acts_destroy(out);
        return kt_fail(err, KT_E_NOMEM, "gate: no memory for %lld rows of %lld", (long long)m,
                       (long long)k);
    }
    kt_rng_seed(&rng, seed ^ 0xac7u);
    for (int64_t i = 0; i < m; i++) {
        char *row = (char *)out->rows.data + (size_t)i * out->stride;
        for (int64_t g = 0; g < k / 32; g++) {
            float x[32];
            draw_group(&rng, (int)(i % A_PATTERNS), g, k / 32, x);
            encode_group(format, x, g, k, row);
        }
        kt_act_decode_row(format, row, k, out->decoded + i * k);
    }
    return KT_OK;
}

void kt_gate_acts_destroy(kt_gate_acts *acts) {
    kt_guard_destroy(&acts->rows);
    free(acts->decoded);
    *acts = (kt_gate_acts){0};
}
