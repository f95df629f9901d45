/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/fp4_pairs.h"

#include <emmintrin.h>

/* 32 codes in the order of inputs: *first has inputs 0 to 15, *last 16 to 31, one in a byte. */
static void take_apart(const uint8_t *pairs, __m128i *first, __m128i *last) {
    const __m128i low = _mm_set1_epi8(15);
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)pairs);
    const __m128i even = _mm_and_si128(v, low), odd = _mm_and_si128(_mm_srli_epi16(v, 4), low);

    *first = _mm_unpacklo_epi8(even, odd);
    *last = _mm_unpackhi_epi8(even, odd);
}

static void store_nibbles(uint8_t *out, __m128i low, __m128i high) {
    _mm_storeu_si128((__m128i *)(void *)out, _mm_or_si128(low, _mm_slli_epi16(high, 4)));
}

void kt_mxfp4_from_pairs(const uint8_t *pairs, const uint8_t *exponents, int64_t k,
                         uint8_t *blocks) {
    for (int64_t b = 0; b < k / 32; b++, pairs += 16, blocks += 17) {
        __m128i first, last;
        take_apart(pairs, &first, &last);
        blocks[0] = exponents[b];
        store_nibbles(blocks + 1, first, last);
    }
}

/* Of each 16 codes the first eight are low nibbles. */
static void put_codes(const uint8_t *pairs, uint8_t *out) {
    __m128i first, last;

    take_apart(pairs, &first, &last);
    store_nibbles(out, _mm_unpacklo_epi64(first, last), _mm_unpackhi_epi64(first, last));
}

int64_t kt_nvfp4_from_pairs(const uint8_t *pairs, const uint8_t *scales, int64_t k,
                            uint8_t *blocks) {
    for (int64_t b = 0; b < k / 64; b++, pairs += 32, scales += 4, blocks += 36) {
        put_codes(pairs, blocks + 4);
        put_codes(pairs + 16, blocks + 20);
        for (int i = 0; i < 4; i++) {
            blocks[i] = scales[i] & 127;
            if (blocks[i] == 127) return 4 * b + i;
            for (int j = 0; scales[i] & 128 && j < 8; j++) blocks[4 + 8 * i + j] ^= 0x88;
        }
    }
    return -1;
}
