/* The ways of marking reasoning, the most telling evidence first.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/chat/reasoning.h"

static const char *const seed_names[] = {"seed-oss", 0};
static const char *const mistral_names[] = {"magistral", 0};
static const char *const think_names[] = {
    "qwen3",      "qwen3-thinking", "deepseek-r1", "deepseek-v3", "deepseek-v31", "deepseek-v4",
    "glm45",      "glm47",          "glm",         "kimi-k2",     "minimax",      "minimax-m2",
    "minimax-m1", "nano-v3",        "step3",       "granite",     "smollm3",      0};
static const char *const harmony_names[] = {"gpt-oss", "openai", "openai-gptoss", 0};
static const char *const harmony_families[] = {"gpt_oss", 0};
static const char *const append_names[] = {"minimax-m2-append-think", 0};
static const char *const think_families[] = {"qwen3_moe",   "qwen3_next",
                                             "deepseek_v3", "deepseek_v32",
                                             "deepseek_v4", "qwen3_5_moe",
                                             "glm4_moe",    "glm4_moe_lite",
                                             "glm_moe_dsa", "minimax_m2",
                                             "minimax_m3",  "kimi_k2",
                                             "kimi_k25",    0};

const kt_reasoning kt_reasonings[] = {
    {.name = "harmony",
     .aliases = harmony_names,
     .families = harmony_families,
     .evidence = "<|channel|>analysis<|message|>",
     .channels = &kt_channels_harmony},
    {.name = "seed_oss",
     .aliases = seed_names,
     .evidence = "<seed:think>",
     .begin = "<seed:think>",
     .end = "</seed:think>"},
    {.name = "mistral",
     .aliases = mistral_names,
     .evidence = "[THINK]",
     .begin = "[THINK]",
     .end = "[/THINK]"},
    {.name = "think",
     .aliases = think_names,
     .families = think_families,
     .evidence = "</think>",
     .begin = "<think>",
     .end = "</think>"},
    {.name = "minimax-append-think",
     .aliases = append_names,
     .begin = "<think>",
     .end = "</think>",
     .stays_in_text = true},
};
const size_t kt_reasoning_count = sizeof kt_reasonings / sizeof *kt_reasonings;
