/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/place.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

const char *kt_node_kind_name(kt_node_kind kind) {
    static const char *const names[] = {
        [KT_NODE_RMS] = "rms",
        [KT_NODE_LINEAR] = "linear",
        [KT_NODE_BIAS] = "bias",
        [KT_NODE_RMS_HEADS] = "rms_heads",
        [KT_NODE_ROPE] = "rope",
        [KT_NODE_KEEP] = "keep",
        [KT_NODE_ATTEND] = "attend",
        [KT_NODE_GATE] = "sigmoid_gate",
        [KT_NODE_ROUTE] = "route",
        [KT_NODE_EXPERTS] = "experts",
        [KT_NODE_HEAD] = "head",
        [KT_NODE_LINEAR_HEADS] = "linear_heads",
        [KT_NODE_REGROUP] = "regroup",
        [KT_NODE_DOT] = "dot",
        [KT_NODE_CONV] = "conv",
        [KT_NODE_DELTA] = "delta",
        [KT_NODE_LAYER_NORM] = "layer_norm_rows",
        [KT_NODE_KEEP_INDEX] = "keep_index",
        [KT_NODE_ATTEND_SPARSE] = "attend_sparse",
        [KT_NODE_ATTEND_BLOCKS] = "attend_blocks",
        [KT_NODE_STREAMS] = "streams",
        [KT_NODE_HYPER_MIX] = "hyper_mix",
        [KT_NODE_HYPER_JOIN] = "hyper_join",
        [KT_NODE_HYPER_END] = "hyper_end",
        [KT_NODE_COMPRESS] = "compress",
        [KT_NODE_KEEP_ENTRY] = "keep_entry",
        [KT_NODE_PACK_ROWS] = "pack_rows",
        [KT_NODE_PICK_ENTRIES] = "pick_entries",
        [KT_NODE_ATTEND_ENTRIES] = "attend_entries",
    };
    _Static_assert(sizeof names / sizeof *names == KT_NODE_KINDS, "every kind has a name");
    return names[kind];
}

static void *take(kt_placement *p, int count, size_t bytes) {
    return kt_arena_alloc(&p->arena, (size_t)(count + 1) * bytes, 16);
}

/* ---- devices ---- */

int kt_node_layer(const kt_node *n, int layer_before) {
    return n->layer > layer_before ? n->layer : layer_before;
}

static void choose_devices(const kt_device_ask *ask, kt_placement *p) {
    const kt_graph *g = ask->graph;
    int layer = 0, device = 0;

    p->n_devices = ask->n_devices > 1 ? ask->n_devices : 1;
    for (int i = 0; i < g->n_nodes; i++) {
        layer = kt_node_layer(&g->nodes[i], layer);
        while (device + 1 < p->n_devices && ask->first_layer[device + 1] <= layer) device++;
        p->device[i] = device;
    }
}

/* ---- sides ---- */

static const char *refusal(const kt_device_ask *ask, const kt_node *n) {
    const kt_device_op *op = ask->ops ? NULL : kt_device_op_find(n->kind);

    for (size_t i = 0; i < ask->n_ops; i++)
        if (ask->ops[i]->kind == n->kind) op = ask->ops[i];
    if (!op) return "no such operation on devices";
    return op->refuse ? op->refuse(ask, n) : NULL;
}

static kt_side side_of_experts(const kt_device_ask *ask, const kt_node *n,
                               const kt_hot_experts *hot) {
    const int64_t n_hot = hot[n->weight].n;

    if (n_hot == 0 && !(ask->streamed && ask->streamed[n->weight])) return KT_SIDE_CPU;
    return n_hot == ask->graph->weights[n->weight].count ? KT_SIDE_DEVICE : KT_SIDE_BOTH;
}

/* A layer that repeats what an earlier one picked reads its list: all of them run on one side. */
static void keep_picks_together(const kt_graph *g, kt_placement *p) {
    for (int first = 0, end; first < g->n_nodes; first = end) {
        bool is_here = false;
        for (end = first; end < g->n_nodes; end++) {
            const kt_node *n = &g->nodes[end];
            if (n->kind != KT_NODE_ATTEND_SPARSE) continue;
            if (end > first && !n->index.repeats) break;
            is_here = is_here || p->side[end] == KT_SIDE_CPU;
        }
        for (int i = first; i < end && is_here; i++) {
            if (g->nodes[i].kind != KT_NODE_ATTEND_SPARSE || p->side[i] == KT_SIDE_CPU) continue;
            p->side[i] = KT_SIDE_CPU;
            p->why[i] = "its list of picked keys is read on the CPU";
        }
    }
}

