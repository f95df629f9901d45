/* What families with multi-head latent attention share: DeepSeek-V3, its sparse successor, Kimi-K2,
 * GLM-4.7-Flash, GLM-5. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_MLA_H
#define KT_DISPATCH_MLA_H

#include "dispatch/model/moe.h"

/* Numbers of these families (a kt_family's numbers are this struct). */
typedef struct kt_mla {
    int64_t heads, q_lora, kv_lora, nope, rope, v;
    kt_moe_numbers moe;
    int64_t index_heads, index_dim, index_topk; /* lightning indexer; 0 = none */
    bool is_index_interleaved;                  /* its rotation's pairs; false = halves */
    bool repeats_index[KT_MAX_LAYERS]; /* no indexer of its own: what the last one picked */
    double eps, scale;
    bool is_tied;
    kt_rope_rule rotation;
} kt_mla;

#define KT_MLA_NUMBERS 21
extern const kt_number kt_mla_numbers[KT_MLA_NUMBERS];

/* Members of kt_family: attention in its absorbed form (one key of kv_lora + rope numbers for
 * all heads, whose first kv_lora are the value), dense layers first, then a sigmoid router in
 * groups beside a shared expert. */
kt_status kt_mla_settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err);
void kt_mla_layer(kt_build *b, const void *numbers, int l);
void kt_mla_draft(kt_build *b, const void *numbers, int l, int64_t declared);
void kt_mla_end(kt_build *b, const void *numbers);

#endif
