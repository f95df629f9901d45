/* F16 and FP8 weights x BF16 activations on AVX2 and FMA, sums in f32: widened to f32 for any number
 * of rows. Blocks of k and the sums in registers: floats256.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/floats256.h"
#include "kernels/simd/swiglu_avx2.h"

/* `pairs` pairs of inputs of 16 panel rows -> f32 [k][16]. */
KT_INLINE void kt_widen_f16(const uint8_t *panel, int pairs, float *out) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    for (int p = 0; p < pairs; p++, panel += 256, out += 32)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            /* The pack works per 128-bit lane; the permutation gathers even, then odd inputs. */
            const __m256i both = _mm256_permute4x64_epi64(
                _mm256_packus_epi32(_mm256_and_si256(v, low), _mm256_srli_epi32(v, 16)), 0xd8);
            _mm256_store_ps(out + 8 * c, _mm256_cvtph_ps(_mm256_castsi256_si128(both)));
            _mm256_store_ps(out + 16 + 8 * c, _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1)));
        }
}

/* Eight words with an E4M3 code in the high byte -> f32. Shifted right by one arithmetically, sign and
 * exponent lie where half precision has them, 2^8 too small; denormals come out right too. The one
 * magnitude that is not a number, 127, is put in by hand. */
KT_INLINE __m256 kt_f8_to_float(__m128i words) {
    const __m128i magnitude = _mm_and_si128(words, _mm_set1_epi16(0x7f00));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
    const __m128i half = _mm_and_si128(_mm_srai_epi16(words, 1), _mm_set1_epi16((short)0xbf80));
    const __m128i safe = _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), is_nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(safe), _mm256_set1_ps(256.0f));
}

/* `quads` four inputs of 16 panel rows -> f32 [k][16], times scale. Sixteen bytes hold four rows: two
 * inputs of each, then their next two. */
KT_INLINE void kt_widen_f8(const uint8_t *panel, int quads, float scale, float *out) {
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, -1, 2, -1, 4, -1, 6, -1, 1, -1, 3, -1, 5, -1, 7));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 8, -1, 10, -1, 12, -1, 14, -1, 9, -1, 11, -1, 13, -1, 15));
    const __m256 factor = _mm256_set1_ps(scale);

    for (int p = 0; p < quads; p++, panel += 256, out += 64)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            for (int h = 0; h < 2; h++) {
                const __m256i words =
                    _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, h ? second : first), 0xd8);
                float *to = out + 32 * h + 8 * c;
                _mm256_store_ps(
                    to, _mm256_mul_ps(kt_f8_to_float(_mm256_castsi256_si128(words)), factor));
                _mm256_store_ps(
                    to + 16,
                    _mm256_mul_ps(kt_f8_to_float(_mm256_extracti128_si256(words, 1)), factor));
            }
        }
}

/* Inputs [k, k + length) of a slice. A block lies within one scale of FP8 in blocks of 128. */
KT_INLINE void kt_widen_slice(const kt_p64_tile *t, int64_t k, int length, int slice, float *w) {
    float scale = 1.0f;
    if (t->weights == KT_W_F16) {
        kt_widen_f16(t->panel + 128 * k + 64 * slice, length / 2, w);
        return;
    }
    if (t->weights == KT_W_FP8_B128)
        memcpy(&scale, t->panel + 64 * t->k + 4 * (k / 128 * 2 + slice / 2), sizeof scale);
    kt_widen_f8(t->panel + 64 * k + 64 * slice, length / 4, scale, w);
}

static inline void kt_tile_wfloat_avx2(const kt_p64_tile *t) {
    _Alignas(64) float a[KT_BF16_BLOCK][KT_BF16_K], w[KT_BF16_K * 16];

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += KT_BF16_K) {
        const int length = t->k - k < KT_BF16_K ? (int)(t->k - k) : KT_BF16_K;
        const int bytes = t->weights == KT_W_F16 ? 128 : 64;
        kt_bf16_block block = {w, (const float(*)[KT_BF16_K])a, t->tile, length};

        kt_fetch_next(t, t->panel + bytes * k, bytes * length);
        kt_widen_acts(t, k, length, a);
        for (int slice = 0; slice < 4; slice++, block.out += 16) {
            kt_fetch_acts(t, k + KT_BF16_K, slice);
            kt_widen_slice(t, k, length, slice, w);
            kt_rows_bf16(block, t->rows);
        }
    }
    if (t->weights == KT_W_FP8_CHANNEL) kt_scale_channels(t);
}

static void gemm(const kt_gemm_call *call) {
    kt_rows_gemm(call, kt_tile_wfloat_avx2, KT_BF16_BLOCK, NULL);
}

static void gate_up(const kt_moe_call *call) {
    kt_rows_gate_up(call, kt_tile_wfloat_avx2, kt_swiglu_abf16_avx2, KT_BF16_BLOCK, NULL);
}

static void down(const kt_moe_call *call) {
    kt_rows_down(call, kt_tile_wfloat_avx2, KT_BF16_BLOCK, NULL);
}

KT_P64_KERNEL(wfloat_abf16, avx2, 3, 4,
              .weights = 1u << KT_W_F16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL,
              .acts = 1u << KT_A_BF16, .isa = KT_ISA_AVX2, .numerics = KT_NUM_F32,
              .bits = "float-fma", .rank = 1, .accepts = kt_p64_accepts);
