/* A batch of sequences for the attention kernels of GPUs, in pages as a device has them and row by
 * row as the reference in double wants them. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_CUDA_ATTN_BATCH_H
#define KT_TESTS_CUDA_ATTN_BATCH_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_ref.h"
#include "kernels/cuda/attn_plan.h"

enum { MAX_SEQUENCES = 4, MAX_TABLE = 64, MAX_TILES = 256, SPARE = 8 };

typedef struct attn_case {
    kt_attn_shape shape;
    bool has_sinks;
    int n;
    struct {
        int position, rows;
    } sequence[MAX_SEQUENCES];
} attn_case;

typedef struct attn_batch {
    attn_case c;
    kt_problem problem;
    kt_attn_paged call; /* but for tiles and splits */
    kt_attn_sequence sequence[MAX_SEQUENCES];
    uint32_t table[MAX_TABLE];
    int32_t position[MAX_TILES], of[MAX_TILES]; /* of each row */
    int rows, pages, tokens;
    int first_token[MAX_SEQUENCES];
    kt_guard q, out, pool[2], pool_scale[2];
    uint8_t *plain[2]; /* [kv heads][tokens] rows */
    float *plain_scale[2], *sink;
    double *want, *bound; /* [rows, heads, v] */
} attn_batch;

static inline void *attn_guarded(kt_guard *g, size_t bytes, unsigned char fill) {
    kt_err err;
    cr_assert_eq(kt_guard_create(bytes, 16, fill, g, &err), KT_OK, "%s", err.message);
    return g->data;
}

static inline kt_weight_format attn_format(const attn_case *c) {
    return c->shape.cache == KT_ATTN_BF16   ? KT_W_BF16
           : c->shape.cache == KT_ATTN_INT8 ? KT_W_INT8_CHANNEL
                                            : KT_W_FP8_CHANNEL;
}

static inline const void *attn_plain_row(const attn_batch *b, int which, int head, int token) {
    const int64_t size = which ? b->c.shape.v : b->c.shape.k;
    return b->plain[which] + ((int64_t)head * b->tokens + token) * size *
                                 (int64_t)kt_attn_item_bytes(attn_format(&b->c));
}

/* Page numbers in an order of their own; what no sequence wrote stays NaN. */
static inline void attn_number_pages(attn_batch *b, kt_rng *rng) {
    for (int s = 0; s < b->c.n; s++) {
        const int last = b->c.sequence[s].position + b->c.sequence[s].rows;
        b->sequence[s] =
            (kt_attn_sequence){b->rows, b->c.sequence[s].rows, b->c.sequence[s].position, b->pages};
        b->first_token[s] = b->tokens;
        for (int r = 0; r < b->c.sequence[s].rows; r++) {
            b->of[b->rows] = s;
            b->position[b->rows++] = b->c.sequence[s].position + r;
        }
        b->pages += (last + KT_ATTN_PAGE - 1) / KT_ATTN_PAGE;
        b->tokens += last;
    }
    cr_assert(b->pages <= MAX_TABLE && b->rows <= MAX_TILES);
    for (int i = 0; i < b->pages; i++) b->table[i] = (uint32_t)i;
    for (int i = b->pages - 1; i > 0; i--) {
        const int j = (int)kt_rng_below(rng, (uint64_t)i + 1);
        const uint32_t x = b->table[i];
        b->table[i] = b->table[j];
        b->table[j] = x;
    }
}

static inline void attn_keep_row(attn_batch *b, int which, int head, int s, int token,
                                 kt_rng *rng) {
    const kt_attn_kept *kept = which ? &b->call.v : &b->call.k;
    const int64_t size = which ? b->c.shape.v : b->c.shape.k;
    const uint32_t page = b->table[b->sequence[s].page + token / KT_ATTN_PAGE];
    const int at = token % KT_ATTN_PAGE, plain = b->first_token[s] + token;
    const size_t bytes = (size_t)size * kt_attn_item_bytes(attn_format(&b->c));
    uint8_t *row =
        (uint8_t *)b->pool[which].data + head * kept->head + page * kept->page + at * kept->row;
    float *scale = &b->plain_scale[which][head * b->tokens + plain], x[1024];

    for (int64_t i = 0; i < size; i++) x[i] = kt_rng_normal(rng);
    kt_attn_store(attn_format(&b->c), x, size, row, scale);
    memcpy((uint8_t *)b->plain[which] + (size_t)(head * b->tokens + plain) * bytes, row, bytes);
    if (kept->scale)
        ((float *)b->pool_scale[which].data)[head * kept->scale_head + page * KT_ATTN_PAGE + at] =
            *scale;
}

