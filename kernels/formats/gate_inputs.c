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
    if (isnan(want) && isnan(got)) return KT_OK;
    sums->error_sq += error * error;
    sums->want_sq += want * want;
    if (error > 0 && bound > 0) sums->worst = fmax(sums->worst, error / bound);
    if (error <= bound) return KT_OK; /* false for NaN */
    return kt_gate_refuse(run, err, "%s[%lld, %lld] = %.9g, want %.9g, bound %.3g", run->what,
                          (long long)row, (long long)column, got, want, bound);
}

int kt_gate_same(const float *x, const float *y) {
    return memcmp(x, y, sizeof *x) == 0 || (isnan(*x) && isnan(*y));
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
    if (v->op != q->op || !(v->weights & KT_W_BIT(q->weights)) || !(v->acts & 1u << q->acts))
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: not for %s %s x %s", v->name, kt_op_name(q->op),
                       kt_weight_format_name(q->weights), kt_act_format_name(q->acts));
    return v->accepts ? v->accepts(q, config, err) : KT_OK;
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
    for (int h = 0; h < 2 && format == KT_A_INT8_G16P2; h++)
        kt_a8p_encode_group(x + 16 * h, row, k, 2 * g + h);
    for (int i = 0; i < 32 && format == KT_A_BF16; i++)
        ((uint16_t *)(void *)row)[32 * g + i] = kt_f32_to_bf16(x[i]);
    if (format == KT_A_F32) memcpy((float *)(void *)row + 32 * g, x, 32 * sizeof *x);
}

kt_status kt_gate_acts_create(kt_act_format format, int64_t m, int64_t k, uint64_t seed,
                              kt_gate_acts *out, kt_err *err) {
    kt_status st;
    kt_rng rng;

    *out = (kt_gate_acts){0};
    if (m < 0 || m > 1 << 16 || k <= 0 || k % 32 != 0 || k > 1 << 20)
        return kt_fail(err, KT_E_INVALID, "gate: no %lld rows of %lld", (long long)m, (long long)k);
    st = kt_guard_create((size_t)m * kt_act_row_bytes(format, k), 64, 0xAA, &out->rows, err);
    if (st != KT_OK) return st;
    out->stride = kt_act_row_bytes(format, k);
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
