/* kernels/attn/attn_words256.h over an INT8 cache: words of lines are codes, whose products need no
 * other limit. The scales of keys multiply the scores, those of values the weights.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WORDS_INT8_H
#define KT_ATTN_WORDS_INT8_H

#include "kernels/attn/attn_words256.h"

/* Of each four elements, 0 and 2, 1 and 3: put_fours. */
KT_INLINE __m256i in_pairs(__m256i words) {
    return _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);
}

KT_INLINE const float *key_steps(const kt_attn_part *t) {
    (void)t;
    return NULL;
}

KT_INLINE const uint8_t *value_lines(const kt_attn_part *t) {
    return t->v.at;
}

/* Elements [x, x + 16) of keys j and j + 4. Keys past the last repeat it; their scores are never
 * looked at. is_whole: all of them are there. */
KT_INLINE __m256i load_two(const kt_attn_rows *k, int64_t j, int64_t x, const int is_whole) {
    const int64_t low = is_whole || j < k->n ? j : k->n - 1;
    const int64_t high = is_whole || j + 4 < k->n ? j + 4 : k->n - 1;
    const int64_t left = is_whole ? 16 : k->d - x;
    const __m128i first = load_codes(k->at + low * k->ld + x, left);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(first),
                                   load_codes(k->at + high * k->ld + x, left), 1);
}

/* Four codes of each of eight keys to two lines: the first and the third, the second and the
 * fourth. */
KT_INLINE void put_fours(uint8_t *to, __m256i fours) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_srai_epi16(_mm256_slli_epi16(fours, 8), 8));
    _mm256_store_si256((__m256i *)(void *)(to + 64), _mm256_srai_epi16(fours, 8));
}

/* Elements [x, x + 16) of eight keys from j on, to their half of eight lines. */
KT_INLINE void turn_8(const kt_attn_rows *k, int64_t j, int64_t x, uint8_t *to,
                      const int is_whole) {
    __m256i a[4], b[4];

    KT_EACH (i, 4) a[i] = load_two(k, j + i, x, is_whole);
    KT_EACH (i, 2) { /* b[i]: fours 0 and 1 of keys 2 i and 2 i + 1, b[2 + i]: 2 and 3 */
        b[i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 + i] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    KT_EACH (i, 2) {
        put_fours(to + 256 * i, _mm256_unpacklo_epi64(b[2 * i], b[2 * i + 1]));
        put_fours(to + 256 * i + 128, _mm256_unpackhi_epi64(b[2 * i], b[2 * i + 1]));
    }
}

static void load_keys(const kt_attn_part *t, void *keys) {
    const kt_attn_rows k = t->k;
    uint8_t *to = keys;

    for (int64_t j = 0; j < k.n; j += LANES)
        for (int64_t x = 0; x < k.d; x += 16, to += 512)
            for (int64_t half = 0; half < 2; half++)
                if (k.n - j >= LANES && k.d - x >= 16)
                    turn_8(&k, j + 8 * half, x, to + 32 * half, 1);
                else
                    turn_8(&k, j + 8 * half, x, to + 32 * half, 0);
}

/* 16 bytes become words of one line's half. */
KT_INLINE void put_words(uint8_t *to, __m128i codes) {
    _mm256_store_si256((__m256i *)(void *)to, _mm256_cvtepi8_epi16(codes));
}

/* Zeros where there is no key. */
static void interleave(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    const kt_attn_rows from = *codes;
    const __m128i none = _mm_setzero_si128();

    (void)ldo;
    for (int64_t x = 0; x < from.d; x += 16) {
        uint8_t *to = (uint8_t *)out + x / 16 * COLUMNS;
        for (int64_t j = 0; j < from.n; j += 2, to += 64) {
            const uint8_t *at = from.at + j * from.ld + x;
            const __m128i a = load_codes(at, from.d - x);
            const __m128i b = j + 1 < from.n ? load_codes(at + from.ld, from.d - x) : none;
            put_words(to, _mm_unpacklo_epi8(a, b));
            put_words(to + 32, _mm_unpackhi_epi8(a, b));
        }
    }
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    for (int64_t x = 0; x < d; x++) out[x] = o[x] * factor;
}

static const kt_attn_inner inner = {WORDS_INNER,
                                    .widen = interleave,
                                    .keys_bytes = lines_bytes,
                                    .load_keys = load_keys,
                                    .loads_codes = true,
                                    .soften_all = soften_all,
                                    .store_sums = store_sums};

#define INT_WORDS .weights = 1u << KT_W_INT8_CHANNEL, .bits = "words", WORDS_MEMBERS

#endif
