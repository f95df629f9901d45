/* The members of GEMM and MOE_FFN variants over opened tiles: what the walk of tiles_walk.h reads
 * of a call, and where a row's sums go.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_TILES_OPS_H
#define KT_P64_TILES_OPS_H

#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/tiles_walk.h"

/* What the walk's code asks for; the file's flags must not go further. */
#define KT_TILES_ISA (KT_ISA_AMXBF16 | KT_ISA_AVX512FP16 | KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16)

static inline size_t kt_tiles_workspace(const kt_problem *q, const kt_config *config) {
    const size_t k = kt_tiles_scratch(q->k), n = kt_tiles_scratch(q->n);
    (void)config;
    return q->op == KT_OP_MOE_FFN && n > k ? n : k;
}

static inline void kt_tiles_end_gemm(const void *call, const kt_tiles_sums *s) {
    const kt_gemm_call *x = call;
    const int64_t left = x->problem->n - 64 * s->panel;
    float *c = x->c + s->row * x->ldc + 64 * s->panel;

    for (int64_t r = 0; r < s->rows; r++, c += x->ldc)
        KT_EACH (j, 4) {
            const int64_t n = left - 16 * j;
            const __mmask16 in = kt_lanes512(n);
            __m512 v = kt_tiles_sum(s, r, j);
            if (x->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(in, c + 16 * j), v);
            _mm512_mask_storeu_ps(c + 16 * j, in, v);
        }
}

/* Gate and up as kt_glu says, with a reciprocal in place of the division, which takes the port that
 * products leave to vectors for 16 cycles: 2^-22. The exponential is that of -|x|, so that the
 * divisor is from 1 to 2. */
KT_INLINE __m512 kt_tiles_swiglu(__m512 g, __m512 u, const kt_glu_rule *glu) {
    __m512 steep = kt_glu_begin512(&g, &u, glu), divisor, inverse;
    const __mmask16 below = _mm512_movepi32_mask(_mm512_castps_si512(steep));

    steep = kt_exp_ps512(_mm512_or_ps(steep, _mm512_set1_ps(-0.0f)));
    divisor = _mm512_add_ps(_mm512_set1_ps(1.0f), steep);
    inverse = _mm512_rcp14_ps(divisor);
    inverse = _mm512_mul_ps(inverse, _mm512_fnmadd_ps(divisor, inverse, _mm512_set1_ps(2.0f)));
    g = _mm512_mask_mul_ps(g, below, g, steep);
    return _mm512_mul_ps(_mm512_mul_ps(g, inverse), u);
}

/* Channels of row r. */
KT_INLINE void kt_tiles_h(const kt_moe_call *x, const kt_tiles_sums *s, int64_t r, __m512 v[2]) {
    KT_EACH (j, 2) {
        __m512 gate = kt_tiles_sum(s, r, j), up = kt_tiles_sum(s, r, j + 2);
        if (x->gate_bias) {
            const int64_t at = 32 * s->panel + 16 * j;
            gate = _mm512_add_ps(gate, _mm512_loadu_ps(x->gate_bias + at));
            up = _mm512_add_ps(up, _mm512_loadu_ps(x->up_bias + at));
        }
        v[j] = kt_tiles_swiglu(gate, up, &x->glu);
    }
}

/* Four rows at once share what a group has one number of. */
static inline void kt_tiles_end_gate_up(const void *call, const kt_tiles_sums *s) {
    const kt_moe_call *x = call;
    const kt_act_format acts = x->problem->acts;
    const int64_t n = x->problem->n, p = s->panel;
    uint8_t *h = (uint8_t *)x->h + (size_t)s->row * x->h_stride;
    int64_t r = 0;
    __m512 v[4][2];

    for (; r + 4 <= s->rows && acts != KT_A_BF16; r += 4, h += 4 * x->h_stride) {
        KT_EACH (i, 4) kt_tiles_h(x, s, r + i, v[i]);
        if (acts == KT_A_INT8_G32)
            kt_a8_store_rows512(v, h, x->h_stride, n, p);
        else
            kt_a8p_store_rows512(v, 4, h, x->h_stride, n, 2 * p);
    }
    for (; r < s->rows; r++, h += x->h_stride) {
        kt_tiles_h(x, s, r, v[0]);
        kt_p64_store_channels(acts, v[0][0], v[0][1], h, n, p);
    }
}

