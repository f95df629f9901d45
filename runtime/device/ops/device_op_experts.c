/* Feed-forward on a device: the experts that lie there, or one that all rows go to. Up to 8 rows by
 * moe_decode, whose weights are read once for all of them; more rows sorted by expert, in tiles.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/moe_calls.h"
#include "runtime/device/experts_many.h"

enum { FEW = KT_DEVICE_FEW, GATE_UP = 0, DOWN = 1 };

typedef struct experts_state {
    kt_device_matrices gate, up, down;
    const kt_device_code *gate_up_code, *down_code;
    kt_config gate_up, down_config;
    const int32_t *id;  /* [max_rows] zeros, where rows are not routed */
    const float *route; /* [max_rows] ones, likewise without a gate */
    kt_experts_many many;
} experts_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_weight *w = &ask->graph->weights[n->weight];

    if (n->glu.kind != KT_GLU_SILU) return "the activation of experts is not plain SwiGLU";
    if (n->weight2 >= 0 || n->weight4 >= 0) return "experts have biases";
    if (w->n % 8 || w->k % 8) return "sizes of experts are no multiples of 8";
    if (!n->is_routed && n->in2.width == 1 && ask->graph->width[n->in2.value] != 1)
        return "the gate is a column of a wider value";
    return NULL;
}

static kt_status load(kt_device_node *n, experts_state *s, kt_err *err) {
    kt_device_pick pick = {.weight = n->node->weight,
                           .n = 1,
                           .which = n->node->is_routed ? n->experts : NULL,
                           .count = n->node->is_routed ? n->n_experts : 1};

    KT_TRY(kt_device_load_matrices(n->step, &pick, &s->gate, err));
    pick.first = 1;
    KT_TRY(kt_device_load_matrices(n->step, &pick, &s->up, err));
    pick.first = 2;
    return kt_device_load_matrices(n->step, &pick, &s->down, err);
}

static const kt_cuda_kernel *kernel_of(void) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, "moe_decode") == 0)
            return kt_builtin_cuda_kernels[i];
    return NULL;
}

static kt_status find_code(kt_device_node *n, experts_state *s, kt_err *err) {
    const kt_cuda_kernel *kernel = kernel_of();

    if (!kernel) return kt_fail(err, KT_E_INTERNAL, "this build has no moe_decode");
    s->gate_up = s->down_config = kt_cuda_initial(kernel);
    s->gate_up.value[2] = (int32_t)s->gate.format;
    s->down_config.value[2] = (int32_t)s->down.format;
    KT_TRY(kt_device_step_code(n->step, "moe_decode", &s->gate_up, &s->gate_up_code, err));
    return kt_device_step_code(n->step, "moe_decode", &s->down_config, &s->down_code, err);
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
    const kt_weight *w = &n->step->graph->weights[n->node->weight];

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for experts");
    n->state = s;
    KT_TRY(load(n, s, err));
    KT_TRY(find_code(n, s, err));
    if (!n->node->is_routed) KT_TRY(make_lists(n, s, err));
    if (n->step->max_rows > FEW)
        KT_TRY(kt_experts_many_init(n->step, &s->gate, &s->down, n->node->is_routed ? w->topk : 1,
                                    &s->many, err));
    kt_device_step_need(n->step, (size_t)(FEW * (n->node->is_routed ? w->topk : 1) * w->n) * 2);
    return KT_OK;
}

static kt_status put(kt_device_node *n, const experts_state *s, const kt_moe_decode *call,
                     kt_err *err) {
    const kt_cuda_kernel *kernel = kernel_of();
    const int slots = call->tokens * call->slots;
    const int outputs = 16 * s->gate_up.value[1];

    KT_TRY(kt_device_put(n->step, s->gate_up_code, GATE_UP, (call->n + outputs - 1) / outputs,
                         slots, kernel->shared_bytes(&s->gate_up, slots), call, sizeof *call, err));
    return kt_device_put(n->step, s->down_code, DOWN, (call->k + outputs - 1) / outputs, 1,
                         kernel->shared_bytes(&s->down_config, slots), call, sizeof *call, err);
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const experts_state *s = n->state;
    const kt_device_step *d = n->step;
    const bool is_routed = n->node->is_routed;
    const int64_t slots = is_routed ? d->slots : 1;
    const int32_t *id = is_routed ? d->device_id : s->id;
    const float *route = is_routed ? d->route_weight : n->in2.width == 1 ? n->in2.x : s->route;
    kt_moe_decode call;

    if (d->rows > FEW) {
        const kt_experts_many_call many = {&s->gate, &s->up, &s->down, n->in,        n->out,
                                           id,       route,  d->rows,  n->accumulate};
        return kt_experts_many_put(n->step, &s->many, &many, err);
    }
    call = (kt_moe_decode){.x = n->in.x,
                           .expert = id,
                           .route = route,
                           .gate = s->gate.at,
                           .up = s->up.at,
                           .down = s->down.at,
                           .h = d->scratch,
                           .out = n->out.x,
                           .ldx = n->in.ld,
                           .ldo = n->out.ld,
                           .gate_bytes = (int64_t)s->gate.bytes,
                           .down_bytes = (int64_t)s->down.bytes,
                           .tokens = (int32_t)d->rows,
                           .slots = (int32_t)slots,
                           .n = (int32_t)s->gate.n,
                           .k = (int32_t)s->gate.k,
                           .accumulate = n->accumulate};
    return put(n, s, &call, err);
}

const kt_device_op kt_device_op_experts = {
    .kind = KT_NODE_EXPERTS, .refuse = refuse, .init = init, .enqueue = enqueue};