/* A plane or the states of a node have one home: one node that stays keeps all of them. */
static void keep_together(const kt_graph *g, kt_placement *p) {
    for (int i = 0; i < g->n_planes; i++) p->is_plane_away[i] = true;
    for (int i = 0; i < g->n_slots; i++) p->is_slot_away[i] = true;
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        if (p->side[i] != KT_SIDE_CPU) continue;
        if (n->plane >= 0) p->is_plane_away[n->plane] = false;
        if (n->slot >= 0) p->is_slot_away[n->slot] = false;
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        if (p->side[i] == KT_SIDE_CPU) continue;
        if ((n->plane < 0 || p->is_plane_away[n->plane]) &&
            (n->slot < 0 || p->is_slot_away[n->slot]))
            continue;
        p->side[i] = KT_SIDE_CPU;
        p->why[i] = "what it keeps is read on the CPU";
    }
}

static bool is_all(const bool *away, int n) {
    for (int i = 0; i < n; i++)
        if (!away[i]) return false;
    return n > 0;
}

static void choose_sides(const kt_device_ask *ask, const kt_hot_experts *hot, bool is_experts_only,
                         kt_placement *p) {
    const kt_graph *g = ask->graph;

    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        const bool is_routed = n->kind == KT_NODE_EXPERTS && n->is_routed;
        if (is_experts_only && !is_routed) continue;
        p->why[i] = refusal(ask, n);
        if (p->why[i]) continue;
        p->side[i] = is_routed ? side_of_experts(ask, n, hot) : KT_SIDE_DEVICE;
    }
    keep_together(g, p);
    keep_picks_together(g, p);
    keep_together(g, p); /* what the nodes that stay now read */
    for (int i = 0; i < g->n_nodes; i++)
        if (p->side[i] == KT_SIDE_CPU) p->device[i] = 0;
    p->has_all_planes = is_all(p->is_plane_away, g->n_planes);
    p->has_all_slots = is_all(p->is_slot_away, g->n_slots);
}

/* ---- weights ---- */

static void use_here(const kt_node *n, bool *is_here) {
    if (n->weight >= 0) is_here[n->weight] = true;
    if (n->weight2 >= 0) is_here[n->weight2] = true;
    if (n->weight3 >= 0) is_here[n->weight3] = true;
    if (n->weight4 >= 0) is_here[n->weight4] = true;
}

static kt_status leave_experts(const kt_device_ask *ask, const kt_node *n,
                               const kt_hot_experts *hot, int32_t **place, kt_placement *p,
                               kt_err *err) {
    const int64_t count = ask->graph->weights[n->weight].count;
    uint8_t *away = take(p, (int)count, 1);
    int32_t *at = take(p, (int)count, sizeof *at);

    if (!away || !at)
        return kt_fail(err, KT_E_NOMEM, "no memory for the places of %lld experts",
                       (long long)count);
    memset(at, 0xff, (size_t)count * sizeof *at);
    for (int64_t i = 0; i < hot->n; i++) away[hot->id[i]] = 1, at[hot->id[i]] = (int32_t)i;
    if (!ask->keeps_all) {
        p->away[n->weight].expert = away;
        p->away[n->weight].n_experts = hot->n;
    }
    p->hot[n->weight] = *hot;
    place[n->weight] = at;
    return KT_OK;
}

/* What one device has of a weight: the places are those of all, which change where experts move. */
static void share_experts(const kt_placement *all, int weight, int32_t **place, kt_placement *p) {
    p->away[weight].expert = all->away[weight].expert;
    p->away[weight].n_experts = all->away[weight].n_experts;
    p->hot[weight] = all->hot[weight];
    place[weight] = all->place[weight];
}

