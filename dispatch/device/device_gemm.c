/* Products of rows and matrices on a device. Up to 8 rows may go to a kernel that reads the weights
 * once and rounds rows itself; more are rounded first. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_gemm.h"

#include <string.h>

#include "base/err.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/gemm_calls.h"

enum { ROUND_INPUTS = 8, FEW_OUTPUTS = 16, ALIGN = 256, TILES = 0, A8_DOWN = 1, A8_OF_F32 = 0 };

static int64_t blocks(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

static size_t round_up(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

kt_device_job kt_device_gemm_job(const kt_device_matrices *w, uint32_t encodings) {
    return (kt_device_job){.op = KT_OP_GEMM,
                           .weights = w->format,
                           .down = w->format,
                           .n = w->n,
                           .k = w->k,
                           .experts = 1,
                           .topk = 1,
                           .encodings = encodings,
                           .has_heads = w->count > 1};
}

kt_status kt_device_gemm_make(kt_device *d, const kt_device_matrices *w,
                              const kt_device_ladder *ladder, int64_t max_rows, kt_device_gemm *out,
                              kt_err *err) {
    memset(out, 0, sizeof *out);
    out->w = *w;
    out->ladder = *ladder;
    out->ladder.n = kt_device_ladder_rung(ladder, max_rows) + 1;
    for (int i = 0; i < out->ladder.n; i++) {
        const kt_cuda_kernel *k = ladder->choice[i].kernel;
        KT_TRY(kt_device_kernel_make(d, &ladder->choice[i], &out->kernel[i], err));
        if (kt_device_is_few(k)) continue;
        if (k->rows == KT_CUDA_ROWS_BF16 && !out->round.code)
            KT_TRY(kt_device_kernel_named(d, "bf16_rows", NULL, 0, &out->round, err));
        if (k->rows != KT_CUDA_ROWS_BF16 && !out->quantise.code)
            KT_TRY(
                kt_device_quantiser_make(d, kt_device_encoding_of(w->format), &out->quantise, err));
    }
    return KT_OK;
}

/* Codes of 8-bit rows, then their scales. */
static size_t code_bytes(const kt_device_gemm *g, int64_t rows) {
    return round_up((size_t)(rows * g->w.k));
}

size_t kt_device_gemm_scratch(const kt_device_gemm *g, int64_t max_rows) {
    const int64_t scales = kt_device_encoding_scales(kt_device_encoding_of(g->w.format), g->w.k);
    size_t bytes = 0, more = 0;

    if (g->round.code) bytes = (size_t)(g->w.count * max_rows * g->w.k) * sizeof(uint16_t);
    if (g->quantise.code)
        more = code_bytes(g, max_rows) + (size_t)(max_rows * scales) * sizeof(float);
    return bytes > more ? bytes : more;
}

bool kt_device_gemm_shares_rows(const kt_device_gemm *a, const kt_device_gemm *b, int64_t rows) {
    const kt_device_kernel *of_a = &a->kernel[kt_device_ladder_rung(&a->ladder, rows)],
                           *of_b = &b->kernel[kt_device_ladder_rung(&b->ladder, rows)];
    const kt_device_encoding e = kt_device_encoding_of(a->w.format),
                             f = kt_device_encoding_of(b->w.format);

    if (kt_device_is_few(of_a->kernel) || kt_device_is_few(of_b->kernel) || a->w.k != b->w.k ||
        a->w.count != b->w.count || of_a->kernel->rows != of_b->kernel->rows)
        return false;
    return of_a->kernel->rows == KT_CUDA_ROWS_BF16 || (e.format == f.format && e.group == f.group);
}

/* Rows [first, first + rows), at most KT_DEVICE_FEW. */
static kt_status put_turn(kt_device *d, const kt_device_gemm *g, const kt_device_kernel *k,
                          const kt_device_gemm_call *c, int64_t first, int64_t rows, kt_err *err) {
    const kt_gemm_decode call = {.x = c->x_row ? c->x : c->x + first * c->ldx,
                                 .x_row = c->x_row ? c->x_row + first : NULL,
                                 .w = g->w.at,
                                 .y = c->y + first * c->ldy,
                                 .ldx = c->ldx,
                                 .ldy = c->ldy,
                                 .w_head = (int64_t)g->w.bytes,
                                 .x_head = c->x_head,
                                 .y_head = c->y_head,
                                 .rows = (int32_t)rows,
                                 .n = (int32_t)g->w.n,
                                 .k = (int32_t)g->w.k,
                                 .accumulate = c->accumulate};

    return kt_device_kernel_run(d, k, 0, blocks(g->w.n, FEW_OUTPUTS * k->config.value[1]),
                                g->w.count, g->w.k, &call, sizeof call, err);
}

