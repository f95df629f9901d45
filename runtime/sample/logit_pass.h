/* What is done with a block of 64 logits, for each instruction set.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOGIT_PASS_H
#define KT_RUNTIME_LOGIT_PASS_H

#include <stdint.h>

enum { KT_LOGIT_BLOCK = 64 };

/* Which logits count, and how they are weighed. */
typedef struct kt_logit_cut {
    float top, scale; /* the weight is exp((x - top) * scale), for x <= top */
    float least;      /* logits under it weigh nothing */
} kt_logit_cut;

/* Constant; safe from any thread. NaN counts as -infinity. */
typedef struct kt_logit_pass {
    float (*maximum)(const float x[KT_LOGIT_BLOCK]);
    /* The sum of the block's weights, and the weights into out[64] unless it is NULL. A weight's
     * relative error is under 3e-7 besides that of rounding (x - top) * scale, the sum's under 6e-7
     * besides. Weights under 2^-125 may be 0. */
    double (*weigh)(const float x[KT_LOGIT_BLOCK], const kt_logit_cut *cut, float *out);
    /* The sum of those of the weights w, as weigh wrote them, whose logit is over `over`: the same
     * bits as that of weighing with the next logit as `least`. *equals grows by the number of
     * logits that are exactly `over`. */
    double (*sum_over)(const float x[KT_LOGIT_BLOCK], const float w[KT_LOGIT_BLOCK], float over,
                       int64_t *equals);
} kt_logit_pass;

extern const kt_logit_pass kt_logit_pass_sse2, kt_logit_pass_avx2, kt_logit_pass_avx512;

/* The best that this machine has; keep it, as asking takes microseconds. */
const kt_logit_pass *kt_logit_pass_best(void);

#endif
