/* INT8 products summed by float additions of denormals: the same bits as integer additions, whatever the
 * program does with denormals, and its mode is left as it was. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kernels/formats/gate_inputs.h"
#include "kernels/formats/p64.h"
#include "tests/support/skip.h"

extern const kt_variant kt_variant_w8c_a8_p64__avx2, kt_variant_w8c_a8_p64__avx512;

enum {
    N = 100,
    K = 416,
    M = 77
}; /* a panel and a part; 13 groups; a block, three micro kernels, one row */

static void same_bits(const kt_variant *v, unsigned mode) {
    const kt_problem q = {.op = KT_OP_GEMM,
                          .weights = KT_W_INT8_CHANNEL,
                          .acts = KT_A_INT8_G32,
                          .m = M,
                          .n = N,
                          .k = K};
    static float out[2][M * N];
    kt_gate_matrix w;
    kt_gate_acts a;
    kt_err err;
    unsigned before = _mm_getcsr(), after;

    kt_skip_without_isa(v->isa, v->name);
    cr_assert_eq(kt_gate_matrix_create(q.weights, N, K, 7, &w, &err), KT_OK);
    cr_assert_eq(kt_gate_acts_create(q.acts, M, K, 7, &a, &err), KT_OK);
    void *packed = aligned_alloc(64, (v->packed_bytes(&q) + 63) / 64 * 64);
    cr_assert_not_null(packed);
    v->pack_gemm(&q, &w.matrix, packed);
    for (int floats = 0; floats < 2; floats++) {
        const kt_config config = {.value = {floats}};
        const kt_gemm_call call = {.problem = &q,
                                   .config = &config,
                                   .weights = packed,
                                   .a = a.rows.data,
                                   .a_stride = a.stride,
                                   .m = M,
                                   .panel_end = kt_p64_panels(N),
                                   .c = out[floats],
                                   .ldc = N};
        _mm_setcsr(mode);
        v->gemm(&call);
        after = _mm_getcsr();
        _mm_setcsr(before);
        cr_expect_eq(after & 0xffc0u, mode & 0xffc0u, "%s: mode %x became %x", v->name, mode,
                     after);
    }
    cr_expect_eq(memcmp(out[0], out[1], sizeof out[0]), 0, "%s, mode %x", v->name, mode);
    free(packed);
    kt_gate_matrix_destroy(&w);
    kt_gate_acts_destroy(&a);
}

/* What the kernels rest on: a float without exponent is its bits times 2^-149, and sums of those are exact. */
Test(float_adds, denormals_add_like_integers) {
    uint32_t seed = 1;
    for (int i = 0; i < 100000; i++) {
        uint32_t x = (seed = seed * 1664525 + 1013904223) >> 10;
        uint32_t y = (seed = seed * 1664525 + 1013904223) >> 10;
        float fx, fy, sum;
        uint32_t bits;
        memcpy(&fx, &x, sizeof fx);
        memcpy(&fy, &y, sizeof fy);
        sum = fx + fy;
        memcpy(&bits, &sum, sizeof bits);
        cr_assert_eq(bits, x + y, "%u + %u gave %u", x, y, bits);
    }
}

#define TEST_BITS(isa)                                             \
    Test(float_adds, bits_of_integer_adds_##isa) {                 \
        same_bits(&kt_variant_w8c_a8_p64__##isa, 0x1f80);          \
    }                                                              \
    /* 0x8040: denormal results and operands are zero. */          \
    Test(float_adds, where_denormals_are_flushed_##isa) {          \
        same_bits(&kt_variant_w8c_a8_p64__##isa, 0x1f80 | 0x8040); \
    }
TEST_BITS(avx2)
TEST_BITS(avx512)
