/* A few rows times a panel of w8g16m, with 256-bit vectors: one pass over the panel as it lies.
 *
 * Codes are signed once the top bit is turned over, and the product of a code's magnitude with an
 * activation of the code's sign is their product: VPMADDUBSW adds two of them, at most
 * 2 * 128 * 127 = 32512 in 16 bits, exactly. So 32 codes take two operations once and four for a
 * row, where widened codes (p64_units.h) take two and a store and a load, then four for a row. Sums
 * and their order are those of p64_units.h, and so are the bits; that also does for more rows, with
 * vectors as wide as the including file has made it. A line is fetched here and there: 48 in one go
 * are more than can be on their way, and what follows waits for all of them (Zen 4: 43 % of the
 * read stream instead of 95 %).
 *
 * The including file defines what p64_units.h needs and has included it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_W8G16M_ROWS_H
#define KT_SIMD_W8G16M_ROWS_H

enum { KT_G16M_UNIT = 3072, KT_G16M_SCALES = 2048, KT_G16M_MINIMA = 2560 }; /* bytes */

/* Units: scales and minima, which all its rows begin with, are a unit's last kilobyte. */
#define KT_G16M_AHEAD 3

/* What the rows bring to a unit of 32 inputs. */
typedef struct kt_g16m_rows {
    const uint8_t *q[KT_MICRO_ROWS];
    float scale[KT_MICRO_ROWS], sum[KT_MICRO_ROWS][2]; /* sum: of 16 codes, times scale */
} kt_g16m_rows;

KT_INLINE __m256i kt_g16m_four(const uint8_t *q) {
    int32_t four;
    memcpy(&four, q, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Eight panel rows of a unit, of which `unit` points to the first: half h joins the sums. */
KT_INLINE void kt_g16m_half(const uint8_t *unit, const int h, const kt_g16m_rows *x, float *out,
                            const int rows) {
    const __m256i one = _mm256_set1_epi16(1), top = _mm256_set1_epi8((char)0x80);
    const float *scales = (const float *)(const void *)(unit + KT_G16M_SCALES) + 64 * h;
    const float *minima = (const float *)(const void *)(unit + KT_G16M_MINIMA) + 64 * h;
    __m256i sum[KT_MICRO_ROWS];

    KT_EACH (i, 4) {
        const void *codes = unit + 256 * (4 * h + i);
        const __m256i code = _mm256_xor_si256(_mm256_load_si256((const __m256i *)codes), top);
        const __m256i size = _mm256_abs_epi8(code);
        KT_EACH (r, rows) {
            const __m256i q = _mm256_sign_epi8(kt_g16m_four(x->q[r] + 16 * h + 4 * i), code);
            const __m256i two = _mm256_madd_epi16(_mm256_maddubs_epi16(size, q), one);
            sum[r] = i ? _mm256_add_epi32(sum[r], two) : two;
        }
    }
    KT_EACH (r, rows) {
        const __m256 scale = _mm256_mul_ps(_mm256_load_ps(scales), _mm256_set1_ps(x->scale[r]));
        __m256 y = _mm256_load_ps(out + 64 * r);
        y = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r]), scale, y);
        y = _mm256_fmadd_ps(_mm256_load_ps(minima), _mm256_set1_ps(x->sum[r][h]), y);
        _mm256_store_ps(out + 64 * r, y);
    }
}

/* Rows [first, first + rows) meet unit i. Scales and minima of a panel row are four bytes, as its
 * codes of a line are. */
KT_INLINE void kt_g16m_unit(const kt_p64_tile *t, int64_t i, int first, const int rows) {
    const uint8_t *unit = t->panel + KT_G16M_UNIT * i;
    kt_g16m_rows x;

    KT_EACH (r, rows) {
        int32_t sum[2];
        x.q[r] = (const uint8_t *)t->a[first + r] + 32 * i;
        x.scale[r] = kt_a8_scales(t->a[first + r], t->k)[i];
        kt_half_sums(x.q[r], sum);
        x.sum[r][0] = x.scale[r] * (float)sum[0];
        x.sum[r][1] = x.scale[r] * (float)sum[1];
    }
    for (int c = 0; c < 8; c++) {
        for (int line = 0; line < KT_G16M_UNIT / 8; line += 64)
            _mm_prefetch((const char *)unit + KT_G16M_AHEAD * KT_G16M_UNIT + KT_G16M_UNIT / 8 * c +
                             line,
                         _MM_HINT_T0);
        float *out = t->tile + 64 * first + 8 * c;
        kt_g16m_half(unit + 32 * c, 0, &x, out, rows);
        kt_g16m_half(unit + 32 * c, 1, &x, out, rows);
    }
}

static inline void kt_tile_w8g16m(const kt_p64_tile *t) {
    /* one row: p64_few_units.h where vectors are of 32 bytes */
    if (t->rows >= KT_DIRECT_ROWS || (t->rows == 1 && KT_V_BYTES == 32)) {
        kt_tile_INT8_G16M(t);
        return;
    }
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t i = 0; i < t->k / 32; i++) {
        const uint8_t *unit = t->panel + KT_G16M_UNIT * i;
        int row = 0;
        kt_fetch_next(t, unit, KT_G16M_UNIT);
        for (; row + 4 <= t->rows; row += 4) kt_g16m_unit(t, i, row, 4);
        switch (t->rows - row) {
        case 1: kt_g16m_unit(t, i, row, 1); break;
        case 2: kt_g16m_unit(t, i, row, 2); break;
        case 3: kt_g16m_unit(t, i, row, 3); break;
        default: break;
        }
    }
}

#endif