/* all: what p is one device's part of; NULL = p is all. */
static kt_status leave_weights(const kt_device_ask *ask, const kt_hot_experts *hot,
                               const kt_placement *all, kt_placement *p, kt_err *err) {
    const kt_graph *g = ask->graph;
    bool *is_here = take(p, g->n_weights, sizeof *is_here);
    int32_t **place = take(p, g->n_weights, sizeof *place);

    if (!is_here || !place) return kt_fail(err, KT_E_NOMEM, "no memory for places of weights");
    is_here[g->embedding] = true;
    for (int i = 0; i < g->n_nodes; i++)
        if (p->side[i] == KT_SIDE_CPU) use_here(&g->nodes[i], is_here);
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        const int weight[] = {n->weight, n->weight2, n->weight3, n->weight4};
        if (p->side[i] == KT_SIDE_CPU) continue;
        for (int w = 0; w < 4; w++)
            if (weight[w] >= 0 && !is_here[weight[w]])
                p->away[weight[w]].is_whole = p->side[i] == KT_SIDE_DEVICE;
        if (n->kind != KT_NODE_EXPERTS || !n->is_routed) continue;
        if (all) share_experts(all, n->weight, place, p);
        if (!all) KT_TRY(leave_experts(ask, n, &hot[n->weight], place, p, err));
    }
    p->place = place;
    return KT_OK;
}

/* ---- segments ---- */

/* Where the newest numbers of a value are: a bit for the host, then one for each device. */
enum { NOWHERE = 0, HERE = 1 };
typedef uint32_t validity;

static validity on_device(int device) {
    return (validity)2 << device;
}

/* The first device that has it. */
static int device_with(validity v) {
    int device = 0;

    while (!(v & on_device(device))) device++;
    return device;
}

typedef struct cutter {
    const kt_graph *graph;
    kt_placement *p;
    validity *valid; /* [values] */
    validity routing;
    int *up, *down, *down_from; /* of the segment being made */
    kt_crossing *across;
} cutter;

/* Does the host get it only before this segment? */
static bool is_coming_down(const kt_segment *s, int value) {
    for (int i = 0; i < s->n_down; i++)
        if (s->down[i] == value) return true;
    return false;
}

/* The newest numbers of a value are wanted on a side: a node that writes a part of a value wants
 * the rest of it, too. */
static void want(cutter *c, kt_segment *s, int value, validity where) {
    const validity v = c->valid[value];

    if (v == NOWHERE || (v & where)) return;
    c->valid[value] |= where;
    if (where == HERE) {
        c->down_from[s->n_down] = device_with(v);
        c->down[s->n_down++] = value;
    } else if (v & HERE && !is_coming_down(s, value)) {
        c->up[s->n_up++] = value;
    } else {
        c->across[s->n_across++] = (kt_crossing){value, device_with(v)};
    }
}

static void want_view(cutter *c, kt_segment *s, const kt_view *v, validity where) {
    if (v->width > 0) want(c, s, v->value, where);
}

static void want_routing(cutter *c, kt_segment *s, validity where) {
    if (c->routing & where) return;
    if (where != HERE) {
        if (c->routing) want_routing(c, s, HERE); /* of another device: by way of the host */
        s->routing_up = true;
    } else {
        s->routing_down = true;
        s->routing_from = c->routing ? device_with(c->routing) : 0;
    }
    c->routing |= where;
}

static void add_node(cutter *c, kt_segment *s, const kt_node *n, validity where) {
    want_view(c, s, &n->in, where);
    want_view(c, s, &n->in2, where);
    want_view(c, s, &n->in3, where);
    want_view(c, s, &n->out, where);
    if (n->kind == KT_NODE_EXPERTS && n->is_routed) want_routing(c, s, where);
    if (n->kind == KT_NODE_ROUTE) c->routing = where;
    if (n->out.width > 0) c->valid[n->out.value] = where;
    if (n->kind == KT_NODE_HYPER_JOIN) c->valid[n->in3.value] = where; /* in place */
}

/* Both sides read; the sum is formed where the residual is. Where no expert lies on the device it
 * takes part in long steps only: what goes up is not there behind others. */
