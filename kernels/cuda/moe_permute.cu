/* Tokens in the order of their experts, and back: what kernels of many tokens need.
 *
 * A stable counting sort, whose result depends on nothing but the ids. Chunks of 2048 entries
 * (token, slot) count their experts; one block turns the counts into first rows of every chunk and
 * expert, and makes the tiles; then every chunk gives its entries their rows. Inside a chunk each
 * warp has a run of entries and counters of its own, and lanes that name the same expert find each
 * other by a match, so that order is kept without atomics.
 *
 *   count    grid (chunks, 1), 4 WARPS experts bytes of shared memory; also scatter
 *   scan     grid (1, 1), 8 experts bytes
 *   scatter  grid (chunks, 1)
 *   combine  grid (k / THREADS rounded up, tokens)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/permute_calls.h"

#define WARPS KT_CONSTANT(0)
#define THREADS (32 * WARPS)
#define RUN (KT_PERMUTE_CHUNK / WARPS) /* entries of a warp */
KT_REQUIRE(WARPS >= 1 && WARPS <= 32 && KT_PERMUTE_CHUNK % (32 * WARPS) == 0, "whole warps");

/* Counter of expert e of a warp. */
KT_DEVICE uint32_t counter(const kt_moe_permute *p, int warp, int e) {
    return (uint32_t)(warp * p->experts + e) * 4;
}

/* The expert of an entry, or -1. */
KT_DEVICE int expert_of(const kt_moe_permute *p, int64_t entry) {
    const int e = entry < (int64_t)p->tokens * p->slots ? p->id[entry] : -1;
    return e < p->experts ? e : -1;
}

/* How many lanes before this one name its expert, and what the expert's counter was before this
 * warp's entries, which it counts. */
KT_DEVICE int take_place(const kt_moe_permute *p, int e) {
    const uint32_t same = kt_warp_match((uint32_t)e);
    const int before = kt_bit_count(same & ((1u << kt_lane()) - 1));
    const int leader = kt_bit_count((same & (0u - same)) - 1);
    uint32_t first = 0;

    if (e >= 0 && before == 0) {
        first = kt_shared_u32(counter(p, kt_warp(), e));
        kt_set_shared_u32(counter(p, kt_warp(), e), first + (uint32_t)kt_bit_count(same));
    }
    kt_warp_sync();
    return (int)kt_warp_from(first, leader) + before;
}

KT_DEVICE int64_t first_entry(void) {
    return (int64_t)kt_block_x() * KT_PERMUTE_CHUNK + (int64_t)kt_warp() * RUN + kt_lane();
}

/* Counters of all warps. */
KT_DEVICE void count_runs(const kt_moe_permute *p) {
    for (int i = kt_thread(); i < WARPS * p->experts; i += THREADS)
        kt_set_shared_u32((uint32_t)i * 4, 0);
    kt_sync();
    for (int i = 0; i < RUN; i += 32) take_place(p, expert_of(p, first_entry() + i));
    kt_sync();
}

KT_DEVICE void count(const kt_moe_permute *p) {
    count_runs(p);
    for (int e = kt_thread(); e < p->experts; e += THREADS) {
        int sum = 0;
        for (int w = 0; w < WARPS; w++) sum += (int)kt_shared_u32(counter(p, w, e));
        p->counts[(int64_t)kt_block_x() * p->experts + e] = sum;
    }
}

/* The sum of v over the lanes before this one. */
KT_DEVICE int sum_before(int v) {
    int sum = v;

    KT_UNROLL
    for (int d = 1; d < 32; d *= 2) {
        const int other = (int)kt_warp_from((uint32_t)sum, kt_lane() - d);
        if (kt_lane() >= d) sum += other;
    }
    return sum - v;
}

/* Shared memory has every expert's rows, and behind them its tiles: sums before it take their
 * place, and the totals are first[experts] and n_tiles. One warp. */
KT_DEVICE void sum_experts(const kt_moe_permute *p) {
    int rows = 0, tiles = 0;

    for (int i = 0; i < p->experts; i += 32) {
        const int e = i + kt_lane(), is_there = e < p->experts;
        const uint32_t at = (uint32_t)(is_there ? e : 0) * 4, of_tiles = (uint32_t)p->experts * 4;
        const int mine = is_there ? (int)kt_shared_u32(at) : 0;
        const int mine_tiles = (mine + p->tile_rows - 1) / p->tile_rows;
        const int before = rows + sum_before(mine), tiles_before = tiles + sum_before(mine_tiles);
        if (is_there) {
            p->first[e] = before;
            kt_set_shared_u32(of_tiles + at, (uint32_t)tiles_before);
        }
        rows = (int)kt_warp_from((uint32_t)(before + mine), 31);
        tiles = (int)kt_warp_from((uint32_t)(tiles_before + mine_tiles), 31);
    }
    if (kt_lane() != 0) return;
    p->first[p->experts] = rows;
    *p->n_tiles = tiles;
}

