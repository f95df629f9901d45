/* The verbs. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/build.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build_impl.h"

void kt_build_fail(kt_build *b, kt_status status, const char *format, ...) {
    char message[KT_ERR_SIZE];
    va_list args;

    if (b->status != KT_OK) return;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    b->status = kt_fail(b->err, status, "%s", message);
}

/* Room for one more in a list; the list or NULL. */
static void *grow(kt_build *b, void *list, int count, int *room, size_t bytes) {
    int more = 2 * *room + 64;
    void *grown;

    if (b->status != KT_OK) return NULL;
    if (count < *room) return list;
    grown = realloc(list, (size_t)more * bytes);
    if (!grown) {
        kt_build_fail(b, KT_E_NOMEM, "no memory for the description of a model");
        return NULL;
    }
    *room = more;
    return grown;
}

static int add_weight(kt_build *b, const kt_weight *w) {
    kt_graph *g = b->graph;
    kt_weight *list = grow(b, g->weights, g->n_weights, &b->room_weights, sizeof *list);

    if (!list) return -1;
    g->weights = list;
    list[g->n_weights] = *w;
    list[g->n_weights].layer = b->layer;
    kt_build_detect(b, &list[g->n_weights]);
    return g->n_weights++;
}

static void add_node(kt_build *b, const kt_node *n) {
    kt_graph *g = b->graph;
    kt_node *list = grow(b, g->nodes, g->n_nodes, &b->room_nodes, sizeof *list);

    if (!list) return;
    g->nodes = list;
    list[g->n_nodes] = *n;
    list[g->n_nodes++].layer = b->layer;
}

/* Members that a node does not use. */
static kt_node node_of(kt_node_kind kind, kt_view in, kt_view out) {
    return (kt_node){.kind = kind,
                     .in = in,
                     .out = out,
                     .weight = -1,
                     .weight2 = -1,
                     .weight3 = -1,
                     .weight4 = -1,
                     .plane = -1,
                     .slot = -1,
                     .rotation = -1};
}

static kt_view add_value(kt_build *b, int64_t width) {
    kt_graph *g = b->graph;
    int64_t *list = grow(b, g->width, g->n_values, &b->room_values, sizeof *list);

    if (!list) return (kt_view){.width = width};
    g->width = list;
    list[g->n_values] = width;
    return (kt_view){.value = g->n_values++, .width = width};
}

static int add_vector(kt_build *b, kt_vec v, bool is_optional) {
    kt_weight w = {.kind = KT_WEIGHT_VECTOR,
                   .role = "vector",
                   .n = v.n,
                   .count = 1,
                   .n_parts = 1,
                   .rows = v.rows,
                   .step = v.step,
                   .at = v.at,
                   .taps = v.taps,
                   .ids = v.ids,
                   .one_plus = v.one_plus,
                   .negative_exp = v.negative_exp,
                   .is_optional = is_optional};

    w.part[0] = (kt_weight_part){.name = v.name, .n = v.n, .k = 1};
    return add_weight(b, &w);
}

static kt_name name_of_embedding(const kt_build *b) {
    const kt_name usual = {"model.embed_tokens", "token_embd"},
                  brief = {"model.embed", "token_embd"};

    return kt_has(b, (kt_name){"model.embed.weight", NULL}) ? brief : usual;
}

void kt_build_begin(kt_build *b) {
    const kt_model_numbers *n = &b->graph->numbers;
    kt_weight table = {
        .kind = KT_WEIGHT_TABLE, .role = "embedding", .n = n->vocab, .k = n->hidden, .n_parts = 1};

    table.count = 1;
    table.use = KT_USE_HEAD;
    table.part[0] = (kt_weight_part){.name = name_of_embedding(b), .n = n->vocab, .k = n->hidden};
    b->graph->embedding = add_weight(b, &table);
    add_value(b, n->hidden);
}

bool kt_is_gguf(const kt_build *b) {
    return b->graph->is_gguf;
}