/* Turns behind the first find the matrix in the GPU's cache, and take more blocks than tiles of so
 * few rows would. */
static kt_status put_few(kt_device *d, const kt_device_gemm *g, const kt_device_kernel *k,
                         const kt_device_gemm_call *c, kt_err *err) {
    for (int64_t first = 0; first < c->rows; first += KT_DEVICE_FEW)
        KT_TRY(put_turn(d, g, k, c, first,
                        c->rows - first < KT_DEVICE_FEW ? c->rows - first : KT_DEVICE_FEW, err));
    return KT_OK;
}

static kt_status put_rounding(kt_device *d, const kt_device_gemm *g, const kt_device_gemm_call *c,
                              kt_err *err) {
    const kt_bf16_rows call = {c->x,      c->x_row,         c->scratch,     c->ldx,
                               c->x_head, (int32_t)c->rows, (int32_t)g->w.k};

    return kt_device_kernel_run(
        d, &g->round, 0, blocks(g->w.k, ROUND_INPUTS * g->round.kernel->threads(&g->round.config)),
        g->w.count * c->rows, g->w.k, &call, sizeof call, err);
}

static kt_status put_tiles(kt_device *d, const kt_device_gemm *g, const kt_device_kernel *k,
                           const kt_device_gemm_call *c, kt_err *err) {
    const int64_t row_tiles = blocks(c->rows, k->config.value[0]);
    const kt_gemm_tiles call = {.x = c->scratch,
                                .w = g->w.at,
                                .y = c->y,
                                .ldy = c->ldy,
                                .w_head = (int64_t)g->w.bytes,
                                .y_head = c->y_head,
                                .rows = (int32_t)c->rows,
                                .n = (int32_t)g->w.n,
                                .k = (int32_t)g->w.k,
                                .row_tiles = (int32_t)row_tiles,
                                .accumulate = c->accumulate};

    if (!c->is_encoded) KT_TRY(put_rounding(d, g, c, err));
    return kt_device_kernel_run(d, k, TILES, blocks(g->w.n, k->config.value[1]),
                                g->w.count * row_tiles, g->w.k, &call, sizeof call, err);
}

/* `down` of the 8-bit kernels without tiles is a dense product: their n is the inputs. */
static kt_status put_eight_bits(kt_device *d, const kt_device_gemm *g, const kt_device_kernel *k,
                                const kt_device_gemm_call *c, kt_err *err) {
    uint8_t *codes = c->scratch;
    float *scales = (float *)(void *)(codes + code_bytes(g, c->rows));
    const kt_quantise_rows rows = {.x = c->x,
                                   .of = c->x_row,
                                   .out = codes,
                                   .scale = scales,
                                   .ldx = c->ldx,
                                   .k = (int32_t)g->w.k};
    const kt_a8_tiles call = {.down = g->w.at,
                              .h8 = codes,
                              .h_scale = scales,
                              .y = c->y,
                              .ldy = c->ldy,
                              .down_bytes = (int64_t)g->w.bytes,
                              .n = (int32_t)g->w.k,
                              .k = (int32_t)g->w.n,
                              .rows = (int32_t)c->rows,
                              .accumulate = c->accumulate};

    if (!c->is_encoded)
        KT_TRY(kt_device_kernel_run(d, &g->quantise, A8_OF_F32, c->rows, 1, g->w.k, &rows,
                                    sizeof rows, err));
    return kt_device_kernel_run(d, k, A8_DOWN, blocks(g->w.n, k->config.value[1]),
                                blocks(c->rows, k->config.value[0]), g->w.k, &call, sizeof call,
                                err);
}

kt_status kt_device_gemm_put(kt_device *d, const kt_device_gemm *g, const kt_device_gemm_call *call,
                             kt_err *err) {
    const kt_device_kernel *k = &g->kernel[kt_device_ladder_rung(&g->ladder, call->rows)];

    if (call->rows <= 0) return KT_OK;
    if (kt_device_is_few(k->kernel)) return put_few(d, g, k, call, err);
    if (k->kernel->rows == KT_CUDA_ROWS_BF16) return put_tiles(d, g, k, call, err);
    return put_eight_bits(d, g, k, call, err);
}
