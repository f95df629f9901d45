/* bfloat16 weights times bfloat16 activations with f32 multiply-adds on AVX-512. Six rows and all
 * 64 panel rows take 24 accumulators, whose chains cover the latency of the instruction; the pairs
 * of a lane: bf16x512.h, many rows: floats512.h, the order of work: p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/floats512.h"

/* Two inputs; the even product is added before the odd one. */
KT_INLINE void kt_fmabf16_pair(const uint8_t *w, const uint8_t *const a[], int64_t j,
                               const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    __m512 x, u[4];

    KT_IN_ORDER();
    KT_EACH (c, 4) u[c] = kt_bf16_even512(_mm512_load_si512(w + 64 * c));
    KT_EACH (r, rows) {
        x = kt_bf16_even512(_mm512_set1_epi32(kt_load_i32(a[r] + 2 * j)));
        KT_EACH (c, 4) sum[r][c] = _mm512_fmadd_ps(u[c], x, sum[r][c]);
    }
    KT_IN_ORDER();
    KT_EACH (c, 4) u[c] = kt_bf16_odd512(_mm512_load_si512(w + 64 * c));
    KT_EACH (r, rows) {
        x = kt_bf16_odd512(_mm512_set1_epi32(kt_load_i32(a[r] + 2 * j)));
        KT_EACH (c, 4) sum[r][c] = _mm512_fmadd_ps(u[c], x, sum[r][c]);
    }
}

KT_INLINE void kt_tile_fmabf16(kt_tile *t, const int rows) {
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < t->k; i += KT_TILE_STEP) {
        kt_tile_lines next = {0, 0, 0};
        if (rows <= 3)
            next = kt_tile_fetch_slowly(t, 128 * KT_TILE_STEP);
        else
            kt_tile_fetch(t);
        if (!next.at) {
            for (int64_t j = i; j < i + KT_TILE_STEP; j += 2, w += 256)
                kt_fmabf16_pair(w, a, j, rows, sum);
            continue;
        }
        for (int64_t j = i; j < i + KT_TILE_STEP; j += 2, w += 256) {
            kt_tile_fetch_lines(&next, 4);
            kt_fmabf16_pair(w, a, j, rows, sum);
        }
    }
    kt_tile_store(t, rows, sum);
}

static inline void kt_tile_fmabf16_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_fmabf16(t, 1); return;
    case 2: kt_tile_fmabf16(t, 2); return;
    case 3: kt_tile_fmabf16(t, 3); return;
    case 4: kt_tile_fmabf16(t, 4); return;
    case 5: kt_tile_fmabf16(t, 5); return;
    default: kt_tile_fmabf16(t, 6); return;
    }
}

static __attribute__((noinline)) void tile(kt_tile *t, kt_floats *x, int row, int rows) {
    KT_FLOATS_ROWS(kt_floats_tile_bf16, t, x, row)
}

static void many_rows(kt_tile *t) {
    kt_floats_many_bf16(t, tile);
}

static const kt_tile_kind kind = {kt_tile_fmabf16_run, KT_W_BF16, 6, many_rows, 0, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const int32_t many[] = {0, 32, 64};
static const kt_param params[] = {
    {"rows", rows, 3, 6}, {"prefetch", prefetch, 6, 0}, {"many", many, 3, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_BF16);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL(wbf16_abf16, avx512, 5, 4, .weights = 1u << KT_W_BF16, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX512, .numerics = KT_NUM_F32, .bits = "bf16-fma", .rank = 1,
              .params = params, .n_params = 3, .accepts = kt_p64_accepts);
