/* Which experts a row goes to, on a device: ids of the model, places on the device, weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { CHOOSE = 1 }; /* entry of router.cu */

typedef struct device_route_state {
    kt_score_code code;
    const void *w, *bias;
    const void *ids; /* [vocab, topk]: the token says which experts; NULL = it does not */
} device_route_state;

static kt_status init(kt_device_node *n, kt_err *err) {
    device_route_state *s = kt_device_step_alloc(n->step, sizeof *s);
    kt_weight_format format;

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a router");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, &format, err));
    if (n->node->weight2 >= 0)
        KT_TRY(kt_device_load_small(n->step, n->node->weight2, &s->bias, NULL, err));
    if (n->node->routing.is_hashed)
        KT_TRY(kt_device_load_small(n->step, n->node->weight3, &s->ids, NULL, err));
    kt_device_step_need(n->step, (size_t)(n->step->max_rows * n->node->routing.experts) * 4);
    return kt_score_code_find(n->step, format == KT_W_BF16, &s->code, err);
}

static kt_status put_scores(kt_device_node *n, kt_err *err) {
    const device_route_state *s = n->state;
    const bool is_softmax = n->node->routing.score == KT_ROUTER_SOFTMAX;
    const kt_router_scores call = {.x = n->in.x,
                                   .w = s->w,
                                   .logits = n->step->scratch,
                                   .bias = is_softmax ? s->bias : NULL, /* of the logits */
                                   .ldx = (int32_t)n->in.ld,
                                   .k = (int32_t)n->in.width,
                                   .experts = (int32_t)n->node->routing.experts,
                                   .rows = (int32_t)n->step->rows};

    return kt_score_code_put(n->step, &s->code, &call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const device_route_state *s = n->state;
    const kt_device_step *step = n->step;
    const kt_routing_rule *r = &n->node->routing;
    const kt_row_code *code = kt_score_code_for(&s->code, step->rows);
    const int warps = code->threads / 32;
    const kt_router_choice call = {.logits = step->scratch,
                                   .bias = s->bias,
                                   .map = n->place_of,
                                   .id = step->expert_id,
                                   .here = n->place_of ? step->device_id : NULL,
                                   .weight = step->route_weight,
                                   .rows = (int32_t)step->rows,
                                   .experts = (int32_t)r->experts,
                                   .topk = (int32_t)r->topk,
                                   .rule = (int32_t)r->score,
                                   .groups = (int32_t)r->groups,
                                   .top_groups = (int32_t)r->top_groups,
                                   .is_normalised = r->is_normalised,
                                   .scale = (float)r->scale,
                                   .ids = s->ids,
                                   .token = step->token};

    KT_TRY(put_scores(n, err));
    return kt_device_put(n->step, code->code, CHOOSE, kt_row_blocks(call.rows, warps), 1,
                         code->kernel->shared_bytes(&code->config, r->experts), &call, sizeof call,
                         err);
}

_Static_assert((int)KT_CHOSEN_SOFTMAX == (int)KT_ROUTER_SOFTMAX &&
                   (int)KT_CHOSEN_SIGMOID == (int)KT_ROUTER_SIGMOID_BIAS &&
                   (int)KT_CHOSEN_SIGMOID_GROUP == (int)KT_ROUTER_SIGMOID_GROUP &&
                   (int)KT_CHOSEN_SQRT_SOFTPLUS == (int)KT_ROUTER_SQRT_SOFTPLUS,
               "rules of the kernel");

const kt_device_op kt_device_op_route = {.kind = KT_NODE_ROUTE, .init = init, .enqueue = enqueue};
