/* Finding formats, their sizes, and what encoding lost. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/format.h"

#include <math.h>

#include "base/err.h"
#include "base/numeric.h"

const kt_format *kt_format_find(kt_weight_format id) {
    for (size_t i = 0; i < kt_builtin_format_count; i++)
        if (kt_builtin_formats[i]->id == id) return kt_builtin_formats[i];
    return NULL;
}

kt_status kt_format_sizes(const kt_format *format, int64_t n, int64_t k, size_t *data_bytes,
                          size_t *scale_bytes, kt_err *err) {
    uint64_t weights;

    *data_bytes = *scale_bytes = 0;
    if (n <= 0 || k <= 0)
        return kt_fail(err, KT_E_INVALID, "%s matrix of %lld x %lld", format->name, (long long)n,
                       (long long)k);
    /* No format takes more than 8 bytes a weight, scales included. */
    if (kt_mul_overflow((uint64_t)n, (uint64_t)k, &weights) || weights > (uint64_t)INT64_MAX / 8)
        return kt_fail(err, KT_E_INVALID, "%s matrix of %lld x %lld: too large", format->name,
                       (long long)n, (long long)k);
    if (format->block > 0 && k % format->block != 0)
        return kt_fail(err, KT_E_INVALID, "%s matrix of %lld x %lld: k must be a multiple of %lld",
                       format->name, (long long)n, (long long)k, (long long)format->block);
    format->plain_bytes(n, k, data_bytes, scale_bytes);
    return KT_OK;
}

void kt_format_loss_rows(const kt_matrix *w, const float *src, const float *importance,
                         int64_t row_begin, int64_t row_end, double *row, kt_format_loss *loss) {
    const kt_format *format = kt_format_find(w->format);

    for (int64_t r = row_begin; r < row_end; r++) {
        const float *x = src + r * w->k;
        format->decode_row(w, r, row);
        for (int64_t i = 0; i < w->k; i++) {
            double lost = (double)x[i] - row[i], energy = (double)x[i] * x[i];
            loss->error_sq += lost * lost;
            loss->energy += energy;
            loss->error_max = fmax(loss->error_max, fabs(lost));
            loss->source_max = fmax(loss->source_max, fabs((double)x[i]));
            if (!importance) continue;
            loss->weighted_sq += importance[i] * (lost * lost);
            loss->weighted_total += importance[i] * energy;
        }
    }
}

void kt_format_loss_add(kt_format_loss *loss, const kt_format_loss *more) {
    loss->error_sq += more->error_sq;
    loss->energy += more->energy;
    loss->weighted_sq += more->weighted_sq;
    loss->weighted_total += more->weighted_total;
    loss->error_max = fmax(loss->error_max, more->error_max);
    loss->source_max = fmax(loss->source_max, more->source_max);
}

double kt_format_loss_rms(const kt_format_loss *loss) {
    return loss->energy > 0 ? sqrt(loss->error_sq / loss->energy) : 0;
}

double kt_format_loss_weighted_rms(const kt_format_loss *loss) {
    return loss->weighted_total > 0 ? sqrt(loss->weighted_sq / loss->weighted_total) : 0;
}
