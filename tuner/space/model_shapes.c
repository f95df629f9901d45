/* Shapes of a model from its description: what is tuned is what runs.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/family.h"
#include "dispatch/model/needs.h"
#include "dispatch/model/resolve.h"
#include "tuner/space/shapes.h"

static kt_status add_dense(kt_shapes *s, const kt_need *need, kt_err *err) {
    const int i = s->n_dense;

    if (i == KT_MAX_DENSE)
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d kinds of dense matrices", KT_MAX_DENSE);
    snprintf(s->dense[i].name, sizeof s->dense[i].name, "%s", need->role);
    s->dense[i].n = need->problem.n;
    s->dense[i].k = need->problem.k;
    s->dense[i].layers = need->times;
    s->n_dense++;
    return KT_OK;
}

static kt_status add_need(kt_shapes *s, const kt_need *need, kt_err *err) {
    const kt_problem *p = &need->problem;

    if (p->op == KT_OP_GEMM) return add_dense(s, need, err);
    if (p->experts > 1) {
        s->intermediate = p->n;
        s->experts = p->experts;
        s->topk = p->topk;
        s->moe_layers = need->times;
        s->native = p->weights;
    } else if (strcmp(need->role, "dense_ffn") == 0) {
        s->dense_intermediate = p->n;
        s->dense_layers = need->times;
    }
    return KT_OK;
}

kt_status kt_shapes_from_graph(const kt_graph *graph, kt_shapes *out, kt_err *err) {
    kt_shapes s = {
        .hidden = graph->numbers.hidden, .layers = graph->numbers.layers, .native = KT_W_BF16};
    kt_need *needs = NULL;
    int n = 0;
    kt_status st = kt_graph_needs(graph, KT_QUANT_NATIVE, &needs, &n, err);

    for (int i = 0; i < n && st == KT_OK; i++) st = add_need(&s, &needs[i], err);
    free(needs);
    if (st == KT_OK) *out = s;
    return st;
}

kt_status kt_shapes_from_config(const kt_json *config, const char *where, kt_shapes *out,
                                kt_err *err) {
    const kt_graph_request request = {.source = {.json = config, .arch = "", .where = where}};
    kt_graph graph;
    kt_status st = kt_graph_build(&request, &graph, err);

    if (st != KT_OK) return st;
    st = kt_shapes_from_graph(&graph, out, err);
    if (st == KT_OK) out->shape_id = kt_model_shape_id(config);
    kt_graph_deinit(&graph);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", where);
}
