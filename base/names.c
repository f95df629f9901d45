/* Stable names of the dispatch vocabulary. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kt/problem.h"

static const char *const op_names[KT_OP_COUNT] = {"moe_ffn", "gemm",   "attn",   "norm",
                                                  "rope",    "router", "encode", "probe",
                                                  "conv",    "delta",  "index"};
static const char *const weight_names[KT_W_COUNT] = {
    "none",     "wbf16",   "w8c",     "w4g32",  "wf32",    "wf16",     "w4g64",   "w4g128",
    "w4zg32",   "w4zg64",  "w4zg128", "w8g128", "wf8b128", "wf8c",     "wq4_0",   "wq4_1",
    "wq5_0",    "wq5_1",   "wq8_0",   "wq2_k",  "wq3_k",   "wq4_k",    "wq5_k",   "wq6_k",
    "wiq4_nl",  "wiq4_xs", "wmxfp4",  "w8g16m", "wmxfp8",  "wiq2_xxs", "wiq2_xs", "wiq2_s",
    "wiq3_xxs", "wiq3_s",  "wnvfp4",  "wtq2_0", "wtq1_0",  "wiq1_s",   "wiq1_m"};
_Static_assert(KT_W_COUNT < 64, "variants hold weight formats as bits of a uint64_t");
static const char *const act_names[KT_A_COUNT] = {"none", "abf16", "a8", "af32", "a8p"};
static const char *const ffn_act_names[KT_FFN_ACT_COUNT] = {"swiglu", "swiglu_clamped"};

static const char *name_of(const char *const *names, size_t count, size_t i) {
    return i < count ? names[i] : "unknown";
}

static int parse(const char *const *names, int count, const char *name) {
    for (int i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

const char *kt_op_name(kt_op op) {
    return name_of(op_names, KT_OP_COUNT, (size_t)op);
}
int kt_op_parse(const char *name) {
    return parse(op_names, KT_OP_COUNT, name);
}
const char *kt_weight_format_name(kt_weight_format format) {
    return name_of(weight_names, KT_W_COUNT, (size_t)format);
}
int kt_weight_format_parse(const char *name) {
    return parse(weight_names, KT_W_COUNT, name);
}
const char *kt_act_format_name(kt_act_format format) {
    return name_of(act_names, KT_A_COUNT, (size_t)format);
}
int kt_act_format_parse(const char *name) {
    return parse(act_names, KT_A_COUNT, name);
}
const char *kt_ffn_act_name(kt_ffn_act act) {
    return name_of(ffn_act_names, KT_FFN_ACT_COUNT, (size_t)act);
}
int kt_ffn_act_parse(const char *name) {
    return parse(ffn_act_names, KT_FFN_ACT_COUNT, name);
}
