/* Seed-OSS: Qwen3-Coder's notation in marks of its own. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"seed", 0};
static const char *const evidence[] = {"seed:tool_call", "<function=", 0};

const kt_calls kt_calls_seed_oss = {
    .name = "seed_oss",
    .aliases = aliases,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .section_begin = "<seed:tool_call>\n",
    .section_end = "\n</seed:tool_call>",
    .call_begin = "<function=",
    .name_end = ">\n",
    .call_end = "</function>",
    .between = "\n",
    .one_call = true,
    .param_begin = "<parameter=",
    .key_end = ">",
    .value_end = "</parameter>\n",
    .trims_newline = true,
    .open_values = true,
};
