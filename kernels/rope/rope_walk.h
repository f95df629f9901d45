/* The walk over rows and heads that all rotary embeddings share.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROPE_WALK_H
#define KT_KERNELS_ROPE_WALK_H

#include "kt/variant.h"

/* Rotates `half` pairs of x in place. */
typedef void kt_rotate_fn(float *x, const float *cosine, const float *sine, int64_t half);

/* kt_variant.rope: `halves` rotates pairs (i, i + half), `pairs` rotates pairs (2i, 2i + 1). */
static inline void kt_rope_walk(const kt_rope_call *c, kt_rotate_fn *halves, kt_rotate_fn *pairs) {
    int64_t half = c->rotary_dim / 2;
    kt_rotate_fn *rotate = c->interleaved ? pairs : halves;
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *cosine = c->cos_sin + (int64_t)c->positions[row] * c->rotary_dim;
        for (int64_t head = 0; head < c->heads; head++)
            rotate(c->x + row * c->ld + head * c->head_dim, cosine, cosine + half, half);
    }
}

#endif
