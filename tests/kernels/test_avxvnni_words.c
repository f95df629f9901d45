/* Attention over a BF16 cache by VPDPWSSD where there is no AVX-VNNI: its EVEX form, through the gate (as
 * test_avxvnni_form.c does it for the other kernels). SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "base/cpu.h"
#include "kernels/attn/attn_gate.h"

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
#include "tests/support/skip.h"

extern const kt_variant kt_variant_bf16_words__avxvnni, kt_variant_bf16_words__avx2;

Test(avxvnni_words, attention_over_bf16) {
    static const int64_t heads[][3] = {{8, 2, 128}, {3, 3, 20}, {5, 1, 576}, {12, 2, 68}};
    const kt_config config = {{32}};
    kt_variant v = kt_variant_bf16_words__avxvnni;
    kt_err err = {0};

    kt_skip_without_isa(KT_ISA_AVX512VNNI, "VPDPWSSD");
    v.attn = attn_words;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (uint64_t seed = 1; seed < 5; seed++) {
            const kt_problem q = {.op = KT_OP_ATTN,
                                  .weights = KT_W_BF16,
                                  .m = 1 + 3 * (int64_t)seed,
                                  .n = heads[i][0],
                                  .kv_heads = heads[i][1],
                                  .k = heads[i][2],
                                  .v = i == 2 ? 512 : 0,
                                  .context = 50 + 300 * (int64_t)seed};
            cr_assert_eq(kt_attn_gate(&v, &config, &q, seed, NULL, &err), KT_OK, "%s", err.message);
        }
}

/* What --deterministic goes by. */
Test(avxvnni_words, has_the_bits_of_another_instruction) {
    cr_expect_str_eq(kt_variant_bf16_words__avxvnni.bits, kt_variant_bf16_words__avx2.bits);
    cr_expect_neq(kt_variant_bf16_words__avxvnni.isa, kt_variant_bf16_words__avx2.isa);
}