static inline void attn_make_pool(attn_batch *b, int which, kt_rng *rng) {
    kt_attn_kept *kept = which ? &b->call.v : &b->call.k;
    const int64_t size = which ? b->c.shape.v : b->c.shape.k, heads = b->c.shape.kv_heads;
    const int64_t bytes = size * (int64_t)kt_attn_item_bytes(attn_format(&b->c));

    kept->row = bytes;
    kept->page = bytes * KT_ATTN_PAGE;
    kept->head = kept->page * (b->pages + 1); /* a page that nobody has */
    kept->scale_head = (b->pages + 1) * KT_ATTN_PAGE;
    kept->rows = attn_guarded(&b->pool[which], (size_t)(kept->head * heads), 0xff);
    if (b->c.shape.cache != KT_ATTN_BF16)
        kept->scale = attn_guarded(&b->pool_scale[which],
                                   (size_t)(kept->scale_head * heads) * sizeof(float), 0xff);
    b->plain[which] = malloc((size_t)(heads * b->tokens * bytes));
    b->plain_scale[which] = malloc((size_t)(heads * b->tokens) * sizeof(float));
    for (int s = 0; s < b->c.n; s++)
        for (int head = 0; head < heads; head++)
            for (int t = 0; t < b->c.sequence[s].position + b->c.sequence[s].rows; t++)
                attn_keep_row(b, which, head, s, t, rng);
}

static inline void attn_make(attn_batch *b, const attn_case *c, uint64_t seed) {
    const kt_attn_shape *h = &c->shape;
    kt_rng rng;
    float *q;

    *b = (attn_batch){.c = *c};
    kt_rng_seed(&rng, seed);
    attn_number_pages(b, &rng);
    attn_make_pool(b, 0, &rng);
    if (h->is_shared) {
        b->call.v = b->call.k;
    } else {
        attn_make_pool(b, 1, &rng);
    }
    b->call.ldq = (int64_t)h->heads * h->k + SPARE;
    q = attn_guarded(&b->q, (size_t)(b->rows * b->call.ldq) * sizeof *q, 0);
    for (int64_t i = 0; i < b->rows * b->call.ldq; i++) q[i] = 2 * kt_rng_normal(&rng);
    b->sink = malloc((size_t)h->heads * sizeof *b->sink);
    for (int i = 0; i < h->heads; i++) b->sink[i] = 3 * kt_rng_normal(&rng);
    b->call.q = q;
    b->call.sink = c->has_sinks ? b->sink : NULL;
    b->call.position = b->position;
    b->call.page = b->table;
    b->call.ldo = (int64_t)h->heads * h->v + SPARE;
    b->call.out = attn_guarded(&b->out, (size_t)(b->rows * b->call.ldo) * sizeof(float), 0xff);
    b->call.scale = 1 / sqrtf((float)h->k);
    b->call.heads = h->heads;
    b->call.kv_heads = h->kv_heads;
    b->call.window = h->window;
    b->call.splits = 1;
    b->call.split_keys = 1 << 30;
    b->problem = (kt_problem){.n = h->heads,
                              .k = h->k,
                              .v = h->v,
                              .kv_heads = h->kv_heads,
                              .window = h->window,
                              .weights = attn_format(c)};
    b->want = calloc((size_t)(b->rows * h->heads * h->v), sizeof *b->want);
    b->bound = calloc((size_t)(b->rows * h->heads * h->v), sizeof *b->bound);
}

