/* GLM-4.7 and later: GLM-4.5's marks without line breaks. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"glm47_moe", "glm5", 0};
static const char *const families[] = {"glm4_moe_lite", "glm_moe_dsa", 0};
static const char *const evidence[] = {"<tool_call>", "</arg_key><arg_value>", 0};

const kt_calls kt_calls_glm47 = {
    .name = "glm47",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .call_begin = "<tool_call>",
    .name_end = "",
    .call_end = "</tool_call>",
    .param_begin = "<arg_key>",
    .key_end = "</arg_key>",
    .value_begin = "<arg_value>",
    .value_end = "</arg_value>",
    .ends_reasoning = true,
    .unknown_is_json = true,
};
