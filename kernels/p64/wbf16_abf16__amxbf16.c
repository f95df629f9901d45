/* BF16 weights x BF16 activations on AMX-BF16 by TDPBF16PS. Rows into tiles, and the order of work:
 * p64_amx.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/p64_amx.h"
#include "kernels/simd/swiglu_avx2.h"

/* The sums stay in tiles over all of k, since one product of 32 inputs adds them to what is there:
 * two tile rows by two quarters of the panel need four loads for four products; a single tile row takes
 * all four quarters, so that a few rows read the panel once, in order.
 *
 * Tiles 0 to 3 sums, 4 and 5 activations, 6 and 7 the panel. */
KT_INLINE void kt_amx_two_rows(const kt_p64_tile *t, const kt_amx_rows *x, int b, int c) {
    const int first = kt_amx_first(x, b), second = kt_amx_first(x, b + 1);
    const uint8_t *a = x->base + first * x->stride, *a2 = x->base + second * x->stride;
    const uint8_t *w = t->panel + 64 * c;
    float *out = t->tile + 64 * first + 16 * c, *out2 = t->tile + 64 * second + 16 * c;

    KT_AMX_ZERO(0);
    KT_AMX_ZERO(1);
    KT_AMX_ZERO(2);
    KT_AMX_ZERO(3);
    for (int64_t k = 0; k < t->k; k += 32, a += 64, a2 += 64, w += KT_P64_HALVES_BYTES) {
        KT_AMX_LOAD(4, a, x->stride);
        KT_AMX_LOAD(6, w, 256);
        KT_AMX_DOT_BF16(0, 4, 6);
        KT_AMX_LOAD(7, w + 64, 256);
        KT_AMX_DOT_BF16(1, 4, 7);
        KT_AMX_LOAD(5, a2, x->stride);
        KT_AMX_DOT_BF16(2, 5, 6);
        KT_AMX_DOT_BF16(3, 5, 7);
    }
    KT_AMX_STORE(0, out, 256);
    KT_AMX_STORE(1, out + 16, 256);
    KT_AMX_STORE(2, out2, 256);
    KT_AMX_STORE(3, out2 + 16, 256);
}

KT_INLINE void kt_amx_one_row(const kt_p64_tile *t, const kt_amx_rows *x, int b) {
    const int first = kt_amx_first(x, b);
    const uint8_t *a = x->base + first * x->stride, *w = t->panel;
    float *out = t->tile + 64 * first;

    KT_AMX_ZERO(0);
    KT_AMX_ZERO(1);
    KT_AMX_ZERO(2);
    KT_AMX_ZERO(3);
    for (int64_t k = 0; k < t->k; k += 32, a += 64, w += KT_P64_HALVES_BYTES) {
        KT_AMX_LOAD(4, a, x->stride);
        KT_AMX_LOAD(6, w, 256);
        KT_AMX_DOT_BF16(0, 4, 6);
        KT_AMX_LOAD(7, w + 64, 256);
        KT_AMX_DOT_BF16(1, 4, 7);
        KT_AMX_LOAD(6, w + 128, 256);
        KT_AMX_DOT_BF16(2, 4, 6);
        KT_AMX_LOAD(7, w + 192, 256);
        KT_AMX_DOT_BF16(3, 4, 7);
    }
    KT_AMX_STORE(0, out, 256);
    KT_AMX_STORE(1, out + 16, 256);
    KT_AMX_STORE(2, out + 32, 256);
    KT_AMX_STORE(3, out + 48, 256);
}

static inline void kt_tile_wbf16_amx(const kt_p64_tile *t) {
    const kt_amx_rows x = kt_amx_rows_of(t);
    kt_amx_config config = {.palette = 1};
    int b = 0;

    kt_amx_shape(&config, 0, 5, x.height, 64);
    kt_amx_shape(&config, 6, 7, 16, 64);
    KT_AMX_CONFIGURE(&config);
    for (; b + 2 <= x.tiles; b += 2)
        for (int c = 0; c < 4; c += 2) kt_amx_two_rows(t, &x, b, c);
    if (b < x.tiles) kt_amx_one_row(t, &x, b);
}

static void gemm(const kt_gemm_call *call) {
    kt_amx_gemm(call, kt_tile_wbf16_amx);
}

static void gate_up(const kt_moe_call *call) {
    kt_amx_gate_up(call, kt_tile_wbf16_amx, kt_swiglu_abf16_avx2);
}

static void down(const kt_moe_call *call) {
    kt_amx_down(call, kt_tile_wbf16_amx);
}

KT_P64_KERNEL_APART(wbf16_abf16, amxbf16, (.version = 1),
                    (.version = 2, .workspace_bytes = kt_amx_gather_bytes),
                    .weights = 1u << KT_W_BF16, .acts = 1u << KT_A_BF16,
                    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512VBMI, .numerics = KT_NUM_BF16_F32,
                    .bits = "bf16-tiles", .rank = 1, .accepts = kt_p64_accepts);
