/* Qwen3-Coder, Qwen3.5: functions and parameters in an XML-like notation, often without the
 * surrounding <tool_call>. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"qwen3_xml", "qwen3_coder_xml", 0};
static const char *const families[] = {"qwen3_5_moe", 0};
static const char *const evidence[] = {"<tool_call>", "<function=", "<parameter=", 0};

const kt_calls kt_calls_qwen3_coder = {
    .name = "qwen3_coder",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .section_begin = "<tool_call>\n",
    .section_end = "\n</tool_call>",
    .call_begin = "<function=",
    .name_end = ">\n",
    .call_end = "</function>",
    .between = "\n",
    .one_call = true,
    .param_begin = "<parameter=",
    .key_end = ">\n",
    .value_end = "\n</parameter>\n",
    .bare_calls = true,
    .trims_newline = true,
    .open_values = true,
};
