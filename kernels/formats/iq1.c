/* The grid of IQ1 as words. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/iq1.h"

#include "kernels/formats/iq1_points.h"

#define DIGIT(n, i) ((uint32_t)(n) >> 2 * (i)&3)
#define BYTE(n, j) ((DIGIT(n, j) << 3 | DIGIT(n, (j) + 4) << 5) << 8 * (j))
#define WORD(n) BYTE(n, 0) | BYTE(n, 1) | BYTE(n, 2) | BYTE(n, 3),

_Alignas(64) const uint32_t kt_iq1_words[KT_IQ1_POINTS_COUNT] = {KT_IQ1_POINTS(WORD)};
