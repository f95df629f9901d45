/* Entries of windows that end in this step: normed, rotated at the window's first position, and
 * kept. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"
#include "kernels/compress/entries.h"
#include "runtime/exec/step.h"
#include "runtime/model/model_dir.h"

typedef struct entry_state {
    const kt_choice *rope;
    kt_entry_layout layout;
} entry_state;

static kt_status init(kt_exec_node *n, kt_err *err) {
    const kt_step *s = n->step;
    const kt_problem norm = kt_norm_problem(n->in.width), rope = kt_rope_problem(1, n->in.width);
    entry_state *e = kt_step_alloc(n->step, sizeof *e);

    n->state = e;
    if (!e) return kt_fail(err, KT_E_NOMEM, "no memory for entries");
    n->choice = kt_model_plan_simple(s->plan, &norm);
    e->rope = kt_model_plan_simple(s->plan, &rope);
    e->layout = kt_model_entry_layout(s->graph, s->plan->kv, n->node->plane);
    return n->choice && e->rope ? KT_OK : kt_fail(err, KT_E_INTERNAL, "no plan for entries");
}

static void keep(const kt_exec_node *n, int64_t row, const float *x) {
    const entry_state *e = n->state;
    const kt_step *s = n->step;
    const int64_t ratio = n->node->entries.ratio, dim = n->in.width;
    int64_t page;
    const int64_t room = kt_entry_room(s->positions[row] / ratio, ratio, &page);
    uint8_t *to = kt_pages_entries(s->pages, kt_step_span_of(s, row)->page[page]) + e->layout.at;
    uint16_t *index;

    if (!n->node->entries.is_index) {
        kt_attn_store(s->plan->kv, x, dim, to + (size_t)room * e->layout.row_bytes,
                      (float *)(void *)(to + e->layout.scales_at) + room);
        return;
    }
    index = (uint16_t *)(void *)(to + e->layout.index_at) + room * dim;
    for (int64_t i = 0; i < dim; i++) index[i] = kt_f32_to_bf16(x[i]);
}

static void rows(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end) {
    const entry_state *e = n->state;
    const kt_rope_rule *rotation = &s->graph->rotations[n->node->rotation];
    const int64_t dim = n->in.width, ratio = n->node->entries.ratio;

    for (int64_t r = begin; r < end; r++) {
        const int32_t first = s->positions[r] - (int32_t)(ratio - 1);
        float *x = n->in.x + r * n->in.ld;
        if (!kt_ends_window(s->positions[r], ratio)) continue;
        kt_norm_rows(n->choice, x, dim, n->weight->data[0], (float)n->node->eps, x, dim, dim, 0, 1);
        e->rope->variant->rope(&(kt_rope_call){.x = x + dim - rotation->rotary_dim,
                                               .ld = dim,
                                               .heads = 1,
                                               .head_dim = dim,
                                               .rotary_dim = rotation->rotary_dim,
                                               .cos_sin = s->cos_sin[n->node->rotation],
                                               .positions = &first,
                                               .interleaved = rotation->interleaved,
                                               .row_end = 1});
        keep(n, r, x);
    }
}

const kt_exec_op kt_exec_op_keep_entry = {.kind = KT_NODE_KEEP_ENTRY, .init = init, .rows = rows};
