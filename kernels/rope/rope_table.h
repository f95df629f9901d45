/* Frequencies and angles of rotary position embeddings. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROPE_TABLE_H
#define KT_KERNELS_ROPE_TABLE_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

/* How a model was stretched past the context it was trained with. */
typedef enum kt_rope_scaling {
    KT_ROPE_PLAIN = 0, /* not at all */
    KT_ROPE_LINEAR,    /* every frequency divided by factor */
    KT_ROPE_YARN,      /* the slow ones divided, the fast ones kept, a ramp between */
    KT_ROPE_SCALING_COUNT
} kt_rope_scaling;

/* The rotary embedding of one model. Members that the scaling does not use are not looked at. */
typedef struct kt_rope_rule {
    double base;
    int64_t rotary_dim; /* even */
    bool interleaved;   /* pairs (2i, 2i + 1): kt_rope_call.interleaved; tables are the same */
    kt_rope_scaling scaling;
    double factor;           /* linear and YaRN */
    double original_context; /* YaRN: positions that the model was trained with */
    double beta_fast;        /* YaRN: pairs with this many turns in original_context stay, */
    double beta_slow;        /* those with this many are divided by factor */
    bool is_exact;           /* YaRN: the ramp's ends may lie between pairs */
    double attention_factor; /* cosines and sines are multiplied by it; 0 counts as 1 */
} kt_rope_rule;

/* Refuses what has no frequencies: odd or non-positive widths, a base that is not positive (YaRN:
 * over 1), factors and contexts that are not positive, beta_fast below beta_slow, anything not
 * finite. */
kt_status kt_rope_rule_check(const kt_rope_rule *rule, kt_err *err);

/* theta [rotary_dim / 2] gets the angle per position of each pair, in radians:
 *
 *   plain   t_i = base^(-2i / rotary_dim)
 *   linear  t_i / factor
 *   YaRN    t_i (1 - ramp_i) + t_i / factor * ramp_i, where
 *           ramp_i = clamp((i - low) / (high - low), 0, 1)
 *           low = max(floor(c(beta_fast)), 0), high = min(ceil(c(beta_slow)), rotary_dim - 1), or
 *           low + 0.001 if that is low; pair c(b) makes b turns in original_context:
 *           c(b) = rotary_dim ln(original_context / (2 pi b)) / (2 ln(base));
 *           with is_exact neither floor nor ceil
 *
 * YaRN: arXiv 2309.00071, in the form of the published DeepSeek-V3 code: applied at every length.
 * The rule must have passed kt_rope_rule_check. Thread-safe; neither allocates nor fails. */
void kt_rope_rule_frequencies(const kt_rope_rule *rule, double *theta);

/* For each position first .. first + positions - 1 write rotary_dim/2 cosines, then rotary_dim/2
 * sines of position * theta_i, all times attention_factor: rotary_dim floats per position, computed
 * in double and rounded once. The table of kt_rope_call starts at position 0 unless its positions
 * are relative. The rule must have passed kt_rope_rule_check. Thread-safe; neither allocates nor
 * fails. */
void kt_rope_rule_table(const kt_rope_rule *rule, int64_t first, int64_t positions, float *cos_sin);

/* kt_rope_rule_table of the plain rule. */
void kt_rope_table(double base, int64_t rotary_dim, int64_t first, int64_t positions,
                   float *cos_sin);

/* YaRN's correction of attention: 0.1 m ln(factor) + 1, or 1 for factors up to 1. Models with
 * `mscale` and `mscale_all_dim` (DeepSeek, Kimi) take mscale(factor, mscale) / mscale(factor,
 * mscale_all_dim) as attention_factor and multiply the softmax's scale by mscale(factor,
 * mscale_all_dim)^2. Others take mscale(factor, 1) as attention_factor and leave the softmax
 * alone. */
double kt_yarn_mscale(double factor, double m);

#endif
