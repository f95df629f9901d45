/* Grouped-query attention over an 8-bit cache with VDPBF16PS: kernels/attn/dot512.h explains scores and
 * values. VPERMI2B looks the BF16 numbers of 64 codes up (simd/fp8_table512.h), in the order that products want:
 *
 * Keys are turned round as bytes, 16 keys x 64 elements at a time, half the shuffles of BF16 keys, and looked up
 * on their way to scratch, once for all queries of the tile.
 *
 * Values are interleaved, 32 columns of two keys, and looked up between load and products for up to eight
 * queries: the multipliers leave a port free, and no widened block takes up L1. For more queries the block is
 * widened once.
 *
 * Codes and orders of sums are those of bf16_dot__avx512bf16 over the widened cache, and so are the bits.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/dot512.h"
#include "kernels/simd/fp8_table512.h"

/* bfloat16 of 0..127, high and low bytes: the exponent of x, then what is below its leading bit. */
#define EXPONENT(x) \
    ((x) < 2 ? 0 : (x) < 4 ? 1 : (x) < 8 ? 2 : (x) < 16 ? 3 : (x) < 32 ? 4 : (x) < 64 ? 5 : 6)
#define BITS(x) ((x) ? (EXPONENT(x) + 127) << 7 | ((x) << (7 - EXPONENT(x)) & 0x7f) : 0)
#define HIGH(x) (uint8_t)(BITS(x) >> 8)
#define LOW(x) (uint8_t)(BITS(x) & 0xff)
#define FOUR(f, x) f(x), f((x) + 1), f((x) + 2), f((x) + 3)
#define SIXTEEN(f, x) FOUR(f, x), FOUR(f, (x) + 4), FOUR(f, (x) + 8), FOUR(f, (x) + 12)
#define SIXTY_FOUR(f, x) \
    SIXTEEN(f, x), SIXTEEN(f, (x) + 16), SIXTEEN(f, (x) + 32), SIXTEEN(f, (x) + 48)

static const _Alignas(64) uint8_t int8_high[128] = {SIXTY_FOUR(HIGH, 0), SIXTY_FOUR(HIGH, 64)};
static const _Alignas(64) uint8_t int8_low[128] = {SIXTY_FOUR(LOW, 0), SIXTY_FOUR(LOW, 64)};

KT_INLINE void load_tables(const kt_weight_format cache, __m512i tables[4]) {
    if (cache == KT_W_FP8_CHANNEL) {
        kt_fp8_tables(tables);
        return;
    }
    KT_EACH (i, 2) {
        tables[i] = _mm512_load_si512(int8_high + 64 * i);
        tables[2 + i] = _mm512_load_si512(int8_low + 64 * i);
    }
}

/* 64 codes -> their numbers: those of the first eight bytes of every 128-bit lane, those of the last eight.
 * The sign of an INT8 code is its top bit too; nobody writes -128. */
KT_INLINE void look_up(const kt_weight_format cache, __m512i x, const __m512i tables[4],
                       __m512i pair[2]) {
    const __m512i size = cache == KT_W_INT8_CHANNEL ? _mm512_abs_epi8(x) : x;
    const __m512i low = _mm512_permutex2var_epi8(tables[2], size, tables[3]);
    __m512i high = _mm512_permutex2var_epi8(tables[0], size, tables[1]);

    high = _mm512_ternarylogic_epi32(high, x, _mm512_set1_epi8(-128), 0xf8); /* high | (x & sign) */
    pair[0] = _mm512_unpacklo_epi8(low, high);
    pair[1] = _mm512_unpackhi_epi8(low, high);
}

/* ---- keys ---- */

/* Rows of 64 bytes of 16 keys -> r[4 l + i], lane g: elements 16 l + 4 i and + 1 of keys 4 g .. 4 g + 3, then
 * elements + 2 and + 3 of them. */
