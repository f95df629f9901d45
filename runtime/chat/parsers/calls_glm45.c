/* GLM-4.5 and 4.6: keys and values in marks, a line each. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"glm4_moe", "glm4_5", 0};
static const char *const families[] = {"glm4_moe", 0};
static const char *const evidence[] = {"<tool_call>", "<arg_key>", 0};
static const char *const counter[] = {"</arg_key><arg_value>", 0};

const kt_calls kt_calls_glm45 = {
    .name = "glm45",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .counter = counter,
    .body = KT_CALL_PARAMETERS,
    .call_begin = "\n<tool_call>",
    .name_end = "\n",
    .call_end = "</tool_call>",
    .param_begin = "<arg_key>",
    .key_end = "</arg_key>\n",
    .value_begin = "<arg_value>",
    .value_end = "</arg_value>\n",
    .ends_reasoning = true,
    .unknown_is_json = true,
};
