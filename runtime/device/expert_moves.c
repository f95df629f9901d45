/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/expert_moves.h"

#include "base/err.h"
#include "dispatch/device/device_experts.h"
#include "runtime/device/device_impl.h"

enum {
    ROWS_PER_EXPERT = 16, /* that a layer sees between exchanges, on the average */
    UNDER_WAY = 8         /* exchanges at once, of all layers */
};

/* A layer with experts on both sides. */
typedef struct moving_layer {
    const kt_device_node *node;
    int weight;
    int64_t experts;
    int32_t *place;   /* the placement's */
    int64_t *heat;    /* [experts] rows, halved at each decision */
    bool *is_moving;  /* [experts] */
    int64_t seen;     /* rows since the last decision */
    bool has_changed; /* place is to be told to the device */
} moving_layer;

typedef struct move {
    moving_layer *layer; /* NULL = not under way */
    int32_t expert, place;
    kt_device_event *done;
} move;

struct kt_expert_moves {
    kt_device_step *d;
    kt_expert_stream *stream;
    moving_layer *layer; /* [n] */
    int n;
    move move[UNDER_WAY];
    int64_t done;
};

/* ---- deciding ---- */

bool kt_exchange_find(const int64_t *heat, const int32_t *place, const bool *is_moving,
                      int64_t experts, kt_exchange *out) {
    *out = (kt_exchange){-1, -1};
    for (int64_t e = 0; e < experts; e++) {
        if (is_moving[e]) continue;
        if (place[e] < 0 && (out->in < 0 || heat[e] > heat[out->in])) out->in = (int32_t)e;
        if (place[e] >= 0 && (out->out < 0 || heat[e] < heat[out->out])) out->out = (int32_t)e;
    }
    return out->in >= 0 && out->out >= 0 &&
           4 * (heat[out->in] - KT_MOVE_MARGIN) > 5 * heat[out->out];
}

/* ---- creating ---- */

static kt_status add_layer(kt_expert_moves *m, const kt_device_node *n, kt_err *err) {
    const kt_placement *p = m->d->home->placement;
    const int weight = n->node->weight;
    const size_t experts = (size_t)m->d->graph->weights[weight].count;
    moving_layer *l = &m->layer[m->n++];

    *l = (moving_layer){.node = n,
                        .weight = weight,
                        .experts = (int64_t)experts,
                        .place = p->place[weight],
                        .heat = kt_device_step_alloc(m->d, experts * sizeof *l->heat),
                        .is_moving = kt_device_step_alloc(m->d, experts * sizeof *l->is_moving)};
    if (l->heat && l->is_moving) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory to learn which experts are chosen");
}

kt_status kt_expert_moves_create(kt_device_step *d, kt_expert_stream *stream, kt_expert_moves **out,
                                 kt_err *err) {
    const kt_graph *g = d->graph;
    kt_expert_moves *m = kt_device_step_alloc(d, sizeof *m);

    *out = NULL;
    if (m) m->layer = kt_device_step_alloc(d, sizeof *m->layer * (size_t)g->n_nodes);
    if (!m || !m->layer) return kt_fail(err, KT_E_NOMEM, "no memory to move experts");
    m->d = d, m->stream = stream;
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_device_node *n = &d->home->node[i];
        if (g->nodes[i].kind != KT_NODE_EXPERTS || !g->nodes[i].is_routed) continue;
        if (d->home->placement->side[i] == KT_SIDE_BOTH && n->n_experts)
            KT_TRY(add_layer(m, n, err));
    }
    for (int i = 0; i < UNDER_WAY; i++)
        KT_TRY(kt_device_event_make(d->device, &m->move[i].done, err));
    *out = m;
    return KT_OK;
}

int64_t kt_expert_moves_done(const kt_expert_moves *m) {
    return m->done;
}

/* ---- serving ---- */

void kt_expert_moves_note(kt_expert_moves *m, int weight, const int32_t *expert_id, int64_t ids) {
    for (int i = 0; i < m->n; i++) {
        moving_layer *l = &m->layer[i];
        if (l->weight != weight) continue;
        for (int64_t j = 0; j < ids; j++)
            if (expert_id[j] >= 0) l->heat[expert_id[j]]++, l->seen++;
    }
}

/* Has it arrived? Then it is computed there. */
static kt_status finish(kt_expert_moves *m, move *v, kt_err *err) {
    bool has_passed;

    KT_TRY(kt_device_passed(m->d->device, v->done, &has_passed, err));
    if (!has_passed) return KT_OK;
    v->layer->place[v->expert] = v->place;
    v->layer->is_moving[v->expert] = false;
    v->layer->has_changed = true;
    v->layer = NULL;
    m->done++;
    return KT_OK;
}

static kt_status begin(kt_expert_moves *m, moving_layer *l, move *v, kt_err *err) {
    const kt_device_experts *e = l->node->state; /* its state begins with them */
    const kt_device_matrices to[3] = {e->gate, e->up, e->down};
    kt_exchange pair;
    const bool is_found = kt_exchange_find(l->heat, l->place, l->is_moving, l->experts, &pair);

    l->seen = 0;
    for (int64_t i = 0; i < l->experts; i++) l->heat[i] /= 2;
    if (!is_found) return KT_OK;
    *v = (move){l, pair.in, l->place[pair.out], v->done};
    l->place[pair.out] = -1;
    l->is_moving[pair.in] = true;
    l->has_changed = true;
    return kt_expert_stream_move(m->stream, l->weight, pair.in, v->place, to, v->done, err);
}

static kt_status tell(const kt_expert_moves *m, moving_layer *l, kt_err *err) {
    if (!l->has_changed) return KT_OK;
    l->has_changed = false;
    return kt_device_upload(m->d->device, KT_STREAM_MAIN, l->node->place_of, l->place,
                            (size_t)l->experts * sizeof *l->place, err);
}

kt_status kt_expert_moves_advance(kt_expert_moves *m, kt_err *err) {
    int next = 0; /* layer to ask */

    for (int i = 0; i < UNDER_WAY; i++)
        if (m->move[i].layer) KT_TRY(finish(m, &m->move[i], err));
    for (int i = 0; i < UNDER_WAY; i++)
        for (; !m->move[i].layer && next < m->n; next++)
            if (m->layer[next].seen >= ROWS_PER_EXPERT * m->layer[next].experts)
                KT_TRY(begin(m, &m->layer[next], &m->move[i], err));
    for (int i = 0; i < m->n; i++) KT_TRY(tell(m, &m->layer[i], err));
    return KT_OK;
}
