/* INT4 in groups of 32, 64 and 128 times a8p activations on AVX-512 VNNI, for many rows: each panel
 * is rounded once more to 8 bits (kernels/formats/requant8.h), and the tile multiplies those. The
 * order of work is that of p64_ops512.h.
 *
 * An exact tile of INT4 in groups of 32 spends one FMA on every eight VPDPBUSD, on the same ports:
 * 8/9 of the peak at best, and its third role of registers leaves four rows of 32 outputs. Here a
 * panel is widened once per call into scratch that stays in L2, at about nine instructions per 64
 * weights; its tile is that of w8c, six rows, with one FMA on every 64. What widening costs falls
 * with the rows; from where it pays is for the planner to know, and below KT_R8_LEAST_ROWS it
 * never does.
 *
 * Row sums stay in registers through all blocks of 256 inputs, in units of the present block's
 * step: between two blocks they are multiplied by the ratio of their steps, at the end by the last
 * step. That is as many roundings as adding scaled blocks to memory, without the memory (Zen 4,
 * panel in L2: 0.93 of the peak with it, 0.97 without). Ratios are kept below 2^32 by the larger
 * step that requant8.h allows: a sum overflows only where sum |a| is over 2^88, and a block of
 * zeros costs nothing. In the order of k, so that a row's bits do not depend on the rows beside
 * it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/formats/requant8.h"
#include "kernels/p64/biased512.h"
#include "kernels/p64/p64_kernel.h"

#define KT_R8_LEAST_ROWS 16

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

/* Steps and, between blocks, what sums are multiplied with: per block and 64 rows, float factor of scales, then
 * float multiplier. Maxima keep NaN: their second operand. */
KT_INLINE void kt_r8_steps(const kt_p64_spec s, const uint8_t *scales, int64_t k, uint8_t *out) {
    const size_t run_bytes = kt_p64_run_bytes(s);
    __m512 least = _mm512_set1_ps(0x1p-119f), before = least, row = _mm512_setzero_ps();
    uint8_t *at = out;

    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, at += 512) {
        const int groups = kt_r8_groups(s, k, i);
        const __m512 largest = kt_r8_largest(scales, run_bytes, groups);
        scales += (size_t)groups * run_bytes;
        row = _mm512_max_ps(row, largest);
        _mm512_store_ps(at, largest);
    }
    row = _mm512_mul_ps(row, _mm512_set1_ps(KT_R8_RANGE));
    least = _mm512_max_ps(_mm512_mul_ps(least, _mm512_set1_ps(127.0f)), row);
    for (at = out; at < out + 512 * kt_r8_blocks(k); at += 512) {
        const __m512 largest = _mm512_max_ps(least, _mm512_load_ps(at));
        const __m512 step = _mm512_div_ps(largest, _mm512_set1_ps(127.0f));
        _mm512_store_ps(at, _mm512_div_ps(_mm512_set1_ps(32512.0f), largest));
        if (at > out) _mm512_store_ps(at - 256, _mm512_div_ps(before, step));
        _mm512_store_ps(at + 256, step);
        before = step;
    }
}

/* A line of codes: quad j from the low halves of its bytes, 4 + j from the high ones. Products are 16-bit
 * words, of even and of odd bytes; the result is their high byte. */
KT_INLINE void kt_r8_line(__m512i x, __m512i ratio, __m512i base, uint8_t *low, uint8_t *high) {
    const __m512i code = _mm512_set1_epi16(15);
    const __m512i take = /* the high byte of each word, to its low byte */
        _mm512_set4_epi32(0x0f0f0d0d, 0x0b0b0909, 0x07070505, 0x03030101);
    const __mmask64 even = 0x5555555555555555u;
    __m512i e = _mm512_and_si512(x, code);
    __m512i o = _mm512_and_si512(_mm512_srli_epi16(x, 8), code);

    e = _mm512_add_epi16(_mm512_mullo_epi16(e, ratio), base);
    o = _mm512_add_epi16(_mm512_mullo_epi16(o, ratio), base);
    _mm512_store_si512(low, _mm512_mask_shuffle_epi8(o, even, e, take));
    e = _mm512_and_si512(_mm512_srli_epi16(x, 4), code);
    o = _mm512_srli_epi16(x, 12);
    e = _mm512_add_epi16(_mm512_mullo_epi16(e, ratio), base);
    o = _mm512_add_epi16(_mm512_mullo_epi16(o, ratio), base);
    _mm512_store_si512(high, _mm512_mask_shuffle_epi8(o, even, e, take));
}

