/* The operations of a step. Each works on the rows or panels it is given and reads everything else
 * from the step. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "runtime/exec/step.h"

#define ATTN_ROWS 16 /* query rows of an attention task: they share what is read of the cache */
#define ROUTER_EXPERTS 16 /* experts of a router task when there are few rows */

static void norm_rows(const kt_choice *choice, const float *x, int64_t ldx, const float *w,
                      float eps, float *y, int64_t ldy, int64_t k, int64_t begin, int64_t end) {
    kt_norm_call call = {.x = x,
                         .ldx = ldx,
                         .w = w,
                         .eps = eps,
                         .y = y,
                         .ldy = ldy,
                         .k = k,
                         .row_begin = begin,
                         .row_end = end};
    choice->variant->norm(&call);
}

/* Encode rows of x for the input of a part into step->acts. */
static void encode_rows(const kt_step *s, kt_part part, const float *x, int64_t begin,
                        int64_t end) {
    const kt_part_plan *p = &s->plan->part[part];
    kt_encode_call call = {.x = x,
                           .ldx = p->problem.k,
                           .k = p->problem.k,
                           .out = s->acts,
                           .out_stride = kt_act_row_bytes(p->problem.acts, p->problem.k),
                           .row_begin = begin,
                           .row_end = end};
    p->encode.variant->encode(&call);
}

/* Panels [begin, end) of c (+)= acts[first_row ..] * w^T. */
static void multiply(const kt_step *s, kt_part part, const void *weights, int64_t first_row,
                     int64_t m, float *c, int accumulate, int64_t begin, int64_t end, int tid) {
    const kt_part_plan *p = &s->plan->part[part];
    const kt_choice *choice = kt_choice_for(&p->choices, m);
    size_t stride = kt_act_row_bytes(p->problem.acts, p->problem.k);
    kt_problem problem = p->problem;
    kt_gemm_call call = {.problem = &problem,
                         .config = &choice->config,
                         .weights = weights,
                         .a = s->acts + (size_t)first_row * stride,
                         .a_stride = stride,
                         .m = m,
                         .panel_begin = begin,
                         .panel_end = end,
                         .c = c,
                         .ldc = problem.n,
                         .accumulate = accumulate,
                         .scratch = s->scratch + (size_t)tid * s->scratch_stride};

    problem.m = m;
    choice->variant->gemm(&call);
}

static int64_t panels(const kt_step *s, kt_part part) {
    return kt_p64_panels(s->plan->part[part].problem.n);
}

static void copy_hidden(const kt_step *s, int64_t index, const float *x, int64_t begin,
                        int64_t end) {
    int64_t h = s->config->hidden;
    if (s->hidden)
        memcpy(s->hidden + index * s->hidden_stride + begin * h, x + begin * h,
               sizeof *x * (size_t)((end - begin) * h));
}

/* ---- attention ---- */

void kt_step_attn_norm(kt_step_op *op, int64_t begin, int64_t end) {
    const kt_step *s = op->step;
    int64_t h = s->config->hidden;

    copy_hidden(s, op->layer, s->x, begin, end);
    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_layer(s->weights, op->layer)->attn_norm,
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
    encode_rows(s, KT_PART_QKV, s->normed, begin, end);
}

int64_t kt_step_count_qkv(kt_step_op *op, int n_threads) {
    (void)n_threads;
    return panels(op->step, KT_PART_QKV);
}

void kt_step_qkv(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    multiply(op->step, KT_PART_QKV, kt_weights_layer(op->step->weights, op->layer)->qkv, 0,
             op->step->rows, op->step->qkv, 0, begin, end, tid);
}

/* Norm and rotate the heads of q and k in place, then move k and v of these rows to the cache. */
void kt_step_rope_and_cache(kt_step_op *op, int64_t begin, int64_t end) {
    const kt_step *s = op->step;
    const kt_model_config *c = s->config;
    const kt_layer_weights *w = kt_weights_layer(s->weights, op->layer);
    int64_t d = c->head_dim, ld = (c->heads + 2 * c->kv_heads) * d;
    kt_rope_call rope = {.ld = ld,
                         .head_dim = d,
                         .rotary_dim = c->rotary_dim,
                         .cos_sin = s->cos_sin,
                         .positions = s->positions,
                         .row_begin = begin,
                         .row_end = end};

    for (int64_t r = begin; r < end; r++) {
        float *q = s->qkv + r * ld, *k = q + c->heads * d;
        norm_rows(&s->plan->norm_head, q, d, w->q_norm, (float)c->norm_eps, q, d, d, 0, c->heads);
        norm_rows(&s->plan->norm_head, k, d, w->k_norm, (float)c->norm_eps, k, d, d, 0,
                  c->kv_heads);
    }
    rope.x = s->qkv;
    rope.heads = c->heads + c->kv_heads; /* q and k lie side by side */
    s->plan->rope.variant->rope(&rope);
    for (int64_t head = 0; head < c->kv_heads; head++)
        for (int which = 0; which < 2; which++) {
            uint16_t *rows = kt_kv_cache_rows(s->cache, op->layer, which, head);
            for (int64_t r = begin; r < end; r++) {
                const float *from = s->qkv + r * ld + (c->heads + which * c->kv_heads + head) * d;
                uint16_t *to = rows + (s->first_position + r) * d;
                for (int64_t i = 0; i < d; i++) to[i] = kt_f32_to_bf16(from[i]);
            }
        }
}

