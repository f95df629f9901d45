/* Products of rows and matrices on a device. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_product.h"

#include <string.h>

#include "base/err.h"
#include "kernels/cuda/gemm_calls.h"

enum { OF_FORMAT = 2, OF_TILES_FORMAT = 5, ROUND_INPUTS = 8 };

/* bm, bn, warps_m, warps_n, stages. */
static const int32_t tile_sizes[KT_DEVICE_TILE_SIZES][5] = {
    {16, 128, 1, 4, 3}, {32, 128, 1, 4, 3}, {64, 128, 2, 2, 3}};

static int blocks(int64_t n, int64_t of) {
    return (int)((n + of - 1) / of);
}

kt_status kt_device_kernel_find(kt_device_step *s, const char *name, const int32_t *values,
                                int n_values, kt_device_kernel *out, kt_err *err) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0)
            out->kernel = kt_builtin_cuda_kernels[i];
    if (!out->kernel) return kt_fail(err, KT_E_INTERNAL, "this build has no kernel %s", name);
    out->config = kt_cuda_initial(out->kernel);
    for (int i = 0; i < n_values; i++) out->config.value[i] = values[i];
    return kt_device_step_code(s, name, &out->config, &out->code, err);
}

kt_status kt_device_kernel_put(kt_device_step *s, const kt_device_kernel *k, int entry, int grid_x,
                               int grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err) {
    return kt_device_put(s, k->code, entry, grid_x, grid_y,
                         k->kernel->shared_bytes(&k->config, size), call, call_bytes, err);
}

kt_status kt_device_tiles_find(kt_device_step *s, const char *name, kt_weight_format format,
                               kt_device_kernel out[KT_DEVICE_TILE_SIZES], kt_err *err) {
    for (int i = 0; i < KT_DEVICE_TILE_SIZES; i++) {
        int32_t values[OF_TILES_FORMAT + 1];
        memcpy(values, tile_sizes[i], sizeof tile_sizes[i]);
        values[OF_TILES_FORMAT] = (int32_t)format;
        KT_TRY(kt_device_kernel_find(s, name, values, OF_TILES_FORMAT + 1, &out[i], err));
    }
    return KT_OK;
}

int kt_device_tile_size(int64_t rows) {
    int i = 0;

    while (i < KT_DEVICE_TILE_SIZES - 1 && rows > tile_sizes[i][0]) i++;
    return i;
}

const char *kt_device_product_refuse(int64_t k) {
    return k % 8 ? "inputs are no multiple of 8" : NULL;
}

static kt_status find_few(kt_device_step *s, kt_weight_format format, kt_device_kernel *out,
                          kt_err *err) {
    const int32_t values[OF_FORMAT + 1] = {8, 1, (int32_t)format};

    return kt_device_kernel_find(s, "gemm_decode", values, OF_FORMAT + 1, out, err);
}

kt_status kt_device_product_init(kt_device_step *s, const kt_device_pick *pick,
                                 kt_device_product *out, kt_err *err) {
    KT_TRY(kt_device_load_matrices(s, pick, &out->w, err));
    KT_TRY(find_few(s, out->w.format, &out->few, err));
    if (s->max_rows <= KT_DEVICE_FEW) return KT_OK;
    KT_TRY(kt_device_kernel_find(s, "bf16_rows", NULL, 0, &out->round, err));
    KT_TRY(kt_device_tiles_find(s, "gemm_tiles", out->w.format, out->many, err));
    kt_device_step_need(s, (size_t)(out->w.count * s->max_rows * out->w.k) * sizeof(uint16_t));
    return KT_OK;
}

static kt_status put_few(kt_device_step *s, const kt_device_product *p,
                         const kt_device_product_call *c, kt_err *err) {
    const kt_gemm_decode call = {.x = c->x,
                                 .x_row = c->x_row,
                                 .w = p->w.at,
                                 .y = c->y,
                                 .ldx = c->ldx,
                                 .ldy = c->ldy,
                                 .w_head = (int64_t)p->w.bytes,
                                 .x_head = c->x_head,
                                 .y_head = c->y_head,
                                 .rows = (int32_t)c->rows,
                                 .n = (int32_t)p->w.n,
                                 .k = (int32_t)p->w.k,
                                 .accumulate = c->accumulate};

    return kt_device_kernel_put(s, &p->few, 0, blocks(p->w.n, 16 * p->few.config.value[1]),
                                (int)p->w.count, p->w.k, &call, sizeof call, err);
}

static kt_status put_rounding(kt_device_step *s, const kt_device_product *p,
                              const kt_device_product_call *c, kt_err *err) {
    const kt_bf16_rows call = {c->x,      c->x_row,         s->scratch,     c->ldx,
                               c->x_head, (int32_t)c->rows, (int32_t)p->w.k};

    return kt_device_kernel_put(
        s, &p->round, 0, blocks(p->w.k, ROUND_INPUTS * p->round.kernel->threads(&p->round.config)),
        (int)(p->w.count * c->rows), p->w.k, &call, sizeof call, err);
}

static kt_status put_many(kt_device_step *s, const kt_device_product *p,
                          const kt_device_product_call *c, kt_err *err) {
    const kt_device_kernel *k = &p->many[kt_device_tile_size(c->rows)];
    const int row_tiles = blocks(c->rows, k->config.value[0]);
    const kt_gemm_tiles call = {.x = s->scratch,
                                .w = p->w.at,
                                .y = c->y,
                                .ldy = c->ldy,
                                .w_head = (int64_t)p->w.bytes,
                                .y_head = c->y_head,
                                .rows = (int32_t)c->rows,
                                .n = (int32_t)p->w.n,
                                .k = (int32_t)p->w.k,
                                .row_tiles = row_tiles,
                                .accumulate = c->accumulate};

    return kt_device_kernel_put(s, k, 0, blocks(p->w.n, k->config.value[1]),
                                (int)p->w.count * row_tiles, p->w.k, &call, sizeof call, err);
}

kt_status kt_device_product_put(kt_device_step *s, const kt_device_product *p,
                                const kt_device_product_call *call, kt_err *err) {
    if (call->rows <= 0) return KT_OK;
    if (call->rows <= KT_DEVICE_FEW) return put_few(s, p, call, err);
    if (!call->is_rounded) KT_TRY(put_rounding(s, p, call, err));
    return put_many(s, p, call, err);
}
