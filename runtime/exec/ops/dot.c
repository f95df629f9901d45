/* The gate of a shared expert: sigmoid of one product per row.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "runtime/exec/step.h"

/* The compiler makes vectors of the eight sums; of one it may not. */
static double dot(const float *w, const float *x, int64_t n) {
    double sum[8] = {0};
    int64_t i = 0;

    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) sum[j] += (double)w[i + j] * x[i + j];
    for (; i < n; i++) sum[0] += (double)w[i] * x[i];
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const float *w = n->weight->data[0];

    (void)s;
    for (int64_t r = begin; r < end; r++)
        n->out.x[r * n->out.ld] =
            (float)(1 / (1 + exp(-dot(w, n->in.x + r * n->in.ld, n->in.width))));
}

const kt_exec_op kt_exec_op_dot = {.kind = KT_NODE_DOT, .rows = rows};
