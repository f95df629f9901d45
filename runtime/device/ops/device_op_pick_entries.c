/* Which entries a row attends to, on a device: those with the highest scores of the indexer. Of a row
 * that sees no more than may be picked nothing is written.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_index.h"

typedef struct pick_state {
    kt_device_index index;
    kt_entry_layout layout;
} pick_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const int64_t ratio = n->entries.ratio;

    if (ratio < 1 || KT_ATTN_PAGE % ratio || KT_ATTN_PAGE / ratio % 16)
        return "a page has no whole sixteens of entries";
    if (ask->graph->width[n->out.value] != n->index.topk)
        return "lists of picked entries that do not follow each other";
    return kt_device_index_refuse(ask, &n->index);
}

static kt_status init(kt_device_node *n, kt_err *err) {
    kt_device_step *d = n->step;
    pick_state *s = kt_device_step_alloc(d, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for picking entries");
    n->state = s;
    s->layout = kt_device_entry_layout(d, n->node->plane);
    kt_device_step_need(d, kt_device_index_scratch(d, &n->node->index, n->node->entries.ratio));
    return kt_device_index_init(d, &n->node->index, &s->index, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const pick_state *s = n->state;
    const kt_index_rule *index = &n->node->index;
    const kt_attn_index call = {
        .q = n->in.x,
        .ldq = n->in.ld,
        .w = n->in2.x,
        .ldw = n->in2.ld,
        .k = {.rows = n->step->pages.entries + s->layout.at + s->layout.index_at,
              .page = (int64_t)n->step->pages.shape.entry_bytes,
              .row = index->dim * 2},
        .picked = (int32_t *)(void *)n->out.x,
        .heads = (int32_t)index->heads,
        .topk = (int32_t)index->topk,
        .ratio = (int32_t)n->node->entries.ratio};

    return kt_device_index_put(n->step, &s->index, &call, n->step->scratch, err);
}

const kt_device_op kt_device_op_pick_entries = {
    .kind = KT_NODE_PICK_ENTRIES, .refuse = refuse, .init = init, .enqueue = enqueue};
