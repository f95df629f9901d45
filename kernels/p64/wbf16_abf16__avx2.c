/* BF16 weights x BF16 activations on AVX2 and FMA, sums in f32. Blocks of k and the sums
 * in registers: floats256.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/floats256.h"
#include "kernels/simd/swiglu_avx2.h"

/* A pair of weights is two f32 by shift and mask. */
KT_INLINE void kt_widen_pairs(const uint8_t *panel, int pairs, float *out) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    for (int p = 0; p < pairs; p++, panel += 256, out += 32)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            _mm256_store_ps(out + 8 * c, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
            _mm256_store_ps(out + 16 + 8 * c, _mm256_castsi256_ps(_mm256_and_si256(v, high)));
        }
}

#define KT_BF16_AHEAD 8192 /* bytes of a panel that few rows ask for before: a block of k */

/* A few rows widen weights as they come: `rows` by `columns` sums over one block of k. One row
 * reads the panel in order of memory, which hardware prefetchers follow; more read a line in
 * four, and each pass asks for its share of the lines ahead. */
KT_INLINE void kt_direct_bf16(const kt_bf16_block *b, const uint8_t *panel, const char *ahead,
                              const int rows, const int columns) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256 sum[4][8];

    KT_EACH (r, rows) {
        KT_EACH (c, columns) sum[r][c] = _mm256_load_ps(b->out + 64 * r + 8 * c);
    }
    for (int j = 0; j < b->k; j += 2, panel += 256, ahead += 32 * columns) {
        __m256 x[4];
        const int at = kt_bf16_at(j);
        if (rows > 1) _mm_prefetch(ahead, _MM_HINT_T0);
        KT_EACH (r, rows) x[r] = _mm256_broadcast_ss(&b->a[r][at]);
        KT_EACH (c, columns) {
            const __m256i even = _mm256_slli_epi32(kt_v_load(panel + 32 * c), 16);
            KT_EACH (r, rows) {
                sum[r][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(even), x[r], sum[r][c]);
            }
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) x[r] = _mm256_broadcast_ss(&b->a[r][at + 8]);
        KT_EACH (c, columns) {
            const __m256i odd = _mm256_and_si256(kt_v_load(panel + 32 * c), high);
            KT_EACH (r, rows) {
                sum[r][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(odd), x[r], sum[r][c]);
            }
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, columns) _mm256_store_ps(b->out + 64 * r + 8 * c, sum[r][c]);
    }
}

/* All 64 panel rows. One row has eight sums, whose chains cover the latency of FMA; more rows go
 * by one line of each pair of inputs: with two rows memory takes longer than their four chains. */
static inline void kt_few_rows_bf16(kt_bf16_block b, const uint8_t *panel, int rows) {
    float *out = b.out;
    for (; rows > 0; rows -= 4, b.a += 4, out += 4 * 64) {
        const int columns = rows == 1 ? 8 : 2;
        for (int c = 0; c < 8; c += columns) {
            const uint8_t *w = panel + 32 * c;
            const char *ahead = (const char *)panel + KT_BF16_AHEAD + 16 * b.k * c;
            b.out = out + 8 * c;
            switch (rows) {
            case 1: kt_direct_bf16(&b, w, ahead, 1, 8); break;
            case 2: kt_direct_bf16(&b, w, ahead, 2, 2); break;
            case 3: kt_direct_bf16(&b, w, ahead, 3, 2); break;
            default: kt_direct_bf16(&b, w, ahead, 4, 2); break;
            }
        }
    }
}

static inline void kt_tile_wbf16_avx2(const kt_p64_tile *t) {
    _Alignas(64) float a[KT_BF16_BLOCK][KT_BF16_K], w[KT_BF16_K * 16];

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += KT_BF16_K) {
        const int length = t->k - k < KT_BF16_K ? (int)(t->k - k) : KT_BF16_K;
        const uint8_t *panel = t->panel + 128 * k;
        kt_bf16_block block = {w, (const float(*)[KT_BF16_K])a, t->tile, length};

        kt_fetch_next(t, panel, 128 * length);
        kt_widen_acts(t, k, length, a);
        if (t->rows < KT_BF16_WIDEN) {
            kt_few_rows_bf16(block, panel, t->rows);
            continue;
        }
        for (int slice = 0; slice < 4; slice++, block.out += 16) {
            kt_fetch_acts(t, k + KT_BF16_K, slice);
            kt_widen_pairs(panel + 64 * slice, length / 2, w);
            kt_rows_bf16(block, t->rows);
        }
    }
}

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_wbf16_avx2, KT_BF16_BLOCK, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_wbf16_avx2, kt_swiglu_abf16_avx2, KT_BF16_BLOCK, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_wbf16_avx2, KT_BF16_BLOCK, NULL);
}

KT_P64_KERNEL(wbf16_abf16, avx2, 5, 6, .weights = 1u << KT_W_BF16, .acts = 1u << KT_A_BF16,
              .isa = KT_ISA_AVX2, .numerics = KT_NUM_F32, .bits = "bf16-fma", .rank = 1,
              .accepts = kt_p64_accepts);
