/* Residual streams begin as copies of the embedding. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const int64_t hidden = n->in.width;

    (void)s;
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < n->node->streams.count; i++)
            memcpy(n->out.x + r * n->out.ld + i * hidden, n->in.x + r * n->in.ld,
                   (size_t)hidden * sizeof(float));
}

const kt_exec_op kt_exec_op_streams = {.kind = KT_NODE_STREAMS, .rows = rows};
