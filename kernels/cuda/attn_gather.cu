/* A row's keys side by side, where they come from several places: the last tokens and entries of
 * windows (kernels/compress), or picked blocks. Attention then reads them like pages of their own.
 *
 *   entries  grid (keys / (KEYS * WARPS) rounded up, gathered rows): a warp copies KEYS keys
 *   blocks   grid (keys / (KEYS * WARPS) rounded up, gathered rows * heads): keys and values
 *   ring     grid (window / WARPS rounded up, spans): the last tokens, for the next step
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/gather_calls.h"

#define WARPS KT_CONSTANT(0)
#define KEYS KT_CONSTANT(1)
#define THREADS (32 * WARPS)
enum { PAGE = 64 };

/* A row of whole words, by a warp. */
KT_DEVICE void copy_words(void *to, const void *from, int words) {
    for (int i = kt_lane(); i < words; i += 32) ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
}

KT_DEVICE void put_row(const kt_gathered *to, uint8_t *keys, float *scales, int64_t at,
                       const uint8_t *row, const float *scale) {
    copy_words(keys + at * to->row_bytes, row, to->row_bytes / 4);
    if (scales && kt_lane() == 0) scales[at] = *scale;
}

KT_DEVICE uint32_t page_of(const kt_row_places *places, int row, int token) {
    return places->page[places->first_page[places->span[row]] + token / PAGE];
}

/* ---- the last tokens, and entries ---- */

KT_DEVICE const float *token_row(const kt_gather_entries *p, int row, int token) {
    const kt_state_span s = p->spans[p->places.span[row]];

    if (token >= s.position) return p->packed + (s.first_row + token - s.position) * p->ldp;
    return p->states + s.from * p->stride + (int64_t)(token % p->window) * p->floats;
}

KT_DEVICE void entries(const kt_gather_entries *p) {
    const int number = kt_block_y(), row = p->to.row[number], n = p->to.last[row] + 1;
    const int first = (kt_block_x() * WARPS + kt_warp()) * KEYS, position = p->places.position[row];
    const int tokens = position + 1 < p->window ? position + 1 : p->window;
    const int seen = p->ratio ? (position + 1) / p->ratio : 0;
    const int32_t *list = p->picked && seen > p->topk ? p->picked + (int64_t)row * p->ldpicked : 0;

    for (int i = first; i < first + KEYS && i < n; i++) {
        const int64_t at = number * p->to.most + i;
        if (i < tokens) {
            const float *from = token_row(p, row, position + 1 - tokens + i);
            put_row(&p->to, p->to.keys, p->to.scale, at, (const uint8_t *)from,
                    from + p->floats - 1);
        } else {
            const int entry = list ? list[i - tokens] : i - tokens;
            const int end = (entry + 1) * p->ratio - 1, room = end % PAGE / p->ratio;
            const int64_t page = page_of(&p->places, row, end) * p->page_bytes;
            put_row(&p->to, p->to.keys, p->to.scale, at,
                    p->entries + page + (int64_t)room * p->to.row_bytes,
                    p->scales ? p->scales + page / 4 + room : 0);
        }
    }
}

/* Number j of the last `window` tokens. What is older than the step moves where the sequence goes on
 * in another slot. */
KT_DEVICE void ring(const kt_keep_ring *p) {
    const int j = kt_block_x() * WARPS + kt_warp();
    const kt_state_span s = p->spans[kt_block_y()];
    const int token = s.position + s.rows - p->window + j;
    float *to = p->states + s.to * p->stride + (int64_t)(token % p->window) * p->floats;

    if (j >= p->window || token < 0) return;
    if (token >= s.position)
        copy_words(to, p->packed + (s.first_row + token - s.position) * p->ldp, p->floats);
    else if (s.from != s.to)
        copy_words(to, p->states + s.from * p->stride + (int64_t)(token % p->window) * p->floats,
                   p->floats);
}

/* ---- picked blocks ---- */

KT_DEVICE void blocks(const kt_gather_blocks *p) {
    const int number = kt_block_y() / p->heads, head = kt_block_y() % p->heads;
    const int row = p->to.row[number], n = p->to.last[row] + 1;
    const int first = (kt_block_x() * WARPS + kt_warp()) * KEYS;
    const int32_t *list = p->picked + ((int64_t)row * p->heads + head) * p->topk;
    const int is_picky = p->places.position[row] / p->block >= p->topk;

    for (int i = first; i < first + KEYS && i < n; i++) {
        const int token = is_picky ? list[i / p->block] * p->block + i % p->block : i;
        const int64_t from =
            head * p->head_rows + (int64_t)page_of(&p->places, row, token) * PAGE + token % PAGE;
        const int64_t at = ((int64_t)head * p->to.rows + number) * p->to.most + i;
        put_row(&p->to, p->to.keys, p->to.scale, at, p->keys + from * p->to.row_bytes,
                p->scale ? p->scale + from : 0);
        put_row(&p->to, p->values_to, p->value_scale_to, at, p->values + from * p->to.row_bytes,
                p->value_scale ? p->value_scale + from : 0);
    }
}

KT_ENTRY_ALONE(attn_gather_entries, kt_gather_entries, entries, THREADS)
KT_ENTRY(attn_gather_blocks, kt_gather_blocks, blocks, THREADS)
KT_ENTRY(attn_gather_ring, kt_keep_ring, ring, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8}, keys_values[] = {4, 8, 16};
static const kt_param params[] = {{"warps", warps_values, 3, 4}, {"keys", keys_values, 3, 8}};

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

KT_CUDA_KERNEL(attn_gather) = {
    .name = "attn_gather",
    .about = "keys of attention side by side: last tokens, entries, picked blocks",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 2,
    .entry_count = 3,
    .entry = {{"attn_gather_entries", attn_gather_entries},
              {"attn_gather_blocks", attn_gather_blocks},
              {"attn_gather_ring", attn_gather_ring}},
    .refuse = kt_cuda_refuse_none,
    .threads = threads,
    .shared_bytes = kt_cuda_nothing_shared,
};
#endif