static int64_t attn_blocks(const kt_step *s) {
    return (s->rows + ATTN_ROWS - 1) / ATTN_ROWS;
}

int64_t kt_step_count_attn(kt_step_op *op, int n_threads) {
    (void)n_threads;
    return op->step->config->kv_heads * attn_blocks(op->step);
}

void kt_step_attn(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    const kt_step *s = op->step;
    const kt_model_config *c = s->config;
    int64_t blocks = attn_blocks(s);
    kt_problem problem = s->plan->attn_problem;
    kt_attn_call call = {.problem = &problem,
                         .config = &s->plan->attn.config,
                         .q = s->qkv,
                         .ldq = (c->heads + 2 * c->kv_heads) * c->head_dim,
                         .ldkv = c->head_dim,
                         .scale = (float)(1.0 / sqrt((double)c->head_dim)),
                         .position = s->positions,
                         .out = s->attended,
                         .ldo = c->heads * c->head_dim,
                         .scratch = s->scratch + (size_t)tid * s->scratch_stride};

    problem.context = s->first_position + s->rows;
    for (int64_t task = begin; task < end; task++) {
        int64_t block = task % blocks;
        call.kv_head = task / blocks;
        call.k = kt_kv_cache_rows(s->cache, op->layer, 0, call.kv_head);
        call.v = kt_kv_cache_rows(s->cache, op->layer, 1, call.kv_head);
        call.row_begin = block * ATTN_ROWS;
        call.row_end = call.row_begin + ATTN_ROWS < s->rows ? call.row_begin + ATTN_ROWS : s->rows;
        problem.m = call.row_end - call.row_begin;
        s->plan->attn.variant->attn(&call);
    }
}

void kt_step_encode_attended(kt_step_op *op, int64_t begin, int64_t end) {
    encode_rows(op->step, KT_PART_O, op->step->attended, begin, end);
}

int64_t kt_step_count_o(kt_step_op *op, int n_threads) {
    (void)n_threads;
    return panels(op->step, KT_PART_O);
}

void kt_step_o(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    multiply(op->step, KT_PART_O, kt_weights_layer(op->step->weights, op->layer)->o, 0,
             op->step->rows, op->step->x, 1, begin, end, tid);
}

/* ---- feed-forward ---- */

void kt_step_ffn_norm(kt_step_op *op, int64_t begin, int64_t end) {
    const kt_step *s = op->step;
    int64_t h = s->config->hidden;

    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_layer(s->weights, op->layer)->ffn_norm,
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
}

static void route(const kt_step_op *op, int64_t row_begin, int64_t row_end, int64_t expert_begin,
                  int64_t expert_end) {
    const kt_step *s = op->step;
    const kt_layer_weights *w = kt_weights_layer(s->weights, op->layer);
    const kt_choice *choice =
        w->router_format == KT_W_BF16 ? &s->plan->router_bf16 : &s->plan->router_f32;
    kt_problem problem = s->plan->router_problem;
    kt_router_call call = {.problem = &problem,
                           .x = s->normed,
                           .ldx = s->config->hidden,
                           .w = w->router,
                           .logits = s->router_logits,
                           .ldl = s->config->experts,
                           .row_begin = row_begin,
                           .row_end = row_end,
                           .expert_begin = expert_begin,
                           .expert_end = expert_end};

    problem.m = s->rows;
    problem.weights = w->router_format;
    choice->variant->router(&call);
}

int64_t kt_step_count_router(kt_step_op *op, int n_threads) {
    (void)n_threads;
    return (op->step->config->experts + ROUTER_EXPERTS - 1) / ROUTER_EXPERTS;
}

void kt_step_router(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    int64_t experts = op->step->config->experts, last = end * ROUTER_EXPERTS;

    (void)tid;
    route(op, 0, op->step->rows, begin * ROUTER_EXPERTS, last < experts ? last : experts);
}

void kt_step_select(kt_step_op *op, int64_t begin, int64_t end) {
    const kt_step *s = op->step;
    int64_t experts = s->config->experts, topk = s->config->topk;

    for (int64_t r = begin; r < end; r++)
        kt_router_select(&s->rule, s->router_logits + r * experts, s->expert_id + r * topk,
                         s->route_weight + r * topk);
}

void kt_step_norm_and_route(kt_step_op *op, int64_t begin, int64_t end) {
    kt_step_ffn_norm(op, begin, end);
    route(op, begin, end, 0, op->step->config->experts);
    kt_step_select(op, begin, end);
}

/* ---- head ---- */

/* Rows without logits are skipped, unless their hidden state is asked for. */
void kt_step_final_norm(kt_step_op *op, int64_t begin, int64_t end) {
    const kt_step *s = op->step;
    int64_t h = s->config->hidden, first = s->hidden ? 0 : s->rows - s->n_out;

    if (begin < first) begin = first;
    if (begin >= end) return;
    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_final_norm(s->weights),
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
    copy_hidden(s, s->config->layers, s->normed, begin, end);
    encode_rows(s, KT_PART_HEAD, s->normed, begin, end);
}

int64_t kt_step_count_head(kt_step_op *op, int n_threads) {
    (void)n_threads;
    return op->step->n_out ? panels(op->step, KT_PART_HEAD) : 0;
}

void kt_step_head(void *arg, int64_t begin, int64_t end, int tid) {
    kt_step_op *op = arg;
    const kt_step *s = op->step;
    multiply(s, KT_PART_HEAD, kt_weights_head(s->weights), s->rows - s->n_out, s->n_out, s->logits,
             0, begin, end, tid);
}
