/* DeepSeek V4: DSML as V3.2 has it, under another section name.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"deepseek_v4", 0};
static const char *const families[] = {"deepseek_v4", 0};
static const char *const evidence[] = {"｜DSML｜", "tool_calls>", 0};

const kt_calls kt_calls_deepseekv4 = {
    .name = "deepseekv4",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .section_begin = "\n\n<｜DSML｜tool_calls>\n",
    .section_end = "</｜DSML｜tool_calls>",
    .call_begin = "<｜DSML｜invoke name=",
    .name_end = ">\n",
    .call_end = "</｜DSML｜invoke>\n",
    .param_begin = "<｜DSML｜parameter name=",
    .key_end = ">",
    .value_end = "</｜DSML｜parameter>\n",
    .part = "｜DSML｜",
    .quoted = true,
    .string_attribute = true,
};
