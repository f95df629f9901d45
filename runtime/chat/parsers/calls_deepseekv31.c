/* DeepSeek V3.1 and V3.2-Exp: V3's special tokens around name and plain JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"deepseek_v31", "deepseek_v32_exp", 0};
static const char *const evidence[] = {"<｜tool▁sep｜>", 0};
static const char *const counter[] = {"```json", 0};

const kt_calls kt_calls_deepseekv31 = {
    .name = "deepseekv31",
    .aliases = aliases,
    .evidence = evidence,
    .counter = counter,
    .body = KT_CALL_ARGUMENTS,
    .section_begin = "<｜tool▁calls▁begin｜>",
    .section_end = "<｜tool▁calls▁end｜>",
    .call_begin = "<｜tool▁call▁begin｜>",
    .name_end = "<｜tool▁sep｜>",
    .call_end = "<｜tool▁call▁end｜>",
    .bare_calls = true,
    .ends_reasoning = true,
};
