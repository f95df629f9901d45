/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/stream_mix.h"

#include "base/err.h"
#include "kernels/hyper/hyper.h"
#include "runtime/device/row_code.h"

enum { MIX = 1 }; /* entry of hyper_streams.cu */

typedef struct mix_state {
    kt_score_code products;
    kt_row_code code;
    const void *fn, *base, *scale;
    int64_t outputs; /* rows of fn */
} mix_state;

kt_status kt_stream_mix_init(kt_device_node *n, kt_err *err) {
    mix_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for residual streams");
    n->state = s;
    s->outputs = n->step->graph->weights[n->node->weight].rows;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->fn, NULL, err));
    KT_TRY(kt_device_load_small(n->step, n->node->weight2, &s->base, NULL, err));
    KT_TRY(kt_device_load_small(n->step, n->node->weight3, &s->scale, NULL, err));
    kt_device_step_need(n->step, (size_t)(n->step->max_rows * s->outputs) * sizeof(float));
    KT_TRY(kt_score_code_find(n->step, false, &s->products, err));
    return kt_row_code_find(n->step, "hyper_streams", NULL, &s->code, err);
}

kt_status kt_stream_mix_put(kt_device_node *n, bool is_end, kt_err *err) {
    const mix_state *s = n->state;
    const kt_stream_rule *rule = &n->node->streams;
    const kt_router_scores products = {.x = n->in.x,
                                       .w = s->fn,
                                       .logits = n->step->scratch,
                                       .ldx = (int32_t)n->in.ld,
                                       .k = (int32_t)n->in.width,
                                       .experts = (int32_t)s->outputs,
                                       .rows = (int32_t)n->step->rows};
    const int32_t hidden = (int32_t)(n->in.width / rule->count);
    const kt_streams_mix call = {.x = n->in.x,
                                 .product = n->step->scratch,
                                 .base = s->base,
                                 .scale = s->scale,
                                 .out = n->out.x,
                                 .ldx = products.ldx,
                                 .ldo = (int32_t)n->out.ld,
                                 .hidden = hidden,
                                 .count = (int32_t)rule->count,
                                 .iterations = (int32_t)rule->iterations,
                                 .outputs = products.experts,
                                 .result = (int32_t)n->out.width - hidden,
                                 .is_end = is_end,
                                 .rows = products.rows,
                                 .eps = (float)rule->eps,
                                 .norm_eps = (float)rule->norm_eps};

    KT_TRY(kt_score_code_put(n->step, &s->products, &products, err));
    return kt_device_put(n->step, s->code.code, MIX, call.rows, 1,
                         s->code.kernel->shared_bytes(&s->code.config, 0), &call, sizeof call, err);
}

_Static_assert((int)KT_STREAMS_MOST == KT_HYPER_MOST, "streams of a token");
