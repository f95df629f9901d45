/* Stable names of the dispatch vocabulary. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kt/problem.h"

static const char *const op_names[KT_OP_COUNT] = {"moe_ffn", "gemm",   "attn",   "norm",
                                                  "rope",    "router", "encode", "probe",
                                                  "conv",    "delta",  "index"};
#define NAME(id, name) [KT_W_##id] = #name,
static const char *const weight_names[KT_W_COUNT] = {"none", KT_WEIGHT_FORMATS(NAME)};
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
