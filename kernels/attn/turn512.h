/* Blocks of keys turned round, on AVX-512: lane j of a vector belongs to key j, so that scores come out as vectors.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_TURN512_H
#define KT_ATTN_TURN512_H

#include "kernels/attn/attn512.h"

#define KEYS KT_ATTN_BLOCK
#define TURNED_ROW ((size_t)4 * KEYS) /* bytes of a turned block that hold a dword of each key */

/* 64 bytes from byte x on of 16 keys from j on. Keys past the last repeat it; their scores are never
 * looked at. item: bytes of an element; is_whole: there are 16; constants at each call. */
KT_INLINE void load_16_keys(const kt_attn_rows *k, int64_t j, int64_t x, __m512i r[16],
                            const int item, const int is_whole) {
    const __mmask64 m = mask64(item * k->d - x);

    KT_EACH (i, 16) {
        const int64_t row = is_whole || j + i < k->n ? j + i : k->n - 1;
        r[i] = _mm512_maskz_loadu_epi8(m, k->at + row * item * k->ld + x);
    }
}

/* Transpose 16 rows of 16 dwords. */
KT_INLINE void transpose(__m512i r[16]) {
    __m512i t[16];

    KT_EACH (i, 8) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    KT_EACH (i, 4) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    KT_EACH (i, 4) { /* r[4 g + i] has dwords 4 l + i of rows 4 g .. 4 g + 3 in lane l */
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 8] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    KT_EACH (i, 4) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    }
}

KT_INLINE void turn_16_keys(const kt_attn_rows *k, int64_t j, uint8_t *to, __m512i flip,
                            const int item, const int is_whole) {
    for (int64_t x = 0; x < item * k->d; x += 64, to += 16 * TURNED_ROW) {
        __m512i r[16];
        load_16_keys(k, j, x, r, item, is_whole);
        transpose(r);
        KT_EACH (i, 16)
            _mm512_store_si512(to + (size_t)i * TURNED_ROW,
                               item == 1 ? _mm512_xor_si512(r[i], flip) : r[i]);
    }
}

/* keys[i][j] = dword i of key j, of codes (item 1) with their bits flipped. */
KT_INLINE void turn_keys(const kt_attn_rows *rows, uint8_t *keys, __m512i flip, const int item) {
    const kt_attn_rows copy = *rows, *const k = &copy;

    for (int64_t j = 0; j < k->n; j += 16) {
        if (k->n - j >= 16)
            turn_16_keys(k, j, keys + 4 * j, flip, item, 1);
        else
            turn_16_keys(k, j, keys + 4 * j, flip, item, 0);
    }
}

#endif
