/* What rows of activations bring to the units of a block format: scales, sums, where sums of
 * products start, words. It is made anew for each panel, a chunk of units at a time.
 *
 * The including file defines the kinds of units: it is p64_units.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_UNIT_ROWS_H
#define KT_P64_UNIT_ROWS_H

/* Rows of a block: opening a unit takes vectors of 32 bytes twice as long. */
#define KT_UNIT_ROWS (KT_V_BYTES == 32 ? 96 : KT_BLOCK_ROWS)

typedef struct kt_unit_rows {
    int32_t start[KT_UNIT_ROWS][2 * KT_UNITS];
    int32_t mid[KT_UNIT_ROWS]
               [4 * KT_UNITS]; /* of sums that start at step 2 i of a unit, the i-th */
    float a_scale[KT_UNIT_ROWS][KT_UNITS];
    float sums[KT_UNIT_ROWS][2 * KT_UNITS];
    _Alignas(64) uint8_t a16[KT_UNIT_ROWS * KT_WORDS_STRIDE];
} kt_unit_rows;

/* Is there something to add to an int32 sum? Codes with a minimum have no offset, and the offset of
 * others is the code in the middle. Words in scratch have theirs taken off, which would cost few
 * rows, whose codes go from the panel to their products, more than it saves. */
KT_INLINE int kt_unit_starts(const kt_unit_kind kind, const int is_few) {
    if (KT_DOT_WIDE) return 1;
    if (!kind.chain) return is_few;
    return kind.centre == (kind.extra == KT_EXTRA_MINIMUM);
}

/* Are sums of activations of use? */
KT_INLINE int kt_unit_sums(const kt_unit_kind kind, const int is_few) {
    return kt_unit_starts(kind, is_few) || kind.extra == KT_EXTRA_MINIMUM;
}

/* Sums of two codes beside each other. */
KT_INLINE __m256i kt_pair_sums(const uint8_t *q) {
    return _mm256_maddubs_epi16(_mm256_set1_epi8(1),
                                _mm256_loadu_si256((const __m256i *)(const void *)q));
}

/* Sums of 16 codes and 16 codes; of four units, whose pairs are given, the first ones and the
 * last ones. */
KT_INLINE void kt_half_sums(const uint8_t *q, int32_t out[2]) {
    __m256i v = _mm256_madd_epi16(kt_pair_sums(q), _mm256_set1_epi16(1));
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0x4e));
    v = _mm256_add_epi32(v, _mm256_shuffle_epi32(v, 0xb1));
    out[0] = _mm256_extract_epi32(v, 0);
    out[1] = _mm256_extract_epi32(v, 4);
}
KT_INLINE __m256i kt_half_sums4(const __m256i pairs[4]) {
    const __m256i v = _mm256_hadd_epi16(_mm256_hadd_epi16(pairs[0], pairs[1]),
                                        _mm256_hadd_epi16(pairs[2], pairs[3]));
    return _mm256_madd_epi16(v, _mm256_set1_epi16(1));
}

/* Where int16 sums of `steps` steps about a centre start: -centre times their inputs 0 and 1 of
 * each quad, and 2 and 3. v: the unit's pairs. */
KT_INLINE void kt_unit_middles(__m256i v, const int centre, const int steps, int32_t out[4]) {
    v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0xb1));
    if (steps > 2) v = _mm256_add_epi16(v, _mm256_shuffle_epi32(v, 0x4e));
    if (steps > 4) v = _mm256_add_epi16(v, _mm256_permute2x128_si256(v, v, 1));
    v = _mm256_mullo_epi16(v, _mm256_set1_epi16((short)-centre));
    v = _mm256_permutevar8x32_epi32(v, _mm256_set_epi32(0, 0, 0, 0, 6, 4, 2, 0));
    _mm_storeu_si128((__m128i *)(void *)out, _mm256_castsi256_si128(v));
}

/* What an int32 sum starts with, in sums of the row's activations. */
KT_INLINE int kt_unit_start_times(const kt_p64_spec s) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    if (kind.extra == KT_EXTRA_ZERO) return -1;
    return (kind.centre ? kt_unit_centre(s) : 0) - kt_unit_offset(s);
}

