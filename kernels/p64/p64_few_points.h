/* One row times a p64 panel of points (formats/grid.h) in vectors of 32 bytes: points go from the
 * grid to their products in registers, where more rows take them from scratch.
 *
 * Signs join the activations instead of the points, which stay the unsigned side of VPMADDUBSW:
 * nothing is subtracted at the end, and the sums are the integers that more rows have.
 *
 * The including file defines units and points (p64_units.h, points256.h).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FEW_POINTS_H
#define KT_P64_FEW_POINTS_H

/* A unit as one row meets it. */
typedef struct kt_few_points {
    kt_unit_fields f;
    const uint8_t *points;
    float a_scale;
    float *sums;
} kt_few_points;

/* Of points of eight inputs those of rows 0, 1, 4, 5 are in one vector, of 2, 3, 6, 7 in another:
 * -1 where an input of the first or second vector has its bit set, of the signs of two quads. */
KT_INLINE kt_vi kt_few_point_minus(kt_vi signs, const int is_second) {
    const int64_t low = 0x0404040400000000, up = low + 0x0202020202020202;
    const int64_t even = 0x0804020108040201, odd = (int64_t)0x8040201080402010u;
    const kt_vi first = _mm256_set_epi64x(up, up, low, low);
    const kt_vi byte = is_second ? _mm256_add_epi8(first, _mm256_set1_epi8(1)) : first;
    const kt_vi bit = _mm256_set_epi64x(odd, even, odd, even);
    return _mm256_cmpeq_epi8(_mm256_and_si256(_mm256_shuffle_epi8(signs, byte), bit), bit);
}

/* Of each pair of 32-bit words the first, twice, or the second. */
KT_INLINE kt_vi kt_few_first_words(kt_vi v) {
    return _mm256_shuffle_epi32(v, 0xa0);
}
KT_INLINE kt_vi kt_few_second_words(kt_vi v) {
    return _mm256_shuffle_epi32(v, 0xf5);
}

/* Products of points with activations q, which change their sign where minus is -1. */
KT_INLINE kt_vi kt_few_point_products(kt_vi points, kt_vi q, kt_vi minus) {
    return _mm256_maddubs_epi16(points, _mm256_sub_epi8(_mm256_xor_si256(q, minus), minus));
}

/* A sum of eight panel rows, the first of which is `row`, joins their f32 sums. */
KT_INLINE void kt_few_points_add(const kt_p64_spec s, const kt_few_points *x, const int h, int row,
                                 kt_vi sum) {
    const uint8_t *scales = x->f.scales + (size_t)h * kt_p64_scale_bytes(s);
    const kt_vf scale = kt_unit_scale(s, x->f.head, scales, row);
    const kt_vf y = kt_v_load_floats(x->sums + row);

    kt_v_store_floats(x->sums + row, kt_v_fma(kt_v_to_float(sum),
                                              kt_v_mul(scale, kt_v_each_float(x->a_scale)), y));
}

/* Points of eight inputs: two steps of VPMADDUBSW fit int16 (4 * 43 * 127). */
KT_INLINE void kt_few_points8(const kt_p64_spec s, const kt_few_points *x, const kt_vi q[4],
                              int slice) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const kt_point_fields fields = kt_point_fields_of(s.grid, x->f.planes, slice);
    const kt_vi ones = _mm256_set1_epi16(1);
    _Alignas(32) uint16_t word[8 * KT_SLICE_ROWS];

    kt_point_find(s.grid, &x->f, slice, word);
    KT_EACH (c, KT_V_COLUMNS) {
        kt_vi sum[2] = {kt_v_each_int(0), kt_v_each_int(0)}, part[2] = {sum[0], sum[0]};
        KT_EACH (p, 4) {
            const uint8_t *first = fields.signs + kt_grid_signs_at(s.grid, 2 * p) + 4 * c;
            const uint8_t *second = fields.signs + kt_grid_signs_at(s.grid, 2 * p + 1) + 4 * c;
            const kt_vi signs = _mm256_blend_epi32(kt_v_each(first), kt_v_each(second), 0xaa);
            size_t index[8];
            kt_point_eight(s.grid, &fields, word, p, 8 * c, index);
            KT_EACH (i, 2) {
                const kt_vi v = kt_few_point_products(kt_points_pairs(x->points, index + 2 * i),
                                                      q[p], kt_few_point_minus(signs, i));
                part[i] = p % 2 ? _mm256_add_epi16(part[i], v) : v;
                if (p % 2) sum[i] = kt_v_add32(sum[i], kt_v_madd16(part[i], ones));
            }
            KT_IN_ORDER();
            if (p + 1 == 4 || (p == 1 && kind.halves == 2)) {
                kt_few_points_add(s, x, p == 1 ? 0 : kind.halves - 1, KT_SLICE_ROWS * slice + 8 * c,
                                  _mm256_hadd_epi32(sum[0], sum[1]));
                sum[0] = sum[1] = kt_v_each_int(0);
            }
        }
    }
}

/* Points of four inputs: 2 * 2 * 62 * 127 fit. */
KT_INLINE void kt_few_points4(const kt_p64_spec s, const kt_few_points *x, const kt_vi q[4],
                              int slice) {
    const kt_point_fields fields = kt_point_fields_of(s.grid, x->f.planes, slice);
    const kt_vi ones = _mm256_set1_epi16(1);
    _Alignas(32) uint16_t word[8 * KT_SLICE_ROWS];

    kt_point_find(s.grid, &x->f, slice, word);
    KT_EACH (c, KT_V_COLUMNS) {
        kt_vi sum = kt_v_each_int(0), part = sum;
        KT_EACH (o, 8) {
            const uint8_t *signs = fields.signs + kt_grid_signs_at(s.grid, o) + 4 * c;
            const kt_vi four = o % 2 ? kt_few_second_words(q[o / 2]) : kt_few_first_words(q[o / 2]);
            size_t index[8];
            kt_vi v;
            kt_point_eight(s.grid, &fields, word, o, 8 * c, index);
            v = kt_few_point_products(kt_points_words(x->points, index), four,
                                      kt_v_set_bits(signs));
            part = o % 2 ? _mm256_add_epi16(part, v) : v;
            if (o % 2) sum = kt_v_add32(sum, kt_v_madd16(part, ones));
            KT_IN_ORDER();
        }
        kt_few_points_add(s, x, 0, KT_SLICE_ROWS * slice + 8 * c, sum);
    }
}

/* The row of the tile. */
KT_INLINE void kt_few_points_row(const kt_p64_tile *t, const kt_p64_spec s) {
    const uint8_t *row = t->a[0];
    const int bytes = kt_few_unit_bytes(s);
    kt_few_points x = {.points = kt_unit_points_of(s), .sums = t->tile};

    memset(t->tile, 0, sizeof(float) * 64);
    for (int64_t i = 0; i < t->k / 32; i++) {
        const uint8_t *linear = t->panel + (size_t)i * (size_t)bytes;
        kt_vi q[4];
        KT_EACH (p, 4) {
            int64_t eight;
            memcpy(&eight, row + 32 * i + 8 * p, sizeof eight);
            q[p] = _mm256_set1_epi64x(eight);
        }
        x.f = kt_unit_fields_of(s, t->panel, i);
        x.a_scale = kt_a8_scales(row, t->k)[i];
        for (int slice = 0; slice < KT_SLICES; slice++) {
            kt_few_fetch(linear, bytes, slice, KT_SLICES);
            if (kt_grid_inputs(s.grid) == 8)
                kt_few_points8(s, &x, q, slice);
            else
                kt_few_points4(s, &x, q, slice);
        }
    }
}

#endif
