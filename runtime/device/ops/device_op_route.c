/* Which experts a row goes to, on a device: ids of the model, places on the device, weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { SCORES = 0, CHOOSE = 1 }; /* entries of router.cu */
enum { BF16, WARPS, TOKENS, EXPERTS };

typedef struct device_route_state {
    kt_row_code few, many; /* by the rows that one warp takes */
    const void *w, *bias;
} device_route_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    (void)ask;
    if (n->routing.is_hashed) return "the token chooses";
    return n->routing.score == KT_ROUTER_SQRT_SOFTPLUS ? "scores by softplus" : NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    device_route_state *s = kt_device_step_alloc(n->step, sizeof *s);
    kt_weight_format format;
    int32_t is_bf16;

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a router");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, n->node->weight, &s->w, &format, err));
    if (n->node->weight2 >= 0)
        KT_TRY(kt_device_load_small(n->step, n->node->weight2, &s->bias, NULL, err));
    is_bf16 = format == KT_W_BF16;
    KT_TRY(kt_row_code_find(n->step, "router", &is_bf16, &s->many, err));
    s->few = s->many;
    s->few.config.value[TOKENS] = s->few.config.value[EXPERTS] = 1;
    kt_device_step_need(n->step, (size_t)(n->step->max_rows * n->node->routing.experts) * 4);
    return kt_device_step_code(n->step, "router", &s->few.config, &s->few.code, err);
}

static kt_status put_scores(kt_device_node *n, const kt_row_code *code, kt_err *err) {
    const device_route_state *s = n->state;
    const int32_t *v = code->config.value;
    const bool is_softmax = n->node->routing.score == KT_ROUTER_SOFTMAX;
    const kt_router_scores call = {.x = n->in.x,
                                   .w = s->w,
                                   .logits = n->step->scratch,
                                   .bias = is_softmax ? s->bias : NULL, /* of the logits */
                                   .ldx = (int32_t)n->in.ld,
                                   .k = (int32_t)n->in.width,
                                   .experts = (int32_t)n->node->routing.experts,
                                   .rows = (int32_t)n->step->rows};

    return kt_device_put(n->step, code->code, SCORES,
                         kt_row_blocks(call.experts, v[WARPS] * v[EXPERTS]),
                         kt_row_blocks(call.rows, v[TOKENS]), 0, &call, sizeof call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const device_route_state *s = n->state;
    const kt_device_step *step = n->step;
    const kt_routing_rule *r = &n->node->routing;
    const kt_row_code *code = step->rows <= s->many.config.value[TOKENS] / 2 ? &s->few : &s->many;
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
                                   .scale = (float)r->scale};

    KT_TRY(put_scores(n, code, err));
    return kt_device_put(n->step, code->code, CHOOSE, kt_row_blocks(call.rows, warps), 1,
                         code->kernel->shared_bytes(&code->config, r->experts), &call, sizeof call,
                         err);
}

_Static_assert((int)KT_CHOSEN_SOFTMAX == (int)KT_ROUTER_SOFTMAX &&
                   (int)KT_CHOSEN_SIGMOID == (int)KT_ROUTER_SIGMOID_BIAS &&
                   (int)KT_CHOSEN_SIGMOID_GROUP == (int)KT_ROUTER_SIGMOID_GROUP,
               "rules of the kernel");

const kt_device_op kt_device_op_route = {
    .kind = KT_NODE_ROUTE, .refuse = refuse, .init = init, .enqueue = enqueue};