bool kt_has(const kt_build *b, kt_name name) {
    const kt_weight w = {.layer = b->layer, .part = {{.name = name}}};
    char full[200];

    if (!b->checkpoint) return false;
    kt_weight_name(b->graph, &w, 0, 0, false, full, sizeof full);
    return *full && kt_checkpoint_find(b->checkpoint, full);
}

kt_view kt_residual(const kt_build *b) {
    return (kt_view){.width = b->graph->numbers.hidden};
}

kt_view kt_rms(kt_build *b, kt_view x, kt_vec w, double eps) {
    kt_node n = node_of(KT_NODE_RMS, x, add_value(b, x.width));

    n.weight = add_vector(b, w, false);
    n.eps = eps;
    add_node(b, &n);
    return n.out;
}

static int add_matrices(kt_build *b, const char *role, kt_use use, int n, const kt_mat *mats) {
    kt_weight w = {.kind = KT_WEIGHT_MATRIX, .use = use, .role = role, .count = 1, .n_parts = n};

    w.k = mats[0].k;
    for (int i = 0; i < n; i++) {
        w.n += mats[i].n;
        w.part[i] = (kt_weight_part){.name = mats[i].name, .n = mats[i].n, .k = mats[i].k};
    }
    return add_weight(b, &w);
}

void kt_linear(kt_build *b, const char *role, kt_view x, int n, const kt_mat *mats, kt_view *out) {
    kt_node node = node_of(KT_NODE_LINEAR, x, (kt_view){0});
    int64_t width = 0, at = 0;

    for (int i = 0; i < n; i++) width += mats[i].n;
    node.out = add_value(b, width);
    node.weight = add_matrices(b, role, KT_USE_LINEAR, n, mats);
    add_node(b, &node);
    for (int i = 0; i < n; at += mats[i++].n)
        out[i] = (kt_view){.value = node.out.value, .at = at, .width = mats[i].n};
}

static void linear_to(kt_build *b, const char *role, kt_view to, kt_view x, kt_mat w,
                      int accumulate) {
    kt_node n = node_of(KT_NODE_LINEAR, x, to);

    n.weight = add_matrices(b, role, KT_USE_LINEAR, 1, &w);
    n.accumulate = accumulate;
    add_node(b, &n);
}

void kt_linear_into(kt_build *b, const char *role, kt_view to, kt_view x, kt_mat w) {
    linear_to(b, role, to, x, w, 1);
}

void kt_bias(kt_build *b, kt_view x, kt_vec w) {
    kt_node n = node_of(KT_NODE_BIAS, x, x);

    n.weight = add_vector(b, w, false);
    add_node(b, &n);
}

void kt_rms_heads(kt_build *b, kt_view x, int64_t size, kt_vec w, double eps) {
    kt_node n = node_of(KT_NODE_RMS_HEADS, x, x);

    if (w.n) n.weight = add_vector(b, w, false);
    n.size = size;
    n.eps = eps;
    add_node(b, &n);
}

static bool is_same_rotation(const kt_rope_rule *a, const kt_rope_rule *b) {
    return a->base == b->base && a->rotary_dim == b->rotary_dim &&
           a->interleaved == b->interleaved && a->scaling == b->scaling && a->factor == b->factor &&
           a->original_context == b->original_context && a->beta_fast == b->beta_fast &&
           a->beta_slow == b->beta_slow && a->is_exact == b->is_exact &&
           a->attention_factor == b->attention_factor;
}

static int add_rotation(kt_build *b, const kt_rope_rule *r) {
    kt_graph *g = b->graph;
    kt_rope_rule *list;

    for (int i = 0; i < g->n_rotations; i++)
        if (is_same_rotation(&g->rotations[i], r)) return i;
    list = grow(b, g->rotations, g->n_rotations, &b->room_rotations, sizeof *list);
    if (!list) return -1;
    g->rotations = list;
    list[g->n_rotations] = *r;
    return g->n_rotations++;
}

