/* out *= sigmoid(in), element by element. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "runtime/exec/step.h"

/* One gate for a whole row when it is one number wide. */
static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const int is_scalar = n->in.width == 1;

    (void)s;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < n->out.width; i++)
            n->out.x[r * n->out.ld + i] *=
                1.0f / (1.0f + expf(-n->in.x[r * n->in.ld + (is_scalar ? 0 : i)]));
}

const kt_exec_op kt_exec_op_sigmoid_gate = {.kind = KT_NODE_GATE, .rows = rows};
