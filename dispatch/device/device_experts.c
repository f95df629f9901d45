/* Experts on a device. Up to 8 rows: each weight is read once for all of them. More: rows sorted by
 * expert, tiles of tensor cores, and the sum back. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device_experts.h"

#include <string.h>

#include "base/err.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/gemm_calls.h"
#include "kernels/cuda/permute_calls.h"

enum { COUNT = 0, SCAN, SCATTER, COMBINE }; /* entries of moe_permute */
enum { GATE_UP = 0, DOWN = 1 };             /* of kernels of experts */
enum { OF_F32 = 0, OF_BF16 = 1 };           /* of quantise_rows */
enum { ALIGN = 256, LEAST_ROWS = 64, FEW_OUTPUTS = 16, ROUND_INPUTS = 8 };

/* Results of experts before they are summed, at most: they are floats, one row for each of a row's
 * experts, which for all rows of a long step could be larger than the weights. */
static const int64_t most_result_bytes = 256 << 20;

static int64_t cut(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

static bool is_eight_bits(const kt_device_kernel *k) {
    return k->kernel->rows != KT_CUDA_ROWS_BF16;
}

kt_device_job kt_device_experts_job(const kt_device_matrices *gate, const kt_device_matrices *down,
                                    int64_t slots, uint32_t encodings) {
    return (kt_device_job){.op = KT_OP_MOE_FFN,
                           .weights = gate->format,
                           .down = down->format,
                           .n = gate->n,
                           .k = gate->k,
                           .experts = gate->count,
                           .topk = slots,
                           .encodings = encodings};
}

/* ---- scratch ---- */

/* Where things lie in it. */
typedef struct desk {
    size_t x, x_scale, counts, first, row_token, route, row_of, tile, n_tiles, h, h8, h_scale, y;
    size_t bytes;
    int64_t max_tiles;
} desk;

static size_t lay(desk *d, int64_t count, size_t size) {
    const size_t at = d->bytes;

    d->bytes += ((size_t)count * size + ALIGN - 1) / ALIGN * ALIGN;
    return at;
}

static void lay_codes(const kt_device_experts *e, int64_t rows, int64_t all, desk *d) {
    const kt_device_encoding x = kt_device_encoding_of(e->gate.format),
                             h = kt_device_encoding_of(e->down.format);

    d->x = lay(d, rows * e->gate.k, 1);
    d->x_scale = lay(d, rows * kt_device_encoding_scales(x, e->gate.k), sizeof(float));
    d->h8 = lay(d, all * e->gate.n, 1);
    d->h_scale = lay(d, all * kt_device_encoding_scales(h, e->gate.n), sizeof(float));
}

static desk lay_out(const kt_device_experts *e, const kt_device_kernel *k, int64_t rows) {
    const int64_t all = rows * e->slots, count = e->gate.count;
    desk d = {0};

    if (kt_device_is_few(k->kernel)) {
        d.h = lay(&d, all * e->gate.n, sizeof(uint16_t));
        return d;
    }
    d.max_tiles = all / k->config.value[0] + (all < count ? all : count);
    if (is_eight_bits(k))
        lay_codes(e, rows, all, &d);
    else
        d.x = lay(&d, rows * e->gate.k, sizeof(uint16_t));
    d.counts = lay(&d, cut(all, KT_PERMUTE_CHUNK) * count, sizeof(int32_t));
    d.first = lay(&d, count + 1, sizeof(int32_t));
    d.row_token = lay(&d, all, sizeof(int32_t));
    d.route = lay(&d, all, sizeof(float));
    d.row_of = lay(&d, all, sizeof(int32_t));
    d.tile = lay(&d, d.max_tiles, sizeof(kt_moe_tile));
    d.n_tiles = lay(&d, 1, sizeof(int32_t));
    d.h = lay(&d, all * e->gate.n, sizeof(uint16_t));
    d.y = lay(&d, all * e->gate.k, sizeof(float));
    return d;
}

size_t kt_device_experts_scratch(const kt_device_experts *e) {
    size_t most = 0;

    for (int i = 0; i < e->ladder.n; i++) {
        const int64_t rows = kt_device_is_few(e->gate_up[i].kernel) ? KT_DEVICE_FEW : e->rows;
        const size_t bytes = lay_out(e, &e->gate_up[i], rows).bytes;
        if (bytes > most) most = bytes;
    }
    return most;
}

/* ---- code ---- */

static kt_status make_helpers(kt_device *d, const kt_device_kernel *k, kt_device_experts *e,
                              kt_err *err) {
    if (kt_device_is_few(k->kernel)) return KT_OK;
    if (!e->permute.code)
        KT_TRY(kt_device_kernel_named(d, "moe_permute", NULL, 0, &e->permute, err));
    if (!is_eight_bits(k) && !e->round.code)
        return kt_device_kernel_named(d, "bf16_rows", NULL, 0, &e->round, err);
    if (!is_eight_bits(k) || e->quantise_x.code) return KT_OK;
    KT_TRY(kt_device_quantiser_make(d, kt_device_encoding_of(e->gate.format), &e->quantise_x, err));
    return kt_device_quantiser_make(d, kt_device_encoding_of(e->down.format), &e->quantise_h, err);
}

kt_status kt_device_experts_make(kt_device *d, const kt_device_ladder *ladder, int64_t max_rows,
                                 kt_device_experts *e, kt_err *err) {
    const int64_t of_row = e->slots * e->gate.k * (int64_t)sizeof(float);

    e->rows = most_result_bytes / of_row > LEAST_ROWS ? most_result_bytes / of_row : LEAST_ROWS;
    if (e->rows > max_rows) e->rows = max_rows;
    e->ladder = *ladder;
    e->ladder.n = kt_device_ladder_rung(ladder, e->rows) + 1;
    for (int i = 0; i < e->ladder.n; i++) {
        const kt_device_choice down = kt_device_choice_for(&ladder->choice[i], e->down.format);
        KT_TRY(kt_device_kernel_make(d, &ladder->choice[i], &e->gate_up[i], err));
        KT_TRY(kt_device_kernel_make(d, &down, &e->put_down[i], err));
        KT_TRY(make_helpers(d, &e->gate_up[i], e, err));
    }
    return KT_OK;
}

/* ---- launches ---- */

/* One call, or a part of one. */
typedef struct part {
    kt_device *d;
    const kt_device_experts *e;
    const kt_device_experts_call *c;
    const uint8_t *gate, *up, *down;
    int64_t first, rows;
    const kt_device_kernel *gate_up, *put_down;
    desk at;
    uint8_t *scratch;
} part;

static kt_status put_few(const part *p, kt_err *err) {
    const kt_device_experts *e = p->e;
    const int64_t slots = p->rows * e->slots;
    const kt_moe_decode call = {.x = p->c->in.x + p->first * p->c->in.ld,
                                .expert = p->c->id + p->first * e->slots,
                                .route = p->c->route + p->first * e->slots,
                                .gate = p->gate,
                                .up = p->up,
                                .down = p->down,
                                .h = (uint16_t *)(void *)(p->scratch + p->at.h),
                                .out = p->c->out.x + p->first * p->c->out.ld,
                                .ldx = p->c->in.ld,
                                .ldo = p->c->out.ld,
                                .gate_bytes = (int64_t)e->gate.bytes,
                                .down_bytes = (int64_t)e->down.bytes,
                                .tokens = (int32_t)p->rows,
                                .slots = (int32_t)e->slots,
                                .n = (int32_t)e->gate.n,
                                .k = (int32_t)e->gate.k,
                                .accumulate = p->c->accumulate,
                                .ending = e->ending};
    const int64_t outputs = FEW_OUTPUTS * p->gate_up->config.value[1];

    KT_TRY(kt_device_kernel_run(p->d, p->gate_up, GATE_UP, cut(call.n, outputs), slots, slots,
                                &call, sizeof call, err));
    return kt_device_kernel_run(p->d, p->put_down, DOWN, cut(call.k, outputs), 1, slots, &call,
                                sizeof call, err);
}

static kt_moe_permute permute_of(const part *p) {
    const kt_device_experts *e = p->e;
    uint8_t *at = p->scratch;

    return (kt_moe_permute){.id = p->c->id + p->first * e->slots,
                            .weight = p->c->route + p->first * e->slots,
                            .counts = (int32_t *)(void *)(at + p->at.counts),
                            .first = (int32_t *)(void *)(at + p->at.first),
                            .row_token = (int32_t *)(void *)(at + p->at.row_token),
                            .route = (float *)(void *)(at + p->at.route),
                            .row_of = (int32_t *)(void *)(at + p->at.row_of),
                            .tile = (kt_moe_tile *)(void *)(at + p->at.tile),
                            .n_tiles = (int32_t *)(void *)(at + p->at.n_tiles),
                            .tokens = (int32_t)p->rows,
                            .slots = (int32_t)e->slots,
                            .experts = (int32_t)e->gate.count,
                            .tile_rows = p->gate_up->config.value[0],
                            .max_tiles = (int32_t)p->at.max_tiles};
}

static kt_status put_sorting(const part *p, const kt_moe_permute *call, kt_err *err) {
    const kt_device_kernel *k = &p->e->permute;
    const int64_t chunks = cut(p->rows * p->e->slots, KT_PERMUTE_CHUNK);

    KT_TRY(kt_device_kernel_run(p->d, k, COUNT, chunks, 1, call->experts, call, sizeof *call, err));
    KT_TRY(kt_device_kernel_run(p->d, k, SCAN, 1, 1, call->experts, call, sizeof *call, err));
    return kt_device_kernel_run(p->d, k, SCATTER, chunks, 1, call->experts, call, sizeof *call,
                                err);
}

static kt_status put_bf16(const part *p, const kt_moe_permute *sorted, kt_err *err) {
    const kt_device_experts *e = p->e;
    const kt_bf16_rows round = {.x = p->c->in.x + p->first * p->c->in.ld,
                                .to = (uint16_t *)(void *)(p->scratch + p->at.x),
                                .ldx = p->c->in.ld,
                                .rows = (int32_t)p->rows,
                                .k = (int32_t)e->gate.k};
    const kt_moe_tiles call = {.x = round.to,
                               .row_token = sorted->row_token,
                               .route = sorted->route,
                               .tile = sorted->tile,
                               .gate = p->gate,
                               .up = p->up,
                               .down = p->down,
                               .h = (uint16_t *)(void *)(p->scratch + p->at.h),
                               .y = (float *)(void *)(p->scratch + p->at.y),
                               .gate_bytes = (int64_t)e->gate.bytes,
                               .down_bytes = (int64_t)e->down.bytes,
                               .n = (int32_t)e->gate.n,
                               .k = (int32_t)e->gate.k,
                               .ending = e->ending};

    KT_TRY(kt_device_kernel_run(
        p->d, &e->round, 0, cut(round.k, ROUND_INPUTS * e->round.kernel->threads(&e->round.config)),
        p->rows, round.k, &round, sizeof round, err));
    KT_TRY(kt_device_kernel_run(p->d, p->gate_up, GATE_UP,
                                cut(call.n, p->gate_up->config.value[1] / 2), p->at.max_tiles,
                                call.k, &call, sizeof call, err));
    return kt_device_kernel_run(p->d, p->put_down, DOWN, cut(call.k, p->put_down->config.value[1]),
                                p->at.max_tiles, call.n, &call, sizeof call, err);
}

static kt_a8_tiles eight_bits_call(const part *p, const kt_moe_permute *sorted) {
    const kt_device_experts *e = p->e;
    uint8_t *at = p->scratch;

    return (kt_a8_tiles){.x = at + p->at.x,
                         .x_scale = (float *)(void *)(at + p->at.x_scale),
                         .row_token = sorted->row_token,
                         .route = sorted->route,
                         .tile = sorted->tile,
                         .gate = p->gate,
                         .up = p->up,
                         .down = p->down,
                         .h = (uint16_t *)(void *)(at + p->at.h),
                         .h8 = at + p->at.h8,
                         .h_scale = (float *)(void *)(at + p->at.h_scale),
                         .y = (float *)(void *)(at + p->at.y),
                         .ldy = e->gate.k,
                         .gate_bytes = (int64_t)e->gate.bytes,
                         .down_bytes = (int64_t)e->down.bytes,
                         .n = (int32_t)e->gate.n,
                         .k = (int32_t)e->gate.k,
                         .ending = e->ending};
}

/* Rows behind the last sorted one hold what was there: nothing reads their codes. */
static kt_status put_eight_bits(const part *p, const kt_moe_permute *sorted, kt_err *err) {
    const kt_device_experts *e = p->e;
    const kt_a8_tiles call = eight_bits_call(p, sorted);
    const kt_quantise_rows of_x = {.x = p->c->in.x + p->first * p->c->in.ld,
                                   .out = p->scratch + p->at.x,
                                   .scale = (float *)(void *)(p->scratch + p->at.x_scale),
                                   .ldx = p->c->in.ld,
                                   .k = call.k};
    const kt_quantise_rows of_h = {.x = call.h,
                                   .out = p->scratch + p->at.h8,
                                   .scale = (float *)(void *)(p->scratch + p->at.h_scale),
                                   .ldx = call.n,
                                   .k = call.n};

    KT_TRY(kt_device_kernel_run(p->d, &e->quantise_x, OF_F32, p->rows, 1, call.k, &of_x,
                                sizeof of_x, err));
    KT_TRY(kt_device_kernel_run(p->d, p->gate_up, GATE_UP,
                                cut(call.n, p->gate_up->config.value[1] / 2), p->at.max_tiles,
                                call.k, &call, sizeof call, err));
    KT_TRY(kt_device_kernel_run(p->d, &e->quantise_h, OF_BF16, p->rows * e->slots, 1, call.n, &of_h,
                                sizeof of_h, err));
    return kt_device_kernel_run(p->d, p->put_down, DOWN, cut(call.k, p->put_down->config.value[1]),
                                p->at.max_tiles, call.n, &call, sizeof call, err);
}

static kt_status put_part(part *p, kt_err *err) {
    const kt_device_experts *e = p->e;
    /* One rung for all parts: a last part of few rows has the bits that it has among many. */
    const int rung = kt_device_ladder_rung(&e->ladder, p->c->rows < e->rows ? p->c->rows : e->rows);
    kt_moe_permute sorted;
    kt_moe_combine combine;

    p->gate_up = &e->gate_up[rung], p->put_down = &e->put_down[rung];
    p->at = lay_out(e, p->gate_up, p->rows);
    if (kt_device_is_few(p->gate_up->kernel)) return put_few(p, err);
    sorted = permute_of(p);
    KT_TRY(put_sorting(p, &sorted, err));
    KT_TRY(is_eight_bits(p->gate_up) ? put_eight_bits(p, &sorted, err) : put_bf16(p, &sorted, err));
    combine = (kt_moe_combine){.y = (float *)(void *)(p->scratch + p->at.y),
                               .row_of = sorted.row_of,
                               .out = p->c->out.x + p->first * p->c->out.ld,
                               .ldo = (int32_t)p->c->out.ld,
                               .k = (int32_t)e->gate.k,
                               .slots = (int32_t)e->slots,
                               .is_added = p->c->accumulate};
    return kt_device_kernel_run(p->d, &e->permute, COMBINE,
                                cut(combine.k, e->permute.kernel->threads(&e->permute.config)),
                                p->rows, e->gate.count, &combine, sizeof combine, err);
}

kt_status kt_device_experts_put_of(kt_device *d, const kt_device_experts *e, const uint8_t *gate,
                                   const uint8_t *up, const uint8_t *down,
                                   const kt_device_experts_call *call, kt_err *err) {
    for (int64_t first = 0; first < call->rows; first += e->rows) {
        part p = {.d = d,
                  .e = e,
                  .c = call,
                  .gate = gate,
                  .up = up,
                  .down = down,
                  .first = first,
                  .rows = call->rows - first < e->rows ? call->rows - first : e->rows,
                  .scratch = call->scratch};
        KT_TRY(put_part(&p, err));
    }
    return KT_OK;
}

kt_status kt_device_experts_put(kt_device *d, const kt_device_experts *e,
                                const kt_device_experts_call *call, kt_err *err) {
    return kt_device_experts_put_of(d, e, e->gate.at, e->up.at, e->down.at, call, err);
}