static void rotate(kt_build *b, kt_view x, int64_t size, const kt_rope_rule *rotation,
                   int is_inverse) {
    kt_node n = node_of(KT_NODE_ROPE, x, x);

    if (is_inverse && rotation->rotary_dim > KT_ROPE_BACK_MOST)
        kt_build_fail(b, KT_E_UNSUPPORTED, "%lld numbers of a head are rotated back, at most %d",
                      (long long)rotation->rotary_dim, KT_ROPE_BACK_MOST);
    n.size = size;
    n.rotation = kt_build_rotation(b, rotation);
    n.is_inverse = is_inverse;
    add_node(b, &n);
}

void kt_rope(kt_build *b, kt_view x, int64_t size, const kt_rope_rule *rotation) {
    rotate(b, x, size, rotation, 0);
}

void kt_rope_back(kt_build *b, kt_view x, int64_t size, const kt_rope_rule *rotation) {
    rotate(b, x, size, rotation, 1);
}

int kt_build_plane(kt_build *b, const kt_plane *plane) {
    kt_graph *g = b->graph;
    kt_plane *list = grow(b, g->planes, g->n_planes, &b->room_planes, sizeof *list);

    if (!list) return 0;
    g->planes = list;
    list[g->n_planes] = *plane;
    list[g->n_planes].layer = b->layer;
    return g->n_planes++;
}

int kt_keep(kt_build *b, kt_view k, kt_view v, int64_t heads) {
    kt_node n = node_of(KT_NODE_KEEP, k, k);

    n.in2 = v;
    n.plane =
        kt_build_plane(b, &(kt_plane){.heads = heads, .k = k.width / heads, .v = v.width / heads});
    add_node(b, &n);
    return n.plane;
}

kt_view kt_attend(kt_build *b, kt_view q, int plane, const kt_attention *attention) {
    return kt_attend_sinks(b, q, plane, attention, (kt_vec){.n = 0});
}

kt_view kt_attend_sinks(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                        kt_vec sinks) {
    kt_node n = node_of(KT_NODE_ATTEND, q, add_value(b, attention->heads * attention->v));

    if (sinks.n) n.weight3 = add_vector(b, sinks, false);
    n.plane = plane;
    n.attention = *attention;
    add_node(b, &n);
    return n.out;
}

static kt_node heads_node(kt_build *b, kt_view x, const kt_head_mats *m) {
    kt_node node = node_of(KT_NODE_LINEAR_HEADS, x, add_value(b, m->heads * (m->n + m->tail)));
    kt_weight w = {.kind = KT_WEIGHT_HEADS,
                   .use = KT_USE_LINEAR,
                   .role = m->role,
                   .n = m->n,
                   .k = m->k,
                   .count = m->heads,
                   .n_parts = 1,
                   .head_rows = m->head_rows,
                   .head_at = m->head_at,
                   .is_transposed = m->is_transposed};

    w.part[0] = (kt_weight_part){.name = m->name, .n = m->n, .k = m->k};
    node.weight = add_weight(b, &w);
    node.size = x.width / m->heads;
    node.tail = m->tail;
    return node;
}

kt_view kt_linear_heads(kt_build *b, kt_view x, const kt_head_mats *m) {
    const kt_node node = heads_node(b, x, m);

    add_node(b, &node);
    return node.out;
}

kt_view kt_attend_latent(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_head_mats *keys, const kt_head_mats *values) {
    kt_node in = heads_node(b, q, keys), n, out;

    in.latent = 1;
    add_node(b, &in);
    n = node_of(KT_NODE_ATTEND, in.out, add_value(b, attention->heads * attention->v));
    out = heads_node(b, n.out, values);
    out.latent = -1;
    n.plane = plane;
    n.attention = *attention;
    n.in2 = q;
    n.in3 = out.out;
    n.weight = in.weight;
    n.weight2 = out.weight;
    add_node(b, &n);
    add_node(b, &out);
    return out.out;
}

