/* Columns that lie group by group, sorted by part. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const kt_node *node = n->node;
    const int64_t group = node->in.width / node->groups;

    (void)s;
    for (int64_t r = begin; r < end; r++) {
        const float *from = n->in.x + r * n->in.ld;
        float *to = n->out.x + r * n->out.ld;
        for (int64_t p = 0, at = 0; p < KT_REGROUP_PARTS; at += node->parts[p++])
            for (int64_t g = 0; node->parts[p] && g < node->groups; g++, to += node->parts[p])
                memcpy(to, from + g * group + at, sizeof *to * (size_t)node->parts[p]);
    }
}

const kt_exec_op kt_exec_op_regroup = {.kind = KT_NODE_REGROUP, .rows = rows};
