/* The grids, written out from their points. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid.h"

#include "kernels/formats/grid_points.h"

/* --- IQ2: digits of two bits ------------------------------------------------------------------ */

#define SIZE2(digit) ((digit) == 0 ? 8 : (digit) == 1 ? 25 : 43)
#define FOUR2(n) SIZE2((n)&3), SIZE2((n) >> 2 & 3), SIZE2((n) >> 4 & 3), SIZE2((n) >> 6 & 3)
#define POINT2(n) {FOUR2(n), FOUR2((n) >> 8)},
#define LOW2(n) (n) & 255,
#define HIGH2(n) (n) >> 8,

/* --- IQ3: digits of three bits ---------------------------------------------------------------- */

#define DIGIT3(n, i) ((n) >> 3 * (i)&7)
#define XXS3(digit) ((digit) == 7 ? 62 : 8 * (digit) + 4)
#define S3(digit) (2 * (digit) + 1)
#define XXS_POINT3(n) \
    {XXS3(DIGIT3(n, 0)), XXS3(DIGIT3(n, 1)), XXS3(DIGIT3(n, 2)), XXS3(DIGIT3(n, 3))},
#define S_POINT3(n) {S3(DIGIT3(n, 0)), S3(DIGIT3(n, 1)), S3(DIGIT3(n, 2)), S3(DIGIT3(n, 3))},
#define LOW3(n) DIGIT3(n, 0) | DIGIT3(n, 1) << 4,
#define HIGH3(n) DIGIT3(n, 2) | DIGIT3(n, 3) << 4,

/* --- the grids -------------------------------------------------------------------------------- */

#define GRID(name, count, inputs, list, point, low, high)                          \
    _Alignas(64) static const uint8_t name##_point[count][inputs] = {list(point)}; \
    _Alignas(64) static const uint8_t name##_low[count] = {list(low)};             \
    _Alignas(64) static const uint8_t name##_high[count] = {list(high)};

GRID(iq2_xxs, 256, 8, KT_IQ2_XXS_POINTS, POINT2, LOW2, HIGH2)
GRID(iq2_xs, 512, 8, KT_IQ2_XS_POINTS, POINT2, LOW2, HIGH2)
GRID(iq2_s, 1024, 8, KT_IQ2_S_POINTS, POINT2, LOW2, HIGH2)
GRID(iq3_xxs, 256, 4, KT_IQ3_XXS_POINTS, XXS_POINT3, LOW3, HIGH3)
GRID(iq3_s, 512, 4, KT_IQ3_S_POINTS, S_POINT3, LOW3, HIGH3)

#define TABLES(name) name##_low, name##_high, name##_point[0], sizeof name##_low

static const kt_grid grids[KT_P64_GRIDS] = {
    [KT_P64_IQ2_XXS] = {TABLES(iq2_xxs), {8, 25, 43}},
    [KT_P64_IQ2_XS] = {TABLES(iq2_xs), {8, 25, 43}},
    [KT_P64_IQ2_S] = {TABLES(iq2_s), {8, 25, 43}},
    [KT_P64_IQ3_XXS] = {TABLES(iq3_xxs), {4, 12, 20, 28, 36, 44, 52, 62}},
    [KT_P64_IQ3_S] = {TABLES(iq3_s), {1, 3, 5, 7, 9, 11, 13, 15}},
};

const kt_grid *kt_grid_of(kt_p64_grid grid) {
    return grid > KT_P64_NO_GRID && grid < KT_P64_GRIDS ? &grids[grid] : NULL;
}
