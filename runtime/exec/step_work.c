/* What a step does, in operations and bytes, for the profile. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/exec/step.h"

static void count(kt_step *s, kt_step_kind kind, double ops, double bytes) {
    s->profile.kind[kind].ops += ops;
    s->profile.kind[kind].bytes += bytes;
}

static void count_gemm(kt_step *s, kt_step_kind kind, kt_part part, int64_t rows) {
    const kt_part_plan *p = &s->plan->part[part];
    double size = (double)p->problem.n * (double)p->problem.k;

    if (rows > 0) count(s, kind, 2 * (double)rows * size, (double)p->bytes);
}

void kt_step_count_qkv(kt_step *s, int64_t layer) {
    (void)layer;
    count_gemm(s, KT_STEP_QKV, KT_PART_QKV, s->rows);
}

void kt_step_count_o(kt_step *s, int64_t layer) {
    (void)layer;
    count_gemm(s, KT_STEP_O, KT_PART_O, s->rows);
}

void kt_step_count_head(kt_step *s, int64_t layer) {
    (void)layer;
    count_gemm(s, KT_STEP_HEAD, KT_PART_HEAD, s->n_out);
}

#define KEYS 64 /* enough that no padding counts */

/* Row r meets first_position + r + 1 keys, once for the score and once for the value. */
void kt_step_count_attn(kt_step *s, int64_t layer) {
    const kt_model_config *c = s->config;
    double rows = (double)s->rows, last = (double)(s->first_position + s->rows);
    double pairs = rows * (2 * last - rows + 1) / 2;
    kt_kv_shape one_layer = s->cache->shape;

    (void)layer;
    one_layer.layers = 1;
    count(s, KT_STEP_ATTN, 4 * pairs * (double)(c->heads * c->head_dim),
          last * (double)kt_kv_cache_bytes(&one_layer, KEYS) / KEYS);
}

void kt_step_count_router(kt_step *s, int64_t layer) {
    double size = (double)s->config->experts * (double)s->config->hidden;
    double item = kt_weights_layer(s->weights, layer)->router_format == KT_W_BF16 ? 2 : 4;

    count(s, KT_STEP_ROUTER, 2 * (double)s->rows * size, size * item);
}

void kt_step_count_ffn(kt_step *s, int64_t layer) {
    int is_moe = s->config->is_moe[layer];
    const kt_part_plan *p = &s->plan->part[is_moe ? KT_PART_EXPERT : KT_PART_DENSE];
    double size = 3 * (double)p->problem.n * (double)p->problem.k;
    double rows = (double)(s->rows * p->problem.topk);
    int64_t hit, busiest;

    kt_moe_job_load(kt_step_ffn_job(is_moe ? &s->moe : &s->dense), &hit, &busiest);
    count(s, KT_STEP_FFN, 2 * rows * size, (double)hit * (double)p->bytes);
    if (!is_moe) return;
    s->profile.moe_layers++;
    s->profile.experts_hit += (double)hit;
    s->profile.expert_rows += rows;
    if (busiest > s->profile.busiest_rows) s->profile.busiest_rows = busiest;
}

void kt_step_note_experts(kt_step *s, int64_t layer) {
    (void)layer;
    kt_recorder_layer(s->recorder);
    for (int64_t e = 0; e < s->config->experts; e++) {
        int64_t rows = kt_moe_job_rows(kt_step_ffn_job(&s->moe), e);
        if (rows > 0) kt_recorder_expert(s->recorder, e, rows);
    }
}

static kt_unit unit_of(const kt_model_plan *plan, kt_part part) {
    switch (plan->part[part].problem.acts) {
    case KT_A_INT8_G32:
    case KT_A_INT8_G16P2: return KT_UNIT_INT8;
    case KT_A_BF16: return KT_UNIT_BF16;
    default: return KT_UNIT_F32;
    }
}

void kt_step_profile_reset(kt_step *s) {
    static const char *const names[KT_STEP_KINDS] = {"rows",   "qkv", "attention", "o",
                                                     "router", "ffn", "lm_head"};
    const kt_part ffn = s->plan->part[KT_PART_EXPERT].is_used ? KT_PART_EXPERT : KT_PART_DENSE;

    _Static_assert((int)KT_STEP_KINDS == KT_PROFILE_KINDS, "the profile has every kind");
    memset(&s->profile, 0, sizeof s->profile);
    memset(s->busy, 0, (size_t)s->n_threads * sizeof *s->busy);
    for (int i = 0; i < KT_STEP_KINDS; i++) s->profile.kind[i].name = names[i];
    if (s->plan->attn.variant->numerics == KT_NUM_BF16_F32)
        s->profile.kind[KT_STEP_ATTN].unit = KT_UNIT_BF16;
    s->profile.kind[KT_STEP_QKV].unit = unit_of(s->plan, KT_PART_QKV);
    s->profile.kind[KT_STEP_O].unit = unit_of(s->plan, KT_PART_O);
    s->profile.kind[KT_STEP_FFN].unit = unit_of(s->plan, ffn);
    s->profile.unit = s->profile.kind[KT_STEP_FFN].unit;
    s->profile.kind[KT_STEP_HEAD].unit = unit_of(s->plan, KT_PART_HEAD);
}
