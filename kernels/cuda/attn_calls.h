/* Parameters of attention's entries, the same for hosts and for devices, where nothing else is
 * included. Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_ATTN_CALLS_H
#define KT_CUDA_ATTN_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum { KT_ATTN_PAGE = 64 }; /* tokens of a page */

/* What a cache holds: the build constant `cache` of the kernels. 8-bit rows have an f32 scale each
 * (kernels/attn/attn_common.h). */
enum { KT_ATTN_BF16 = 0, KT_ATTN_INT8 = 1, KT_ATTN_FP8 = 2 };

/* Rows of keys, or of values: head h's row of token t in page p begins h * head + p * page + t *
 * row bytes behind `rows`, a multiple of 16; its scale h * scale_head + p * 64 + t floats behind
 * `scale`. */
typedef struct kt_attn_kept {
    const uint8_t *rows;
    const float *scale; /* not read with bfloat16 */
    int64_t head, page, row, scale_head;
} kt_attn_kept;

/* Pairs of a row and a head of a kv head's group, row by row: pair i of the tile is row
 * row + (head + i) / group and head (head + i) % group of the group. All rows are of one sequence,
 * in order, and its page table begins at `page`. */
typedef struct kt_attn_tile {
    int32_t row, head, pairs, page;
} kt_attn_tile;

/* A layer's attention over rows of many sequences. A row sees the keys up to its position, with a
 * window the last `window` of them. The results of a row depend on its own sequence, `split_keys`
 * and the kernel's config alone: not on the rows beside it, nor on `splits`. */
typedef struct kt_attn_paged {
    const float *q; /* [rows, ldq], head h's numbers at h * k */
    int64_t ldq;
    kt_attn_kept k, v;
    const int32_t *position; /* [rows] */
    const uint32_t *page;    /* page tables of all sequences */
    const kt_attn_tile *tile;
    const float *sink;     /* [heads]: scores of a key without a value; NULL = none */
    const int32_t *picked; /* attn_latent: [rows, topk], ascending, of rows that see more keys than
                              topk; NULL = every row meets all that it sees */
    float *out;            /* [rows, ldo], head h's numbers at h * v */
    int64_t ldo;
    float *part; /* [tiles, kv_heads, pairs of a tile, splits, v + 2], unless splits is 1 */
    float scale; /* of scores; exp(score) is a weight */
    int32_t heads, kv_heads, window, topk;
    /* Keys [i * split_keys, (i + 1) * split_keys) go to a block each, to cell i % splits of a
     * pair; `splits` is at least the number of these that a tile meets. A multiple of 64. */
    int32_t splits, split_keys;
    int32_t zero; /* for padding */
} kt_attn_paged;

/* Scores of index keys: score[row, j] = sum over heads of w * max(0, q . key j), for the keys that
 * the row sees. */
typedef struct kt_attn_index {
    const float *q, *w; /* [rows, ldq], [rows, ldw] */
    int64_t ldq, ldw;
    kt_attn_kept k; /* bfloat16, one head */
    const int32_t *position;
    const uint32_t *page;
    const int32_t *span_of, *first_page; /* row r's page table begins at first_page[span_of[r]] */
    float *score;                        /* [rows, ld_score] */
    int64_t ld_score;
    int32_t *picked; /* [rows, topk], ascending: written of rows that see more keys than topk */
    int32_t heads, topk;
    /* Tokens that a key stands for (1, or 0: each has its own). Keys of a row are then those whose
     * tokens it sees whole; a page has 64 / ratio of them, a multiple of 16. */
    int32_t ratio;
    /* Blocks of keys are picked instead, for each head its own: block > 0, a multiple of 8, without
     * weights. The score of a block is the largest of its keys that the row sees; the last `local`
     * blocks are picked in any case. score: [rows, heads, ld_score], of 8 keys each; best: [rows,
     * heads, ld_best], of blocks; picked: [rows, heads, topk]. */
    int32_t block, local;
    int32_t zero; /* for padding */
    float *best;
    int64_t ld_best;
} kt_attn_index;

#endif
