/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/answer_bound.h"

int64_t kt_answer_bytes(int64_t choices, int64_t tokens, int top_logprobs) {
    int64_t each = top_logprobs < 0 ? 16 : 160 + 80 * (int64_t)top_logprobs;

    if (choices <= 0 || tokens <= 0) return 0;
    if (tokens > INT64_MAX / each / choices) return INT64_MAX;
    return choices * tokens * each;
}

bool kt_answer_check(int64_t choices, int64_t tokens, int top_logprobs, kt_api_error *e) {
    int64_t bytes = kt_answer_bytes(choices, tokens, top_logprobs);

    if (bytes <= KT_MAX_ANSWER_BYTES) return true;
    return kt_api_refuse(
        e, 400, choices > 1 ? "n" : "max_tokens", "answer_too_large",
        "%lld choices of %lld tokens%s may be %lld MiB in one answer, at most %lld are made; use "
        "'stream', or less of 'n', 'max_tokens' and 'logprobs'",
        (long long)choices, (long long)tokens, top_logprobs < 0 ? "" : " with logprobs",
        (long long)(bytes >> 20), (long long)(KT_MAX_ANSWER_BYTES >> 20));
}
