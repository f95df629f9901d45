/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/gathered_keys.h"

#include "base/err.h"

#define GATHER_BYTES ((int64_t)16 << 20) /* of scratch, but at least a row */

static const char *kernel_for(const kt_attn_shape *shape) {
    return shape->is_shared ? "attn_latent" : "attn_decode";
}

/* Keys, or keys and values. */
static int64_t sides_of(const kt_attn_shape *shape) {
    return shape->is_shared ? 1 : 2;
}

static int64_t row_bytes_of(const kt_attn_shape *shape) {
    return (int64_t)shape->k * (shape->cache == KT_ATTN_BF16 ? 2 : 1);
}

const char *kt_device_gather_refuse(const kt_device_ask *ask, const kt_attn_shape *shape) {
    kt_device_attn_way way;

    if (shape->k != shape->v) return "gathered values of another size than keys";
    return kt_device_attn_find(kernel_for(shape), shape, ask->target, &way)
               ? NULL
               : "gathered keys that attention has no code for";
}

/* ---- setting up ---- */

static size_t round_up(size_t bytes) {
    return (bytes + 255) / 256 * 256;
}

static size_t part_bytes(const kt_device_gather *g, const kt_device_step *d) {
    return round_up(kt_attn_most_part_bytes(&g->shape, g->way.pairs, kt_device_processors(d)));
}

/* Gathered rows of one side, and their scales behind all of them. */
static size_t side_rows(const kt_device_gather *g) {
    return (size_t)(g->shape.kv_heads * g->rows * g->most);
}

static size_t keys_bytes(const kt_device_gather *g) {
    return round_up(side_rows(g) * (size_t)row_bytes_of(&g->shape));
}

static kt_status number_pages(kt_device_gather *g, kt_device_step *d, kt_err *err) {
    const size_t n = (size_t)(g->rows * g->most / KT_ATTN_PAGE), bytes = n * sizeof(uint32_t);
    uint32_t *host = kt_device_step_alloc(d, bytes);
    void *device;

    if (!host) return kt_fail(err, KT_E_NOMEM, "no memory for gathered pages");
    for (size_t i = 0; i < n; i++) host[i] = (uint32_t)i;
    KT_TRY(kt_device_step_take(d, bytes, &device, err));
    g->page = device;
    return kt_device_upload(d->device, KT_STREAM_MAIN, device, host, bytes, err);
}

kt_status kt_device_gather_make(kt_device_step *d, const kt_attn_shape *shape, int64_t most,
                                kt_device_gather **out, kt_err *err) {
    kt_device_gather *g = kt_device_step_alloc(d, sizeof *g);
    const int64_t pages = (most + KT_ATTN_PAGE - 1) / KT_ATTN_PAGE;
    int64_t row;

    if (!g) return kt_fail(err, KT_E_NOMEM, "no memory for gathered keys");
    *g = (kt_device_gather){.shape = *shape, .most = pages * KT_ATTN_PAGE};
    if (!kt_device_attn_find(kernel_for(shape), shape, kt_device_about(d->device)->target, &g->way))
        return kt_fail(err, KT_E_UNSUPPORTED, "attention of heads of %d numbers: no device code",
                       (int)shape->k);
    row = sides_of(shape) * shape->kv_heads * g->most * (row_bytes_of(shape) + 4);
    g->rows = GATHER_BYTES / row < 1 ? 1 : GATHER_BYTES / row;
    if (g->rows > d->max_rows) g->rows = d->max_rows;
    g->tiles = (shape->heads / shape->kv_heads + g->way.pairs - 1) / g->way.pairs;
    g->host_tile = kt_device_step_alloc(d, (size_t)(d->max_rows * g->tiles) * sizeof(kt_attn_tile));
    g->host_row = kt_device_step_alloc(d, (size_t)d->max_rows * sizeof(int32_t));
    g->host_last = kt_device_step_alloc(d, (size_t)d->max_rows * sizeof(int32_t));
    if (!g->host_tile || !g->host_row || !g->host_last)
        return kt_fail(err, KT_E_NOMEM, "no memory for the tiles of gathered keys");
    KT_TRY(number_pages(g, d, err));
    KT_TRY(kt_device_step_code(d, g->way.kernel->name, &g->way.config, &g->way.code, err));
    KT_TRY(kt_row_code_find(d, "attn_gather", NULL, &g->code, err));
    kt_device_step_need(d, part_bytes(g, d) +
                               (size_t)sides_of(shape) *
                                   (keys_bytes(g) + round_up(side_rows(g) * sizeof(float))));
    *out = g;
    return KT_OK;
}

/* ---- lists of a step ---- */

