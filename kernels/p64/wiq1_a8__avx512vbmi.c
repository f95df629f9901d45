/* IQ1_S and IQ1_M times int8 activations on AVX-512 VBMI and VNNI: codes of points are taken apart
 * (formats/iq1.h) 64 at a time.
 *
 *   look up   a key's first digits and its window by VPERMI2B in two tables of 256; the last digits,
 *             at the window plus the rank, in a table of 128.
 *   spread    VPMULTISHIFTQB moves four digits of two bits, of two rows a qword, to bits 3 and 4 of
 *             eight bytes; VPTERNLOGD keeps these and puts twos to rows above.
 *
 * One or two rows multiply the bytes as they are made, more open a block in L1 first: points512.h,
 * whose order of sums it is, and blocks512_tiles.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/grids_open512.h"
#include "kernels/p64/iq1_512.h"
#include "kernels/p64/points512.h"

KT_INLINE __m512i look_up256(const uint8_t table[256], __m512i index) {
    const __m512i t[4] = {_mm512_load_si512(table), _mm512_load_si512(table + 64),
                          _mm512_load_si512(table + 128), _mm512_load_si512(table + 192)};
    return kt_grid_look_up256(t, index, _mm512_movepi8_mask(index));
}

/* Digits of the first four inputs and of the others, of 64 rows' points p. */
KT_INLINE void digits_of(const uint8_t *lines, const int p, __m512i digits[2]) {
    const __m512i key = _mm512_load_si512(lines + 64 * p);
    __m512i at = _mm512_load_si512(lines + KT_IQ1_RANKS + p / 2 * 64);

    if (p % 2) at = _mm512_srli_epi16(at, 4);
    at = _mm512_and_si512(at, _mm512_set1_epi8(15));
    at = _mm512_add_epi8(at, look_up256(kt_iq1_at, key));
    digits[0] = look_up256(kt_iq1_first, key);
    digits[1] = _mm512_permutex2var_epi8(_mm512_load_si512(kt_iq1_last), at,
                                         _mm512_load_si512(kt_iq1_last + 64));
}

/* Column c of them. */
KT_INLINE __m512i bytes_of(__m512i digits, __m512i above, const int c) {
    const __m512i lowest = _mm512_set1_epi64(0x0e0c0a0806040200 + c * 0x1010101010101010);
    const __m512i offset = _mm512_sub_epi8(lowest, _mm512_set1_epi8(3)); /* taken modulo 64 */
    return kt_iq1_bytes512(_mm512_multishift_epi64_epi8(offset, digits), above);
}

KT_INLINE void dot_unit(const kt_p64_spec s, void *words, const kt_blocks_chunk *x,
                        const uint8_t *const a[], int u, const int rows, kt_blocks_dots dot) {
    const kt_iq1_unit unit = kt_iq1_unit512(s, x->w, u);
    const int quads = 8 / kt_blocks_halves(s);
    __m512i above[4];

    (void)words;
    KT_EACH (p, 4) {
        __m512i digits[2], v[4];
        digits_of(unit.lines, p, digits);
        if (p == 0 || s.group == 16)
            KT_EACH (c, 4) above[c] = kt_iq1_above512(s, &unit, p, c);
        KT_EACH (h, 2) {
            KT_IN_ORDER();
            KT_EACH (c, 4) v[c] = bytes_of(digits[h], above[c], c);
            kt_blocks_multiply(a, 32 * u + 8 * p + 4 * h, (2 * p + h) / quads, rows, 4, v, dot);
        }
    }
}

/* The opener of kt_tile_blocks_many. */
KT_INLINE void open_block(const kt_p64_spec s, const uint8_t *w, kt_blocks_open *x) {
    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        const kt_iq1_unit unit = kt_iq1_unit512(s, w, u);
        KT_EACH (p, 4) {
            __m512i digits[2];
            digits_of(unit.lines, p, digits);
            KT_EACH (c, 4) {
                const __m512i above = kt_iq1_above512(s, &unit, p, c);
                KT_EACH (h, 2)
                    _mm512_store_si512(x->codes[u][2 * p + h] + 64 * c,
                                       bytes_of(digits[h], above, c));
            }
        }
        kt_blocks_open_scales(s, w, u, x);
    }
}

#define TILES(id, word)                                                              \
    static void run_##word(kt_tile *t) {                                             \
        kt_tile_points_run(t, kt_p64_spec_of(KT_W_##id), NULL, dot_unit);            \
    }                                                                                \
    KT_BLOCKS_MICRO(id, word)                                                        \
    static void many_##word(kt_tile *t) {                                            \
        kt_tile_blocks_many(t, kt_p64_spec_of(KT_W_##id), open_block, micro_##word); \
    }

TILES(IQ1_S, iq1_s)
TILES(IQ1_M, iq1_m)

static const kt_tile_kind kinds[] = {KT_BLOCKS_KIND_MANY(IQ1_S, iq1_s, 2),
                                     KT_BLOCKS_KIND_MANY(IQ1_M, iq1_m, 2)};

static const int32_t rows[] = {2};
static const int32_t prefetch[] = {0, 4096};
static const int32_t many[] = {3};
static const kt_param params[] = {
    {"rows", rows, 1, 2}, {"prefetch", prefetch, 2, 4096}, {"many", many, 1, 3}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(wiq1_a8, avx512vbmi, 1, 1, .weights = KT_W_BIT(KT_W_IQ1_S) | KT_W_BIT(KT_W_IQ1_M),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512VNNI,
              .numerics = KT_NUM_EXACT_INT32, .bits = "a8-blocks512", .rank = 1, .params = params,
              .n_params = 3, .accepts = kt_p64_accepts);
