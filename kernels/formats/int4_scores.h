/* What each candidate scale of a symmetric 4-bit group loses, for int4_search.c: candidates side by
 * side in a register, 4 lanes each, so that every width adds in the same order and gives the same
 * bits. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INT4_SCORES_H
#define KT_KERNELS_INT4_SCORES_H

#include <immintrin.h>

#include "kt/isa.h"

#define KT_INT4_MOST 128  /* inputs of the largest group */
#define KT_INT4_POINTS 25 /* candidates per sign: t = 6.8 + 0.1 i */
#define KT_INT4_ROOM 28   /* the same for every width: the last ones are not looked at */

/* A group in units of its largest magnitude, 0 < group <= KT_INT4_MOST inputs in fours; v: weights
 * of the inputs, not read unless is_weighted. */
typedef struct kt_int4_group {
    int group, is_weighted;
    float y[KT_INT4_MOST], v[KT_INT4_MOST];
} kt_int4_group;

/* Of candidate i and codes q: <y, q> and <q, q> for -t, then for t. */
typedef struct kt_int4_sums {
    float sum[KT_INT4_ROOM][4];
} kt_int4_sums;

typedef void kt_int4_scores(const kt_int4_group *x, kt_int4_sums *out);
kt_int4_scores kt_int4_scores_sse2, kt_int4_scores_avx2, kt_int4_scores_avx512;
/* The widest that `isa` has. */
kt_int4_scores *kt_int4_scores_best(kt_isa isa);

extern const float kt_int4_steps[KT_INT4_ROOM][4]; /* t of each candidate, for four lanes */

/* 1.5 * 2^23: adding and subtracting it rounds |x| < 2^22 to the nearest even integer. */
#define KT_INT4_MAGIC 12582912.0f

/* The function for one width. V: a vector of WIDTH candidates; EACH4(p): four floats for each of
 * them; MIN, MAX, SET1; TURN(s, how): lanes within four; PICK(a, b, lanes): lanes of b where the
 * mask says so, repeated for each four.
 *
 * Rounding is symmetric, so the codes of -t are those of t with the other sign, but for the clamp:
 * the eighth code is on the other side. */
#define KT_INT4_SCORES(name, V, WIDTH, EACH4, LOAD, STORE, SET1, MIN, MAX, TURN, PICK)       \
    static inline V name##_sum(V s) {                                                        \
        s = s + TURN(s, 0x4e);                                                               \
        return s + TURN(s, 0xb1);                                                            \
    }                                                                                        \
    static inline __attribute__((always_inline)) void name##_all(                            \
        const kt_int4_group *x, int is_weighted, kt_int4_sums *out) {                        \
        const V magic = SET1(KT_INT4_MAGIC), eight = SET1(8), seven = SET1(7);               \
        const V low_plus = SET1(-8), low_minus = SET1(-7);                                   \
        for (int i = 0; i < KT_INT4_POINTS; i += WIDTH) {                                    \
            const V step = LOAD(kt_int4_steps[i]);                                           \
            V yp = SET1(0), pp = SET1(0), ym = SET1(0), mm = SET1(0);                        \
            for (int j = 0; j < x->group; j += 4) {                                          \
                const V y = EACH4(x->y + j), q = (y * step + magic) - magic;                 \
                const V p = MAX(MIN(q, seven), low_plus), m = MAX(MIN(q, eight), low_minus); \
                V vp = p, vm = m;                                                            \
                if (is_weighted) vp = EACH4(x->v + j) * p, vm = EACH4(x->v + j) * m;         \
                yp = yp + y * vp, pp = pp + p * vp;                                          \
                ym = ym + y * vm, mm = mm + m * vm;                                          \
            }                                                                                \
            yp = PICK(PICK(-name##_sum(ym), name##_sum(mm), 2),                              \
                      PICK(name##_sum(yp), name##_sum(pp), 8), 12);                          \
            STORE(out->sum[i], yp);                                                          \
        }                                                                                    \
    }                                                                                        \
    void name(const kt_int4_group *x, kt_int4_sums *out) {                                   \
        if (x->is_weighted) {                                                                \
            name##_all(x, 1, out);                                                           \
        } else {                                                                             \
            name##_all(x, 0, out);                                                           \
        }                                                                                    \
    }

#endif
