/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_heads.h"

#include "base/err.h"
#include "runtime/device/device_impl.h"
#include "runtime/device/row_code.h"

enum { PAGE = 64 /* tokens */ };

int32_t kt_device_kept_format(const kt_device_step *s) {
    if (s->plan->kv == KT_W_INT8_CHANNEL) return KT_KEPT_INT8;
    return s->plan->kv == KT_W_FP8_CHANNEL ? KT_KEPT_FP8 : KT_KEPT_BF16;
}

kt_kept_heads kt_device_kept_heads(const kt_device_node *n, int which) {
    const kt_device_pages *pages = &n->step->pages;
    const int64_t rows_of_head = pages->n * PAGE;
    const int64_t first =
        pages->plane_row[n->node->plane] + which * pages->shape.kv_heads * rows_of_head;
    const int64_t row = pages->shape.head_dim * (pages->scales ? 1 : 2);

    return (kt_kept_heads){.to = pages->rows + first * row,
                           .scale = pages->scales ? pages->scales + first : NULL,
                           .head_stride = rows_of_head * row,
                           .page_stride = PAGE * row,
                           .row_bytes = row,
                           .scale_head_stride = rows_of_head,
                           .scale_page_stride = PAGE};
}

/* ---- which nodes ---- */

/* What happens to one value's heads: nodes, NULL where nothing does. */
typedef struct part {
    kt_device_view x;
    int64_t size; /* of a head */
    const kt_device_node *norm, *rope, *keep;
    int which; /* of keep: 0 keys, 1 values */
    const void *w;
} part;

typedef struct heads_state {
    part part[KT_HEAD_PARTS];
    int n;
    kt_row_code code;
} heads_state;

static bool is_same(const part *p, const kt_device_view *x, int64_t size) {
    return p->x.x == x->x && p->x.ld == x->ld && p->x.width == x->width && p->size == size;
}

/* Columns of the same rows that both have. Views of other values do not lie in between. */
static bool meet(const part *p, const kt_device_view *x) {
    return p->x.ld == x->ld && p->x.x < x->x + x->width && x->x < p->x.x + p->x.width;
}

/* The part of exactly these heads, a new one if no part has any of their columns, else NULL. */
static part *part_for(heads_state *s, const kt_device_view *x, int64_t size) {
    for (int i = 0; i < s->n; i++)
        if (is_same(&s->part[i], x, size)) return &s->part[i];
    for (int i = 0; i < s->n; i++)
        if (meet(&s->part[i], x)) return NULL;
    if (s->n == KT_HEAD_PARTS) return NULL;
    s->part[s->n] = (part){.x = *x, .size = size};
    return &s->part[s->n++];
}

static bool add_keep(heads_state *s, const kt_device_node *n, int which) {
    const kt_device_view *x = which ? &n->in2 : &n->in;
    part *p = part_for(s, x, x->width / n->step->graph->planes[n->node->plane].heads);

    if (!p || p->keep) return false;
    p->keep = n;
    p->which = which;
    return true;
}

/* False where the node does not go with those that are there already: nothing has changed then. */
static bool add(heads_state *s, const kt_device_node *n) {
    const heads_state before = *s;
    const kt_node_kind kind = n->node->kind;
    bool is_added;
    part *p;

    if (kind == KT_NODE_KEEP) {
        is_added = add_keep(s, n, 0) && (n->in2.width == 0 || add_keep(s, n, 1));
    } else if (kind == KT_NODE_RMS_HEADS || kind == KT_NODE_ROPE) {
        p = part_for(s, &n->out, n->node->size);
        is_added = p && !p->keep && !p->rope && (kind == KT_NODE_ROPE || !p->norm);
        if (is_added && kind == KT_NODE_ROPE) p->rope = n;
        if (is_added && kind == KT_NODE_RMS_HEADS) p->norm = n;
    } else {
        is_added = false;
    }
    if (!is_added) *s = before;
    return is_added;
}

/* ---- the op of the first of them ---- */

static kt_status init(kt_device_node *n, kt_err *err) {
    const int32_t format = kt_device_kept_format(n->step);
    heads_state *s = n->state;

    for (int i = 0; i < s->n; i++)
        if (s->part[i].norm && s->part[i].norm->node->weight >= 0)
            KT_TRY(kt_device_load_small(n->step, s->part[i].norm->node->weight, &s->part[i].w, NULL,
                                        err));
    return kt_row_code_find(n->step, "rows_heads", &format, &s->code, err);
}

static kt_head_part part_of(const kt_device_step *step, const part *p) {
    kt_head_part t = {.x = p->x.x,
                      .ld = (int32_t)p->x.ld,
                      .heads = (int32_t)(p->x.width / p->size),
                      .size = (int32_t)p->size,
                      .w = p->w,
                      .has_norm = p->norm != NULL};

    if (p->norm) t.eps = (float)p->norm->node->eps;
    if (p->keep) t.kept = kt_device_kept_heads(p->keep, p->which);
    if (p->rope) {
        const kt_rope_rule *rule = &step->graph->rotations[p->rope->node->rotation];
        t.cos_sin = step->cos_sin[p->rope->node->rotation];
        t.rotary_dim = (int32_t)rule->rotary_dim;
        t.is_interleaved = rule->interleaved;
        t.is_inverse = p->rope->node->is_inverse;
    }
    return t;
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const heads_state *s = n->state;
    const kt_device_step *step = n->step;
    kt_rows_heads call = {.places = {step->position, step->span_of, step->first_page, step->page},
                          .rows = (int32_t)step->rows};
    int64_t longest = 0;

    for (int i = 0; i < s->n; i++) {
        call.part[i] = part_of(step, &s->part[i]);
        call.heads += call.part[i].heads;
        if (s->part[i].size > longest) longest = s->part[i].size;
    }
    return kt_device_put(n->step, s->code.code, 0, kt_row_blocks(call.heads, s->code.threads / 32),
                         call.rows, s->code.kernel->shared_bytes(&s->code.config, longest), &call,
                         sizeof call, err);
}

/* What the first of them has done. */
static kt_status done(kt_device_node *n, kt_err *err) {
    (void)n, (void)err;
    return KT_OK;
}

static const kt_device_op joined = {.kind = KT_NODE_RMS_HEADS, .init = init, .enqueue = enqueue},
                          follower = {.kind = KT_NODE_RMS_HEADS, .enqueue = done};

void kt_device_heads_join(kt_device_step *s) {
    const int n_nodes = s->graph->n_nodes;
    kt_device_node *node = s->home->node;

    for (int first = 0, end; first < n_nodes; first = end) {
        heads_state heads = {.n = 0}, *kept;
        end = first;
        while (end < n_nodes && node[end].op && add(&heads, &node[end])) end++;
        if (end - first >= 2 && (kept = kt_device_step_alloc(s, sizeof *kept)) != NULL) {
            *kept = heads;
            node[first].state = kept;
            node[first].op = &joined;
            for (int i = first + 1; i < end; i++) node[i].op = &follower;
        }
        if (end == first) end++;
    }
}
