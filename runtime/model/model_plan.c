/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/model_plan.h"

#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/format.h"

/* Decode is what a person waits for token by token; prefill still counts in the choice of layout. */
#define DECODE_SHARE 0.7

static kt_weight_format stored_format(kt_part part, const kt_stored *stored) {
    kt_weight_format format = KT_W_NONE;

    if (part == KT_PART_QKV || part == KT_PART_O) format = stored->attention;
    if (part == KT_PART_EXPERT || part == KT_PART_DENSE) format = stored->experts;
    return format != KT_W_NONE ? format : stored->floats;
}

/* A format with less than eight bits is for experts, where the bytes are. */
static kt_weight_format asked_format(kt_part part, kt_weight_format id) {
    const kt_format *format = kt_format_find(id);

    if (part == KT_PART_EXPERT || part == KT_PART_DENSE) return id;
    return format && format->encode_rows && format->bits >= 8 ? id : KT_W_INT8_CHANNEL;
}

kt_weight_format kt_part_format(kt_part part, const kt_model_config *config, kt_quant weights) {
    if (kt_quant_format(weights) != KT_W_NONE) return asked_format(part, kt_quant_format(weights));
    if (weights == KT_QUANT_INT4 && part == KT_PART_EXPERT) return KT_W_INT4_G32;
    if (weights == KT_QUANT_INT8 || weights == KT_QUANT_INT4) return KT_W_INT8_CHANNEL;
    return weights == KT_QUANT_NATIVE ? stored_format(part, &config->stored) : KT_W_BF16;
}

static kt_problem part_problem(const kt_planner *planner, kt_part part, const kt_model_config *c,
                               kt_quant weights) {
    int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    kt_problem p = {.op = KT_OP_GEMM, .weights = kt_part_format(part, c, weights)};

    switch (part) {
    case KT_PART_QKV: p.n = q + 2 * kv, p.k = c->hidden; break;
    case KT_PART_O: p.n = c->hidden, p.k = q; break;
    case KT_PART_HEAD: p.n = c->vocab, p.k = c->hidden; break;
    case KT_PART_EXPERT:
        p.op = KT_OP_MOE_FFN;
        p.n = c->expert_size, p.k = c->hidden, p.experts = c->experts, p.topk = c->topk;
        break;
    default: p.op = KT_OP_MOE_FFN; p.n = c->dense_size, p.k = c->hidden, p.experts = 1, p.topk = 1;
    }
    p.acts = kt_plan_acts(planner, &p);
    return p;
}

/* Can the part's matrices be of its format? */
static kt_status check_shape(const kt_problem *p, kt_err *err) {
    const kt_format *format = kt_format_find(p->weights);
    size_t data, scales;

    KT_TRY(kt_format_sizes(format, p->n, p->k, &data, &scales, err));
    if (p->op == KT_OP_GEMM) return KT_OK;
    return kt_format_sizes(format, p->k, p->n, &data, &scales, err);
}

static kt_status resolve_part(kt_planner *planner, kt_model_plan *plan, kt_part part,
                              const kt_model_config *config, kt_quant weights, kt_err *err) {
    kt_part_plan *p = &plan->part[part];
    kt_problem encode = {.op = KT_OP_ENCODE, .n = 1};

    p->problem = part_problem(planner, part, config, weights);
    p->is_used = 1;
    KT_TRY(check_shape(&p->problem, err));
    KT_TRY(kt_plan_resolve(planner, &p->problem, plan->threads, plan->max_rows, DECODE_SHARE,
                           &p->choices, &p->source, err));
    encode.acts = p->problem.acts;
    encode.k = p->problem.k;
    KT_TRY(kt_plan_resolve_simple(planner, &encode, plan->threads, &p->encode, err));
    p->bytes = (p->choices.choice[0].variant->packed_bytes(&p->problem) + 63) / 64 * 64;
    return KT_OK;
}

static kt_status resolve_ops(kt_planner *planner, kt_model_plan *plan,
                             const kt_model_config *config, kt_weight_format kv,
                             int64_t max_context, kt_err *err) {
    kt_problem norm = {.op = KT_OP_NORM, .n = 1, .k = config->hidden};
    kt_problem rope = {.op = KT_OP_ROPE, .n = config->heads, .k = config->head_dim};
    kt_problem router = {.op = KT_OP_ROUTER,
                         .weights = KT_W_BF16,
                         .n = config->experts,
                         .k = config->hidden,
                         .topk = config->topk};

    KT_TRY(kt_plan_resolve_simple(planner, &norm, plan->threads, &plan->norm_hidden, err));
    norm.k = config->head_dim;
    KT_TRY(kt_plan_resolve_simple(planner, &norm, plan->threads, &plan->norm_head, err));
    KT_TRY(kt_plan_resolve_simple(planner, &rope, plan->threads, &plan->rope, err));
    plan->attn_problem = (kt_problem){.op = KT_OP_ATTN,
                                      .weights = kv,
                                      .n = config->heads,
                                      .k = config->head_dim,
                                      .kv_heads = config->kv_heads,
                                      .context = max_context};
    KT_TRY(kt_plan_resolve_simple(planner, &plan->attn_problem, plan->threads, &plan->attn, err));
    if (config->experts == 0) return KT_OK;
    plan->router_problem = router;
    KT_TRY(kt_plan_resolve_simple(planner, &router, plan->threads, &plan->router_bf16, err));
    router.weights = KT_W_F32;
    return kt_plan_resolve_simple(planner, &router, plan->threads, &plan->router_f32, err);
}

kt_status kt_model_plan_make(kt_planner *planner, const kt_model_config *config, kt_quant weights,
                             kt_weight_format kv, int threads, int64_t max_rows,
                             int64_t max_context, kt_model_plan *out, kt_err *err) {
    int64_t n_moe = 0;

    memset(out, 0, sizeof *out);
    out->threads = threads;
    out->max_rows = max_rows;
    for (int64_t l = 0; l < config->layers; l++) n_moe += config->is_moe[l];
    for (int part = 0; part < KT_PART_COUNT; part++) {
        if (part == KT_PART_EXPERT && n_moe == 0) continue;
        if (part == KT_PART_DENSE && n_moe == config->layers) continue;
        KT_TRY(resolve_part(planner, out, (kt_part)part, config, weights, err));
    }
    kt_plan_layer(planner, &out->part[n_moe > 0 ? KT_PART_EXPERT : KT_PART_DENSE].problem, threads,
                  &out->layer);
    return resolve_ops(planner, out, config, kv, max_context, err);
}

size_t kt_model_plan_weight_bytes(const kt_model_plan *plan, const kt_model_config *c) {
    const kt_part_plan *part = plan->part;
    size_t total = part[KT_PART_HEAD].bytes + 2 * (size_t)(c->vocab * c->hidden);

    for (int64_t l = 0; l < c->layers; l++) {
        total += part[KT_PART_QKV].bytes + part[KT_PART_O].bytes;
        total += 4 * (size_t)(2 * c->hidden + 2 * c->head_dim);
        total += c->is_moe[l]
                     ? (size_t)c->experts * (part[KT_PART_EXPERT].bytes + 2 * (size_t)c->hidden)
                     : part[KT_PART_DENSE].bytes;
    }
    return total;
}