void kt_layer_norm(kt_build *b, kt_view x, kt_vec w, kt_vec bias, double eps) {
    kt_node n = node_of(KT_NODE_LAYER_NORM, x, x);

    n.weight = add_vector(b, w, false);
    n.weight2 = add_vector(b, bias, false);
    n.eps = eps;
    add_node(b, &n);
}

static kt_view picked_node(kt_build *b, kt_node_kind kind, kt_view q, int plane,
                           const kt_attention *attention, const kt_index_rule *index) {
    kt_node n = node_of(kind, q, add_value(b, attention->heads * attention->v));

    n.in2 = index->queries;
    n.in3 = index->weights;
    n.plane = plane;
    n.attention = *attention;
    n.index = *index;
    add_node(b, &n);
    return n.out;
}

static kt_view attend_picked(kt_build *b, kt_node_kind kind, kt_view q, int plane,
                             const kt_attention *attention, const kt_index_rule *index) {
    kt_node keep = node_of(KT_NODE_KEEP_INDEX, index->keys, index->keys);

    if (b->status == KT_OK) b->graph->planes[plane].index = index->dim;
    keep.plane = plane;
    add_node(b, &keep);
    return picked_node(b, kind, q, plane, attention, index);
}

kt_view kt_attend_sparse(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_index_rule *index) {
    return attend_picked(b, KT_NODE_ATTEND_SPARSE, q, plane, attention, index);
}

kt_view kt_attend_blocks(kt_build *b, kt_view q, int plane, const kt_attention *attention,
                         const kt_index_rule *index) {
    return attend_picked(b, KT_NODE_ATTEND_BLOCKS, q, plane, attention, index);
}

kt_view kt_attend_repeated(kt_build *b, kt_view q, int plane, const kt_attention *attention) {
    const kt_graph *g = b->graph;
    kt_index_rule index = {.repeats = true};

    for (int i = g->n_nodes - 1; i >= 0 && index.topk == 0; i--) {
        const kt_index_rule *last = &g->nodes[i].index;
        if (g->nodes[i].kind != KT_NODE_ATTEND_SPARSE) continue;
        index.heads = last->heads, index.dim = last->dim, index.topk = last->topk;
    }
    if (index.topk == 0)
        kt_build_fail(b, KT_E_FORMAT,
                      "layer %d meets the keys that an earlier layer picks, and none does",
                      b->layer);
    return picked_node(b, KT_NODE_ATTEND_SPARSE, q, plane, attention, &index);
}

void kt_gate(kt_build *b, kt_view x, kt_view g) {
    kt_node n = node_of(KT_NODE_GATE, g, x);

    add_node(b, &n);
}

static kt_node route_node(kt_build *b, kt_view x, kt_mat w, const kt_routing_rule *rule) {
    kt_node n = node_of(KT_NODE_ROUTE, x, x);
    kt_weight router = {
        .kind = KT_WEIGHT_ROUTER, .role = "router", .n = w.n, .k = w.k, .count = 1, .n_parts = 1};

    router.part[0] = (kt_weight_part){.name = w.name, .n = w.n, .k = w.k};
    n.weight = add_weight(b, &router);
    n.routing = *rule;
    return n;
}

void kt_route(kt_build *b, kt_view x, kt_mat w, kt_vec bias, const kt_routing_rule *rule) {
    kt_node n = route_node(b, x, w, rule);

    if (bias.n) n.weight2 = add_vector(b, bias, false);
    add_node(b, &n);
}

void kt_route_hashed(kt_build *b, kt_view x, kt_mat w, kt_vec ids, const kt_routing_rule *rule) {
    kt_node n = route_node(b, x, w, rule);

    ids.rows = b->graph->numbers.vocab;
    ids.n = ids.rows * rule->topk;
    ids.ids = rule->experts;
    n.weight3 = add_vector(b, ids, false);
    n.routing.is_hashed = true;
    add_node(b, &n);
}

