/* The suite "line": the shortest statement of how good the expert kernels are.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/suite.h"

/* Qwen3-30B-A3B */
#define QWEN .hidden = 2048, .intermediate = 768, .experts = 128, .topk = 8

/* 512 tokens are 32 rows per expert. */
static const kt_suite_spec specs[] = {
    {"int4_g32_decode_of_stream", KT_W_INT4_G32, KT_OF_STREAM, QWEN, .m = 1, .bar = 0.85},
    {"int8_32rows_of_peak", KT_W_INT8_CHANNEL, KT_OF_PEAK, QWEN, .spread_tokens = 512, .bar = 0.60},
    {"int8_decode_of_stream", KT_W_INT8_CHANNEL, KT_OF_STREAM, QWEN, .m = 1},
    {"bf16_decode_of_stream", KT_W_BF16, KT_OF_STREAM, QWEN, .m = 1},
    {"int4_g32_32rows_of_peak", KT_W_INT4_G32, KT_OF_PEAK, QWEN, .spread_tokens = 512},
    {"bf16_32rows_of_peak", KT_W_BF16, KT_OF_PEAK, QWEN, .spread_tokens = 512},
};

const kt_suite kt_suite_line = {
    .name = "line",
    .about = "Qwen3-30B-A3B experts (2048 x 768, 8 of 128), cold weights",
    .specs = specs,
    .n_specs = sizeof specs / sizeof *specs,
    .seconds_per_row = 2,
};
