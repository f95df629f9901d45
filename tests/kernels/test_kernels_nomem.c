/* Gates, their inputs and the self-tests of libraries with every allocation failing once: what
 * kernels themselves need is given to them. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <string.h>

#include "base/cpu.h"
#include "dispatch/registry/registry.h"
#include "kernels/attn/attn_gate.h"
#include "kernels/encode/encode_gate.h"
#include "kernels/formats/format.h"
#include "kernels/gemm/aocl.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/indexer/index_gate.h"
#include "kernels/linattn/conv_gate.h"
#include "kernels/linattn/delta_gate.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "kernels/norm/norm_gate.h"
#include "kernels/rope/rope_gate.h"
#include "kernels/router/router_gate.h"
#include "tests/support/nomem.h"

static kt_status make_matrix(void *out, const void *with, kt_err *err) {
    return kt_gate_matrix_create(*(const kt_weight_format *)with, 96, 256, 7, out, err);
}
static void unmake_matrix(void *out) {
    kt_gate_matrix_destroy(out);
}

Test(kernels_nomem, a_matrix_of_any_format_is_whole_or_none) {
    for (kt_weight_format format = KT_W_NONE + 1; format < KT_W_COUNT; format++) {
        const kt_nomem_case c = {.function = "kt_gate_matrix_create",
                                 .make = make_matrix,
                                 .unmake = unmake_matrix,
                                 .with = &format,
                                 .out_bytes = sizeof(kt_gate_matrix),
                                 .says = "memory"};
        kt_nomem_check(&c);
    }
}

static kt_status make_acts(void *out, const void *with, kt_err *err) {
    return kt_gate_acts_create(*(const kt_act_format *)with, 9, 256, 7, out, err);
}
static void unmake_acts(void *out) {
    kt_gate_acts_destroy(out);
}

Test(kernels_nomem, activations_of_any_encoding_are_whole_or_none) {
    for (kt_act_format format = KT_A_NONE + 1; format < KT_A_COUNT; format++) {
        const kt_nomem_case c = {.function = "kt_gate_acts_create",
                                 .make = make_acts,
                                 .unmake = unmake_acts,
                                 .with = &format,
                                 .out_bytes = sizeof(kt_gate_acts),
                                 .says = "memory"};
        kt_nomem_check(&c);
    }
}

static const kt_problem gemm_problem = {
    .op = KT_OP_GEMM, .weights = KT_W_FP8_B128, .acts = KT_A_BF16, .m = 5, .n = 96, .k = 256};
static const kt_problem moe_problem = {.op = KT_OP_MOE_FFN,
                                       .weights = KT_W_FP8_B128,
                                       .acts = KT_A_BF16,
                                       .m = 3,
                                       .n = 128,
                                       .k = 128,
                                       .experts = 4,
                                       .topk = 2};

static kt_status make_gemm_case(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_gemm_case_create(&gemm_problem, 3, out, err);
}
static void unmake_gemm_case(void *out) {
    kt_gemm_case_destroy(*(kt_gemm_case **)out);
}

static kt_status make_moe_case(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_moe_case_create(&moe_problem, 3, out, err);
}
static void unmake_moe_case(void *out) {
    kt_moe_case_destroy(*(kt_moe_case **)out);
}

Test(kernels_nomem, cases_of_gates_are_whole_or_none) {
    kt_nomem_case c = {.function = "kt_gemm_case_create",
                       .make = make_gemm_case,
                       .unmake = unmake_gemm_case,
                       .out_bytes = sizeof(void *),
                       .says = "memory"};
    kt_nomem_check(&c);
    c.function = "kt_moe_case_create", c.make = make_moe_case, c.unmake = unmake_moe_case;
    kt_nomem_check(&c);
}

typedef struct gate {
    kt_status (*check)(const kt_variant *, const kt_config *, const kt_problem *, uint64_t,
                       kt_gate_report *, kt_err *);
    const char *name;
    kt_problem problem;
} gate;

static const gate gates[] = {
    {kt_gemm_gate,
     "kt_gemm_gate",
     {.op = KT_OP_GEMM, .weights = KT_W_FP8_B128, .acts = KT_A_BF16, .m = 3, .n = 96, .k = 256}},
    {kt_moe_gate,
     "kt_moe_gate",
     {.op = KT_OP_MOE_FFN,
      .weights = KT_W_FP8_B128,
      .acts = KT_A_BF16,
      .m = 3,
      .n = 128,
      .k = 128,
      .experts = 4,
      .topk = 2}},
    {kt_attn_gate,
     "kt_attn_gate",
     {.op = KT_OP_ATTN,
      .weights = KT_W_BF16,
      .m = 2,
      .n = 4,
      .k = 64,
      .kv_heads = 2,
      .context = 70}},
    {kt_norm_gate, "kt_norm_gate", {.op = KT_OP_NORM, .m = 2, .n = 1, .k = 128}},
    {kt_rope_gate, "kt_rope_gate", {.op = KT_OP_ROPE, .m = 2, .n = 4, .k = 64}},
    {kt_router_gate,
     "kt_router_gate",
     {.op = KT_OP_ROUTER, .weights = KT_W_F32, .m = 2, .n = 16, .k = 128, .topk = 4}},
    {kt_encode_gate,
     "kt_encode_gate",
     {.op = KT_OP_ENCODE, .acts = KT_A_INT8_G32, .m = 2, .n = 1, .k = 128}},
    {kt_conv_gate, "kt_conv_gate", {.op = KT_OP_CONV, .m = 2, .n = 16, .k = 4}},
    {kt_index_gate, "kt_index_gate", {.op = KT_OP_INDEX, .m = 2, .n = 2, .k = 32, .context = 3}},
    {kt_delta_gate,
     "kt_delta_gate",
     {.op = KT_OP_DELTA, .m = 2, .n = 2, .k = 16, .kv_heads = 1, .v = 16}},
};

/* The first plain variant that takes the problem. */
static const kt_variant *variant_of(const gate *g, kt_config *config) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        memset(config, 0, sizeof *config);
        for (int p = 0; p < v->n_params; p++) config->value[p] = v->params[p].initial;
        if (v->isa != 0 || v->op != g->problem.op || v->usable) continue;
        if (kt_variant_accepts(v, &g->problem, config, NULL) == KT_OK) return v;
    }
    return NULL;
}

