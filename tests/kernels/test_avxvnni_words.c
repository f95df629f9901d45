/* Attention over a BF16 cache by VPDPWSSD where there is no AVX-VNNI: its EVEX form, through the
 * gate (as test_avxvnni_form.c does it for the other kernels).
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "base/cpu.h"

#if defined(__clang__)
#pragma clang attribute push(                                                      \
    __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni"))), \
    apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512vnni")
#endif
#define KT_DPWSSD256 "vpdpwssd"
#include "kernels/attn/attn_words_bf16.h"
#include "kernels/attn/words_vnni.h"

static void attn_words(const kt_attn_call *call) {
    kt_attn_walk(call, &inner);
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#include "tests/support/attn_form.h"
#include "tests/support/skip.h"

extern const kt_variant kt_variant_bf16_words__avxvnni, kt_variant_bf16_words__avx2;

Test(avxvnni_words, attention_over_bf16) {
    kt_skip_without_isa(KT_ISA_AVX512VNNI, "VPDPWSSD");
    kt_expect_attn_form(&kt_variant_bf16_words__avxvnni, attn_words, KT_W_BF16);
}

/* What --deterministic goes by. */
Test(avxvnni_words, has_the_bits_of_another_instruction) {
    cr_expect_str_eq(kt_variant_bf16_words__avxvnni.bits, kt_variant_bf16_words__avx2.bits);
    cr_expect_neq(kt_variant_bf16_words__avxvnni.isa, kt_variant_bf16_words__avx2.isa);
}
