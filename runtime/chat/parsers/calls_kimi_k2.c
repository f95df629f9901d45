/* Kimi-K2: special tokens around an id that holds the name, and JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"kimi", "kimi_k2_thinking", 0};
static const char *const families[] = {"kimi_k2", "kimi_k25", 0};
static const char *const evidence[] = {"<|tool_call_argument_begin|>", 0};

const kt_calls kt_calls_kimi_k2 = {
    .name = "kimi_k2",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_ARGUMENTS,
    .ids = KT_CALL_ID_KIMI,
    .section_begin = "<|tool_calls_section_begin|>",
    .section_end = "<|tool_calls_section_end|>",
    .call_begin = "<|tool_call_begin|>",
    .name_end = "<|tool_call_argument_begin|>",
    .call_end = "<|tool_call_end|>",
    .bare_calls = true,
    .ends_reasoning = true,
};