static inline void kt_tiles_end_down(const void *call, const kt_tiles_sums *s) {
    const kt_moe_call *x = call;
    const int64_t left = x->problem->k - 64 * s->panel;

    for (int64_t r = 0; r < s->rows; r++) {
        float *out = x->out + x->rows[s->row + r] * x->ldo + 64 * s->panel;
        const __m512 weight = _mm512_set1_ps(x->route_weight[s->row + r]);
        KT_EACH (j, 4) { /* hidden is a multiple of 32 */
            const __mmask16 in = 16 * j < left ? 0xffff : 0;
            const __m512 old = _mm512_maskz_loadu_ps(in, out + 16 * j);
            __m512 v = kt_tiles_sum(s, r, j);
            if (x->down_bias)
                v = _mm512_add_ps(v,
                                  _mm512_maskz_loadu_ps(in, x->down_bias + 64 * s->panel + 16 * j));
            _mm512_mask_storeu_ps(out + 16 * j, in, _mm512_fmadd_ps(weight, v, old));
        }
    }
}

/* --- calls --- */

static inline kt_tiles_call kt_tiles_of_gemm(const kt_gemm_call *call) {
    const kt_problem *q = call->problem;
    const size_t panel = kt_p64_panel_bytes(q->weights, q->k);

    return (kt_tiles_call){.weights = q->weights,
                           .acts = q->acts,
                           .k = q->k,
                           .m = call->m,
                           .panels =
                               (const uint8_t *)call->weights + (size_t)call->panel_begin * panel,
                           .first = call->panel_begin,
                           .count = call->panel_end - call->panel_begin,
                           .a = call->a,
                           .a_stride = call->a_stride,
                           .next = call->next,
                           .scratch = call->scratch,
                           .end_rows = kt_tiles_end_gemm,
                           .call = call};
}

/* gate_up reads the tokens' rows, down those of h. */
static inline kt_tiles_call kt_tiles_of_moe(const kt_moe_call *call, int is_down) {
    const kt_problem *q = call->problem;
    const int64_t first = call->panel_begin;

    return (kt_tiles_call){.weights = q->weights,
                           .acts = q->acts,
                           .k = is_down ? q->n : q->k,
                           .m = call->m,
                           .panels = is_down ? kt_p64_down(q, call->weights, first)
                                             : kt_p64_gate_up(q, call->weights, first),
                           .first = first,
                           .count = call->panel_end - first,
                           .a = is_down ? call->h : call->a,
                           .a_stride = is_down ? call->h_stride : call->a_stride,
                           .rows = is_down ? NULL : call->rows,
                           .next = call->next,
                           .scratch = call->scratch,
                           .end_rows = is_down ? kt_tiles_end_down : kt_tiles_end_gate_up,
                           .call = call};
}

/* The members gemm, gate_up and down of a file that has `run`, which finds the way of a call's
 * format. */
#define KT_TILES_OPS(run)                                 \
    static void gemm(const kt_gemm_call *call) {          \
        const kt_tiles_call x = kt_tiles_of_gemm(call);   \
        run(&x);                                          \
    }                                                     \
    static void gate_up(const kt_moe_call *call) {        \
        const kt_tiles_call x = kt_tiles_of_moe(call, 0); \
        run(&x);                                          \
    }                                                     \
    static void down(const kt_moe_call *call) {           \
        const kt_tiles_call x = kt_tiles_of_moe(call, 1); \
        run(&x);                                          \
    }

#endif
