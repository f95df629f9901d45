/* gpt-oss: a call is a message to functions.NAME. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/calls.h"

static const char *const aliases[] = {"gpt-oss", "openai", "openai_gptoss", 0};
static const char *const families[] = {"gpt_oss", 0};
static const char *const evidence[] = {"<|channel|>commentary", "<|call|>", 0};

const kt_calls kt_calls_harmony = {
    .name = "harmony",
    .aliases = aliases,
    .families = families,
    .evidence = evidence,
    .body = KT_CALL_ARGUMENTS,
    .channels = &kt_channels_harmony,
    .call_begin = " to=functions.",
    .name_end = "<|message|>",
    .call_end = "<|call|>",
};