static void list_span(kt_device_gather *g, const kt_node *n, const kt_device_span *span,
                      kt_gathered_keys *keys) {
    for (int32_t r = 0; r < span->rows; r++) {
        const int32_t row = span->first_row + r;
        const int64_t met = keys(n, span, (int64_t)span->position + r);
        const kt_attn_sequence s = {row, 1, (int32_t)met - 1,
                                    (int32_t)(g->n % g->rows * (g->most / KT_ATTN_PAGE))};
        g->host_last[row] = (int32_t)met - 1;
        if (!met) continue;
        kt_attn_cut_rows(&g->shape, &s, g->way.pairs, true, g->host_tile + g->n * g->tiles);
        g->host_row[g->n++] = row;
    }
}

static kt_status make_lists(kt_device_gather *g, kt_device_node *n, kt_gathered_keys *keys,
                            kt_err *err) {
    kt_device_step *d = n->step;
    const void *tile, *row, *last;

    if (g->has_lists && g->step == d->number) return KT_OK;
    g->has_lists = false;
    g->n = 0;
    for (int i = 0; i < d->n_spans; i++) list_span(g, n->node, &d->host_span[i], keys);
    KT_TRY(
        kt_device_stage(d, g->host_tile, (size_t)(g->n * g->tiles) * sizeof *g->tile, &tile, err));
    KT_TRY(kt_device_stage(d, g->host_row, (size_t)g->n * sizeof *g->row, &row, err));
    KT_TRY(kt_device_stage(d, g->host_last, (size_t)d->rows * sizeof *g->last, &last, err));
    g->tile = tile, g->row = row, g->last = last;
    g->has_lists = true;
    g->step = d->number;
    return KT_OK;
}

/* ---- launches ---- */

uint8_t *kt_gathered_values(const kt_device_gather *g, const kt_gathered *to) {
    return to->keys + (sides_of(&g->shape) - 1) * (int64_t)keys_bytes(g);
}

float *kt_gathered_value_scales(const kt_device_gather *g, const kt_gathered *to) {
    return to->scale ? to->scale + (sides_of(&g->shape) - 1) * (int64_t)side_rows(g) : NULL;
}

int kt_gather_grid(const kt_device_gather *g, int64_t keys) {
    return kt_row_blocks(keys, g->code.threads / 32 * g->code.config.value[1]);
}

static kt_attn_kept kept_of(const kt_gathered *to, uint8_t *rows, const float *scale) {
    const int64_t head = to->rows * to->most;

    return (kt_attn_kept){.rows = rows,
                          .scale = scale,
                          .row = to->row_bytes,
                          .page = KT_ATTN_PAGE * to->row_bytes,
                          .head = head * to->row_bytes,
                          .scale_head = head};
}

/* Rows [first, first + to->rows) of the list. */
static kt_status attend(kt_device_node *n, const kt_device_gather *g, const kt_gathered *to,
                        int64_t first, int64_t longest, const float *sink, float *part,
                        kt_err *err) {
    const kt_device_step *d = n->step;
    kt_device_attn_way way = g->way;
    const kt_attn_paged call = {
        .q = n->in.x,
        .ldq = n->in.ld,
        .k = kept_of(to, to->keys, to->scale),
        .v = kept_of(to, kt_gathered_values(g, to), kt_gathered_value_scales(g, to)),
        .position = g->last,
        .page = g->page,
        .sink = sink,
        .out = n->out.x,
        .ldo = n->out.ld,
        .part = part,
        .scale = (float)n->node->attention.scale,
        .heads = g->shape.heads,
        .kv_heads = g->shape.kv_heads};

    way.tile = g->tile + first * g->tiles;
    way.tiles = to->rows * g->tiles;
    kt_attn_cut_keys(&g->shape, way.tiles, longest, kt_device_processors(d), &way.split_keys,
                     &way.splits);
    return kt_device_attn_put_way(n->step, g->shape.kv_heads, &way, &call, err);
}

kt_status kt_device_gather_attend(kt_device_node *n, kt_device_gather *g, kt_gathered_keys *keys,
                                  kt_gather_put *put, const float *sink, kt_err *err) {
    uint8_t *part = n->step->scratch, *rows = part + part_bytes(g, n->step);
    uint8_t *scales = rows + (size_t)sides_of(&g->shape) * keys_bytes(g);

    KT_TRY(make_lists(g, n, keys, err));
    for (int64_t first = 0; first < g->n; first += g->rows) {
        const int64_t count = g->n - first < g->rows ? g->n - first : g->rows;
        const kt_gathered to = {.keys = rows,
                                .scale =
                                    g->shape.cache == KT_ATTN_BF16 ? NULL : (float *)(void *)scales,
                                .row = g->row + first,
                                .last = g->last,
                                .most = g->most,
                                .row_bytes = (int32_t)row_bytes_of(&g->shape),
                                .rows = (int32_t)count};
        int64_t longest = 0;
        for (int64_t i = first; i < first + count; i++)
            if (g->host_last[g->host_row[i]] >= longest) longest = g->host_last[g->host_row[i]] + 1;
        KT_TRY(put(n, g, &to, longest, err));
        KT_TRY(attend(n, g, &to, first, longest, sink, (float *)(void *)part, err));
    }
    return KT_OK;
}
