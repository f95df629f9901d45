/* The gate of a shared expert: sigmoid of one product per row.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const float *w = n->weight->data[0];

    (void)s;
    for (int64_t r = begin; r < end; r++) {
        const float *x = n->in.x + r * n->in.ld;
        double sum = 0;
        for (int64_t i = 0; i < n->in.width; i++) sum += (double)w[i] * x[i];
        n->out.x[r * n->out.ld] = (float)(1 / (1 + exp(-sum)));
    }
}

const kt_exec_op kt_exec_op_dot = {.kind = KT_NODE_DOT, .rows = rows};
