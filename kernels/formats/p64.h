/* Packed layout "p64": panels of 64 output rows, k-major, one linear stream per panel.
 *
 * A matrix [n, k] (k a multiple of 32) becomes ceil(n / 64) panels; rows past n are zero weights.
 * Inside a panel, row r = 0..63:
 *
 *   wf32           float [k][64]                                                     256 k bytes
 *   wbf16, wf16    16 bits [k/2][64][2]                                              128 k bytes
 *   w8c            uint8 [k/4][64][4], value + 128; then float scale[64]             64 k + 256 bytes
 *   wf8c, wf8b128  E4M3 [k/4][16][2][4][2]: bytes of four rows, two inputs each, then their next two
 *                  inputs, so that unpacking a 64-byte line gives 16 pairs in the order of the rows;
 *                  then wf8c: float scale[64]; wf8b128: float scale[ceil(k/128)][2] of the panel's rows
 *                  0..31 and 32..63, padded to a multiple of 64 bytes
 *   wmxfp8         the same codes, then exponents uint8 [k/32][64], 66 k bytes; where one says
 *                  NaN (255) the codes do and it is 127; of padding rows all are zeros
 *   all others     blocks of codes and scales as p64_spec.h says; for w4g32, per group of 32 inputs:
 *                  uint8 [4][64][4], then bfloat16 scale[64]                         36 k bytes
 *                  byte (t, r, j): low nibble is input 4t + j, high nibble input 16 + 4t + j
 *                  (padding rows hold value 0 and scale 0)
 *
 * An expert is its gate-and-up panels, then its down panels, which may be in another format. Gate-and-up panel p holds gate rows
 * 32p..32p+31 as panel rows 0..31 and up rows 32p..32p+31 as panel rows 32..63, so that a task
 * finishes SwiGLU for one activation group of 32; there are intermediate/32 of them with k = hidden.
 * Down has ceil(hidden / 64) panels with k = intermediate. AMX reads the same panels as tiles with a
 * row stride of 256 bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_H
#define KT_KERNELS_P64_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/formats/p64_spec.h"
#include "kt/variant.h"

#define KT_P64_ROWS 64
/* Bytes of 32 inputs of a panel: codes of 8 and 4 bits, 16-bit values, w4g32's codes and scales. */
enum {
    KT_P64_CODES8_BYTES = 32 * KT_P64_ROWS,
    KT_P64_CODES4_BYTES = 16 * KT_P64_ROWS,
    KT_P64_HALVES_BYTES = 64 * KT_P64_ROWS,
    KT_P64_W4G32_BYTES = KT_P64_CODES4_BYTES + 2 * KT_P64_ROWS
};
/* Of a format's bytes: files hold them (dispatch/model/packed.h). Change a byte, add one. */
static inline int kt_p64_version(kt_weight_format format) {
    return kt_p64_spec_of(format).scale == KT_P64_IQ1 ? 2 : 1;
}

static inline size_t kt_p64_panel_bytes(kt_weight_format format, int64_t k) {
    const kt_p64_spec spec = kt_p64_spec_of(format);
    const size_t n = (size_t)k;

    if (format == KT_W_F32) return 256 * n;
    if (format == KT_W_BF16 || format == KT_W_F16) return 128 * n;
    if (format == KT_W_INT8_CHANNEL || format == KT_W_FP8_CHANNEL) return 64 * n + 256;
    if (format == KT_W_FP8_B128) return 64 * n + ((n + 127) / 128 * 8 + 63) / 64 * 64;
    if (format == KT_W_MXFP8) return 66 * n;
    if (!spec.low) return 0;
    return n / (size_t)spec.span * kt_p64_block_bytes(spec) + kt_p64_tail_bytes(spec);
}

/* k must be a multiple of this. */
static inline int64_t kt_p64_k_multiple(kt_weight_format format) {
    return kt_p64_spec_of(format).span;
}

static inline int64_t kt_p64_panels(int64_t n) {
    return (n + KT_P64_ROWS - 1) / KT_P64_ROWS;
}

/* Descriptor members shared by every p64 variant. Thread-safe; dst is written completely. accepts
 * refuses reductions that are not multiples of 32 and of the format's block (n of a GEMM may be any) and
 * activations that do not go with the weights: kt_format.acts says which do (a8p wherever a8). */
kt_status kt_p64_accepts(const kt_problem *problem, const kt_config *config, kt_err *why);
/* Of kernels that open integer codes to bfloat16 tiles: such weights go with bfloat16 rows too. */
kt_status kt_p64_accepts_opened(const kt_problem *problem, const kt_config *config, kt_err *why);
/* Of kernels that round a panel once more (requant8.h), which fewer than KT_P64_WIDENED_ROWS rows
 * never pay for. From where it pays is for the planner to know. */
#define KT_P64_WIDENED_ROWS 16
kt_status kt_p64_accepts_widened(const kt_problem *problem, const kt_config *config, kt_err *why);
size_t kt_p64_gemm_bytes(const kt_problem *problem);
void kt_p64_pack_gemm(const kt_problem *problem, const kt_matrix *w, void *dst);
size_t kt_p64_expert_bytes(const kt_problem *problem);
void kt_p64_pack_expert(const kt_problem *problem, const kt_matrix *gate, const kt_matrix *up,
                        const kt_matrix *down, void *dst);

/* Back from panels: rows [row_begin, row_end) of a dense matrix into the bases of a plain one
 * (kt_matrix), exactly what was packed. Of formats that kernels read in other layouts too:
 * kt_p64_can_unpack. Thread-safe. */
bool kt_p64_can_unpack(kt_weight_format format);
void kt_p64_unpack_rows(kt_weight_format format, int64_t k, const void *panels, int64_t row_begin,
                        int64_t row_end, void *data, void *scales);

/* The halves of a packed expert: bytes of the gate-and-up half, behind which the down half begins, and
 * the address of panel p inside either. */
static inline size_t kt_p64_gate_up_bytes(const kt_problem *q) {
    return (size_t)(q->n / 32) * kt_p64_panel_bytes(q->weights, q->k);
}
static inline size_t kt_p64_down_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->k) * kt_p64_panel_bytes(q->weights, q->n);
}
static inline const uint8_t *kt_p64_gate_up(const kt_problem *q, const void *half, int64_t p) {
    return (const uint8_t *)half + (size_t)p * kt_p64_panel_bytes(q->weights, q->k);
}
static inline const uint8_t *kt_p64_down(const kt_problem *q, const void *half, int64_t p) {
    return (const uint8_t *)half + (size_t)p * kt_p64_panel_bytes(q->weights, q->n);
}

#endif
