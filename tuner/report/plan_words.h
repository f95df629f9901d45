/* What the outcome of a plan cell means, in words: for reports and terminals.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_PLAN_WORDS_H
#define KT_TUNER_PLAN_WORDS_H

#include <stdbool.h>
#include <stddef.h>

#include "dispatch/table/table.h"

#define KT_LAYER_WORDS_BYTES 256

/* A layer that gains less than this part of what its cells promise is not confirmed. */
#define KT_LEAST_REALISED 0.8

/* Must the gain be printed with a sign for "about"? Within twice the noise, or a layer gain that is not
 * confirmed. */
bool kt_plan_is_about(const kt_table_plan *plan, double aa_noise_p95);

/* layer_gain: how much of the prediction is there, and if it is too little, what is known of the reason;
 * other cells: what was replaced. */
char *kt_plan_words(const kt_table_plan *plan, double aa_noise_p95, char *out, size_t out_bytes);

#endif