static void add_both(cutter *c, kt_segment *s, const kt_node *n) {
    const validity there = on_device(s->device);
    validity in, routing;

    want_view(c, s, &n->in, HERE);
    want_routing(c, s, HERE);
    in = c->valid[n->in.value], routing = c->routing;
    want_view(c, s, &n->in, there);
    want_routing(c, s, there);
    if (s->is_for_long_steps) c->valid[n->in.value] = in, c->routing = routing;
    s->is_summed_on_device = !(c->valid[n->out.value] & HERE);
    if (s->is_summed_on_device) want_view(c, s, &n->out, there);
    c->valid[n->out.value] = s->is_summed_on_device ? there : HERE;
}

/* NULL: no memory. */
static kt_segment *begin_segment(cutter *c, kt_side side, int device, int first) {
    kt_placement *p = c->p;
    const int n = c->graph->n_values;

    c->up = take(p, n, sizeof *c->up);
    c->down = take(p, n, sizeof *c->down);
    c->down_from = take(p, n, sizeof *c->down_from);
    c->across = take(p, p->n_devices > 1 ? n : 0, sizeof *c->across);
    if (!c->up || !c->down || !c->down_from || !c->across) return NULL;
    p->segment[p->n_segments] = (kt_segment){.side = side,
                                             .device = device,
                                             .first = first,
                                             .end = first,
                                             .up = c->up,
                                             .down = c->down,
                                             .down_from = c->down_from,
                                             .across = c->across};
    return &p->segment[p->n_segments++];
}

/* Values that a segment needs must be there before its first node, so a value that is made within
 * it is never asked of the other side: `want` sees it valid here by then. */
static kt_status cut(cutter *c, int first, int end, kt_err *err) {
    const kt_graph *g = c->graph;
    const kt_placement *p = c->p;

    for (int i = first; i < end;) {
        kt_segment *s = begin_segment(c, p->side[i], p->device[i], i);
        if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for segments");
        if (s->side == KT_SIDE_BOTH) {
            s->is_for_long_steps = p->hot[g->nodes[i].weight].n == 0;
            add_both(c, s, &g->nodes[i++]);
        } else {
            for (; i < end && p->side[i] == s->side && p->device[i] == s->device; i++)
                add_node(c, s, &g->nodes[i], s->side == KT_SIDE_CPU ? HERE : on_device(s->device));
        }
        s->end = i;
    }
    return KT_OK;
}

/* The host reads a value behind the nodes before `node`. */
static kt_status bring_home(cutter *c, int node, int value, kt_err *err) {
    kt_segment *s;

    if (c->valid[value] & HERE) return KT_OK;
    s = begin_segment(c, KT_SIDE_CPU, 0, node);
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for segments");
    want(c, s, value, HERE);
    return KT_OK;
}

/* A draft head runs by itself, some times behind a step or not at all: it is given embeddings and
 * the hidden states behind the last layer by the host, which has moved those of the rows that were
 * kept, and the host reads what its layer made of them (engine_draft.c). */
static kt_status cut_segments(const kt_graph *g, kt_placement *p, kt_err *err) {
    const int hidden = g->draft_hidden, main = hidden ? g->main_nodes : g->n_nodes;
    cutter c = {.graph = g, .p = p, .valid = take(p, g->n_values, sizeof *c.valid)};

    if (!c.valid) return kt_fail(err, KT_E_NOMEM, "no memory for segments");
    c.valid[0] = HERE; /* embeddings */
    KT_TRY(cut(&c, 0, main, err));
    if (hidden) KT_TRY(bring_home(&c, main, hidden, err));
    p->main_segments = p->n_segments;
    if (!hidden) return KT_OK;
    memset(c.valid, NOWHERE, (size_t)g->n_values * sizeof *c.valid);
    c.routing = NOWHERE;
    c.valid[0] = c.valid[hidden] = HERE;
    KT_TRY(cut(&c, main, g->n_nodes, err));
    return bring_home(&c, g->n_nodes, 0, err);
}

/* ---- what each device has of it ---- */