/* The u-th unit of a chunk that begins with `unit`, in row r. */
KT_INLINE void kt_unit_row_open(const kt_p64_spec s, const kt_p64_tile *t, int64_t unit, int r,
                                int u, const int is_few, kt_unit_rows *x) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const uint8_t *q = (const uint8_t *)t->a[r] + 32 * (unit + u);
    const float a_scale = kt_a8_scales(t->a[r], t->k)[unit + u];
    int32_t sum[2] = {kt_a8_comps(t->a[r], t->k)[unit + u] / -8, 0};

    if (kind.centre)
        kt_unit_middles(kt_pair_sums(q), kt_unit_centre(s), kind.chain, &x->mid[r][4 * u]);
    x->a_scale[r][u] = a_scale;
    if (!kt_unit_sums(kind, is_few)) return;
    if (kind.halves == 2) kt_half_sums(q, sum);
    for (int h = 0; h < kind.halves; h++) {
        x->start[r][2 * u + h] = kt_unit_start_times(s) * sum[h];
        x->sums[r][2 * u + h] = a_scale * (float)sum[h];
    }
}

/* Four units' values of their first halves, and of their last, as [unit][half]. */
KT_INLINE void kt_put_halves(__m128i first, __m128i last, void *out) {
    _mm_storeu_si128(out, _mm_unpacklo_epi32(first, last));
    _mm_storeu_si128((__m128i *)out + 1, _mm_unpackhi_epi32(first, last));
}

/* The same of units u to u + 3. */
KT_INLINE void kt_unit_row_open4(const kt_p64_spec s, const kt_p64_tile *t, int64_t unit, int r,
                                 int u, const int is_few, kt_unit_rows *x) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const uint8_t *q = (const uint8_t *)t->a[r] + 32 * (unit + u);
    const int32_t *comps = kt_a8_comps(t->a[r], t->k) + unit + u;
    const __m128 a_scale = _mm_loadu_ps(kt_a8_scales(t->a[r], t->k) + unit + u);
    const __m128i comp = _mm_loadu_si128((const __m128i *)(const void *)comps);
    const __m128i zero = _mm_setzero_si128(), times = _mm_set1_epi32(kt_unit_start_times(s));
    __m128i first = _mm_srai_epi32(_mm_sub_epi32(zero, comp), 3), last = zero;
    __m256i pairs[4];

    if (kind.centre || (kind.halves == 2 && kt_unit_sums(kind, is_few))) {
        KT_EACH (j, 4) {
            pairs[j] = kt_pair_sums(q + 32 * j);
            if (kind.centre)
                kt_unit_middles(pairs[j], kt_unit_centre(s), kind.chain, &x->mid[r][4 * (u + j)]);
        }
    }
    _mm_storeu_ps(&x->a_scale[r][u], a_scale);
    if (!kt_unit_sums(kind, is_few)) return;
    if (kind.halves == 2) {
        const __m256i both = kt_half_sums4(pairs);
        first = _mm256_castsi256_si128(both);
        last = _mm256_extracti128_si256(both, 1);
    }
    kt_put_halves(_mm_mullo_epi32(first, times), _mm_mullo_epi32(last, times), &x->start[r][2 * u]);
    kt_put_halves(_mm_castps_si128(_mm_mul_ps(a_scale, _mm_cvtepi32_ps(first))),
                  _mm_castps_si128(_mm_mul_ps(a_scale, _mm_cvtepi32_ps(last))), &x->sums[r][2 * u]);
}

KT_INLINE void kt_unit_rows_open(const kt_p64_spec s, const kt_p64_tile *t, int64_t unit, int units,
                                 const int is_few, kt_unit_rows *x) {
    for (int r = 0; r < t->rows; r++) {
        int u = 0;
        for (; u + 4 <= units; u += 4) kt_unit_row_open4(s, t, unit, r, u, is_few, x);
        for (; u < units; u++) kt_unit_row_open(s, t, unit, r, u, is_few, x);
    }
    if (!kt_unit_kind_of(s).chain) kt_widen_rows(t, unit, units, 0, x->a16);
}

#endif
