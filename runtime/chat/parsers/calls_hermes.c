/* Qwen2.5 and Qwen3, Hermes, Granite 4: <tool_call> around a JSON object.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"qwen", "qwen25", "qwen2_5", "qwen3", "granite4", 0};
static const char *const families[] = {"qwen3_moe", "qwen3_next", 0};
static const char *const evidence[] = {"<tool_call>", 0};
static const char *const counter[] = {"<function=", "<arg_key>", 0};

const kt_calls kt_calls_hermes = {
    .name = "hermes",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .counter = counter,
    .body = KT_CALL_OBJECT,
    .call_begin = "<tool_call>\n",
    .call_end = "\n</tool_call>",
    .between = "\n",
};
