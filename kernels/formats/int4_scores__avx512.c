/* Four candidates at a time. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_scores.h"

#define EACH4(p) _mm512_broadcast_f32x4(_mm_loadu_ps(p))
#define TURN(s, how) _mm512_permute_ps(s, how)
#define PICK(a, b, lanes) _mm512_mask_blend_ps((lanes)*0x1111, a, b)

KT_INT4_SCORES(kt_int4_scores_avx512, __m512, 4, EACH4, _mm512_loadu_ps, _mm512_storeu_ps,
               _mm512_set1_ps, _mm512_min_ps, _mm512_max_ps, TURN, PICK)
