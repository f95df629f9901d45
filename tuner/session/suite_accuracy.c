/* Accuracy rows of the bench suites: the worst of all usable GEMM variants for a format, on
 * Gaussian weights that our encoder quantised. No clock is involved.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64.h"
#include "tuner/measure/synthetic.h"
#include "tuner/session/suite_impl.h"

typedef struct trial {
    kt_problem q;
    const kt_format *format;
    float *source, *x, *got; /* [n, k], [m, k], [m, n] */
    void *data, *scales;     /* of the encoded weights */
    char *rows;              /* encoded activations */
    size_t stride;
    double *want, *original, *line; /* [m, n] each; k */
} trial;

static void trial_deinit(trial *t) {
    free(t->source);
    free(t->x);
    free(t->got);
    free(t->data);
    free(t->scales);
    free(t->rows);
    free(t->want);
    free(t->original);
    free(t->line);
}

static kt_matrix weights_of(const trial *t) {
    return (kt_matrix){
        .format = t->q.weights, .n = t->q.n, .k = t->q.k, .data = t->data, .scales = t->scales};
}

static kt_status allocate(trial *t, kt_err *err) {
    const kt_problem *q = &t->q;
    const size_t weights = (size_t)(q->n * q->k), inputs = (size_t)(q->m * q->k);
    const size_t outputs = (size_t)(q->m * q->n);
    size_t data_bytes, scale_bytes;

    KT_TRY(kt_format_sizes(t->format, q->n, q->k, &data_bytes, &scale_bytes, err));
    t->stride = kt_act_row_bytes(q->acts, q->k);
    t->source = malloc(weights * sizeof *t->source);
    t->x = malloc(inputs * sizeof *t->x);
    t->got = malloc(outputs * sizeof *t->got);
    t->data = calloc(data_bytes + 1, 1);
    t->scales = calloc(scale_bytes + 1, 1);
    t->rows = aligned_alloc(64, t->stride * (size_t)q->m);
    t->want = calloc(outputs, sizeof *t->want);
    t->original = calloc(outputs, sizeof *t->original);
    t->line = malloc((size_t)q->k * sizeof *t->line);
    if (t->source && t->x && t->got && t->data && t->scales && t->rows && t->want && t->original &&
        t->line)
        return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "bench: no memory for an accuracy row");
}

static double dot(const double *w, const double *x, int64_t k) {
    double sum = 0;
    for (int64_t l = 0; l < k; l++) sum += w[l] * x[l];
    return sum;
}

/* want = dequantised weights, original = source weights, both times the activations before they
 * were encoded: what encoding them loses is part of every error here. */
static kt_status multiply(trial *t, kt_err *err) {
    const kt_problem *q = &t->q;
    const kt_matrix w = weights_of(t);
    double *x = malloc((size_t)(q->m * q->k) * sizeof *x);
    double *source = malloc((size_t)q->k * sizeof *source);

    if (!x || !source) {
        free(x);
        free(source);
        return kt_fail(err, KT_E_NOMEM, "bench: no memory for an accuracy row");
    }
    for (int64_t i = 0; i < q->m * q->k; i++) x[i] = t->x[i];
    for (int64_t j = 0; j < q->n; j++) {
        t->format->decode_row(&w, j, t->line);
        for (int64_t l = 0; l < q->k; l++) source[l] = t->source[j * q->k + l];
        for (int64_t i = 0; i < q->m; i++) {
            t->want[i * q->n + j] = dot(t->line, x + i * q->k, q->k);
            t->original[i * q->n + j] = dot(source, x + i * q->k, q->k);
        }
    }
    free(x);
    free(source);
    return KT_OK;
}

static double relative_error(const double *got, const double *want, size_t n) {
    double error = 0, energy = 0;
    for (size_t i = 0; i < n; i++) {
        error += (got[i] - want[i]) * (got[i] - want[i]);
        energy += want[i] * want[i];
    }
    return sqrt(error / energy);
}

