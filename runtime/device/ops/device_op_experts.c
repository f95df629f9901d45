/* Feed-forward on a device: the experts that lie there, or one that all rows go to, by the kernels
 * of the table or the initial ones (dispatch/device/device_experts.h).
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/device/device_experts.h"
#include "kernels/cuda/kt_dev_glu.h"
#include "runtime/device/device_product.h"

typedef struct experts_state {
    kt_device_experts experts; /* first: expert_moves.c finds them here */
    const int32_t *id;         /* [max_rows] zeros, where rows are not routed */
    const float *route;        /* [max_rows] ones, likewise without a gate */
} experts_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_weight *w = &ask->graph->weights[n->weight];

    if (w->n % 8 || w->k % 8) return "sizes of experts are no multiples of 8";
    if (!n->is_routed && n->in2.width == 1 && ask->graph->width[n->in2.value] != 1)
        return "the gate is a column of a wider value";
    return kt_device_weight_refuse(ask, n->weight);
}

static kt_status load(kt_device_node *n, kt_device_experts *e, kt_err *err) {
    kt_device_pick pick = {.weight = n->node->weight,
                           .n = 1,
                           .which = n->node->is_routed ? n->experts : NULL,
                           .count = n->node->is_routed ? n->n_experts : 1};

    KT_TRY(kt_device_load_matrices(n->step, &pick, &e->gate, err));
    pick.first = 1;
    KT_TRY(kt_device_load_matrices(n->step, &pick, &e->up, err));
    pick.first = 2;
    return kt_device_load_matrices(n->step, &pick, &e->down, err);
}

_Static_assert(KT_DEV_GLU_SILU == (int)KT_GLU_SILU && KT_DEV_GLU_OAI == (int)KT_GLU_OAI &&
                   KT_DEV_GLU_CLAMP_SILU == (int)KT_GLU_CLAMP_SILU && KT_GLU_COUNT == 3,
               "devices know every kind by its number");

static kt_status load_bias(kt_device_node *n, int weight, const float **out, kt_err *err) {
    const bool is_routed = n->node->is_routed;

    *out = NULL;
    if (weight < 0) return KT_OK;
    return kt_device_load_rows(n->step, weight, n->step->graph->weights[n->node->weight].count,
                               is_routed ? n->experts : NULL, is_routed ? n->n_experts : 1, out,
                               err);
}

static kt_status set_ending(kt_device_node *n, kt_dev_ending *ending, kt_err *err) {
    *ending = (kt_dev_ending){.glu = (int32_t)n->node->glu.kind,
                              .limit = n->node->glu.limit,
                              .alpha = n->node->glu.alpha};
    KT_TRY(load_bias(n, n->node->weight2, &ending->gate_bias, err));
    KT_TRY(load_bias(n, n->node->weight3, &ending->up_bias, err));
    return load_bias(n, n->node->weight4, &ending->down_bias, err);
}

static kt_status find_code(kt_device_node *n, kt_device_experts *e, kt_err *err) {
    const kt_device_job job = kt_device_experts_job(
        &e->gate, &e->down, e->slots, kt_device_step_encodings(n->step, n->node->weight, 0));
    kt_device_ladder ladder;

    kt_device_step_ladder(n->step, &job, &ladder);
    KT_TRY(kt_device_experts_make(n->step->device, &ladder, n->step->max_rows, e, err));
    kt_device_step_need(n->step, kt_device_experts_scratch(e));
    return KT_OK;
}

/* Every row's one expert, and its weight. */
static kt_status make_lists(kt_device_node *n, experts_state *s, kt_err *err) {
    const size_t rows = (size_t)n->step->max_rows;
    float *ones = kt_device_step_alloc(n->step, rows * sizeof *ones);
    void *id, *route;

    if (!ones) return kt_fail(err, KT_E_NOMEM, "no memory for a feed-forward");
    for (size_t i = 0; i < rows; i++) ones[i] = 1;
    KT_TRY(kt_device_step_take(n->step, rows * sizeof(int32_t), &id, err));
    KT_TRY(kt_device_clear(n->step->device, KT_STREAM_MAIN, id, rows * sizeof(int32_t), err));
    KT_TRY(kt_device_step_take(n->step, rows * sizeof *ones, &route, err));
    s->id = id;
    s->route = route;
    return kt_device_upload(n->step->device, KT_STREAM_MAIN, route, ones, rows * sizeof *ones, err);
}

static kt_status init(kt_device_node *n, kt_err *err) {
    experts_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for experts");
    n->state = s;
    s->experts.slots = n->node->is_routed ? n->step->graph->weights[n->node->weight].topk : 1;
    if (n->node->is_routed && n->n_experts == 0) return KT_OK; /* others cross for long steps */
    KT_TRY(load(n, &s->experts, err));
    KT_TRY(set_ending(n, &s->experts.ending, err));
    KT_TRY(find_code(n, &s->experts, err));
    return n->node->is_routed ? KT_OK : make_lists(n, s, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const experts_state *s = n->state;
    const kt_device_step *d = n->step;
    const bool is_routed = n->node->is_routed;
    const kt_device_experts_call call = {.in = n->in,
                                         .out = n->out,
                                         .id = is_routed ? d->device_id : s->id,
                                         .route = is_routed           ? d->route_weight
                                                  : n->in2.width == 1 ? n->in2.x
                                                                      : s->route,
                                         .rows = d->rows,
                                         .accumulate = n->accumulate,
                                         .scratch = d->scratch};

    if (s->experts.gate.count == 0 || (is_routed && d->is_left_out))
        return call.accumulate
                   ? KT_OK
                   : kt_device_clear(d->device, KT_STREAM_MAIN, n->out.x,
                                     sizeof(float) * (size_t)(d->rows * n->out.ld), err);
    return kt_device_experts_put(d->device, &s->experts, &call, err);
}

const kt_device_op kt_device_op_experts = {
    .kind = KT_NODE_EXPERTS, .refuse = refuse, .init = init, .enqueue = enqueue};
