/* What the gate refused, from a journal. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_REFUSALS_H
#define KT_TUNER_REFUSALS_H

#include <stdbool.h>

#include "tuner/store/journal.h"

/* Is record `at` the gate's refusal of a contender on a shape, and its last word? Each session gates anew. */
bool kt_is_refusal(const kt_journal *journal, size_t at);

#endif
