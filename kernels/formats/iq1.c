/* The grid of IQ1: codes, words, and the tables that take codes apart.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/iq1.h"

#include "kernels/formats/iq1_points.h"

#define DIGIT(n, i) ((uint32_t)(n) >> 2 * (i)&3)
#define BYTE(n, j) ((DIGIT(n, j) << 3 | DIGIT(n, (j) + 4) << 5) << 8 * (j))
#define WORD(n, code) [code] = BYTE(n, 0) | BYTE(n, 1) | BYTE(n, 2) | BYTE(n, 3),
#define CODE(n, code) code,
#define FIRST(first, at) first,
#define AT(first, at) at,
#define LAST(last) last,

const uint16_t kt_iq1_codes[KT_IQ1_POINTS_COUNT] = {KT_IQ1_POINTS(CODE)};
_Alignas(64) const uint32_t kt_iq1_words[KT_IQ1_CODES] = {KT_IQ1_POINTS(WORD)};
_Alignas(64) const uint8_t kt_iq1_first[256] = {KT_IQ1_KEYS(FIRST)};
_Alignas(64) const uint8_t kt_iq1_at[256] = {KT_IQ1_KEYS(AT)};
_Alignas(64) const uint8_t kt_iq1_last[KT_IQ1_LAST] = {KT_IQ1_LASTS(LAST)};
