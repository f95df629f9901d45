/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/layer_cut.h"

#include <stdlib.h>

#include "base/err.h"
#include "runtime/device/device_memory.h"
#include "runtime/exec/place.h"

typedef struct cutting {
    const kt_layer_cut_request *r;
    int layers;
    double *bytes; /* [layers] */
    bool *begins;  /* [layers] a device may begin with it */
    double share[KT_DEVICES_MOST];
} cutting;

static kt_status read_shares(cutting *c, kt_err *err) {
    const kt_layer_cut_request *r = c->r;
    const char *at = r->split;
    double total = 0;

    for (int i = 0; i < r->n; i++) {
        char *end = NULL;
        c->share[i] = at ? strtod(at, &end) : (double)r->free_bytes[i];
        if (at && (end == at || !(c->share[i] > 0 && c->share[i] < 1e15) ||
                   *end != (i + 1 < r->n ? ',' : '\0')))
            return kt_fail(err, KT_E_INVALID,
                           "--device-split is '%.60s', expected %d positive numbers divided by "
                           "commas, one for each device",
                           r->split, r->n);
        if (at) at = end + 1;
        total += c->share[i];
    }
    for (int i = 0; i < r->n; i++) c->share[i] = total > 0 ? c->share[i] / total : 1.0 / r->n;
    return KT_OK;
}

/* No device begins behind the layer `from` up to `to`: what they share has one home. */
static void join(cutting *c, int from, int to) {
    for (int l = from + 1; l <= to; l++) c->begins[l] = false;
}

static void find_joined(cutting *c) {
    const kt_graph *g = c->r->ask->graph;

    for (int i = 0, layer = 0, picked = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        layer = kt_node_layer(n, layer);
        if (n->kind == KT_NODE_ATTEND_SPARSE && n->index.repeats) join(c, picked, layer);
        if (n->kind == KT_NODE_ATTEND_SPARSE && !n->index.repeats) picked = layer;
        for (int k = i + 1, other = layer; k < g->n_nodes; k++) {
            const kt_node *later = &g->nodes[k];
            other = kt_node_layer(later, other);
            if ((n->plane >= 0 && later->plane == n->plane) ||
                (n->slot >= 0 && later->slot == n->slot))
                join(c, layer, other);
        }
    }
}

static void count_bytes(cutting *c) {
    const kt_device_ask *ask = c->r->ask;
    const kt_graph *g = ask->graph;
    const double plane =
        ask->kv.layers ? (double)kt_kv_bytes(&ask->kv, ask->max_context) / (double)ask->kv.layers
                       : 0;

    for (int i = 0, layer = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        const int weight[] = {n->weight, n->weight2, n->weight3, n->weight4};
        layer = kt_node_layer(n, layer);
        for (int w = 0; w < 4; w++) {
            const bool is_routed = w == 0 && n->kind == KT_NODE_EXPERTS && n->is_routed;
            if (weight[w] >= 0)
                c->bytes[layer] += (double)kt_device_weight_bytes(ask->plan, weight[w]) *
                                   (is_routed ? c->r->expert_part : 1);
        }
        if (n->kind == KT_NODE_KEEP) c->bytes[layer] += plane;
        if (n->slot >= 0)
            c->bytes[layer] += (double)g->slots[n->slot] * sizeof(float) * KT_LEAST_SLOTS;
    }
}

/* A device ends where its share is reached by more than half of a layer; each leaves a place to
 * begin for all behind it. */
static kt_status cut(const cutting *c, int *first, kt_err *err) {
    double total = 0, before = 0, bound = 0;
    int device = 0, left = 0;

    for (int l = 0; l < c->layers; l++) total += c->bytes[l], left += c->begins[l];
    if (left < c->r->n)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%d devices, expected at most %d: the model's %d layers can be cut into so "
                       "many runs",
                       c->r->n, left, c->layers);
    first[0] = 0;
    bound = c->share[0] * total;
    for (int l = 0; l < c->layers; l++) {
        const bool must = c->begins[l] && left <= c->r->n - 1 - device;
        left -= c->begins[l];
        if (l > 0 && c->begins[l] && device + 1 < c->r->n &&
            (must || before + c->bytes[l] / 2 >= bound)) {
            first[++device] = l;
            bound += c->share[device] * total;
        }
        before += c->bytes[l];
    }
    return KT_OK;
}

kt_status kt_layer_cut_make(const kt_layer_cut_request *r, int *first, kt_err *err) {
    const int layers = (int)r->ask->graph->numbers.layers + 1; /* a draft head is one more */
    cutting c = {.r = r};
    kt_status st;

    for (int i = 0, layer = 0; i < r->ask->graph->n_nodes; i++) {
        layer = kt_node_layer(&r->ask->graph->nodes[i], layer);
        if (layer < layers) c.layers = layer + 1;
    }
    c.bytes = calloc((size_t)layers, sizeof *c.bytes);
    c.begins = calloc((size_t)layers, sizeof *c.begins);
    st = c.bytes && c.begins ? read_shares(&c, err)
                             : kt_fail(err, KT_E_NOMEM, "no memory to cut %d layers", layers);
    if (st == KT_OK) {
        for (int l = 0; l < c.layers; l++) c.begins[l] = true;
        if (c.layers == layers)
            c.begins[layers - 1] = false; /* a draft head's lm_head is the model's */
        find_joined(&c);
        count_bytes(&c);
        st = cut(&c, first, err);
    }
    free(c.bytes);
    free(c.begins);
    return st;
}
