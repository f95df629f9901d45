/* kernels/attn/attn_words256.h over a BF16 cache: each 128 elements of a key, and each row of a
 * value, become words of at most 14 bits and a step, once for all queries of a tile. BF16 has 8
 * bits of each element, this 14 of the largest: of an element of 1/64 of that it loses as much as
 * BF16 has lost, of larger ones less.
 *
 * A block costs about what eight queries of 128 do, so this is for many. One element that is not
 * finite makes all of its row so.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_WORDS_BF16_H
#define KT_ATTN_WORDS_BF16_H

#define MOST_SUM 131000.0f /* with what rounding adds, times LINE_TOP below 2^31 */
#define LINE_TOP 16383.0f
#include "kernels/attn/attn_words256.h"

/* ---- a block's scratch: lines and steps of keys, then of values ---- */

static size_t steps_bytes(int64_t d) {
    return (size_t)groups_of(d) * KT_ATTN_BLOCK * sizeof(float);
}

static size_t keys_bytes(int64_t d) {
    return 2 * (lines_bytes(d) + steps_bytes(d));
}

static uint8_t *room_of(const kt_attn_part *t, size_t bytes) {
    return (uint8_t *)(uintptr_t)t->keys + bytes;
}

KT_INLINE const float *key_steps(const kt_attn_part *t) {
    return (const float *)(const void *)room_of(t, lines_bytes(t->k.d));
}

KT_INLINE const uint8_t *value_lines(const kt_attn_part *t) {
    return room_of(t, lines_bytes(t->k.d) + steps_bytes(t->k.d));
}

static float *value_steps(const kt_attn_part *t) {
    return (float *)(void *)room_of(t, lines_bytes(t->k.d) + steps_bytes(t->k.d) +
                                           lines_bytes(t->v.d));
}

/* ---- words ---- */

KT_INLINE __m256i in_pairs(__m256i words) {
    return words;
}

/* The largest magnitude of n elements; NaN counts as the largest. */
KT_INLINE float top_of(const uint16_t *row, int64_t n) {
    const __m256i size = _mm256_set1_epi16(0x7fff);
    __m256i top = _mm256_setzero_si256();
    __m128i x;

    for (int64_t i = 0; i + 16 <= n; i += 16)
        top = _mm256_max_epu16(top, _mm256_and_si256(size, load_pairs(row + i)));
    if (n % 16)
        top = _mm256_max_epu16(top, _mm256_and_si256(size, load_last(row + n / 16 * 16, n % 16)));
    x = _mm_max_epu16(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    x = _mm_minpos_epu16(_mm_xor_si128(x, _mm_set1_epi16(-1)));
    return _mm_cvtss_f32(
        _mm_castsi128_ps(_mm_slli_epi32(_mm_xor_si128(x, _mm_set1_epi32(-1)), 16)));
}

/* Eight rows from j on, elements [x, x + n): their steps, and what brings their elements to words.
 * Rows past the last repeat it. */
KT_INLINE void put_steps(const kt_attn_rows *rows, int64_t j, int64_t x, int64_t n, float *steps,
                         float up[8]) {
    _Alignas(32) float top[8];
    __m256 step;

    for (int64_t i = 0; i < 8; i++)
        top[i] = top_of(kt_attn_row(rows, j + i < rows->n ? j + i : rows->n - 1) + x, n);
    step = _mm256_mul_ps(_mm256_load_ps(top), _mm256_set1_ps(1.0f / LINE_TOP));
    step = _mm256_max_ps(_mm256_set1_ps(0x1p-126f), step); /* NaN stays */
    _mm256_storeu_ps(steps, step);
    _mm256_storeu_ps(up, _mm256_div_ps(_mm256_set1_ps(1.0f), step));
}

/* 16 elements as int32: the even ones and the odd ones. */
typedef struct halves {
    __m256i even, odd;
} halves;

KT_INLINE halves halves_of(const uint16_t *p, int64_t left, float up, const int is_whole) {
    const __m256i pairs = is_whole || left >= 16 ? load_pairs(p) : load_last(p, left);
    const __m256i upper = _mm256_set1_epi32((int32_t)0xffff0000u);
    const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(pairs, upper));
    const __m256 times = _mm256_set1_ps(up);
    return (halves){_mm256_cvtps_epi32(_mm256_mul_ps(even(pairs), times)),
                    _mm256_cvtps_epi32(_mm256_mul_ps(odd, times))};
}

/* Words of a in the lower halves of dwords, those of b in the upper ones. */
KT_INLINE __m256i join(__m256i a, __m256i b) {
    return _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xaa);
}