static int add_experts(kt_build *b, kt_use use, const kt_expert_set *s, int64_t topk) {
    kt_weight w = {.kind = KT_WEIGHT_EXPERTS,
                   .use = use,
                   .role = s->role,
                   .n = s->n,
                   .k = s->k,
                   .count = s->count,
                   .topk = topk,
                   .n_parts = 3};

    w.part[0] = (kt_weight_part){.name = s->gate, .n = s->n, .k = s->k};
    w.part[1] = (kt_weight_part){.name = s->up, .n = s->n, .k = s->k};
    w.part[2] = (kt_weight_part){.name = s->down, .n = s->k, .k = s->n};
    w.fused = s->fused_gate_up;
    w.fused_down = s->fused_down;
    w.is_fused_transposed = s->is_fused_transposed;
    return add_weight(b, &w);
}

/* One vector of the biases of all experts. */
static int add_expert_bias(kt_build *b, kt_vec bias, int64_t count) {
    if (!bias.n) return -1;
    if (count > 1) bias.rows = count;
    return add_vector(b, bias, false);
}

static kt_node experts_node(kt_build *b, kt_view to, kt_view x, kt_use use,
                            const kt_expert_set *set, int64_t topk) {
    kt_node n = node_of(KT_NODE_EXPERTS, x, to);

    n.weight = add_experts(b, use, set, topk);
    n.weight2 = add_expert_bias(b, set->gate_bias, set->count);
    n.weight3 = add_expert_bias(b, set->up_bias, set->count);
    n.weight4 = add_expert_bias(b, set->down_bias, set->count);
    n.glu = set->glu;
    return n;
}

void kt_experts(kt_build *b, kt_view to, kt_view x, const kt_expert_set *set, int64_t topk) {
    kt_node n = experts_node(b, to, x, KT_USE_EXPERTS, set, topk);

    n.is_routed = 1;
    add_node(b, &n);
}

static int add_slot(kt_build *b, int64_t floats) {
    kt_graph *g = b->graph;
    int64_t *list = grow(b, g->slots, g->n_slots, &b->room_slots, sizeof *list);

    if (!list) return 0;
    g->slots = list;
    list[g->n_slots] = floats;
    return g->n_slots++;
}

kt_view kt_dot(kt_build *b, kt_view x, kt_vec w) {
    kt_node n = node_of(KT_NODE_DOT, x, add_value(b, 1));

    n.weight = add_vector(b, w, false);
    add_node(b, &n);
    return n.out;
}

void kt_regroup(kt_build *b, kt_view x, int64_t groups, int n, const int64_t *widths,
                kt_view *out) {
    kt_node node = node_of(KT_NODE_REGROUP, x, add_value(b, x.width));
    int64_t at = 0;

    node.groups = groups;
    for (int i = 0; i < n; at += groups * widths[i++]) {
        node.parts[i] = widths[i];
        out[i] = (kt_view){.value = node.out.value, .at = at, .width = groups * widths[i]};
    }
    add_node(b, &node);
}

kt_view kt_conv(kt_build *b, kt_view x, kt_vec w) {
    kt_node n = node_of(KT_NODE_CONV, x, add_value(b, x.width));

    n.weight = add_vector(b, w, false);
    n.slot = add_slot(b, (w.taps - 1) * x.width);
    n.size = w.taps;
    add_node(b, &n);
    return n.out;
}

kt_view kt_delta(kt_build *b, kt_view qkv, kt_view ba, kt_view z, const kt_delta_rule *rule,
                 kt_vec decay, kt_vec dt_bias, kt_vec norm, double eps) {
    kt_node n = node_of(KT_NODE_DELTA, qkv, add_value(b, rule->heads * rule->v));

    n.in2 = ba;
    n.in3 = z;
    n.weight = add_vector(b, decay, false);
    n.weight2 = add_vector(b, dt_bias, false);
    n.weight3 = add_vector(b, norm, false);
    n.slot = add_slot(b, rule->heads * rule->k * rule->v);
    n.delta = *rule;
    n.eps = eps;
    add_node(b, &n);
    return n.out;
}

