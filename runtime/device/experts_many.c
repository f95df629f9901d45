/* Experts of many rows on a device. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/experts_many.h"

#include "base/err.h"
#include "kernels/cuda/gemm_calls.h"
#include "kernels/cuda/permute_calls.h"

enum { COUNT = 0, SCAN, SCATTER, COMBINE }; /* entries of moe_permute */
enum { GATE_UP = 0, DOWN = 1 };             /* of moe_tiles */
enum { ALIGN = 256, SMALLEST_TILE = 16 };

/* Results of experts before they are summed, at most: they are floats, one row for each of a row's
 * experts, which for all rows of a long step could be larger than the weights. */
static const int64_t most_result_bytes = 256 << 20;

/* Where things lie in scratch. */
typedef struct desk {
    size_t x, counts, first, row_token, route, row_of, tile, n_tiles, h, y, bytes;
    int64_t max_tiles;
} desk;

static int64_t cut(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

static size_t lay(desk *d, int64_t count, size_t size) {
    const size_t at = d->bytes;

    d->bytes += ((size_t)count * size + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static desk lay_out(const kt_experts_many *m, int64_t rows, int64_t tile_rows) {
    const int64_t all = rows * m->slots;
    desk d = {.max_tiles = all / tile_rows + (all < m->experts ? all : m->experts)};

    d.x = lay(&d, rows * m->k, sizeof(uint16_t));
    d.counts = lay(&d, cut(all, KT_PERMUTE_CHUNK) * m->experts, sizeof(int32_t));
    d.first = lay(&d, m->experts + 1, sizeof(int32_t));
    d.row_token = lay(&d, all, sizeof(int32_t));
    d.route = lay(&d, all, sizeof(float));
    d.row_of = lay(&d, all, sizeof(int32_t));
    d.tile = lay(&d, d.max_tiles, sizeof(kt_moe_tile));
    d.n_tiles = lay(&d, 1, sizeof(int32_t));
    d.h = lay(&d, all * m->n, sizeof(uint16_t));
    d.y = lay(&d, all * m->k, sizeof(float));
    return d;
}

kt_status kt_experts_many_init(kt_device_step *s, const kt_device_matrices *gate,
                               const kt_device_matrices *down, int64_t slots, kt_experts_many *out,
                               kt_err *err) {
    const int64_t of_row = slots * gate->k * (int64_t)sizeof(float);

    out->experts = gate->count;
    out->slots = slots;
    out->n = gate->n;
    out->k = gate->k;
    out->rows = most_result_bytes / of_row > 64 ? most_result_bytes / of_row : 64;
    if (out->rows > s->max_rows) out->rows = s->max_rows;
    KT_TRY(kt_device_kernel_find(s, "moe_permute", NULL, 0, &out->permute, err));
    KT_TRY(kt_device_kernel_find(s, "bf16_rows", NULL, 0, &out->round, err));
    KT_TRY(kt_device_tiles_find(s, "moe_tiles", gate->format, out->gate_up, err));
    KT_TRY(kt_device_tiles_find(s, "moe_tiles", down->format, out->down, err));
    kt_device_step_need(s, lay_out(out, out->rows, SMALLEST_TILE).bytes);
    return KT_OK;
}

/* Tiles as large as an expert's share of the rows. */
static int tiles_for(const kt_experts_many *m, int64_t rows) {
    return kt_device_tile_size(cut(rows * m->slots, m->experts));
}

static kt_status put_sorting(kt_device_step *s, const kt_experts_many *m,
                             const kt_moe_permute *call, kt_err *err) {
    const int chunks = (int)cut((int64_t)call->tokens * call->slots, KT_PERMUTE_CHUNK);

    KT_TRY(kt_device_kernel_put(s, &m->permute, COUNT, chunks, 1, m->experts, call, sizeof *call,
                                err));
    KT_TRY(kt_device_kernel_put(s, &m->permute, SCAN, 1, 1, m->experts, call, sizeof *call, err));
    return kt_device_kernel_put(s, &m->permute, SCATTER, chunks, 1, m->experts, call, sizeof *call,
                                err);
}

static kt_status put_tiles(kt_device_step *s, const kt_experts_many *m, int size, int64_t max_tiles,
                           const kt_moe_tiles *call, kt_err *err) {
    const kt_device_kernel *up = &m->gate_up[size], *down = &m->down[size];

    KT_TRY(kt_device_kernel_put(s, up, GATE_UP, (int)cut(m->n, up->config.value[1] / 2),
                                (int)max_tiles, m->k, call, sizeof *call, err));
    return kt_device_kernel_put(s, down, DOWN, (int)cut(m->k, down->config.value[1]),
                                (int)max_tiles, m->n, call, sizeof *call, err);
}

/* Rows [first, first + rows) of the call. */
static kt_status put_part(kt_device_step *s, const kt_experts_many *m,
                          const kt_experts_many_call *c, int64_t first, int64_t rows, kt_err *err) {
    const int size = tiles_for(m, rows);
    const int32_t tile_rows = m->gate_up[size].config.value[0];
    const desk d = lay_out(m, rows, tile_rows);
    uint8_t *at = s->scratch;
    const kt_bf16_rows round = {.x = c->in.x + first * c->in.ld,
                                .to = (uint16_t *)(void *)(at + d.x),
                                .ldx = c->in.ld,
                                .rows = (int32_t)rows,
                                .k = (int32_t)m->k};
    const kt_moe_permute permute = {.id = c->id + first * m->slots,
                                    .weight = c->route + first * m->slots,
                                    .counts = (int32_t *)(void *)(at + d.counts),
                                    .first = (int32_t *)(void *)(at + d.first),
                                    .row_token = (int32_t *)(void *)(at + d.row_token),
                                    .route = (float *)(void *)(at + d.route),
                                    .row_of = (int32_t *)(void *)(at + d.row_of),
                                    .tile = (kt_moe_tile *)(void *)(at + d.tile),
                                    .n_tiles = (int32_t *)(void *)(at + d.n_tiles),
                                    .tokens = (int32_t)rows,
                                    .slots = (int32_t)m->slots,
                                    .experts = (int32_t)m->experts,
                                    .tile_rows = tile_rows,
                                    .max_tiles = (int32_t)d.max_tiles};
    const kt_moe_tiles tiles = {.x = round.to,
                                .row_token = permute.row_token,
                                .route = permute.route,
                                .tile = permute.tile,
                                .gate = c->gate->at,
                                .up = c->up->at,
                                .down = c->down->at,
                                .h = (uint16_t *)(void *)(at + d.h),
                                .y = (float *)(void *)(at + d.y),
                                .gate_bytes = (int64_t)c->gate->bytes,
                                .down_bytes = (int64_t)c->down->bytes,
                                .n = (int32_t)m->n,
                                .k = (int32_t)m->k};
    const kt_moe_combine combine = {.y = tiles.y,
                                    .row_of = permute.row_of,
                                    .out = c->out.x + first * c->out.ld,
                                    .ldo = (int32_t)c->out.ld,
                                    .k = (int32_t)m->k,
                                    .slots = (int32_t)m->slots,
                                    .is_added = c->accumulate};

    KT_TRY(put_sorting(s, m, &permute, err));
    KT_TRY(kt_device_kernel_put(s, &m->round, 0,
                                (int)cut(m->k, 8 * m->round.kernel->threads(&m->round.config)),
                                (int)rows, m->k, &round, sizeof round, err));
    KT_TRY(put_tiles(s, m, size, d.max_tiles, &tiles, err));
    return kt_device_kernel_put(s, &m->permute, COMBINE,
                                (int)cut(m->k, m->permute.kernel->threads(&m->permute.config)),
                                (int)rows, m->experts, &combine, sizeof combine, err);
}

kt_status kt_experts_many_put(kt_device_step *s, const kt_experts_many *m,
                              const kt_experts_many_call *call, kt_err *err) {
    for (int64_t first = 0; first < call->rows; first += m->rows) {
        const int64_t rows = call->rows - first < m->rows ? call->rows - first : m->rows;
        KT_TRY(put_part(s, m, call, first, rows, err));
    }
    return KT_OK;
}