KT_INLINE void turn(__m512i r[16]) {
    __m512i t[16];

    KT_EACH (i, 8) {
        t[2 * i] = _mm512_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    KT_EACH (g, 4) {
        r[g] = _mm512_unpacklo_epi32(t[4 * g], t[4 * g + 2]);
        r[4 + g] = _mm512_unpackhi_epi32(t[4 * g], t[4 * g + 2]);
        r[8 + g] = _mm512_unpacklo_epi32(t[4 * g + 1], t[4 * g + 3]);
        r[12 + g] = _mm512_unpackhi_epi32(t[4 * g + 1], t[4 * g + 3]);
    }
    KT_EACH (i, 4) { /* lanes of r[4 i + g]: turned once more */
        t[i] = _mm512_shuffle_i32x4(r[4 * i], r[4 * i + 1], 0x88);
        t[4 + i] = _mm512_shuffle_i32x4(r[4 * i + 2], r[4 * i + 3], 0x88);
        t[8 + i] = _mm512_shuffle_i32x4(r[4 * i], r[4 * i + 1], 0xdd);
        t[12 + i] = _mm512_shuffle_i32x4(r[4 * i + 2], r[4 * i + 3], 0xdd);
    }
    KT_EACH (i, 4) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0x88);
        r[4 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0x88);
        r[8 + i] = _mm512_shuffle_i32x4(t[i], t[4 + i], 0xdd);
        r[12 + i] = _mm512_shuffle_i32x4(t[8 + i], t[12 + i], 0xdd);
    }
}

/* Sixteen pairs of elements of 16 keys: 32 elements. */
KT_INLINE void store_keys(const kt_weight_format cache, const __m512i r[8], const __m512i tables[4],
                          uint8_t *to) {
    KT_EACH (i, 8) {
        __m512i pair[2];
        look_up(cache, r[i], tables, pair);
        _mm512_store_si512(to + (size_t)(2 * i) * TURNED_ROW, pair[0]);
        _mm512_store_si512(to + (size_t)(2 * i + 1) * TURNED_ROW, pair[1]);
    }
}

/* 16 keys from j on: scratch has room for a multiple of 32 elements, zeros past d. */
KT_INLINE void look_up_keys(const kt_weight_format cache, const kt_attn_rows *k, int64_t j,
                            uint8_t *to, const int is_whole) {
    __m512i tables[4];

    load_tables(cache, tables);
    for (int64_t x = 0; x < k->d; x += 64, to += 32 * TURNED_ROW) {
        __m512i r[16];
        load_16_keys(k, j, x, r, 1, is_whole);
        turn(r);
        store_keys(cache, r, tables, to);
        if (x + 32 < k->d) store_keys(cache, r + 8, tables, to + 16 * TURNED_ROW);
    }
}

KT_INLINE void keys_of(const kt_weight_format cache, const kt_attn_rows *rows, uint8_t *keys) {
    const kt_attn_rows copy = *rows, *const k = &copy;

    for (int64_t j = 0; j < k->n; j += 16) {
        if (k->n - j >= 16)
            look_up_keys(cache, k, j, keys + 4 * j, 1);
        else
            look_up_keys(cache, k, j, keys + 4 * j, 0);
    }
}

static void load_codes(const kt_attn_part *t, void *keys) {
    if (t->k.cache == KT_W_INT8_CHANNEL)
        keys_of(KT_W_INT8_CHANNEL, &t->k, keys);
    else
        keys_of(KT_W_FP8_CHANNEL, &t->k, keys);
}

/* ---- values ---- */

/* Byte 16 l + 2 t + s of the index: column 8 l + t of key s, the second key in the upper half. */
static const _Alignas(64) uint8_t of_two_keys[64] = {
    0,  32, 1,  33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39, 8,  40, 9,  41, 10, 42,
    11, 43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53,
    22, 54, 23, 55, 24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};

