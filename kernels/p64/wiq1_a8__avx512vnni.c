/* IQ1_S and IQ1_M times int8 activations on AVX-512 VNNI: points are looked up one by one, by codes
 * (formats/iq1.h), in a table of words.
 *
 * One or two rows multiply a line of points while the same line of the next unit is looked up: loads
 * and what gathers them run beside vectors, and words are read back a unit later, when their stores
 * are done. Nothing of a block but that is held in L1, where the table takes 16 KiB. More rows open a
 * block first. Tiles and order of sums: points512.h, blocks512.h, blocks512_tiles.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/iq1_512.h"
#include "kernels/p64/points512.h"

/* Codes of a unit's points and words of two units', [4][64 rows]. */
typedef struct point_words {
    _Alignas(64) uint32_t of[2][4][64];
    _Alignas(64) uint16_t code[4][64];
} point_words;

/* 32 codes, half a line of points p. */
KT_INLINE __m512i codes_of(const uint8_t *lines, const int p, const int half) {
    const __m256i *key = (const void *)(lines + 64 * p + 32 * half);
    const __m256i *rank = (const void *)(lines + KT_IQ1_RANKS + p / 2 * 64 + 32 * half);
    const __m512i keys = _mm512_slli_epi16(_mm512_cvtepu8_epi16(_mm256_load_si256(key)), 4);
    __m512i ranks = _mm512_cvtepu8_epi16(_mm256_load_si256(rank));

    if (p % 2) ranks = _mm512_srli_epi16(ranks, 4);
    return _mm512_ternarylogic_epi32(ranks, _mm512_set1_epi16(15), keys, 0xea); /* a & b | c */
}

/* All codes of a unit, and then words of points p of 64 rows: a code that is read back at once waits
 * for its store. Gathers take longer on Zen 4. */
KT_INLINE void put_codes(const uint8_t *lines, uint16_t code[4][64]) {
    KT_EACH (p, 4) {
        KT_EACH (half, 2) _mm512_store_si512(code[p] + 32 * half, codes_of(lines, p, half));
    }
}

KT_INLINE void look_up(const uint16_t code[64], uint32_t word[64]) {
    KT_EACH (i, 8) { /* kt_iq1_place: two rows a column */
        const uint16_t *at = code + 8 * i;
        KT_EACH (c, 4) {
            const uint64_t low = kt_iq1_words[at[2 * c]];
            const uint64_t both = (uint64_t)kt_iq1_words[at[2 * c + 1]] << 32 | low;
            memcpy(word + 16 * c + 2 * i, &both, sizeof both); /* a store for two */
            KT_IN_ORDER();                                     /* or the compiler gathers */
        }
    }
}

/* --- a few rows ------------------------------------------------------------------------------- */

/* The lines of the unit behind unit u, of the next block at a block's end; NULL behind the last. */
KT_INLINE const uint8_t *next_lines(const kt_p64_spec s, const kt_blocks_chunk *x, int u) {
    if (u + 1 < KT_CHUNK_UNITS) return x->w + kt_blocks_planes_at(s, u + 1);
    if (x->i + s.span == x->k) return NULL;
    return x->w + kt_p64_block_bytes(s) + kt_blocks_planes_at(s, 0);
}

/* kt_points_dot; words: point_words, of which the first unit of a panel begins. */
KT_INLINE void dot_unit(const kt_p64_spec s, void *words, const kt_blocks_chunk *x,
                        const uint8_t *const a[], int u, const int rows, kt_blocks_dots dot) {
    const kt_iq1_unit unit = kt_iq1_unit512(s, x->w, u);
    const uint8_t *next = next_lines(s, x, u);
    const int quads = 8 / kt_blocks_halves(s);
    point_words *w = words;
    __m512i above[4];

    if (x->i == 0 && u == 0) {
        put_codes(unit.lines, w->code);
        KT_EACH (p, 4) look_up(w->code[p], w->of[0][p]);
    }
    if (next) put_codes(next, w->code);
    KT_EACH (p, 4) {
        const uint32_t *word = w->of[u % 2][p];
        if (next) look_up(w->code[p], w->of[(u + 1) % 2][p]);
        if (p == 0 || s.group == 16)
            KT_EACH (c, 4) above[c] = kt_iq1_above512(s, &unit, p, c);
        KT_EACH (h, 2) {
            __m512i v[4];
            KT_IN_ORDER();
            KT_EACH (c, 4) {
                v[c] = _mm512_load_si512(word + 16 * c);
                if (h) v[c] = _mm512_srli_epi32(v[c], 2);
                v[c] = kt_iq1_bytes512(v[c], above[c]);
            }
            kt_blocks_multiply(a, 32 * u + 8 * p + 4 * h, (2 * p + h) / quads, rows, 4, v, dot);
        }
    }
}

/* --- many rows -------------------------------------------------------------------------------- */

/* Words of a unit's points to its quads: point p to quads 2 p and 2 p + 1. */
KT_INLINE void put(const kt_p64_spec s, const kt_iq1_unit *unit, const uint32_t word[4][64],
                   uint8_t codes[8][256]) {
    KT_EACH (p, 4) {
        KT_EACH (c, 4) {
            const __m512i above = kt_iq1_above512(s, unit, p, c);
            const __m512i w = _mm512_load_si512(word[p] + 16 * c);
            _mm512_store_si512(codes[2 * p] + 64 * c, kt_iq1_bytes512(w, above));
            _mm512_store_si512(codes[2 * p + 1] + 64 * c,
                               kt_iq1_bytes512(_mm512_srli_epi32(w, 2), above));
        }
    }
}

/* The opener of kt_tile_blocks_many. */
KT_INLINE void open_block(const kt_p64_spec s, const uint8_t *block, kt_blocks_open *x) {
    point_words w;

    put_codes(kt_iq1_unit512(s, block, 0).lines, w.code);
    KT_EACH (p, 4) look_up(w.code[p], w.of[0][p]);
    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        const kt_iq1_unit unit = kt_iq1_unit512(s, block, u),
                          next = kt_iq1_unit512(s, block, u + 1);
        if (u + 1 < KT_CHUNK_UNITS) {
            put_codes(next.lines, w.code);
            KT_EACH (p, 4) look_up(w.code[p], w.of[(u + 1) % 2][p]);
        }
        put(s, &unit, w.of[u % 2], x->codes[u]);
        kt_blocks_open_scales(s, block, u, x);
    }
}

#define TILES(id, word)                                                              \
    static void run_##word(kt_tile *t) {                                             \
        point_words w;                                                               \
        kt_tile_points_run(t, kt_p64_spec_of(KT_W_##id), &w, dot_unit);              \
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

KT_P64_KERNEL(wiq1_a8, avx512vnni, 3, 3, .weights = KT_W_BIT(KT_W_IQ1_S) | KT_W_BIT(KT_W_IQ1_M),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
