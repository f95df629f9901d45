/* How attention of a batch goes to a device: which kernel, tiles, splits. For hosts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_ATTN_PLAN_H
#define KT_CUDA_ATTN_PLAN_H

#include <stdbool.h>

#include "kernels/cuda/attn_calls.h"
#include "kernels/cuda/cuda_kernel.h"

/* Rows [row, row + rows) of the batch are one sequence's, at positions position, position + 1, ..;
 * its page table begins at `page`. */
typedef struct kt_attn_sequence {
    int32_t row, rows, position, page;
} kt_attn_sequence;

/* What one layer needs; `cache` as the kernels' constant. */
typedef struct kt_attn_shape {
    int32_t heads, kv_heads, k, v, window, cache;
    bool is_shared; /* values are the first numbers of the keys' rows */
} kt_attn_shape;

/* THE rule of few and many rows: with at most so many pairs of a row and a head of a group, a
 * sequence's keys are split over blocks (attn_decode); with more, blocks are tiles of its rows
 * (attn_prefill). */
enum { KT_ATTN_FEW_PAIRS = 32, KT_ATTN_MAX_SPLITS = 64 };
bool kt_attn_is_few(const kt_attn_shape *shape, const kt_attn_sequence *sequence);

/* Tiles of at most `pairs` pairs of one sequence, with `is_row_bound` of one row; `out` may be NULL
 * to count them. */
int64_t kt_attn_cut_rows(const kt_attn_shape *shape, const kt_attn_sequence *sequence, int pairs,
                         bool is_row_bound, kt_attn_tile *out);

/* Splits of a launch with so many tiles, whose rows meet at most `longest` keys each: enough that
 * each multiprocessor has two blocks, at most 64, none under 256 keys. Sets *split_keys and *splits
 * of the call; a split has a power of two of keys, so that a batch that changes a little keeps its
 * bits. */
void kt_attn_cut_keys(const kt_attn_shape *shape, int64_t tiles, int64_t longest,
                      int multiprocessors, int32_t *split_keys, int32_t *splits);
/* Bytes of `part` for such a launch, and the most that any launch of the shape takes. */
size_t kt_attn_part_bytes(const kt_attn_shape *shape, int64_t tiles, int pairs, int32_t splits);
size_t kt_attn_most_part_bytes(const kt_attn_shape *shape, int pairs, int multiprocessors);

/* Configs that fit the target: the initial one with the shape's sizes, and fewer stages, warps or
 * keys where a block's shared memory asks for it. false: the kernel has none for the shape. */
bool kt_attn_config(const kt_cuda_kernel *kernel, const kt_attn_shape *shape,
                    const kt_cuda_target *target, kt_config *out);

#endif