/* counts[chunk][e] becomes how many rows of e earlier chunks have. */
KT_DEVICE void scan(const kt_moe_permute *p) {
    const int chunks =
        (int)(((int64_t)p->tokens * p->slots + KT_PERMUTE_CHUNK - 1) / KT_PERMUTE_CHUNK);

    for (int e = kt_thread(); e < p->experts; e += THREADS) {
        int sum = 0;
        for (int c = 0; c < chunks; c++) {
            int32_t *at = p->counts + (int64_t)c * p->experts + e;
            const int n = *at;
            *at = sum;
            sum += n;
        }
        kt_set_shared_u32((uint32_t)e * 4, (uint32_t)sum);
    }
    kt_sync();
    if (kt_warp() == 0) sum_experts(p);
    kt_sync();
    for (int e = kt_thread(); e < p->experts; e += THREADS) {
        const int rows = (int)kt_shared_u32((uint32_t)e * 4), first = p->first[e];
        kt_moe_tile *tile = p->tile + kt_shared_u32((uint32_t)(p->experts + e) * 4);
        for (int at = 0; at < rows; at += p->tile_rows, tile++) {
            tile->expert = e;
            tile->first = first + at;
            tile->rows = rows - at < p->tile_rows ? rows - at : p->tile_rows;
        }
    }
    for (int i = *p->n_tiles + kt_thread(); i < p->max_tiles; i += THREADS)
        p->tile[i].expert = p->tile[i].first = p->tile[i].rows = 0;
}

KT_DEVICE void scatter(const kt_moe_permute *p) {
    count_runs(p);
    for (int e = kt_thread(); e < p->experts; e += THREADS) {
        int row = p->first[e] + p->counts[(int64_t)kt_block_x() * p->experts + e];
        for (int w = 0; w < WARPS; w++) {
            const int n = (int)kt_shared_u32(counter(p, w, e));
            kt_set_shared_u32(counter(p, w, e), (uint32_t)row);
            row += n;
        }
    }
    kt_sync();
    for (int i = 0; i < RUN; i += 32) {
        const int64_t entry = first_entry() + i;
        const int e = expert_of(p, entry), row = take_place(p, e);
        if (e >= 0) {
            p->row_token[row] = (int32_t)(entry / p->slots);
            p->route[row] = p->weight[entry];
        }
        if (entry < (int64_t)p->tokens * p->slots) p->row_of[entry] = e >= 0 ? row : -1;
    }
}

KT_DEVICE void combine(const kt_moe_combine *p) {
    const int64_t token = kt_block_y();
    const int column = kt_block_x() * THREADS + kt_thread();
    float *out = p->out + token * p->ldo + column;
    float sum = 0;

    if (column >= p->k) return;
    for (int s = 0; s < p->slots; s++) {
        const int64_t row = p->row_of[token * p->slots + s];
        if (row < 0) continue;
        sum = kt_fma(p->route ? p->route[row] : 1.0f, p->y[row * p->k + column], sum);
    }
    *out = p->is_added ? *out + sum : sum;
}

KT_ENTRY(moe_permute_count, kt_moe_permute, count, THREADS)
KT_ENTRY(moe_permute_scan, kt_moe_permute, scan, THREADS)
KT_ENTRY(moe_permute_scatter, kt_moe_permute, scatter, THREADS)
KT_ENTRY(moe_permute_combine, kt_moe_combine, combine, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {4, 8};
static const kt_param params[] = {{"warps", warps_values, 2, 8}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

/* k: experts. Enough for every entry. */
static size_t shared_bytes(const kt_config *config, int64_t k) {
    return (size_t)config->value[0] * (size_t)k * 4;
}

KT_CUDA_KERNEL(moe_permute) = {
    .name = "moe_permute",
    .about = "tokens in the order of their experts, tiles of them, and the sum back",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 4,
    .entry = {{"moe_permute_count", moe_permute_count},
              {"moe_permute_scan", moe_permute_scan},
              {"moe_permute_scatter", moe_permute_scatter},
              {"moe_permute_combine", moe_permute_combine}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
