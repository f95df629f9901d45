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

/* Integer formats take bfloat16 rows too: codes are opened to it in any case. */
static inline kt_status kt_tiles_accepts(const kt_problem *q, const kt_config *config,
                                         kt_err *why) {
    kt_problem as_codes = *q;

    if (kt_p64_spec_of(q->weights).low || q->weights == KT_W_INT8_CHANNEL)
        if (q->acts == KT_A_BF16) as_codes.acts = KT_A_INT8_G32;
    return kt_p64_accepts(&as_codes, config, why);
}

static inline size_t kt_tiles_workspace(const kt_problem *q, const kt_config *config) {
    const size_t k = kt_tiles_scratch(q->k), n = kt_tiles_scratch(q->n);
    (void)config;
    return q->op == KT_OP_MOE_FFN && n > k ? n : k;
}

static inline void kt_tiles_end_gemm(const void *call, int64_t row, int64_t panel,
                                     const float sums[64]) {
    const kt_gemm_call *x = call;
    float *c = x->c + row * x->ldc + 64 * panel;

    for (int j = 0; j < 64; j += 16) {
        const int64_t left = x->problem->n - 64 * panel - j;
        const __mmask16 in = left >= 16 ? 0xffff : left > 0 ? (__mmask16)((1u << left) - 1) : 0;
        __m512 v = _mm512_load_ps(sums + j);
        if (x->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(in, c + j), v);
        _mm512_mask_storeu_ps(c + j, in, v);
    }
}

static inline void kt_tiles_end_gate_up(const void *call, int64_t row, int64_t panel,
                                        const float sums[64]) {
    const kt_moe_call *x = call;
    _Alignas(64) float biased[64];

    if (x->gate_bias) {
        for (int j = 0; j < 64; j += 16) _mm512_store_ps(biased + j, _mm512_load_ps(sums + j));
        kt_p64_add_bias512(x, panel, 1, biased);
        sums = biased;
    }
    kt_p64_store_h(x->problem->acts, sums, (uint8_t *)x->h + (size_t)row * x->h_stride,
                   x->problem->n, panel, &x->glu);
}

static inline void kt_tiles_end_down(const void *call, int64_t row, int64_t panel,
                                     const float sums[64]) {
    const kt_moe_call *x = call;
    float *out = x->out + x->rows[row] * x->ldo + 64 * panel;
    const __m512 weight = _mm512_set1_ps(x->route_weight[row]);

    for (int j = 0; j < 64; j += 16) { /* hidden is a multiple of 32 */
        const __mmask16 in = 64 * panel + j < x->problem->k ? 0xffff : 0;
        const __m512 old = _mm512_maskz_loadu_ps(in, out + j);
        __m512 v = _mm512_load_ps(sums + j);
        if (x->down_bias)
            v = _mm512_add_ps(v, _mm512_maskz_loadu_ps(in, x->down_bias + 64 * panel + j));
        _mm512_mask_storeu_ps(out + j, in, _mm512_fmadd_ps(weight, v, old));
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
                           .end_row = kt_tiles_end_gemm,
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
                           .end_row = is_down ? kt_tiles_end_down : kt_tiles_end_gate_up,
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
