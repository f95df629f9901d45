/* INT4 in groups of 32, 64 and 128 times a8p activations on AVX-512 VNNI, for many rows: each panel
 * is rounded once more to 8 bits (kernels/formats/requant8.h), and the tile multiplies those. The
 * order of work is that of p64_ops512.h.
 *
 * An exact tile of INT4 in groups of 32 spends one FMA on every eight VPDPBUSD, on the same ports:
 * 8/9 of the peak at best, and its third role of registers leaves four rows of 32 outputs. Here a
 * panel is widened once per call into scratch that stays in L2, at about nine instructions per 64
 * weights; its tile is that of w8c, six rows, with one multiplication on every 64.
 *
 * What kernels of this kind share is in requant512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/biased512.h"
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/requant512.h"

/* --- widening -------------------------------------------------------------------------------- */

/* The largest weight of 16 panel rows in a block of `groups` groups. */
KT_INLINE __m512 kt_r8_largest(const uint8_t *scales, size_t run_bytes, int groups) {
    __m256i top = _mm256_setzero_si256();

    for (int g = 0; g < groups; g++) { /* magnitudes order like integers, NaN on top */
        const __m256i s =
            _mm256_load_si256((const __m256i *)(const void *)(scales + g * run_bytes));
        top = _mm256_max_epu16(top, _mm256_and_si256(s, _mm256_set1_epi16(0x7fff)));
    }
    const __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(top), 16);
    return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(8.0f));
}

KT_INLINE int kt_r8_groups(const kt_p64_spec s, int64_t k, int64_t i) {
    return (k - i < KT_R8_BLOCK ? (int)(k - i) : KT_R8_BLOCK) / s.group;
}

/* Of 16 panel rows. */
KT_INLINE void kt_r8_group_steps(const kt_p64_spec s, const uint8_t *scales, int64_t k,
                                 uint8_t *out) {
    const size_t run_bytes = kt_p64_run_bytes(s);
    __m512 row = _mm512_setzero_ps();
    uint8_t *at = out;

    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, at += KT_R8_STEP_BYTES) {
        const int groups = kt_r8_groups(s, k, i);
        const __m512 largest = kt_r8_largest(scales, run_bytes, groups);
        scales += (size_t)groups * run_bytes;
        row = _mm512_max_ps(row, largest);
        _mm512_store_ps(at, largest);
    }
    kt_r8_steps(out, kt_r8_blocks(k), row);
}

/* A line of codes: quad j from the low halves of its bytes, 4 + j from the high ones. Products are 16-bit
 * words, of even and of odd bytes; the result is their high byte. */
KT_INLINE void kt_r8_line(__m512i x, __m512i ratio, __m512i base, uint8_t *low, uint8_t *high) {
    const __m512i code = _mm512_set1_epi16(15);
    __m512i e = _mm512_and_si512(x, code);
    __m512i o = _mm512_and_si512(_mm512_srli_epi16(x, 8), code);

    e = _mm512_add_epi16(_mm512_mullo_epi16(e, ratio), base);
    o = _mm512_add_epi16(_mm512_mullo_epi16(o, ratio), base);
    _mm512_store_si512(low, kt_r8_bytes(e, o));
    e = _mm512_and_si512(_mm512_srli_epi16(x, 4), code);
    o = _mm512_srli_epi16(x, 12);
    e = _mm512_add_epi16(_mm512_mullo_epi16(e, ratio), base);
    o = _mm512_add_epi16(_mm512_mullo_epi16(o, ratio), base);
    _mm512_store_si512(high, kt_r8_bytes(e, o));
}

/* kt_r8_panel for symmetric 4-bit formats with bfloat16 scales; after the bytes come kt_r8_steps. */
KT_INLINE void widen(const kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *out) {
    const size_t run_bytes = kt_p64_run_bytes(s), plane_bytes = kt_p64_plane_bytes(s);
    const size_t scales_at = (size_t)(s.group / 32) * plane_bytes;
    const uint8_t *steps = out + 64 * k;

    KT_ROLLED for (int c = 0; c < 4; c++)
        kt_r8_group_steps(s, panel + scales_at + 32 * c, k, out + 64 * k + 64 * c);
    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, steps += KT_R8_STEP_BYTES) {
        const int groups = kt_r8_groups(s, k, i);
        KT_ROLLED for (int c = 0; c < 4; c++) {
            const uint8_t *w = panel + 64 * c, *scales = panel + scales_at + 32 * c;
            uint8_t *to = out + 64 * c;
            const __m512 factor = _mm512_load_ps(steps + 64 * c);
            KT_ROLLED for (int g = 0; g < groups; g++, w += run_bytes, scales += run_bytes) {
                const __m512 r = _mm512_mul_ps(kt_load_bf16x16(scales), factor);
                const __m512i ratio = kt_r8_words(r);
                const __m512i base = _mm512_sub_epi16(_mm512_set1_epi16((int16_t)(128 * 256 + 128)),
                                                      _mm512_slli_epi16(ratio, 3));
                KT_EACH (part, s.group / 32) {
                    KT_EACH (j, 4) {
                        const __m512i x = _mm512_load_si512(w + part * plane_bytes + 256 * j);
                        kt_r8_line(x, ratio, base, to + 256 * j, to + 256 * (4 + j));
                    }
                    to += KT_P64_CODES8_BYTES;
                }
            }
        }
        panel += (size_t)groups * run_bytes;
        out += 64 * KT_R8_BLOCK;
    }
}

/* --- the tile -------------------------------------------------------------------------------- */

KT_INLINE void kt_tile_r8(kt_tile *tile, const int rows, const int cols, const int col) {
    const int64_t k = tile->k;
    const uint8_t *w = tile->scratch + 64 * col, *steps = tile->scratch + 64 * (k + 4 + col);
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = tile->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, w += 64 * KT_R8_BLOCK, steps += KT_R8_STEP_BYTES) {
        const int64_t end = k - i < KT_R8_BLOCK ? k : i + KT_R8_BLOCK;
        kt_biased_columns(tile, a, w, i, end, 1, rows, cols, sum);
        kt_r8_next_block(steps, rows, cols, sum);
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
    }
}

KT_R8_MULTIPLY(kt_tile_r8)

KT_R8_TILE(INT4_G32, w4g32)
KT_R8_TILE(INT4_G64, w4g64)
KT_R8_TILE(INT4_G128, w4g128)

static const kt_tile_kind kinds[] = {
    KT_R8_KIND(INT4_G32, w4g32),
    KT_R8_KIND(INT4_G64, w4g64),
    KT_R8_KIND(INT4_G128, w4g128),
};

static const int32_t rows[] = {4, 6};
static const kt_param params[] = {{"rows", rows, 2, 6}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_INT8_G16P2);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(w4groups_a8p_r8, avx512vnni, 3, 4,
              .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_REQUANT,
              .bits = "a8p-requant", .rank = 1, .params = params, .n_params = 1,
              .accepts = kt_p64_accepts_widened, .workspace_bytes = kt_r8_workspace_bytes);
