/* The walk over rows, chunks and blocks that all attention variants share.
 *
 * A tile is a few query rows times all heads of the group, "queries" below: they share every K
 * and V load. Per block of keys a tile computes scores, turns them into weights with a running
 * maximum, and adds weighted values. Blocks that end before every row's position are done for
 * the whole tile at once; the others row by row, each with its own number of keys, so that no
 * masked key is ever computed, read or added.
 *
 * Variants know BF16 rows. A cache of 8-bit codes is widened block by block, once per tile, to
 * BF16, which holds every code exactly; the scales of keys multiply the scores, those of values
 * the weights.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_WALK_H
#define KT_KERNELS_ATTN_WALK_H

#include "kernels/attn/attn_common.h"

#define KT_ATTN_FEW 8                    /* queries that one load of a value serves in registers */
#define KT_ATTN_LDS (KT_ATTN_BLOCK + 16) /* row of scores: up to 15 past the block may be written */

/* Keys, or values, of a block to come, for prefetches: row r begins r * ld bytes after `rows` and
 * has `bytes`. rows = NULL: nothing to ask for. ahead: how many elements behind the rows that are
 * being read kt_attn_fetch is to ask, or 0. */
typedef struct kt_attn_next {
    const uint8_t *rows;
    int64_t ld, bytes, ahead;
} kt_attn_next;

/* What a variant brings. Queries and sums live in scratch, padded to a multiple of `lanes`, in
 * whatever order of elements suits the variant's loads. Each function must treat a query the
 * same way, to the bit, whatever other queries it is called with. d is the size of a key, in
 * weigh, weigh_codes and store_sums that of a value, in widen either; n_keys <= KT_ATTN_BLOCK. */
typedef struct kt_attn_inner {
    int64_t lanes;
    /* f32 head * scale -> scratch row. */
    void (*load_query)(const float *q, int64_t d, float scale, float *out);
    /* Codes of n_keys rows -> BF16 rows of ldo >= d rounded up to lanes, zeros past d. What
     * takes keys as codes widens values alone, to whatever its weigh reads. */
    void (*widen)(kt_weight_format cache, const uint8_t *codes, int64_t ld, int64_t d,
                  int64_t n_keys, uint16_t *out, int64_t ldo);
    /* s[i * KT_ATTN_LDS + j] = q[i] . k[j]. ahead: as in kt_attn_fetch. */
    void (*scores)(const float *q, int64_t ldq, int64_t n_queries, const uint16_t *k, int64_t ldk,
                   int64_t d, int64_t n_keys, int64_t ahead, float *s);
    /* Instead of scores, for variants that rearrange a block of keys once for all queries of the
     * tile: size, rearranging, and the same from the rearranged block (64-byte aligned). n_keys
     * of scores_loaded may be less than was loaded; next: the block after. */
    size_t (*keys_bytes)(int64_t d);
    void (*load_keys)(const uint16_t *k, int64_t ldk, int64_t d, int64_t n_keys, void *keys);
    void (*scores_loaded)(const float *q, int64_t ldq, int64_t n_queries, const void *keys,
                          int64_t d, int64_t n_keys, const kt_attn_next *next, float *s);
    /* load_keys from codes, for variants that need no widened rows in between; NULL = none. Then
     * keys_bytes is enough for a widened block of values of the size d too. */
    void (*load_codes)(kt_weight_format cache, const uint8_t *k, int64_t ldk, int64_t d,
                       int64_t n_keys, void *keys);
    /* s -> exp(s - max) in the form that weigh wants, with stats (max, sum) brought up to date;
     * returns the factor for older sums. k_scale, v_scale: NULL, or n_keys factors of the scores
     * before and of the weights after. */
    float (*soften)(float *s, int64_t n_keys, const float *k_scale, const float *v_scale,
                    float *stats);
    /* The same for n_queries rows of s and of stats, factors to keep[]; its bits. Query i sees
     * n_keys + i / group keys, at most `most`. NULL = none. */
    void (*soften_rows)(float *s, int64_t n_queries, int64_t n_keys, int64_t group, int64_t most,
                        const float *k_scale, const float *v_scale, float *stats, float *keep);
    /* Keys whose weights lie in one float of a row, where weigh can begin at any multiple of that
     * many: at s + keys / weigh_step and their values. 0 = it cannot. */
    int64_t weigh_step;
    /* o[i] = o[i] * keep[i] + sum_j s[i * KT_ATTN_LDS + j] v[j]. */
    void (*weigh)(float *o, int64_t ldo, const float *keep, int64_t n_queries, const float *s,
                  const uint16_t *v, int64_t ldv, int64_t d, int64_t n_keys,
                  const kt_attn_next *next);
    /* weigh from codes, for at most KT_ATTN_FEW queries; its bits. NULL = none. */
    void (*weigh_codes)(kt_weight_format cache, float *o, int64_t ldo, const float *keep,
                        int64_t n_queries, const float *s, const uint8_t *v, int64_t ldv, int64_t d,
                        int64_t n_keys);
    /* Scratch row -> f32 head. */
    void (*store_sums)(const float *o, int64_t d, float *out);
} kt_attn_inner;

/* The parameter of every variant of the walk: queries per tile. */
#define KT_ATTN_N_PARAMS 1
extern const kt_param kt_attn_params[KT_ATTN_N_PARAMS];

/* Descriptor members of a variant: its attn is kt_attn_walk with its own inner functions. */
void kt_attn_walk(const kt_attn_call *call, const kt_attn_inner *inner);
size_t kt_attn_walk_bytes(const kt_problem *problem, const kt_config *config,
                          const kt_attn_inner *inner);

#endif