static inline void attn_drop(attn_batch *b) {
    kt_guard *all[] = {&b->q,       &b->out,           &b->pool[0],
                       &b->pool[1], &b->pool_scale[0], &b->pool_scale[1]};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_guard_destroy(all[i]);
    for (int i = 0; i < 2; i++) free(b->plain[i]), free(b->plain_scale[i]);
    free(b->sink), free(b->want), free(b->bound);
}

/* ---- the reference ---- */

/* Rows that see more keys than topk meet those of this list; NULL = all. */
static inline const int32_t *attn_picked(const attn_batch *b, int row) {
    return b->call.picked && b->position[row] >= b->call.topk
               ? b->call.picked + (int64_t)row * b->call.topk
               : NULL;
}

/* A key with this score and no value: everything shrinks by what it takes. Its share is as
 * uncertain as the score of the row's best key, which is the one of work 1. */
static inline void attn_with_sink(const attn_batch *b, const kt_attn_call *c, int row, int head,
                                  const double *work, double *want, double *bound) {
    const int64_t first = kt_attn_first_key(&b->problem, b->position[row]);
    const int32_t *picked = attn_picked(b, row);
    const int64_t n = picked ? b->call.topk : b->position[row] + 1 - first;
    const float *q = b->call.q + row * b->call.ldq + head * b->c.shape.k;
    const int kv_head = head / (b->c.shape.heads / b->c.shape.kv_heads);
    double total = 0, top = 0, rest, share;
    int64_t best = 0, key;

    for (int64_t j = 0; j < n; j++) {
        total += work[j];
        if (work[j] > work[best]) best = j;
    }
    key = picked ? picked[best] : first + best;
    for (int i = 0; i < b->c.shape.k; i++)
        top += (double)q[i] * c->scale *
               (double)kt_attn_item(
                   attn_format(&b->c),
                   attn_plain_row(b, 0, kv_head, b->first_token[b->of[row]] + (int)key), i) *
               (c->k_scale ? (double)c->k_scale[key] : 1.0);
    rest = exp((double)b->sink[head] - top);
    share = total / (total + rest);
    for (int i = 0; i < b->c.shape.v; i++) {
        want[i] *= share;
        bound[i] =
            bound[i] * share + fabs(want[i]) * (1 - share) * 1.1 * (work[n + best] + 0x1p-20);
    }
}

/* The picked keys of a row (shared rows, one kv head), one behind the other. */
static inline void attn_gather(const attn_batch *b, int row, uint8_t *keys, float *scale) {
    const size_t bytes = (size_t)b->c.shape.k * kt_attn_item_bytes(attn_format(&b->c));

    for (int i = 0; i < b->call.topk; i++) {
        const int plain = b->first_token[b->of[row]] + b->call.picked[row * b->call.topk + i];
        memcpy(keys + (size_t)i * bytes, attn_plain_row(b, 0, 0, plain), bytes);
        scale[i] = b->plain_scale[0][plain];
    }
}

static inline void attn_reference_picked(attn_batch *b, kt_attn_call c, int row, int head,
                                         double *work) {
    const int32_t last = b->call.topk - 1;
    uint8_t *keys = malloc((size_t)(b->call.topk * b->c.shape.k) * 2);
    float *scale = malloc((size_t)b->call.topk * sizeof *scale);
    const int64_t at = ((int64_t)row * b->c.shape.heads + head) * b->c.shape.v;

    attn_gather(b, row, keys, scale);
    c.q += row * c.ldq;
    c.k = c.v = keys;
    c.k_scale = c.v_scale = scale;
    c.position = &last;
    kt_attn_ref(&c, 0, head, KT_NUM_BF16_F32, work, b->want + at, b->bound + at);
    free(keys), free(scale);
}