void kt_ffn_gated(kt_build *b, kt_view to, kt_view x, kt_view gate, const kt_expert_set *set) {
    kt_node n = experts_node(b, to, x, KT_USE_FFN, set, 1);

    n.in2 = gate;
    add_node(b, &n);
}

void kt_ffn(kt_build *b, kt_view to, kt_view x, const kt_expert_set *set) {
    const kt_node n = experts_node(b, to, x, KT_USE_FFN, set, 1);

    add_node(b, &n);
}

/* In any encoding: those of safetensors put their codes under names of their own. */
static bool has_matrix(const kt_build *b, kt_name name) {
    static const char *const codes[] = {"weight", "weight_packed", "qweight"};
    char json[80], gguf[80];

    snprintf(gguf, sizeof gguf, "%s.weight", name.gguf);
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        snprintf(json, sizeof json, "%s.%s", name.json, codes[i]);
        if (kt_has(b, (kt_name){json, gguf})) return true;
    }
    return false;
}

/* The normed rows once more, for the draft head: HEAD norms those alone that have logits. */
static void keep_normed(kt_build *b, int norm, double eps) {
    kt_node n = node_of(KT_NODE_RMS, kt_residual(b), add_value(b, kt_residual(b).width));

    n.weight = norm;
    n.eps = eps;
    add_node(b, &n);
    b->graph->draft_hidden = n.out.value;
}

/* A head of its own, unless it is tied or missing. */
void kt_head(kt_build *b, kt_vec norm, double eps, bool is_tied) {
    const kt_model_numbers *m = &b->graph->numbers;
    const kt_family *f = b->graph->family;
    const kt_name own = f && f->head.json ? f->head : (kt_name){"lm_head", "output"};
    kt_weight w = {.kind = KT_WEIGHT_MATRIX,
                   .use = KT_USE_HEAD,
                   .role = "lm_head",
                   .n = m->vocab,
                   .k = m->hidden,
                   .count = 1,
                   .n_parts = 1};
    kt_node n = node_of(KT_NODE_HEAD, kt_residual(b), (kt_view){0});

    w.is_tied = is_tied || (b->checkpoint && !has_matrix(b, own));
    w.part[0] = (kt_weight_part){
        .name = w.is_tied ? name_of_embedding(b) : own, .n = m->vocab, .k = m->hidden};
    n.weight = add_weight(b, &w);
    n.weight2 = add_vector(b, norm, false);
    n.eps = eps;
    if (b->wants_draft) keep_normed(b, n.weight2, eps);
    n.out = add_value(b, m->hidden); /* the normed rows */
    add_node(b, &n);
}

/* ---- for verbs outside this file ---- */

kt_node kt_build_node_of(kt_node_kind kind, kt_view in, kt_view out) {
    return node_of(kind, in, out);
}

void kt_build_add_node(kt_build *b, const kt_node *n) {
    add_node(b, n);
}

kt_view kt_build_value(kt_build *b, int64_t width) {
    return add_value(b, width);
}

int kt_build_vector(kt_build *b, kt_vec v) {
    return add_vector(b, v, false);
}

int kt_build_slot(kt_build *b, int64_t floats) {
    return add_slot(b, floats);
}

void kt_build_linear_to(kt_build *b, const char *role, kt_view to, kt_view x, kt_mat w) {
    linear_to(b, role, to, x, w, 0);
}

int kt_build_rotation(kt_build *b, const kt_rope_rule *rotation) {
    kt_err why = {KT_OK, ""};

    if (kt_rope_rule_check(rotation, &why) != KT_OK)
        kt_build_fail(b, why.status, "%s", why.message);
    return add_rotation(b, rotation);
}