/* One variant's output, with the initial values of its parameters. */
static kt_status run_variant(trial *t, const kt_variant *v, kt_err *err) {
    const kt_problem *q = &t->q;
    const kt_config config = kt_config_initial(v);
    const kt_matrix w = weights_of(t);
    const size_t packed = (v->packed_bytes(q) + 63) / 64 * 64;
    const size_t scratch = v->workspace_bytes ? (v->workspace_bytes(q, &config) + 63) / 64 * 64 : 0;
    char *memory = aligned_alloc(64, packed + scratch + 64);
    kt_gemm_call call = {.problem = q,
                         .config = &config,
                         .weights = memory,
                         .a = t->rows,
                         .a_stride = t->stride,
                         .m = q->m,
                         .panel_end = kt_p64_panels(q->n),
                         .c = t->got,
                         .ldc = q->n,
                         .scratch = memory + packed};

    if (!memory) return kt_fail(err, KT_E_NOMEM, "bench: no memory for %s", v->name);
    v->pack_gemm(q, &w, memory);
    v->gemm(&call);
    free(memory);
    return KT_OK;
}

/* The largest error of any variant, against `want`. */
static kt_status worst(trial *t, const kt_registry *registry, const double *want, kt_suite_row *row,
                       double *out, kt_err *err) {
    const size_t outputs = (size_t)(t->q.m * t->q.n);
    double *got = malloc(outputs * sizeof *got);
    kt_status st = got ? KT_OK : kt_fail(err, KT_E_NOMEM, "bench: no memory");

    *out = -1;
    for (size_t i = 0; st == KT_OK && i < kt_registry_count(registry); i++) {
        const kt_variant *v = kt_registry_at(registry, i);
        double error;
        if (kt_variant_accepts(v, &t->q, NULL, NULL) != KT_OK) continue;
        st = run_variant(t, v, err);
        for (size_t j = 0; j < outputs; j++) got[j] = t->got[j];
        error = relative_error(got, want, outputs);
        row->rounds++;
        if (error <= *out) continue;
        *out = error;
        snprintf(row->contender, sizeof row->contender, "%s, the worst of its format", v->name);
    }
    free(got);
    if (st == KT_OK && *out < 0)
        st = kt_fail(err, KT_E_NOT_FOUND, "no variant multiplies %s",
                     kt_weight_format_name(t->q.weights));
    return st;
}

static kt_status fill(trial *t, const kt_suite_bench *s, kt_err *err) {
    const kt_problem *q = &t->q;
    kt_encode_call call = {.x = t->x,
                           .ldx = q->k,
                           .k = q->k,
                           .out = t->rows,
                           .out_stride = t->stride,
                           .row_end = q->m};
    kt_choice encoder;

    KT_TRY(kt_suite_encoder(s, s->registry, q, 1, &encoder, err));
    kt_synthetic_rows(t->source, (size_t)(q->n * q->k), 3);
    kt_synthetic_rows(t->x, (size_t)(q->m * q->k), 7);
    t->format->encode_rows(t->source, q->n, q->k, NULL, 0, q->n, t->data, t->scales, NULL);
    encoder.variant->encode(&call);
    return KT_OK;
}

kt_status kt_suite_accuracy(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                            kt_suite_row *row, kt_err *err) {
    const bool over_format = spec->figure == KT_ERROR_OVER_FORMAT;
    trial t = {.q = kt_suite_problem(s->registry, s->machine, spec),
               .format = kt_format_find(spec->weights)};
    const size_t outputs = (size_t)(t.q.m * t.q.n);
    double error = 0;
    kt_status st;

    (void)seconds;
    snprintf(row->unit, sizeof row->unit, "%s",
             over_format ? "times the format's error" : "error, activations encoded");
    if (!t.format->encode_rows)
        return kt_fail(err, KT_E_UNSUPPORTED, "nothing here encodes %s", t.format->name);
    st = allocate(&t, err);
    if (st == KT_OK) st = fill(&t, s, err);
    if (st == KT_OK) st = multiply(&t, err);
    if (st == KT_OK)
        st = worst(&t, s->registry, over_format ? t.original : t.want, row, &error, err);
    if (st == KT_OK) {
        const double own = relative_error(t.want, t.original, outputs);
        row->measured = over_format ? error / own : error;
        row->spread = (kt_interval){row->measured, row->measured, row->measured};
        row->rate = 100 * error;
        row->ceiling = 100 * own;
    }
    trial_deinit(&t);
    return st;
}