static inline void attn_reference(attn_batch *b, int row, int head) {
    const kt_attn_shape *h = &b->c.shape;
    const int s = b->of[row], kv_head = head / (h->heads / h->kv_heads);
    const int64_t n = b->position[row] + 1;
    const int values = !h->is_shared;
    const bool scaled = h->cache != KT_ATTN_BF16;
    const int64_t at = ((int64_t)row * h->heads + head) * h->v;
    double *work = malloc(kt_attn_ref_work(&b->problem, n) * sizeof *work);
    const kt_attn_call c = {
        .problem = &b->problem,
        .q = b->call.q,
        .ldq = b->call.ldq,
        .k = attn_plain_row(b, 0, kv_head, b->first_token[s]),
        .v = attn_plain_row(b, values, kv_head, b->first_token[s]),
        .k_scale = scaled ? b->plain_scale[0] + kv_head * b->tokens + b->first_token[s] : NULL,
        .v_scale = scaled ? b->plain_scale[values] + kv_head * b->tokens + b->first_token[s] : NULL,
        .ldkv = h->k,
        .ldv = values ? h->v : h->k,
        .kv_head = kv_head,
        .scale = b->call.scale,
        .position = b->position};

    if (attn_picked(b, row))
        attn_reference_picked(b, c, row, head, work);
    else
        kt_attn_ref(&c, row, head, KT_NUM_BF16_F32, work, b->want + at, b->bound + at);
    if (b->c.has_sinks) attn_with_sink(b, &c, row, head, work, b->want + at, b->bound + at);
    free(work);
}

static inline void attn_expect(attn_batch *b, const char *what) {
    const kt_attn_shape *h = &b->c.shape;
    const float *out = b->call.out;

    for (int row = 0; row < b->rows; row++) {
        for (int head = 0; head < h->heads; head++) {
            const int64_t at = ((int64_t)row * h->heads + head) * h->v;
            attn_reference(b, row, head);
            for (int i = 0; i < h->v; i++) {
                const double got = (double)out[row * b->call.ldo + head * h->v + i];
                cr_assert(fabs(got - b->want[at + i]) <= b->bound[at + i],
                          "%s: row %d (position %d), head %d, number %d: %g, expected %g +- %g",
                          what, row, b->position[row], head, i, got, b->want[at + i],
                          b->bound[at + i]);
            }
        }
        for (int i = 0; i < SPARE; i++)
            cr_assert(isnan(out[row * b->call.ldo + h->heads * h->v + i]),
                      "%s: row %d is written past its end", what, row);
    }
}

/* ---- running ---- */

static inline const kt_cuda_kernel *attn_kernel(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

static inline void attn_launch(const kt_cuda_kernel *k, int entry, const void *call, int x, int y,
                               const kt_config *config, uint32_t seed) {
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = k->threads(config),
                         .shared_bytes = k->shared_bytes(config, 0),
                         .constant = config->value};
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

/* All sequences by one kernel, `pairs` a tile; split_keys 0 = not split. */
static inline void attn_run(attn_batch *b, const kt_cuda_kernel *k, const kt_config *config,
                            int pairs, int split_keys, uint32_t seed) {
    const kt_attn_shape *h = &b->c.shape;
    kt_attn_tile tile[MAX_TILES];
    kt_attn_paged call = b->call;
    int64_t n = 0;

    call.tile = tile;
    for (int s = 0; s < b->c.n; s++) {
        cr_assert(n + kt_attn_cut_rows(h, &b->sequence[s], pairs, call.picked, NULL) <= MAX_TILES);
        n += kt_attn_cut_rows(h, &b->sequence[s], pairs, call.picked, tile + n);
    }
    if (split_keys) {
        call.split_keys = split_keys;
        for (int r = 0; r < b->rows; r++) {
            const int last = b->position[r] / split_keys;
            if (last + 1 > call.splits) call.splits = last + 1;
        }
        if (h->window && call.splits > h->window / split_keys + 2)
            call.splits = h->window / split_keys + 2;
    }
    if (call.splits > 1) {
        const size_t floats = (size_t)(n * h->kv_heads * pairs * call.splits) * (size_t)(h->v + 2);
        call.part = malloc(floats * sizeof(float));
        memset(call.part, 0xff, floats * sizeof(float));
    }
    attn_launch(k, 0, &call, h->kv_heads * call.splits, (int)n, config, seed);
    if (call.splits > 1) attn_launch(k, 1, &call, h->kv_heads * pairs, (int)n, config, seed);
    free(call.part);
}

#endif
