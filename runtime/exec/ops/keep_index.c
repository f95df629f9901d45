/* Index keys go to the cache, as BF16. SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "runtime/exec/step.h"

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const int64_t dim = n->in.width;

    for (int64_t r = begin; r < end; r++) {
        int64_t at;
        const uint32_t page = kt_step_page_of(s, r, &at);
        uint16_t *to = kt_pages_index(s->pages, n->node->plane, page) + at * dim;
        for (int64_t i = 0; i < dim; i++) to[i] = kt_f32_to_bf16(n->in.x[r * n->in.ld + i]);
    }
}

const kt_exec_op kt_exec_op_keep_index = {.kind = KT_NODE_KEEP_INDEX, .rows = rows};