/* ---- keys ---- */

/* Elements [x, x + 16) of eight keys from j on, to their half of eight lines. */
KT_INLINE void turn_8(const kt_attn_rows *k, int64_t j, int64_t x, const float up[8], uint8_t *to,
                      const int is_whole) {
    __m256i a[8], b[8];

    KT_EACH (i, 8) {
        const int64_t row = is_whole || j + i < k->n ? j + i : k->n - 1;
        const halves h = halves_of(kt_attn_row(k, row) + x, k->d - x, up[i], is_whole);
        a[i] = join(h.even, h.odd);
    }
    KT_EACH (i, 4) {
        b[2 * i] = _mm256_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[2 * i + 1] = _mm256_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    KT_EACH (i, 4) { /* a[4 g + p]: pair p and pair p + 4 of keys 4 g .. 4 g + 3 */
        const int from = i / 2 * 4 + i % 2;
        a[i / 2 * 4 + i % 2 * 2] = _mm256_unpacklo_epi64(b[from], b[from + 2]);
        a[i / 2 * 4 + i % 2 * 2 + 1] = _mm256_unpackhi_epi64(b[from], b[from + 2]);
    }
    KT_EACH (p, 4) {
        _mm256_store_si256((__m256i *)(void *)(to + 64 * p),
                           _mm256_permute2x128_si256(a[p], a[4 + p], 0x20));
        _mm256_store_si256((__m256i *)(void *)(to + 64 * (p + 4)),
                           _mm256_permute2x128_si256(a[p], a[4 + p], 0x31));
    }
}

/* Eight keys from j on. */
KT_INLINE void turn_keys(const kt_attn_rows *k, int64_t j, uint8_t *lines, float *steps) {
    const int64_t d = k->d;
    uint8_t *to = lines + j / LANES * (padded_to(d) / 2 * 64) + j % LANES * 4;
    float up[8];

    for (int64_t g = 0; g < d; g += GROUP) {
        const int64_t end = d - g < GROUP ? d : g + GROUP;
        put_steps(k, j, g, end - g, steps + g / GROUP * KT_ATTN_BLOCK + j, up);
        for (int64_t x = g; x < end; x += 16)
            if (k->n - j >= 8 && d - x >= 16)
                turn_8(k, j, x, up, to + 32 * x, 1);
            else
                turn_8(k, j, x, up, to + 32 * x, 0);
    }
}

/* ---- values ---- */

/* Of eight keys from j on: pairs of keys, in lines of 8 even and 8 odd columns. Zeros where there
 * is no key. */
KT_INLINE void pair_values(const kt_attn_rows *v, int64_t j, uint8_t *lines, float *steps) {
    const int64_t end = v->n - j < 8 ? v->n : j + 8;
    float up[8];

    put_steps(v, j, 0, v->d, steps + j, up);
    for (int64_t i = j; i < end; i += 2) {
        const float up_next = i + 1 < v->n ? up[i + 1 - j] : 0.0f;
        const uint16_t *row = kt_attn_row(v, i), *next = up_next != 0.0f ? row + v->ld : row;
        uint8_t *to = lines + i / 2 * 64;
        for (int64_t x = 0; x < v->d; x += 16, to += COLUMNS) {
            const halves a = halves_of(row + x, v->d - x, up[i - j], 0);
            const halves b = halves_of(next + x, v->d - x, up_next, 0);
            _mm256_store_si256((__m256i *)(void *)to, join(a.even, b.even));
            _mm256_store_si256((__m256i *)(void *)(to + 32), join(a.odd, b.odd));
        }
    }
}

static void load_keys(const kt_attn_part *tile, void *keys) {
    const kt_attn_part copy = *tile, *const t = &copy;
    uint8_t *const values = (uint8_t *)(uintptr_t)value_lines(t);

    for (int64_t j = 0; j < t->k.n; j += 8) {
        turn_keys(&t->k, j, keys, (float *)(uintptr_t)key_steps(t));
        pair_values(&t->v, j, values, value_steps(t));
    }
}

/* kt_attn_inner.soften_all */
static void soften_scaled(const kt_attn_part *tile) {
    kt_attn_part t = *tile;

    t.v_scale = value_steps(tile);
    soften_all(&t);
}

static const kt_attn_inner inner = {WORDS_INNER, .keys_bytes = keys_bytes, .load_keys = load_keys,
                                    .soften_all = soften_scaled, .store_sums = store_halves};

#define BF16_WORDS .weights = 1u << KT_W_NONE | 1u << KT_W_BF16, .bits = "words-bf16", WORDS_MEMBERS

#endif
