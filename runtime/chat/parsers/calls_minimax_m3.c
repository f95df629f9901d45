/* MiniMax-M3: elements inside of elements, each tag behind a token of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

#define NS "]<]minimax[>["

static const char *const aliases[] = {"minimax-m3", 0};
static const char *const families[] = {"minimax_m3", 0};
static const char *const evidence[] = {NS, "<invoke", 0};

const kt_calls kt_calls_minimax_m3 = {
    .name = "minimax_m3",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_PARAMETERS,
    .section_begin = "\n" NS "<tool_call>\n",
    .section_end = NS "</tool_call>",
    .call_begin = NS "<invoke name=",
    .name_end = ">",
    .call_end = NS "</invoke>\n",
    .param_begin = NS "<",
    .key_end = ">",
    .value_end = NS "</",
    .part = NS,
    .quoted = true,
    .tree = true,
};
