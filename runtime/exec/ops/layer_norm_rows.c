/* LayerNorm of rows, in place. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/norm/layer_norm.h"

#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_norm_call call = {.x = n->out.x,
                               .ldx = n->out.ld,
                               .w = n->weight->data[0],
                               .eps = (float)n->node->eps,
                               .y = n->out.x,
                               .ldy = n->out.ld,
                               .k = n->out.width,
                               .row_begin = begin,
                               .row_end = end};

    (void)s;
    kt_layer_norm_rows(&call, n->weight2->data[0]);
}

const kt_exec_op kt_exec_op_layer_norm_rows = {.kind = KT_NODE_LAYER_NORM, .rows = rows};
