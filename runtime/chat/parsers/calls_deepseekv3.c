/* DeepSeek V3, V3-0324 and R1: special tokens around a name and fenced JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"deepseek_v3", "deepseek_r1", 0};
static const char *const families[] = {"deepseek_v3", 0};
static const char *const evidence[] = {"<｜tool▁sep｜>", "```json", 0};

const kt_calls kt_calls_deepseekv3 = {
    .name = "deepseekv3",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_ARGUMENTS,
    .section_begin = "<｜tool▁calls▁begin｜>",
    .section_end = "<｜tool▁calls▁end｜>",
    .call_begin = "<｜tool▁call▁begin｜>",
    .head_prefix = "function",
    .prefix_end = "<｜tool▁sep｜>",
    .name_end = "\n```json\n",
    .arguments_end = "\n```",
    .call_end = "<｜tool▁call▁end｜>",
    .between = "\n",
    .bare_calls = true,
    .ends_reasoning = true,
};
