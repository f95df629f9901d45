/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/option_words.h"

#include <ctype.h>
#include <string.h>

#include "runtime/model/node_plan.h"

/* The second and later names are those kt-kernel and llama.cpp users bring along. */
static const struct {
    const char *name;
    kt_quant quant;
} formats[] = {
    {"native", KT_QUANT_NATIVE},
    {"bf16", KT_QUANT_BF16},
    {"int8", KT_QUANT_INT8},
    {"int4", KT_QUANT_INT4},
    {"BF16", KT_QUANT_BF16},
    {"AMXINT8", KT_QUANT_INT8},
    {"AMXINT4", KT_QUANT_INT4},
    {"MOE_INT8", KT_QUANT_INT8},
    {"RAWINT4", KT_QUANT_NATIVE},
    {"fp8", KT_QUANT_FORMAT + KT_W_FP8_B128},
    {"FP8", KT_QUANT_FORMAT + KT_W_FP8_B128},
    {"FP8_PERCHANNEL", KT_QUANT_FORMAT + KT_W_FP8_CHANNEL},
};

/* Any other format by its name, with or without the "w": w4g64, f16, q4_k or Q4_K. */
int kt_quant_parse(const char *name) {
    char lower[16] = "w";
    size_t n = strlen(name);
    int format;

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0) return (int)formats[i].quant;
    if (n + 2 > sizeof lower) return -1;
    for (size_t i = 0; i <= n; i++) lower[1 + i] = (char)tolower((unsigned char)name[i]);
    format = kt_weight_format_parse(lower[1] == 'w' ? lower + 1 : lower);
    return format > KT_W_NONE && format != KT_W_F32 ? (int)KT_QUANT_FORMAT + format : -1;
}

/* Behind our own three: what SGLang, vLLM and llama.cpp call the nearest of them. */
static const struct {
    const char *name;
    kt_weight_format format;
} caches[] = {{"bf16", KT_W_BF16},
              {"fp8", KT_W_FP8_CHANNEL},
              {"int8", KT_W_INT8_CHANNEL},
              {"auto", KT_W_BF16},
              {"bfloat16", KT_W_BF16},
              {"f16", KT_W_BF16},
              {"fp8_e4m3", KT_W_FP8_CHANNEL},
              {"q8_0", KT_W_INT8_CHANNEL}};

kt_weight_format kt_kv_parse(const char *name) {
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        if (strcmp(caches[i].name, name) == 0) return caches[i].format;
    return KT_W_NONE;
}

const char *kt_kv_name(kt_weight_format format) {
    for (size_t i = 0; i < sizeof caches / sizeof *caches; i++)
        if (caches[i].format == format) return caches[i].name;
    return "unknown";
}

int kt_numa_parse(const char *word) {
    int n = 0;

    if (strcmp(word, "auto") == 0) return KT_NUMA_AUTO;
    if (strcmp(word, "off") == 0) return KT_NUMA_OFF;
    if (strlen(word) > 2 || word[strspn(word, "0123456789")]) return -1;
    for (; *word; word++) n = 10 * n + (*word - '0');
    return n >= 2 && n <= KT_MOE_MAX_NODES ? n : -1;
}
