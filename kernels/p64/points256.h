/* Points of grids (formats/grid.h) and of IQ1, opened with 256-bit vectors: a slice of sixteen
 * panel rows of a unit of 32 inputs.
 *
 * Indices are bytes of the panel, or words that vectors put together where they are longer. Two
 * of them are loaded at once, and each point by one load into its half or quarter of a register,
 * so that points meet no memory on their way: Zen 3 stores once a cycle and loads two or three
 * times.
 *
 * The including file defines the units of a panel and how signs join: it is p64_units.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_POINTS256_H
#define KT_SIMD_POINTS256_H

/* Where kt_point_words puts the word of row r of sixteen. */
KT_INLINE int kt_point_word(int r) {
    return r / 4 % 2 * 8 + r / 8 * 4 + r % 4;
}

/* The bytes of sixteen rows of a line of 64, as words: at, at + 1, at + step, at + step + 1 of each
 * 16 bytes are of four rows. */
KT_INLINE kt_vi kt_point_words(const uint8_t *line, const int step, int at) {
    const __m128i four = _mm_set_epi32((int)0x80808080, (int)0x80808080,
                                       (int)0x80008000 | (step + 1) << 16 | step, (int)0x80018000);
    const __m128i from = _mm_add_epi8(four, _mm_set1_epi8((char)at));
    const kt_vi low = _mm256_broadcastsi128_si256(from);
    const kt_vi high = _mm256_shuffle_epi32(low, 0x4e);
    return _mm256_or_si256(_mm256_shuffle_epi8(kt_v_load(line), low),
                           _mm256_shuffle_epi8(kt_v_load(line + 32), high));
}

/* `value` in the words of the rows whose bits are set, of 64; of 16 bits four are of four rows. */
KT_INLINE kt_vi kt_point_bits(const uint8_t *bits, const int step, int at, const int value) {
    const kt_vi of_row = _mm256_set_epi64x(0x0706070607060706, 0x0302030203020302,
                                           0x0504050405040504, 0x0100010001000100);
    const kt_vi first = _mm256_set1_epi64x(
        (long long)(0x0000000000020001 | (uint64_t)1 << (32 + step) | (uint64_t)2 << (48 + step)));
    const kt_vi bit = _mm256_sll_epi16(first, _mm_cvtsi32_si128(at));
    kt_vi v;
    int64_t all;

    memcpy(&all, bits, sizeof all);
    v = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi64x(all), of_row), bit);
    return _mm256_and_si256(_mm256_cmpeq_epi16(v, bit), _mm256_set1_epi16((short)value));
}

/* Points of eight bytes: two, and index[0], [1], [4], [5]. */
KT_INLINE __m128i kt_points_pair(const uint8_t *points, const size_t index[2]) {
    const void *low = points + 8 * index[0], *high = points + 8 * index[1];
    const __m128i first = _mm_loadl_epi64((const __m128i *)low);
    return _mm_castps_si128(_mm_loadh_pi(_mm_castsi128_ps(first), (const __m64 *)high));
}
KT_INLINE kt_vi kt_points_pairs(const uint8_t *points, const size_t *index) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(kt_points_pair(points, index)),
                                   kt_points_pair(points, index + 4), 1);
}
/* Points of four bytes: four, and eight. */
KT_INLINE __m128i kt_points_four(const uint8_t *points, const size_t index[4]) {
    int32_t word[4];
    KT_EACH (i, 4) memcpy(word + i, points + 4 * index[i], 4);
    return _mm_insert_epi32(
        _mm_insert_epi32(_mm_insert_epi32(_mm_cvtsi32_si128(word[0]), word[1], 1), word[2], 2),
        word[3], 3);
}
KT_INLINE kt_vi kt_points_words(const uint8_t *points, const size_t index[8]) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(kt_points_four(points, index)),
                                   kt_points_four(points, index + 4), 1);
}

/* Two indices by one load: words, or bytes. */
KT_INLINE void kt_point_two_words(const uint16_t *at, size_t index[2]) {
    uint32_t two;
    memcpy(&two, at, sizeof two);
    index[0] = (uint16_t)two;
    index[1] = two >> 16;
}
KT_INLINE void kt_point_two_bytes(const uint8_t *at, size_t index[2]) {
    uint16_t two;
    memcpy(&two, at, sizeof two);
    index[0] = (uint8_t)two;
    index[1] = two >> 8;
}

/* Indices beyond eight bits as words: [point] of kt_point_words. */
KT_INLINE void kt_point_find(const kt_p64_grid grid, const kt_unit_fields *f, int column,
                             uint16_t word[8 * KT_SLICE_ROWS]) {
    const int bits = kt_grid_more_bits(grid), step = kt_grid_pair_place(grid, 1);
    const int at = kt_grid_column_place(grid, column);

    if (bits == 0) return;
    KT_EACH (p, 32 / kt_grid_inputs(grid)) {
        const uint8_t *more = f->more + 8 * bits * p;
        kt_vi v = kt_point_words(f->planes + kt_grid_line_at(grid, p), step, at);
        v = kt_v_or(v, kt_point_bits(more, step, at, 256));
        if (bits > 1) v = kt_v_or(v, kt_point_bits(more + 8, step, at, 512));
        kt_v_store((uint8_t *)(word + 16 * p), v);
    }
    KT_IN_ORDER(); /* or the compiler takes words out of vectors */
}

