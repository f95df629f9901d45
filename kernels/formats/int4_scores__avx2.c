/* Two candidates at a time. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_scores.h"

#define EACH4(p) _mm256_broadcast_ps((const __m128 *)(const void *)(p))
#define TURN(s, how) _mm256_permute_ps(s, how)
#define PICK(a, b, lanes) _mm256_blend_ps(a, b, (lanes)*0x11)

KT_INT4_SCORES(kt_int4_scores_avx2, __m256, 2, EACH4, _mm256_loadu_ps, _mm256_storeu_ps,
               _mm256_set1_ps, _mm256_min_ps, _mm256_max_ps, TURN, PICK)
