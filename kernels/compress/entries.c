/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/compress/entries.h"

#include <string.h>

#include "kernels/simd/exp_poly.h"

/* e^x for x <= 0, from -87 on. Adding 1.5 * 2^23 rounds to a whole number, which then stands in the
 * low bits. */
static inline float exp_below(float x) {
    const float round = 0x1.8p23f, bounded = x < -87.0f ? -87.0f : x;
    const float shifted = bounded * KT_EXP_LOG2E + round, n = shifted - round;
    const float r = (bounded - n * KT_EXP_LN2_HIGH) - n * KT_EXP_LN2_LOW;
    float p = KT_EXP_P4, power;
    uint32_t bits;

    p = p * r + KT_EXP_P3;
    p = p * r + KT_EXP_P2;
    p = p * r + KT_EXP_P1;
    p = p * r + KT_EXP_P0;
    p = p * (r * r) + r + 1.0f;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 127) << 23; /* what stands above the low nine bits is shifted out */
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

/* n channels of one token go into an entry: top, sum and values of it. */
static void add_token(float *restrict top, float *restrict sum, float *restrict pooled,
                      const float *restrict c, const float *restrict g, const float *restrict ape,
                      int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const float gate = g[i] + ape[i], was = sum[i] > 0 ? top[i] : gate;
        const float above = gate - was, e = exp_below(above > 0 ? -above : above);
        const float keep = above > 0 ? e : 1.0f, add = above > 0 ? 1.0f : e;
        top[i] = above > 0 ? gate : was;
        sum[i] = sum[i] * keep + add;
        pooled[i] = pooled[i] * keep + c[i] * add;
    }
}

/* The entry is done; where windows overlap the next one has begun already. */
static void finish(const kt_pool_call *p, float *out) {
    const int64_t begin = p->channel_begin, n = p->channel_end - begin, dim = p->dim;
    float *sum = p->state + dim, *pooled = p->state + 2 * dim;

    for (int64_t i = begin; i < p->channel_end; i++) out[i] = pooled[i] / sum[i];
    for (int64_t part = 0; part < 3; part++) {
        float *own = p->state + part * dim + begin, *next = own + 3 * dim;
        if (p->halves == 2) memcpy(own, next, (size_t)n * sizeof *own);
        memset(p->halves == 2 ? next : own, 0, (size_t)n * sizeof *own);
    }
}

void kt_pool_rows(const kt_pool_call *p) {
    const int64_t n = p->channel_end - p->channel_begin, dim = p->dim;

    for (int64_t r = 0; r < p->rows; r++) {
        const int64_t place = (p->position + r) % p->ratio;
        for (int64_t half = 0; half < p->halves; half++) {
            /* the last half is the window's own, and its entry the first of the state */
            const int64_t at = (p->halves - 1 - half) * dim + p->channel_begin;
            float *state = p->state + half * 3 * dim + p->channel_begin;
            add_token(state, state + dim, state + 2 * dim, p->values + r * p->ldv + at,
                      p->gates + r * p->ldg + at, p->ape + place * p->halves * dim + at, n);
        }
        if (place == p->ratio - 1) finish(p, p->out + r * p->ldo);
    }
}