static kt_status pass(void *out, const void *with, kt_err *err) {
    const gate *g = with;
    kt_config config;
    const kt_variant *v = variant_of(g, &config);

    (void)out;
    cr_assert_not_null(v, "no plain variant for %s", g->name);
    return g->check(v, &config, &g->problem, 1, NULL, err);
}

Test(kernels_nomem, a_gate_without_memory_passes_nothing) {
    for (size_t i = 0; i < sizeof gates / sizeof *gates; i++) {
        const kt_nomem_case c = {
            .function = gates[i].name, .make = pass, .with = &gates[i], .says = "memory"};
        kt_nomem_check(&c);
    }
}

/* A library that cannot be tried is refused with the reason, and can be tried again. */
static kt_status try_library(void *out, const void *with, kt_err *err) {
    const kt_variant *v = with;
    (void)out;
    return v->usable(err);
}

Test(kernels_nomem, libraries_are_refused_when_they_cannot_be_tried) {
    int tried = 0;

    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        const long before = kt_nomem_held();
        kt_err why = {KT_OK, ""};
        bool did_fail;

        /* LIBXSMM is linked in, so its own allocations would fail and count too. */
        if (strstr(v->name, "libxsmm")) continue;
        if (!v->usable || (v->isa & ~kt_isa_available()) || v->usable(&why) != KT_OK) continue;
        kt_nomem_after(0);
        did_fail = try_library(NULL, v, &why) != KT_OK;
        cr_assert_eq(did_fail, kt_nomem_failed(), "%s: %s", v->name, why.message);
        cr_assert(!did_fail || strstr(why.message, "memory"), "%s: %s", v->name, why.message);
        cr_assert_eq(v->usable(&why), KT_OK, "%s: %s", v->name, why.message);
        cr_assert_eq(kt_nomem_held(), before, "%s", v->name);
        tried += did_fail;
    }
    if (!tried) cr_skip_test("no library of this build needs memory for its self-test here");
}