static kt_status view_device(const kt_device_ask *ask, const kt_placement *all, int device,
                             kt_placement *v, kt_err *err) {
    const kt_graph *g = ask->graph;

    *v = *all;
    v->arena = (kt_arena){0};
    v->of = NULL;
    v->side = take(v, g->n_nodes, sizeof *v->side);
    v->is_plane_away = take(v, g->n_planes, sizeof *v->is_plane_away);
    v->is_slot_away = take(v, g->n_slots, sizeof *v->is_slot_away);
    v->away = take(v, g->n_weights, sizeof *v->away);
    v->hot = take(v, g->n_weights, sizeof *v->hot);
    if (!v->side || !v->is_plane_away || !v->is_slot_away || !v->away || !v->hot)
        return kt_fail(err, KT_E_NOMEM, "no memory for the part of device %d", device);
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        if (all->side[i] == KT_SIDE_CPU || all->device[i] != device) continue;
        v->side[i] = all->side[i];
        if (n->plane >= 0) v->is_plane_away[n->plane] = all->is_plane_away[n->plane];
        if (n->slot >= 0) v->is_slot_away[n->slot] = all->is_slot_away[n->slot];
    }
    return leave_weights(ask, NULL, all, v, err);
}

const kt_placement *kt_placement_of(const kt_placement *p, int device) {
    return p->of ? &p->of[device] : p;
}

static kt_status view_devices(const kt_device_ask *ask, kt_placement *p, kt_err *err) {
    if (p->n_devices < 2) return KT_OK;
    p->of = calloc((size_t)p->n_devices, sizeof *p->of);
    if (!p->of) return kt_fail(err, KT_E_NOMEM, "no memory for parts of %d devices", p->n_devices);
    for (int i = 0; i < p->n_devices; i++) KT_TRY(view_device(ask, p, i, &p->of[i], err));
    return KT_OK;
}

static kt_status place(const kt_device_ask *ask, const kt_hot_experts *hot, bool is_experts_only,
                       kt_placement *p, kt_err *err) {
    const kt_graph *g = ask->graph;

    p->side = take(p, g->n_nodes, sizeof *p->side);
    p->device = take(p, g->n_nodes, sizeof *p->device);
    p->why = take(p, g->n_nodes, sizeof *p->why);
    p->is_plane_away = take(p, g->n_planes, sizeof *p->is_plane_away);
    p->is_slot_away = take(p, g->n_slots, sizeof *p->is_slot_away);
    p->segment = take(p, g->n_nodes + 2, sizeof *p->segment); /* each node, and two ends */
    p->away = take(p, g->n_weights, sizeof *p->away);
    p->hot = take(p, g->n_weights, sizeof *p->hot);
    if (!p->side || !p->device || !p->why || !p->is_plane_away || !p->is_slot_away || !p->segment ||
        !p->away || !p->hot)
        return kt_fail(err, KT_E_NOMEM, "no memory for the places of %d operations", g->n_nodes);
    choose_devices(ask, p);
    choose_sides(ask, hot, is_experts_only, p);
    KT_TRY(leave_weights(ask, hot, NULL, p, err));
    KT_TRY(cut_segments(g, p, err));
    return view_devices(ask, p, err);
}

kt_status kt_place(const kt_device_ask *ask, const kt_hot_experts *hot, bool is_experts_only,
                   kt_placement *out, kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    st = place(ask, hot, is_experts_only, out, err);
    if (st != KT_OK) kt_placement_deinit(out);
    return st;
}

void kt_placement_deinit(kt_placement *p) {
    for (int i = 0; p->of && i < p->n_devices; i++) kt_arena_deinit(&p->of[i].arena);
    free(p->of);
    kt_arena_deinit(&p->arena);
    memset(p, 0, sizeof *p);
}

/* ---- words ---- */

char *kt_placement_line(const kt_placement *p, const kt_graph *g, char *out, size_t out_bytes) {
    size_t used = 0;

    *out = '\0';
    for (int kind = 0; kind < KT_NODE_KINDS; kind++) {
        const char *why = NULL;
        int count = 0;
        for (int i = 0; i < g->n_nodes; i++) {
            if ((int)g->nodes[i].kind != kind || p->side[i] != KT_SIDE_CPU || !p->why[i]) continue;
            count++;
            why = p->why[i];
        }
        if (!count || used >= out_bytes) continue;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%d %s (%s)",
                                 used ? ", " : "on the CPU: ", count,
                                 kt_node_kind_name((kt_node_kind)kind), why);
    }
    return out;
}