/* kt_r8_panel for symmetric 4-bit formats with bfloat16 scales; after the bytes come kt_r8_steps. */
KT_INLINE void kt_r8_widen(const kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *out) {
    const size_t run_bytes = kt_p64_run_bytes(s), plane_bytes = kt_p64_plane_bytes(s);
    const size_t scales_at = (size_t)(s.group / 32) * plane_bytes;
    const __m512i twice = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    const uint8_t *steps = out + 64 * k;

    KT_ROLLED for (int c = 0; c < 4; c++)
        kt_r8_steps(s, panel + scales_at + 32 * c, k, out + 64 * k + 64 * c);
    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, steps += 512) {
        const int groups = kt_r8_groups(s, k, i);
        KT_ROLLED for (int c = 0; c < 4; c++) {
            const uint8_t *w = panel + 64 * c, *scales = panel + scales_at + 32 * c;
            uint8_t *to = out + 64 * c;
            const __m512 factor = _mm512_load_ps(steps + 64 * c);
            KT_ROLLED for (int g = 0; g < groups; g++, w += run_bytes, scales += run_bytes) {
                const __m512 r = _mm512_mul_ps(kt_load_bf16x16(scales), factor);
                const __m512i ratio = _mm512_shuffle_epi8(_mm512_cvtps_epi32(r), twice);
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

KT_INLINE void kt_r8_next_block(const uint8_t *steps, const int rows, const int cols,
                                __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (c, cols) {
        KT_EACH (r, rows) {
            KT_IN_ORDER(); /* from memory each time: gcc 12 spills a register that holds it */
            sum[r][c] = _mm512_mul_ps(sum[r][c], _mm512_load_ps(steps + 64 * c));
        }
    }
}

/* A whole block is unrolled: loops of eight steps that end eight times a row cost 2 %. Not for one or two rows, which
 * no plan has: of that many accesses to its array of sums clang 14 loses track. */
KT_INLINE void kt_tile_r8(kt_tile *tile, const int rows, const int cols, const int col) {
    const kt_p64_spec s = {.low = 8, .values = KT_P64_LINEAR, .offset = 128};
    const int inputs = rows >= 3 ? KT_R8_BLOCK : 32; /* of a turn */
    const int64_t k = tile->k;
    const uint8_t *w = tile->scratch + 64 * col, *steps = tile->scratch + 64 * (k + 4 + col);
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    int64_t i = 0;

    KT_EACH (r, rows) {
        a[r] = tile->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    while (i + inputs <= k) {
        KT_EACH (u, inputs / 32) {
            kt_tile_fetch_far(tile);
            kt_biased_32(s, a, k, i, w, rows, cols, 0, NULL, 0, sum);
            i += 32, w += KT_P64_CODES8_BYTES;
        }
        if (inputs < KT_R8_BLOCK && i % KT_R8_BLOCK) continue;
        kt_r8_next_block(steps, rows, cols, sum);
        steps += 512;
    }
    if (k % KT_R8_BLOCK) {
        for (; i < k; i += 32, w += KT_P64_CODES8_BYTES) {
            kt_tile_fetch_far(tile);
            kt_biased_32(s, a, k, i, w, rows, cols, 0, NULL, 0, sum);
        }
        kt_r8_next_block(steps, rows, cols, sum);
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
    }
}

static inline void kt_tile_r8_rows(kt_tile *t) {
    for (int col = 0; col < 4; col += 2) {
        switch (t->rows) {
        case 1: kt_tile_r8(t, 1, 2, col); break;
        case 2: kt_tile_r8(t, 2, 2, col); break;
        case 3: kt_tile_r8(t, 3, 2, col); break;
        case 4: kt_tile_r8(t, 4, 2, col); break;
        case 5: kt_tile_r8(t, 5, 2, col); break;
        default: kt_tile_r8(t, 6, 2, col); break;
        }
    }
}

/* A tile of one format, which widens each panel when it first meets it: KT_R8_TILE(INT4_G32, w4g32)
 * defines run_w4g32. All tiles share the multiplying part. */
#define KT_R8_TILE(id, word)                                                    \
    static void run_##word(kt_tile *t) {                                        \
        if (t->opened != t->panel)                                              \
            kt_r8_widen(kt_p64_spec_of(KT_W_##id), t->panel, t->k, t->scratch); \
        t->opened = t->panel;                                                   \
        multiply(t);                                                            \
    }
/* Two passes for every block of rows, few as they may be. */
#define KT_R8_KIND(id, word) \
    { run_##word, KT_W_##id, 0, NULL, 0 }

/* Scratch of a panel: bytes, then two floats for each row and block. */
static inline size_t kt_r8_scratch_bytes(int64_t k) {
    return 64 * (size_t)k + 512 * (size_t)kt_r8_blocks(k);
}

static inline kt_status kt_r8_accepts(const kt_problem *problem, const kt_config *config,
                                      kt_err *why) {
    if (problem->m < KT_R8_LEAST_ROWS)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "m=%lld: fewer than %d rows do not pay for widening a panel",
                       (long long)problem->m, KT_R8_LEAST_ROWS);
    return kt_p64_accepts(problem, config, why);
}

/* One copy of the multiplying loops for all formats. */
static __attribute__((noinline)) void multiply(kt_tile *t) {
    kt_tile_r8_rows(t);
}

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

/* One widened panel, of an expert's longer half. */
static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    const bool is_expert = problem->op == KT_OP_MOE_FFN;

    (void)config;
    return kt_r8_scratch_bytes(is_expert && problem->n > problem->k ? problem->n : problem->k);
}

KT_P64_KERNEL(w4groups_a8p_r8, avx512vnni, 3, 4,
              .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128,
              .acts = 1u << KT_A_INT8_G16P2, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_REQUANT,
              .bits = "a8p-requant", .rank = 1, .params = params, .n_params = 1,
              .accepts = kt_r8_accepts, .workspace_bytes = workspace_bytes);
