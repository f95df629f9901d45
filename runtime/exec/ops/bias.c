/* A vector added to every row. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const float *bias = n->weight->data[0];

    (void)s;
    for (int64_t r = begin; bias && r < end; r++)
        for (int64_t i = 0; i < n->out.width; i++) n->out.x[r * n->out.ld + i] += bias[i];
}

const kt_exec_op kt_exec_op_bias = {.kind = KT_NODE_BIAS, .rows = rows};
