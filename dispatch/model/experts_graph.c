/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/experts_graph.h"

#include <limits.h>
#include <stdlib.h>

#include "base/err.h"
#include "dispatch/model/build_impl.h"

static kt_status begin(kt_graph *g, const kt_weight *w, kt_err *err) {
    g->weights = malloc(sizeof *g->weights);
    if (!g->weights) return kt_fail(err, KT_E_NOMEM, "no memory for the description of experts");
    g->weights[0] = *w;
    g->n_weights = 1;
    return KT_OK;
}

kt_status kt_experts_graph_of_tensors(const kt_experts_shape *s, const kt_checkpoint *c,
                                      kt_int4_packing packing, kt_graph *out, kt_err *err) {
    const kt_weight w = {
        .kind = KT_WEIGHT_EXPERTS,
        .use = KT_USE_EXPERTS,
        .role = "experts",
        .layer = -1,
        .n = s->intermediate,
        .k = s->hidden,
        .count = s->experts,
        .topk = s->topk,
        .n_parts = 3,
        .part = {{.name = {"{e}.gate_proj", NULL}, .n = s->intermediate, .k = s->hidden},
                 {.name = {"{e}.up_proj", NULL}, .n = s->intermediate, .k = s->hidden},
                 {.name = {"{e}.down_proj", NULL}, .n = s->hidden, .k = s->intermediate}},
        .fused = {"gate_up_proj", NULL},
        .fused_down = {"down_proj", NULL}};
    kt_build b = {.graph = out,
                  .checkpoint = c,
                  .declared = {KT_W_BF16, KT_W_BF16, KT_W_BF16, KT_W_BF16, packing},
                  .layer = -1};

    *out = (kt_graph){.numbers = {.layers = 1}, .packing = packing};
    KT_TRY(begin(out, &w, err));
    kt_build_detect(&b, out->weights);
    return KT_OK;
}

kt_status kt_experts_graph_of_layer(const kt_graph *model, int64_t layer, kt_graph *out,
                                    kt_err *err) {
    const kt_weight *w = layer >= 0 && layer < INT_MAX ? kt_graph_experts(model, (int)layer) : NULL;

    *out = (kt_graph){.family = model->family,
                      .numbers = model->numbers,
                      .is_gguf = model->is_gguf,
                      .packing = model->packing};
    if (w) return begin(out, w, err);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "layer %lld has no routed experts; the model has %lld layers", (long long)layer,
                   (long long)model->numbers.layers);
}