/* weigh_tile of dot512.h. */
KT_INLINE void weigh_codes_tile(const kt_weight_format cache, const kt_attn_part *t, int64_t i,
                                int64_t x, const int nq) {
    const int64_t n_keys = t->n_keys, ldv = t->v.ld;
    const int is_near = t->v.is_near;
    const uint8_t *v = t->v.at + x;
    const uint8_t *weights = (const uint8_t *)(t->s + i * KT_ATTN_LDS);
    const __mmask32 m = mask32(t->v.d - x);
    const __m512i order = _mm512_load_si512(of_two_keys);
    __m512 sum[KT_ATTN_FEW][2];
    __m512i tables[4];

    load_tables(cache, tables);
    begin_sums(t, i, x, sum, nq);
    for (int64_t j = 0; j < n_keys; j += 2, weights += 4) {
        const uint8_t *row = v + j * ldv;
        const __m256i a = _mm256_maskz_loadu_epi8(m, row);
        const __m256i b =
            j + 1 < n_keys ? _mm256_maskz_loadu_epi8(m, row + ldv) : _mm256_setzero_si256();
        __m512i both = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), pair[2];
        if (x % 64 == 0) {
            kt_fetch_line(row + KT_ATTN_AHEAD * ldv, is_near);
            kt_fetch_line(row + (KT_ATTN_AHEAD + 1) * ldv, is_near);
        }
        look_up(cache, _mm512_permutexvar_epi8(order, both), tables, pair);
        KT_EACH (r, nq) {
            __m512i p = _mm512_set1_epi32(kt_load_i32(weights + 4 * r * KT_ATTN_LDS));
            KT_EACH (c, 2) sum[r][c] = dot(sum[r][c], pair[c], p);
        }
    }
    end_sums(t, i, x, sum, nq);
}

KT_INLINE void weigh_codes(const kt_weight_format cache, const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;

    for (int64_t x = 0; x < t->v.d; x += 32) {
        int64_t i = 0;
        for (; i + 8 <= t->n; i += 8) weigh_codes_tile(cache, t, i, x, 8);
        for (; i + 4 <= t->n; i += 4) weigh_codes_tile(cache, t, i, x, 4);
        for (; i < t->n; i++) weigh_codes_tile(cache, t, i, x, 1);
    }
}

static void weigh_either(const kt_attn_part *t) {
    if (t->v.cache == KT_W_INT8_CHANNEL)
        weigh_codes(KT_W_INT8_CHANNEL, t);
    else if (t->v.cache == KT_W_FP8_CHANNEL)
        weigh_codes(KT_W_FP8_CHANNEL, t);
    else
        weigh(t);
}

/* Lane l: columns 8 l .. 8 l + 7, then those 32 on. */
KT_INLINE void rows_wide(const kt_weight_format cache, const kt_attn_rows *codes, uint16_t *out,
                         int64_t ldo) {
    const __m512i order = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
    const int64_t d = codes->d, ld = codes->ld, n = codes->n;
    const int is_near = codes->is_near;
    __m512i tables[4];

    load_tables(cache, tables);
    for (int64_t j = 0; j < n; j++)
        for (int64_t x = 0; x < d; x += 64) {
            const uint8_t *row = codes->at + j * ld + x;
            __m512i pair[2], y = _mm512_maskz_loadu_epi8(mask64(d - x), row);
            kt_fetch_line(row + KT_ATTN_AHEAD * ld, is_near);
            look_up(cache, _mm512_permutexvar_epi64(order, y), tables, pair);
            _mm512_storeu_si512(out + j * ldo + x, pair[0]);
            if (x + 32 < d) _mm512_storeu_si512(out + j * ldo + x + 32, pair[1]);
        }
}

static void widen(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    if (codes->cache == KT_W_INT8_CHANNEL)
        rows_wide(KT_W_INT8_CHANNEL, codes, out, ldo);
    else
        rows_wide(KT_W_FP8_CHANNEL, codes, out, ldo);
}

static const kt_attn_inner inner = {DOT_INNER,      .load_keys = load_codes, .loads_codes = true,
                                    .widen = widen, .weigh = weigh_either,   .weighs_codes = true};

KT_ATTN_VARIANT(bf16_dot__avx512vbmi, .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_FP8_CHANNEL,
                .isa = KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16, .numerics = KT_NUM_BF16_F32,
                .bits = "dot-codes", .version = 5, .rank = 1, .params = params,
                .accepts = kt_attn_accepts);
