/* Residual streams are mixed anew with the result of half a layer (kernels/hyper). Hidden states,
 * where they are asked for, are the mean of the streams. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/hyper/hyper.h"
#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const int64_t count = n->node->streams.count, hidden = n->in.width;
    float share[KT_HYPER_MOST];

    for (int64_t i = 0; i < count; i++) share[i] = 1.0f / (float)count;
    for (int64_t r = begin; r < end; r++) {
        const float *m = n->in2.x + r * n->in2.ld;
        float *streams = n->in3.x + r * n->in3.ld;
        kt_hyper_remix(streams, n->in.x + r * n->in.ld, m + count, m + 2 * count, count, hidden);
        if (s->hidden && n->out.width)
            kt_hyper_collapse(streams, share, count, hidden, n->out.x + r * n->out.ld);
    }
}

const kt_exec_op kt_exec_op_hyper_join = {.kind = KT_NODE_HYPER_JOIN, .rows = rows};
