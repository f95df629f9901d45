/* Linear attention by the gated delta rule on a device: spans of fewer than 64 rows row by row,
 * others in chunks. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/node_problems.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/row_code.h"

enum { PREPARE = 0, WALK, GATE }; /* entries of delta_chunks.cu */
enum { COLUMNS = 32, HEADS_OF_GATE = 8 };

typedef struct device_delta_state {
    kt_row_code steps, chunks;
    const void *decay, *dt_bias, *norm;
} device_delta_state;

static const char *refuse(const kt_device_ask *ask, const kt_node *n) {
    const kt_delta_rule *r = &n->delta;

    (void)ask;
    if (r->k % 4 || r->v % 4 || r->k > KT_DELTA_MOST || r->v > KT_DELTA_MOST)
        return "heads of linear attention are no multiples of 4 up to 128";
    return NULL;
}

static kt_status init(kt_device_node *n, kt_err *err) {
    const kt_node *node = n->node;
    const int64_t chunks = KT_DELTA_SLOTS(n->step->max_rows);
    device_delta_state *s = kt_device_step_alloc(n->step, sizeof *s);

    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for linear attention");
    n->state = s;
    KT_TRY(kt_device_load_small(n->step, node->weight, &s->decay, NULL, err));
    KT_TRY(kt_device_load_small(n->step, node->weight2, &s->dt_bias, NULL, err));
    KT_TRY(kt_device_load_small(n->step, node->weight3, &s->norm, NULL, err));
    KT_TRY(kt_row_code_find(n->step, "delta_steps", NULL, &s->steps, err));
    kt_device_step_need(n->step, (size_t)(chunks * node->delta.heads * KT_DELTA_ROOM) * 4);
    return kt_row_code_find(n->step, "delta_chunks", NULL, &s->chunks, err);
}

/* Value heads [first, first + tile). */
static kt_delta_batch call_of(const kt_device_node *n, int64_t first, int64_t tile) {
    const device_delta_state *s = n->state;
    const kt_device_step *step = n->step;
    const kt_delta_rule *r = &n->node->delta;
    const int64_t keys = r->key_heads * r->k;

    return (kt_delta_batch){.q = n->in.x,
                            .k = n->in.x + keys,
                            .v = n->in.x + 2 * keys + first * r->v,
                            .b = n->in2.x + first,
                            .a = n->in2.x + r->heads + first,
                            .decay = (const float *)s->decay + first,
                            .dt_bias = (const float *)s->dt_bias + first,
                            .z = n->in3.x + first * r->v,
                            .norm = s->norm,
                            .out = n->out.x + first * r->v,
                            .spans = (const kt_state_span *)step->span,
                            .span = step->span_of,
                            .states =
                                step->states + step->slot_at[n->node->slot] + first * r->k * r->v,
                            .stride = step->state_floats,
                            .room = step->scratch,
                            .ld = (int32_t)n->in.ld,
                            .ldba = (int32_t)n->in2.ld,
                            .ldz = (int32_t)n->in3.ld,
                            .ldo = (int32_t)n->out.ld,
                            .heads = (int32_t)tile,
                            .key_heads = (int32_t)r->key_heads,
                            .keys = (int32_t)r->k,
                            .values = (int32_t)r->v,
                            .n_spans = step->n_spans,
                            .rows = (int32_t)step->rows,
                            .eps = (float)n->node->eps};
}

static kt_status put_chunks(kt_device_node *n, const kt_delta_batch *call, kt_err *err) {
    const kt_row_code *code = &((const device_delta_state *)n->state)->chunks;
    const int pieces = kt_row_blocks(call->values, COLUMNS);

    KT_TRY(kt_device_put(n->step, code->code, PREPARE, call->heads, KT_DELTA_SLOTS(call->rows),
                         KT_DELTA_PREPARE_SHARED, call, sizeof *call, err));
    KT_TRY(kt_device_put(n->step, code->code, WALK, call->heads * pieces, call->n_spans,
                         KT_DELTA_CHUNKS_SHARED, call, sizeof *call, err));
    return kt_device_put(n->step, code->code, GATE, kt_row_blocks(call->heads, HEADS_OF_GATE),
                         call->rows, 0, call, sizeof *call, err);
}

static kt_status put_tile(kt_device_node *n, int64_t first, int64_t tile, kt_err *err) {
    const kt_device_step *step = n->step;
    const kt_row_code *steps = &((const device_delta_state *)n->state)->steps;
    kt_delta_batch call = call_of(n, first, tile);
    int long_spans = 0;

    for (int i = 0; i < step->n_spans; i++) long_spans += step->host_span[i].rows >= KT_DELTA_PIECE;
    call.rows_from = 1, call.rows_to = KT_DELTA_PIECE;
    if (long_spans < step->n_spans)
        KT_TRY(kt_device_put(n->step, steps->code, 0, call.heads, call.n_spans,
                             KT_DELTA_STEPS_SHARED, &call, sizeof call, err));
    call.rows_from = KT_DELTA_PIECE, call.rows_to = INT32_MAX;
    return long_spans ? put_chunks(n, &call, err) : KT_OK;
}

static kt_status enqueue(kt_device_node *n, kt_err *err) {
    const kt_delta_rule *r = &n->node->delta;
    const int64_t tile = kt_delta_tile(r);

    for (int64_t first = 0; first < r->heads; first += tile) KT_TRY(put_tile(n, first, tile, err));
    return KT_OK;
}

const kt_device_op kt_device_op_delta = {
    .kind = KT_NODE_DELTA, .refuse = refuse, .init = init, .enqueue = enqueue};
