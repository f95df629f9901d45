/* What families with grouped-query attention share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_GQA_H
#define KT_DISPATCH_GQA_H

#include <stddef.h>

#include "dispatch/model/build.h"

/* Norm of q and k: none, of each head, or of all heads of a row together. */
typedef enum kt_qk_norm { KT_QK_NORM_NONE, KT_QK_NORM_HEAD, KT_QK_NORM_ROW } kt_qk_norm;

/* A member of a family's numbers; KT_GQA_NUMBERS reads it, kt_gqa_settle completes it. */
typedef struct kt_gqa_numbers {
    int64_t heads, kv_heads, dim;
    double eps;
    bool has_bias;      /* q, k and v */
    kt_qk_norm qk_norm; /* set by the family, as what follows */
    bool has_sinks;
    int64_t window; /* keys that a row sees; 0 = all */
    kt_rope_rule rotation;
} kt_gqa_numbers;

#define KT_GQA_NUMBERS(type, member)                                                                 \
    {offsetof(type, member.heads),                                                                   \
     KT_NUMBER_INT,                                                                                  \
     "num_attention_heads",                                                                          \
     "attention.head_count",                                                                         \
     KT_NUMBER_NEEDED,                                                                               \
     1,                                                                                              \
     4096},                                                                                          \
        {offsetof(type, member.kv_heads),                                                            \
         KT_NUMBER_INT,                                                                              \
         "num_key_value_heads",                                                                      \
         "attention.head_count_kv",                                                                  \
         KT_NUMBER_NEEDED,                                                                           \
         1,                                                                                          \
         4096},                                                                                      \
        {offsetof(type, member.dim), KT_NUMBER_INT, "head_dim", "attention.key_length", 0, 2, 4096}, \
        {offsetof(type, member.eps),                                                                 \
         KT_NUMBER_DOUBLE,                                                                           \
         "rms_norm_eps",                                                                             \
         "attention.layer_norm_rms_epsilon",                                                         \
         KT_NUMBER_NEEDED,                                                                           \
         0,                                                                                          \
         1},                                                                                         \
    {                                                                                                \
        offsetof(type, member.has_bias), KT_NUMBER_BOOL, "attention_bias", NULL, 0, 0, 1             \
    }

/* Defaults, divisibility and the rotary embedding (kt_rotation_read with the whole head). */
kt_status kt_gqa_settle(const kt_config_source *s, const kt_model_numbers *m, kt_gqa_numbers *a,
                        kt_err *err);

/* Rotary embedding of heads of `dim` elements: base, width (partial_rotary_factor, rotary_dim or
 * rope.dimension_count; else `dim`) and scaling. default_factor: the partial factor when none is
 * given. */
kt_status kt_rotation_read(const kt_config_source *s, int64_t dim, double default_factor,
                           kt_rope_rule *out, kt_err *err);

/* q, k and v of h with bias and norms, rotated, k and v kept, attention: [heads * dim]. */
kt_view kt_gqa(kt_build *b, kt_view h, const kt_gqa_numbers *a);

kt_status kt_need_multiple(const kt_config_source *s, const char *key, int64_t value, kt_err *err);
/* hidden_act, where it is given. */
kt_status kt_need_silu(const kt_config_source *s, kt_err *err);

/* Dense or shared feed-forward under two prefixes: "mlp" and "ffn" with the GGUF names' ending
 * ("" or "_shexp"). */
#define KT_DENSE_FFN(role_, json, end, n_, k_)                                              \
    (kt_expert_set) {                                                                       \
        .role = role_, .gate = {json ".gate_proj", "ffn_gate" end},                         \
        .up = {json ".up_proj", "ffn_up" end}, .down = {json ".down_proj", "ffn_down" end}, \
        .count = 1, .n = n_, .k = k_                                                        \
    }

/* Routed experts, one by one or fused under json, stacked in GGUF. */
#define KT_EXPERTS(json, count_, n_, k_)                                           \
    (kt_expert_set) {                                                              \
        .role = "experts", .gate = {json ".{e}.gate_proj", "ffn_gate_exps"},       \
        .up = {json ".{e}.up_proj", "ffn_up_exps"},                                \
        .down = {json ".{e}.down_proj", "ffn_down_exps"},                          \
        .fused_gate_up = {json ".gate_up_proj", "ffn_gate_up_exps.weight"},        \
        .fused_down = {json ".down_proj", NULL}, .count = count_, .n = n_, .k = k_ \
    }

#endif
