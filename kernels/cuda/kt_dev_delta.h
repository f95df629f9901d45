/* What both kernels of the gated delta rule share: rates of a row, and which rows a chunk has.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEV_DELTA_H
#define KT_DEV_DELTA_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

KT_DEVICE float kt_delta_beta(const kt_delta_batch *p, int head, int64_t row) {
    return kt_sigmoid(p->b[row * p->ldba + head]);
}

/* log alpha: decay * softplus(a + dt_bias). */
KT_DEVICE float kt_delta_log_alpha(const kt_delta_batch *p, int head, int64_t row) {
    const float x = p->a[row * p->ldba + head] + p->dt_bias[head];
    const float size = x < 0 ? -x : x;
    return p->decay[head] * ((x > 0 ? x : 0.0f) + kt_log1p(kt_exp(-size)));
}

KT_DEVICE int kt_delta_key_head(const kt_delta_batch *p, int head) {
    return head / (p->heads / p->key_heads);
}

KT_DEVICE int kt_delta_is_mine(const kt_delta_batch *p, const kt_state_span *s) {
    return s->rows >= p->rows_from && s->rows < p->rows_to;
}

/* A warp's: 1 / sqrt(|x|^2 + 1e-6) of n numbers. */
KT_DEVICE float kt_delta_unit(const float *x, int n) {
    float sum = 0;

    for (int i = kt_lane(); i < n; i += 32) sum = kt_fma(x[i], x[i], sum);
    return 1.0f / kt_sqrt(kt_warp_sum(sum) + 1e-6f);
}

/* The end of a head's row: out = norm o / sqrt(mean(o^2) + eps) silu(z). square: sum of o^2. */
KT_DEVICE float kt_delta_gate(const kt_delta_batch *p, int head, int64_t row, int column, float o,
                              float square) {
    const float z = p->z[row * p->ldz + (int64_t)head * p->values + column];
    const float r = 1.0f / kt_sqrt(square / (float)p->values + p->eps);
    return o * r * p->norm[column] * (z * kt_sigmoid(z));
}

/* ---- chunks: rows whose positions have the same number of whole 64s ---- */

KT_DEVICE int kt_delta_chunk_count(const kt_state_span *s) {
    return (s->position + s->rows - 1) / KT_DELTA_PIECE - s->position / KT_DELTA_PIECE + 1;
}

/* The place of a span's first chunk in the room: spans of 64 rows and more have at most 3 chunks
 * for each 64 rows, so that their places do not meet. */
KT_DEVICE int kt_delta_first_slot(const kt_state_span *s) {
    return 3 * (s->first_row / KT_DELTA_PIECE);
}

typedef struct kt_delta_rows_of {
    int row, n; /* the first row in the batch, and how many */
} kt_delta_rows_of;

KT_DEVICE kt_delta_rows_of kt_delta_chunk(const kt_state_span *s, int chunk) {
    const int at = (s->position / KT_DELTA_PIECE + chunk) * KT_DELTA_PIECE - s->position;
    const int begin = at > 0 ? at : 0;
    const int end = at + KT_DELTA_PIECE < s->rows ? at + KT_DELTA_PIECE : s->rows;
    kt_delta_rows_of r;

    r.row = s->first_row + begin;
    r.n = end - begin;
    return r;
}

#endif
