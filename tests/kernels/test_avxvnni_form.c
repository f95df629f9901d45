/* The AVX-VNNI kernels where there is no AVX-VNNI: the same source, with the instructions that are
 * new in their EVEX form, through the gates of every variant.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/registry/registry.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/moe_ffn/moe_gate.h"

#if defined(__clang__)
#pragma clang attribute push(                                                           \
    __attribute__((target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,bmi2,avx512f,avx512bw,avx512vl,avx512vnni")
#endif
#define KT_DPBUSD256 "vpdpbusd"
#include "kernels/p64/p64_avxvnni.h"

#define KT_DOT_WIDE 1
#include "kernels/p64/p64_units.h"
#include "kernels/simd/swiglu_avx2.h"
#define KT_DPWSSD256 "vpdpwssd"
#include "kernels/attn/attn_words_int8.h"
#include "kernels/attn/words_vnni.h"
#include "tests/support/attn_form.h"
#include "tests/support/skip.h"

static void gemm_w4g32(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_w4g32_avxvnni, &walk);
}

static void gemm_w8c(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_w8c_avxvnni, &walk);
}

static void gemm_blocks(const kt_gemm_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gemm(call, kt_tile_blocks, &walk);
}

static void gate_up_w8c(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_gate_up_rows(call, kt_tile_w8c_avxvnni, kt_swiglu_a8_avx2, &walk);
}

static void attn_words(const kt_attn_call *call) {
    kt_attn_walk(call, &inner);
}

static void down_w8c(const kt_moe_call *call) {
    _Alignas(64) float tile[KT_BLOCK_ROWS * 64];
    const kt_walk walk = {.block = KT_BLOCK_ROWS, .tile = tile};
    kt_p64_down_rows(call, kt_tile_w8c_avxvnni, &walk);
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

extern const kt_variant kt_variant_w4g32_a8_p64__avxvnni, kt_variant_w8c_a8_p64__avxvnni;
extern const kt_variant kt_variant_w8c_a8_moe64__avxvnni, kt_variant_wblocks_a8_p64__avxvnni;
extern const kt_variant kt_variant_int_words__avxvnni;

/* AVX-512 VNNI runs VPDPBUSD where the VEX form is absent. */
static void skip_without_vnni(void) {
    kt_skip_without_isa(KT_ISA_AVX512VNNI, "VPDPBUSD");
}

static void check(const kt_variant *v, kt_weight_format weights) {
    static const int64_t shapes[][2] = {{65, 32}, {64, 96}, {130, 288}, {17, 768}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 66};
    const int64_t multiple = kt_p64_k_multiple(weights);
    const kt_config config = {{0}};
    kt_err err = {0};

    skip_without_vnni();
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
            kt_problem q = {.op = v->op,
                            .weights = weights,
                            .acts = KT_A_INT8_G32,
                            .m = rows[i],
                            .n = shapes[s][0],
                            .k = shapes[s][1]};
            kt_status st;
            q.k = (q.k + multiple - 1) / multiple * multiple;
            if (v->op == KT_OP_MOE_FFN) q.n = 32 * (q.n / 32 + 1);
            st = v->op == KT_OP_GEMM ? kt_gemm_gate(v, &config, &q, s + 1, NULL, &err)
                                     : kt_moe_gate(v, &config, &q, s + 1, NULL, &err);
            cr_assert_eq(st, KT_OK, "%s", err.message);
        }
}

Test(avxvnni_form, gemm_of_int4_groups) {
    kt_variant v = kt_variant_w4g32_a8_p64__avxvnni;
    v.gemm = gemm_w4g32;
    check(&v, KT_W_INT4_G32);
}

Test(avxvnni_form, gemm_of_int8_channels) {
    kt_variant v = kt_variant_w8c_a8_p64__avxvnni;
    v.gemm = gemm_w8c;
    check(&v, KT_W_INT8_CHANNEL);
}

Test(avxvnni_form, gemm_of_every_block_format) {
    kt_variant v = kt_variant_wblocks_a8_p64__avxvnni;
    int formats = 0;
    v.gemm = gemm_blocks;
    for (int w = 1; w < KT_W_COUNT; w++) {
        if (!(v.weights >> w & 1)) continue;
        check(&v, (kt_weight_format)w);
        formats++;
    }
    cr_assert_eq(formats, 30);
}

Test(avxvnni_form, fused_expert_of_int8_channels) {
    kt_variant v = kt_variant_w8c_a8_moe64__avxvnni;
    v.moe_gate_up = gate_up_w8c;
    v.moe_down = down_w8c;
    check(&v, KT_W_INT8_CHANNEL);
}

Test(avxvnni_form, attention_over_int8) {
    skip_without_vnni();
    kt_expect_attn_form(&kt_variant_int_words__avxvnni, attn_words, KT_W_INT8_CHANNEL);
}

/* What the gates above cannot show: that the real ones stay away from a CPU without AVX-VNNI. */
Test(avxvnni_form, cpus_without_it_refuse_every_variant) {
    kt_registry *r;
    size_t refused = 0;

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    KT_ISA_SCALAR | KT_ISA_AVX2, &r, NULL),
                 KT_OK);
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (strstr(kt_builtin_variants[i]->name, "__avxvnni"))
            cr_expect_null(kt_registry_find(r, kt_builtin_variants[i]->name));
    for (size_t i = 0; i < kt_registry_refused_count(r); i++) {
        const char *reason;
        if (!strstr(kt_registry_refused_at(r, i, &reason)->name, "__avxvnni")) continue;
        cr_expect(strstr(reason, "avxvnni"), "%s", reason);
        refused++;
    }
    cr_expect_geq(refused, 7u, "%zu variants", refused);
    kt_registry_destroy(r);
}
