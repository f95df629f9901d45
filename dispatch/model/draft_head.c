/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/draft_head.h"

#include <stdio.h>

#include "dispatch/model/build_impl.h"
#include "dispatch/model/packed.h"

kt_draft_head kt_draft_head_usual(const kt_build *b, double eps) {
    const int64_t h = kt_residual(b).width;

    return (kt_draft_head){
        .embedding_norm = KT_VEC("enorm.weight", "nextn.enorm.weight", h),
        .hidden_norm = KT_VEC("hnorm.weight", "nextn.hnorm.weight", h),
        .norm = KT_VEC("shared_head.norm.weight", "nextn.shared_head_norm.weight", h),
        .join = KT_MAT("eh_proj", "nextn.eh_proj", h, 2 * h),
        .eps = eps};
}

/* The layer of what stands beside it. */
static int layer_beside(const kt_build *b, const kt_draft_head *head) {
    return head->body && !kt_is_gguf(b) ? -1 : b->layer;
}

/* In a folder that was converted: by its panels, since it may have been left out. */
static bool is_packed(const kt_checkpoint *panels, int layer) {
    char name[KT_PACKED_NAME] = "draft_join";

    if (layer >= 0) snprintf(name, sizeof name, "layers.%d.draft_join", layer);
    return kt_checkpoint_find(panels, name) != NULL;
}

bool kt_draft_head_is_there(const kt_build *b, const kt_draft_head *head, int64_t declared) {
    kt_build beside = *b;
    char json[64], gguf[64];

    if (!b->checkpoint) return declared > 0;
    if (kt_checkpoint_panels(b->checkpoint))
        return is_packed(kt_checkpoint_panels(b->checkpoint), layer_beside(b, head));
    snprintf(json, sizeof json, "%s.weight", head->join.name.json);
    snprintf(gguf, sizeof gguf, "%s.weight", head->join.name.gguf);
    beside.layer = layer_beside(b, head);
    return kt_has(&beside, (kt_name){json, gguf});
}

static void norm_into(kt_build *b, kt_view x, kt_vec w, double eps, kt_view out) {
    kt_node n = kt_build_node_of(KT_NODE_RMS, x, out);

    n.weight = kt_build_vector(b, w);
    n.eps = eps;
    kt_build_add_node(b, &n);
}

void kt_draft_begin(kt_build *b, const kt_draft_head *head) {
    const kt_view x = kt_residual(b), hidden = {.value = b->graph->draft_hidden, .width = x.width};
    const kt_view both = kt_build_value(b, 2 * x.width);
    const int layer = b->layer;

    b->graph->draft_body = head->body;
    b->layer = layer_beside(b, head);
    norm_into(b, x, head->embedding_norm, head->eps, (kt_view){both.value, 0, x.width});
    norm_into(b, hidden, head->hidden_norm, head->eps, (kt_view){both.value, x.width, x.width});
    kt_build_linear_to(b, "draft_join", x, both, head->join);
    b->layer = layer;
}

void kt_draft_end(kt_build *b, const kt_draft_head *head) {
    kt_node n = kt_build_node_of(KT_NODE_HEAD, kt_residual(b), (kt_view){0});
    const kt_graph *g = b->graph;
    const int layer = b->layer;

    if (b->status != KT_OK) return;
    b->layer = layer_beside(b, head);
    n.out = kt_build_value(b, n.in.width);
    n.weight = g->nodes[g->main_nodes - 1].weight; /* of the model's HEAD */
    n.weight2 = kt_build_vector(b, head->norm);
    n.eps = head->eps;
    kt_build_add_node(b, &n);
    b->layer = layer;
}
