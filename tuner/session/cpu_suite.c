/* The suite "cpu": expert layers of every format, from one row per expert to 128, with the bars that this
 * project sets itself. SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/suite.h"

/* Qwen3-30B-A3B; and DeepSeek-V3's experts, of which 32 are enough to keep every call cold. */
#define QWEN .hidden = 2048, .intermediate = 768, .experts = 128, .topk = 8
#define DEEPSEEK .hidden = 7168, .intermediate = 2048, .experts = 32, .topk = 8

#define DECODE(text, format, limit) \
    { #text "_decode", format, KT_OF_STREAM, QWEN, .m = 1, .bar = limit }

static const kt_suite_spec specs[] = {
    DECODE(int4_g32, KT_W_INT4_G32, 0.92),
    {"int4_g32_decode_deepseek", KT_W_INT4_G32, KT_OF_STREAM, DEEPSEEK, .m = 1, .bar = 0.92},
    DECODE(int8, KT_W_INT8_CHANNEL, 0.95),
    DECODE(fp8_block, KT_W_FP8_B128, 0.95),
    DECODE(fp8_channel, KT_W_FP8_CHANNEL, 0.95),
    DECODE(bf16, KT_W_BF16, 0.95),
    DECODE(q4_0, KT_W_Q4_0, 0.85),
    DECODE(q4_1, KT_W_Q4_1, 0.85),
    DECODE(q5_0, KT_W_Q5_0, 0.85),
    DECODE(q5_1, KT_W_Q5_1, 0.85),
    DECODE(q4_k, KT_W_Q4_K, 0.85),
    DECODE(q5_k, KT_W_Q5_K, 0.85),
    DECODE(q6_k, KT_W_Q6_K, 0.85),
    DECODE(iq4_nl, KT_W_IQ4_NL, 0.85),
    DECODE(iq4_xs, KT_W_IQ4_XS, 0.85),
    DECODE(mxfp4, KT_W_MXFP4, 0.85),
    {"int4_g32_4rows", KT_W_INT4_G32, KT_OF_ROOFLINE, QWEN, .spread_tokens = 64, .bar = 0.75},
    {"int4_g32_32rows", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .spread_tokens = 512, .bar = 0.78},
    {"int8_32rows", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .spread_tokens = 512, .bar = 0.85},
    {"int4_g32_128rows", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.88},
    {"int8_128rows", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.93},
    {"bf16_128rows", KT_W_BF16, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.95},
    {"fp8_block_128rows", KT_W_FP8_B128, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.90},
    {"fp8_channel_128rows", KT_W_FP8_CHANNEL, KT_OF_PEAK, QWEN, .m = 128, .bar = 0.90},
};

const kt_suite kt_suite_cpu = {
    .name = "cpu",
    .about = "expert layers of Qwen3-30B-A3B (2048 x 768, 8 of 128) and DeepSeek-V3 (7168 x 2048)",
    .specs = specs,
    .n_specs = sizeof specs / sizeof *specs,
    .seconds_per_row = 2,
};
