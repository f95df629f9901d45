/* Rows of keys and values go to the cache. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/step.h"

static void put(const kt_step *s, const kt_exec_node *n, int which, const kt_rows *from,
                int64_t begin, int64_t end) {
    const kt_plane *plane = &s->graph->planes[n->node->plane];
    const int64_t size = from->width / plane->heads;

    for (int64_t r = begin; r < end; r++) {
        int64_t at;
        const uint32_t page = kt_step_page_of(s, r, &at);
        for (int64_t head = 0; head < plane->heads; head++)
            kt_pages_put(s->pages, n->node->plane, which, head, page, at,
                         from->x + r * from->ld + head * size);
    }
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    put(s, n, 0, &n->in, begin, end);
    if (n->in2.width) put(s, n, 1, &n->in2, begin, end);
}

const kt_exec_op kt_exec_op_keep = {.kind = KT_NODE_KEEP, .rows = rows};
