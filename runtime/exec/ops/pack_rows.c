/* Rows as the cache holds them: what a step's later rows attend to.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_common.h"
#include "kernels/compress/entries.h"
#include "runtime/exec/step.h"

/* The scale is the last float of a row. */
static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; r++) {
        float *out = n->out.x + r * n->out.ld;
        kt_attn_store(s->plan->kv, n->in.x + r * n->in.ld, n->in.width, out,
                      out + n->out.width - 1);
    }
}

const kt_exec_op kt_exec_op_pack_rows = {.kind = KT_NODE_PACK_ROWS, .rows = rows};
