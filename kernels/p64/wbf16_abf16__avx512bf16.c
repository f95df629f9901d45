/* bfloat16 weights times bfloat16 activations on AVX-512 BF16. Six rows and all 64 panel rows take
 * 24 accumulators, whose chains cover the latency of the instruction; the pairs of a lane:
 * bf16x512.h, the order of work: p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/simd/bf16x512.h"
#include "kernels/p64/p64_ops512.h"

KT_INLINE void kt_tile_dpbf16(kt_tile *t, const int rows) {
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < t->k; i += KT_TILE_STEP) {
        kt_tile_fetch(t);
        /* A stream: lines ascend, one load instruction for each column (one row, Zen 4: 0.98 of the read
         * stream becomes 1.0). Accumulators that fill the registers want longer runs. */
        if (rows <= 3) {
            KT_ROLLED for (int64_t j = i; j < i + KT_TILE_STEP; j += 2, w += 256) {
                __m512i u[4];
                KT_EACH (c, 4) {
                    KT_IN_ORDER();
                    u[c] = _mm512_load_si512(w + 64 * c);
                }
                KT_EACH (r, rows) {
                    __m512i x = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * j));
                    KT_EACH (c, 4) sum[r][c] = kt_dpbf16_512(sum[r][c], u[c], x);
                }
            }
            continue;
        }
        for (int64_t j = i; j < i + KT_TILE_STEP; j += 8, w += 1024) {
            KT_EACH (p, 4) {
                __m512i u[4];
                KT_IN_ORDER();
                KT_EACH (c, 4) u[c] = _mm512_load_si512(w + 256 * p + 64 * c);
                KT_EACH (r, rows) {
                    __m512i x = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * j + 4 * p));
                    KT_EACH (c, 4) sum[r][c] = kt_dpbf16_512(sum[r][c], u[c], x);
                }
            }
        }
    }
    kt_tile_store(t, rows, sum);
}

static inline void kt_tile_dpbf16_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_dpbf16(t, 1); return;
    case 2: kt_tile_dpbf16(t, 2); return;
    case 3: kt_tile_dpbf16(t, 3); return;
    case 4: kt_tile_dpbf16(t, 4); return;
    case 5: kt_tile_dpbf16(t, 5); return;
    default: kt_tile_dpbf16(t, 6); return;
    }
}

static const kt_tile_kind kind = {kt_tile_dpbf16_run, KT_W_BF16, 6, NULL, 0, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const kt_param params[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 6, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(wbf16_abf16, avx512bf16, 6, 4, .weights = 1u << KT_W_BF16, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX512BF16, .numerics = KT_NUM_BF16_F32, .bits = "bf16-dot", .rank = 1,
              .params = params, .n_params = 2, .accepts = kt_p64_accepts);
