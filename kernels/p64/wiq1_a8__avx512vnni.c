/* IQ1_S and IQ1_M (indices into a grid of ternary points) times int8 activations on AVX-512 VNNI. A
 * chunk is opened in L1 for any number of rows: looking points up takes longer than what follows.
 * The tile is explained in kernels/p64/blocks512.h and blocks512_tiles.h, the order of work in
 * p64_ops512.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/iq1_512.h"

/* The words of a unit's points, [4][64 rows]. They are looked up one by one: gathers take longer on
 * Zen 4, and loads run beside what vectors do. Vectors that are put together from them are read a
 * unit later, when the stores are done. */
static inline void look_up(const uint8_t *lines, uint32_t word[256]) {
    _Alignas(64) uint16_t code[256];

    KT_EACH (half, 2) {
        KT_EACH (p, 4) {
            const uint8_t *key = lines + 64 * p + 32 * half;
            const uint8_t *rank = lines + KT_IQ1_RANKS + p / 2 * 64 + 32 * half;
            const __m512i keys =
                _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)(const void *)key));
            __m512i ranks =
                _mm512_cvtepu8_epi16(_mm256_load_si256((const __m256i *)(const void *)rank));
            if (p % 2) ranks = _mm512_srli_epi16(ranks, 4);
            ranks = _mm512_ternarylogic_epi32(ranks, _mm512_set1_epi16(15),
                                              _mm512_slli_epi16(keys, 4), 0xea);
            _mm512_store_si512(code + 64 * p + 32 * half, ranks);
        }
    }
    KT_ROLLED for (int i = 0; i < 32; i += 2) KT_EACH (j, 2) {
        const uint16_t *at = code + 8 * (i + j); /* kt_iq1_place: two rows of each column */
        uint32_t *to = word + i / 8 * 64 + (i % 8 + j) * 2;
        KT_EACH (c, 4) { /* a store for two */
            const uint64_t low = kt_iq1_words[at[2 * c]];
            const uint64_t both = (uint64_t)kt_iq1_words[at[2 * c + 1]] << 32 | low;
            memcpy(to + 16 * c, &both, sizeof both);
            KT_IN_ORDER(); /* or the compiler gathers */
        }
    }
}

/* Words of a unit's points to its quads: point p to quads 2 p and 2 p + 1. */
KT_INLINE void put(const kt_p64_spec s, const kt_iq1_unit *unit, const uint32_t word[256],
                   uint8_t codes[8][256]) {
    KT_EACH (p, 4) {
        KT_EACH (c, 4) {
            const __m512i above = kt_iq1_above512(s, unit, p, c);
            const __m512i w = _mm512_load_si512(word + 64 * p + 16 * c);
            _mm512_store_si512(codes[2 * p] + 64 * c, kt_iq1_bytes512(w, above));
            _mm512_store_si512(codes[2 * p + 1] + 64 * c,
                               kt_iq1_bytes512(_mm512_srli_epi32(w, 2), above));
        }
    }
}

/* The opener of kt_tile_blocks_many. */
KT_INLINE void open_block(const kt_p64_spec s, const uint8_t *w, kt_blocks_open *x) {
    _Alignas(64) uint32_t word[2][256];

    look_up(kt_iq1_unit512(s, w, 0).lines, word[0]);
    KT_ROLLED for (int u = 0; u < KT_CHUNK_UNITS; u++) {
        const kt_iq1_unit unit = kt_iq1_unit512(s, w, u);
        if (u + 1 < KT_CHUNK_UNITS) look_up(kt_iq1_unit512(s, w, u + 1).lines, word[(u + 1) % 2]);
        put(s, &unit, word[u % 2], x->codes[u]);
        kt_blocks_open_scales(s, w, u, x);
    }
}

#define MANY(id, word)                                                               \
    KT_BLOCKS_MICRO(id, word)                                                        \
    static void many_##word(kt_tile *t) {                                            \
        kt_tile_blocks_many(t, kt_p64_spec_of(KT_W_##id), open_block, micro_##word); \
    }

MANY(IQ1_S, iq1_s)
MANY(IQ1_M, iq1_m)

/* Never taken: `many` has every number of rows. */
static void run_none(kt_tile *t) {
    (void)t;
}

static const kt_tile_kind kinds[] = {{run_none, KT_W_IQ1_S, 2, many_iq1_s, 0},
                                     {run_none, KT_W_IQ1_M, 2, many_iq1_m, 0}};

static const int32_t rows[] = {4};
static const int32_t prefetch[] = {0};
static const int32_t many[] = {1};
static const kt_param params[] = {
    {"rows", rows, 1, 4}, {"prefetch", prefetch, 1, 0}, {"many", many, 1, 1}};

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

KT_P64_KERNEL(wiq1_a8, avx512vnni, 2, 2, .weights = KT_W_BIT(KT_W_IQ1_S) | KT_W_BIT(KT_W_IQ1_M),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_EXACT_INT32,
              .bits = "a8-blocks512", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts);