/* Of a slice: the bytes of its indices, its signs. */
typedef struct kt_point_fields {
    const uint8_t *bytes, *signs;
} kt_point_fields;

/* Opaque, so that each load has its offset in itself: gcc would keep dozens of addresses on the
 * stack, one for each load. */
KT_INLINE const uint8_t *kt_point_opaque(const uint8_t *p) {
    __asm__("" : "+r"(p));
    return p;
}
KT_INLINE kt_point_fields kt_point_fields_of(const kt_p64_grid grid, const uint8_t *planes,
                                             int column) {
    const kt_point_fields x = {kt_point_opaque(planes + kt_grid_column_place(grid, column)),
                               kt_point_opaque(planes + 8 * column)};
    return x;
}

/* Indices of points p of rows first to first + 7 of the column's sixteen. */
KT_INLINE void kt_point_eight(const kt_p64_grid grid, const kt_point_fields *x,
                              const uint16_t *word, const int p, const int first, size_t index[8]) {
    KT_EACH (j, 4) {
        const int r = first + 2 * j;
        if (kt_grid_more_bits(grid))
            kt_point_two_words(word + 16 * p + kt_point_word(r), index + 2 * j);
        else
            kt_point_two_bytes(x->bytes + kt_grid_line_at(grid, p) +
                                   kt_grid_pair_place(grid, r / 2),
                               index + 2 * j);
    }
}

/* Points of eight inputs. */
KT_INLINE void kt_unit_points8(const kt_p64_spec s, const kt_unit_fields *f, const uint8_t *points,
                               int slice, uint8_t *out) {
    const kt_point_fields x = kt_point_fields_of(s.grid, f->planes, slice);
    _Alignas(32) uint16_t word[8 * KT_SLICE_ROWS];

    kt_point_find(s.grid, f, slice, word);
    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS) {
            uint8_t *to = out + 2 * KT_SLICE_BYTES * p + KT_V_BYTES * c;
            size_t index[8];
            kt_vi a, b; /* rows 0, 1, 4, 5 and 2, 3, 6, 7 */
            kt_point_eight(s.grid, &x, word, p, 8 * c, index);
            a = kt_points_pairs(points, index);
            b = kt_points_pairs(points, index + 2);
            kt_unit_put_signed(x.signs + kt_grid_signs_at(s.grid, 2 * p) + 4 * c, kt_v_firsts(a, b),
                               to);
            kt_unit_put_signed(x.signs + kt_grid_signs_at(s.grid, 2 * p + 1) + 4 * c,
                               kt_v_seconds(a, b), to + KT_SLICE_BYTES);
        }
    }
}

/* Points of four inputs. */
KT_INLINE void kt_unit_points4(const kt_p64_spec s, const kt_unit_fields *f, const uint8_t *points,
                               int slice, uint8_t *out) {
    const kt_point_fields x = kt_point_fields_of(s.grid, f->planes, slice);
    _Alignas(32) uint16_t word[8 * KT_SLICE_ROWS];

    kt_point_find(s.grid, f, slice, word);
    KT_EACH (o, 8) {
        KT_EACH (c, KT_V_COLUMNS) {
            size_t index[8];
            kt_point_eight(s.grid, &x, word, o, 8 * c, index);
            kt_unit_put_signed(x.signs + kt_grid_signs_at(s.grid, o) + 4 * c,
                               kt_points_words(points, index),
                               out + KT_SLICE_BYTES * o + KT_V_BYTES * c);
        }
    }
}

/* Codes of points p of IQ1, of sixteen rows (kt_iq1_place). */
KT_INLINE kt_vi kt_unit_iq1_codes(const uint8_t *lines, const int p, int column) {
    const kt_vi key = kt_point_words(lines + 64 * p, 8, 2 * column);
    kt_vi rank = kt_point_words(lines + KT_IQ1_RANKS + p / 2 * 64, 8, 2 * column);

    if (p % 2) rank = kt_v_shift_right(rank, 4);
    return kt_v_or(kt_v_shift_left(key, 4), kt_v_mask_bytes(rank, 15));
}

/* The points of IQ1 as bytes. */
KT_INLINE void kt_unit_codes_iq1(const kt_p64_spec s, const kt_unit_fields *f, int slice,
                                 uint8_t *out) {
    _Alignas(64) uint16_t code[4 * KT_SLICE_ROWS];
    kt_vi above[KT_V_COLUMNS];

    KT_EACH (p, 4) kt_v_store((uint8_t *)(code + 16 * p), kt_unit_iq1_codes(f->planes, p, slice));
    KT_IN_ORDER();
    KT_EACH (p, 4) {
        KT_EACH (c, KT_V_COLUMNS) {
            size_t index[8];
            KT_EACH (j, 4)
                kt_point_two_words(code + 16 * p + kt_point_word(8 * c + 2 * j), index + 2 * j);
            if (p == 0 || s.group == 16)
                above[c] = kt_unit_iq1_above(s, f, p, KT_SLICE_ROWS * slice + 8 * c);
            kt_unit_put_iq1(kt_points_words((const uint8_t *)kt_iq1_words, index), above[c],
                            out + 2 * KT_SLICE_BYTES * p + KT_V_BYTES * c);
        }
    }
}

#endif
