/* The operations of a step. Each works on the rows or panels it is given and reads everything else
 * from the step. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "runtime/exec/step.h"

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

/* Point the step's GEMM at c (+)= acts[first_row ..] * w^T of a part. */
static void bind_gemm(kt_step *s, kt_part part, const void *weights, int64_t first_row, int64_t m,
                      float *c, int accumulate) {
    const kt_part_plan *p = &s->plan->part[part];
    size_t stride = kt_act_row_bytes(p->problem.acts, p->problem.k);

    s->gemm.problem = &p->problem;
    s->gemm.choices = &p->choices;
    s->gemm.weights = weights;
    s->gemm.a = s->acts + (size_t)first_row * stride;
    s->gemm.a_stride = stride;
    s->gemm.m = m;
    s->gemm.c = c;
    s->gemm.ldc = p->problem.n;
    s->gemm.accumulate = accumulate;
}

static void copy_hidden(const kt_step *s, int64_t index, const float *x, int64_t begin,
                        int64_t end) {
    int64_t h = s->config->hidden;
    if (s->hidden)
        memcpy(s->hidden + index * s->hidden_stride + begin * h, x + begin * h,
               sizeof *x * (size_t)((end - begin) * h));
}

/* ---- attention ---- */

void kt_step_attn_norm(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    int64_t h = s->config->hidden;

    copy_hidden(s, layer, s->x, begin, end);
    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_layer(s->weights, layer)->attn_norm,
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
    encode_rows(s, KT_PART_QKV, s->normed, begin, end);
}

void kt_step_bind_qkv(kt_step *s, int64_t layer) {
    bind_gemm(s, KT_PART_QKV, kt_weights_layer(s->weights, layer)->qkv, 0, s->rows, s->qkv, 0);
}

static void add_bias(const float *bias, int64_t k, float *x) {
    for (int64_t i = 0; i < k; i++) x[i] += bias[i];
}

/* Norm and rotate the heads of q and k in place, then move k and v of these rows to the cache. */
void kt_step_rope_and_cache(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    const kt_model_config *c = s->config;
    const kt_layer_weights *w = kt_weights_layer(s->weights, layer);
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
        if (w->qkv_bias) add_bias(w->qkv_bias, ld, q);
        norm_rows(&s->plan->norm_head, q, d, w->q_norm, (float)c->norm_eps, q, d, d, 0, c->heads);
        norm_rows(&s->plan->norm_head, k, d, w->k_norm, (float)c->norm_eps, k, d, d, 0,
                  c->kv_heads);
    }
    rope.x = s->qkv;
    rope.heads = c->heads + c->kv_heads; /* q and k lie side by side */
    s->plan->rope.variant->rope(&rope);
    for (int64_t head = 0; head < c->kv_heads; head++)
        for (int which = 0; which < 2; which++)
            for (int64_t r = begin; r < end; r++)
                kt_kv_cache_put(s->cache, layer, which, head, s->first_position + r,
                                s->qkv + r * ld + (c->heads + which * c->kv_heads + head) * d);
}

void kt_step_bind_attn(kt_step *s, int64_t layer) {
    s->attn.k = kt_kv_cache_rows(s->cache, layer, 0, 0);
    s->attn.v = kt_kv_cache_rows(s->cache, layer, 1, 0);
    s->attn.k_scale = kt_kv_cache_scales(s->cache, layer, 0, 0);
    s->attn.v_scale = kt_kv_cache_scales(s->cache, layer, 1, 0);
    s->attn.head_stride = s->cache->capacity * s->config->head_dim;
    s->attn.scale_stride = s->cache->capacity;
    s->attn.rows = s->rows;
}

/* The bias of o goes straight to the residual that the product is added to. */
void kt_step_encode_attended(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    const float *bias = kt_weights_layer(s->weights, layer)->o_bias;

    for (int64_t r = begin; bias && r < end; r++)
        add_bias(bias, s->config->hidden, s->x + r * s->config->hidden);
    encode_rows(s, KT_PART_O, s->attended, begin, end);
}

void kt_step_bind_o(kt_step *s, int64_t layer) {
    bind_gemm(s, KT_PART_O, kt_weights_layer(s->weights, layer)->o, 0, s->rows, s->x, 1);
}

/* ---- feed-forward ---- */

void kt_step_ffn_norm(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    int64_t h = s->config->hidden;

    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_layer(s->weights, layer)->ffn_norm,
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
}

static void route(const kt_step *s, int64_t layer, int64_t row_begin, int64_t row_end,
                  int64_t expert_begin, int64_t expert_end) {
    const kt_layer_weights *w = kt_weights_layer(s->weights, layer);
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

static void run_router(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_step_op *op = arg;
    int64_t experts = op->step->config->experts, last = end * ROUTER_EXPERTS;

    (void)tid;
    route(op->step, op->layer, 0, op->step->rows, begin * ROUTER_EXPERTS,
          last < experts ? last : experts);
}

kt_phase kt_step_router_phase(kt_step_op *op) {
    int64_t experts = op->step->config->experts;
    return (kt_phase){
        .run = run_router, .arg = op, .n_tasks = (experts + ROUTER_EXPERTS - 1) / ROUTER_EXPERTS};
}

void kt_step_select(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    int64_t experts = s->config->experts, topk = s->config->topk;

    (void)layer;
    for (int64_t r = begin; r < end; r++)
        kt_router_select(&s->rule, s->router_logits + r * experts, s->expert_id + r * topk,
                         s->route_weight + r * topk);
}

void kt_step_norm_and_route(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    kt_step_ffn_norm(s, layer, begin, end);
    route(s, layer, begin, end, 0, s->config->experts);
    kt_step_select(s, layer, begin, end);
}

/* The first phase of the MoE job; the others find what it left. */
void kt_step_bind_ffn(kt_step *s, int64_t layer) {
    kt_step_ffn *ffn = s->config->is_moe[layer] ? &s->moe : &s->dense;
    const kt_layer_weights *w = kt_weights_layer(s->weights, layer);

    ffn->job.layer = &w->ffn;
    ffn->job.tokens = s->rows;
    if (!ffn->nodes) return;
    ffn->nodes->tokens = s->rows;
    for (int i = 0; i < ffn->nodes->n_nodes; i++) ffn->nodes->job[i].layer = &w->node_ffn[i];
}

const kt_moe_job *kt_step_ffn_job(const kt_step_ffn *ffn) {
    return ffn->nodes ? &ffn->nodes->job[0] : &ffn->job;
}

/* ---- head ---- */

/* Rows without logits are skipped, unless their hidden state is asked for. */
void kt_step_final_norm(const kt_step *s, int64_t layer, int64_t begin, int64_t end) {
    int64_t h = s->config->hidden, first = s->hidden ? 0 : s->rows - s->n_out;

    (void)layer;
    if (begin < first) begin = first;
    if (begin >= end) return;
    norm_rows(&s->plan->norm_hidden, s->x, h, kt_weights_final_norm(s->weights),
              (float)s->config->norm_eps, s->normed, h, h, begin, end);
    copy_hidden(s, s->config->layers, s->normed, begin, end);
    encode_rows(s, KT_PART_HEAD, s->normed, begin, end);
}

void kt_step_bind_head(kt_step *s, int64_t layer) {
    (void)layer;
    bind_gemm(s, KT_PART_HEAD, kt_weights_head(s->weights), s->rows - s->n_out, s->n_out, s->logits,
              0);
}
