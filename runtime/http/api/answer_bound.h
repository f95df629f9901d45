/* What one answer may become. Checked when a request is admitted, so that no work is thrown away
 * later. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ANSWER_BOUND_H
#define KT_RUNTIME_ANSWER_BOUND_H

#include <stdbool.h>
#include <stdint.h>

#include "runtime/http/api/fields.h"

/* A whole answer lies in memory until it is complete; one that could be larger is refused. */
#define KT_MAX_ANSWER_BYTES ((int64_t)64 << 20)

/* Bytes that an answer is expected to have at most: choices, tokens of each, and alternatives
 * listed with each token
 * (-1 = no logprobs). A token has 16 bytes, with its logprob 160 and 80 more for each alternative.
 */
int64_t kt_answer_bytes(int64_t choices, int64_t tokens, int top_logprobs);

/* False with 400 that names n, max_tokens and logprobs when a whole answer could be larger. */
bool kt_answer_check(int64_t choices, int64_t tokens, int top_logprobs, kt_api_error *e);

#endif
