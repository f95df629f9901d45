/* MiniMax-M2, M2.1: XML with one element per call and parameter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"minimax", 0};
static const char *const families[] = {"minimax_m2", 0};
static const char *const evidence[] = {"<minimax:tool_call>", "<invoke", 0};

const kt_calls kt_calls_minimax_m2 = {
    .name = "minimax_m2",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .section_begin = "\n<minimax:tool_call>\n",
    .section_end = "</minimax:tool_call>",
    .call_begin = "<invoke name=",
    .name_end = ">\n",
    .call_end = "</invoke>\n",
    .param_begin = "<parameter name=",
    .key_end = ">",
    .value_end = "</parameter>\n",
    .quoted = true,
    .trims_newline = true,
};
