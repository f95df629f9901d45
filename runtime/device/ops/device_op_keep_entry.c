/* Entries of windows that end in this step are normed, rotated at the window's first position and
 * kept, on a device. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/device/device_attn.h"
#include "runtime/device/row_code.h"

enum { ENTRY = 1 }; /* entry of rows_keep.cu */

typedef struct entry_state {
    kt_row_code code;
    const void *norm;
    kt_entry_layout layout;
} entry_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    const kt_device_step *d = n->step;
    const int32_t format =
        n->node->entries.is_index ? KT_KEPT_BF16 : kt_device_attn_cache(d->plan->kv);
    entry_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for entries");
    n->state = s;
    s->layout = kt_device_entry_layout(d, n->node->plane);
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->norm, NULL, err));
    return kt_row_code_find(n->step, "rows_keep", &format, &s->code, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const entry_state *s = n->state;
    const kt_device_step *d = n->step;
    const kt_rope_rule *rule = &d->graph->rotations[n->node->rotation];
    const kt_entry_layout *l = &s->layout;
    const bool is_index = n->node->entries.is_index;
    uint8_t *base = d->pages.entries + l->at;
    const kt_rows_keep_entry call = {
        .x = n->in.x,
        .norm = s->norm,
        .cos_sin = d->cos_sin[n->node->rotation],
        .places = {d->position, d->span_of, d->first_page, d->page},
        .to = base + (is_index ? l->index_at : 0),
        .scale = is_index ? NULL : (float *)(void *)(base + l->scales_at),
        .page_bytes = (int64_t)d->pages.shape.entry_bytes,
        .ldx = (int32_t)n->in.ld,
        .size = (int32_t)n->in.width,
        .rotary = (int32_t)rule->rotary_dim,
        .is_interleaved = rule->interleaved,
        .ratio = (int32_t)n->node->entries.ratio,
        .row_bytes = (int32_t)(is_index ? n->in.width * 2 : (int64_t)l->row_bytes),
        .rows = (int32_t)d->rows,
        .eps = (float)n->node->eps};

    return kt_device_put(n->step, s->code.code, ENTRY,
                         kt_row_blocks(call.rows, s->code.threads / 32), 1, 0, &call, sizeof call,
                         err);
}

_Static_assert((int)KT_KEPT_BF16 == (int)KT_ATTN_BF16 && (int)KT_KEPT_INT8 == (int)KT_ATTN_INT8 &&
                   (int)KT_KEPT_FP8 == (int)KT_ATTN_FP8,
               "formats of the cache");

const kt_device_op kt_device_op_keep_entry = {
    .kind = KT_NODE_KEEP_ENTRY, .init = init, .enqueue = enqueue};
