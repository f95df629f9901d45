/* The lightning indexer of sparse attention (DeepSeek-V3.2): scores of index keys, and the keys of
 * the highest ones. Rows that see no more than topk keys have neither. Keys may stand for several
 * tokens (DeepSeek-V4), or be picked by blocks, for each head its own (MiniMax-M3).
 *
 *   scores  grid (keys / KEYS rounded up, rows): products on tensor cores, 16 heads by 16 keys a
 *           warp. A query's number is the sum of PARTS bfloat16: with two, 16 bits of it count.
 *   units   the same grid: the largest score of eight keys, for each head
 *   blocks  grid (blocks / THREADS rounded up, rows * heads): that of a block
 *   pick    grid (1, rows), or of blocks (heads, rows): radix selection, eight bits of the scores as ordered integers a pass,
 *           then the numbers of the picked keys in ascending order. The same set as
 *           kernels/indexer/index_pick.h has of the same scores.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_attn.h"

#define DIM KT_CONSTANT(0)
#define PARTS KT_CONSTANT(1)
#define WARPS KT_CONSTANT(2)
#define THREADS (32 * WARPS)
#define KEYS (16 * WARPS)
#define KEY_BYTES (KEYS * KT_ATTN_PITCH(DIM))
enum { MAX_DIM = 128, BINS = 256, MOST_HEADS = 64 };
KT_REQUIRE(DIM % 16 == 0 && DIM <= MAX_DIM, "registers");
KT_REQUIRE(PARTS == 1 || PARTS == 2, "parts of a query");

/* ---- scores ---- */

/* Keys, then the parts of the queries of all heads, then the heads' weights. */
KT_DEVICE uint32_t query_at(int part, int head, int heads) {
    return (uint32_t)(KEY_BYTES + (part * heads + head) * KT_ATTN_PITCH(DIM));
}

KT_DEVICE int heads_of(const kt_attn_index *p) { /* whole tiles */
    return (p->heads + 15) / 16 * 16;
}

KT_DEVICE int ratio_of(const kt_attn_index *p) {
    return p->ratio > 1 ? p->ratio : 1;
}

KT_DEVICE int keys_of(const kt_attn_index *p, int row) {
    return (p->position[row] + 1) / ratio_of(p);
}

/* KEYS keys from `key` on, of n, to shared memory; a page has whole sixteens. */
KT_DEVICE void fetch(const kt_attn_index *p, int row, int key, int n) {
    const uint32_t *page = p->page + p->first_page[p->span_of[row]];
    const int rooms = KT_ATTN_PAGE / ratio_of(p);

    for (int i = 0; i < KEYS; i += 16) {
        const uint32_t number = key + i < n ? page[(key + i) / rooms] : 0;
        kt_attn_fetch((uint32_t)(i * KT_ATTN_PITCH(DIM)), KT_ATTN_PITCH(DIM),
                      p->k.rows + number * p->k.page + (key + i) % rooms * p->k.row, p->k.row,
                      DIM / 8, 16, n - key - i, kt_thread(), THREADS);
    }
    kt_copy_commit();
}

KT_DEVICE void put_queries(const kt_attn_index *p, int row) {
    const int heads = heads_of(p);

    for (int i = kt_thread(); i < heads * DIM / 2; i += THREADS) {
        const int head = i / (DIM / 2), word = i % (DIM / 2);
        const float *q = p->q + row * p->ldq + (int64_t)head * DIM + 2 * word;
        const float x = head < p->heads ? q[0] : 0, y = head < p->heads ? q[1] : 0;
        const uint32_t high = kt_bf16_pair(x, y);
        kt_set_shared_u32(query_at(0, head, heads) + (uint32_t)word * 4, high);
        if (PARTS == 2)
            kt_set_shared_u32(query_at(1, head, heads) + (uint32_t)word * 4,
                              kt_bf16_pair(x - kt_bf16_low(high), y - kt_bf16_high(high)));
    }
    for (int head = kt_thread(); head < heads; head += THREADS)
        kt_set_shared_u32(query_at(PARTS, head, heads) -
                              (uint32_t)(head * (KT_ATTN_PITCH(DIM) - 4)),
                          kt_bits_float(head < p->heads && p->w ? p->w[row * p->ldw + head] : 0));
}

KT_DEVICE float weight_of(int head, int heads) {
    return kt_float_bits(kt_shared_u32(query_at(PARTS, 0, heads) + (uint32_t)head * 4));
}

/* max(0, x), but NaN stays. */
KT_DEVICE float positive(float x) {
    return x < 0 ? 0.0f : x;
}

/* The warp's 16 keys as words of B. */
KT_DEVICE void load_keys(uint32_t *b) {
    const int lane = kt_lane(), first = kt_warp() * 16;
    const uint32_t b_at = (uint32_t)((first + (lane & 7) + (lane >> 4 << 3)) * KT_ATTN_PITCH(DIM) +
                                     (lane >> 3 & 1) * 16);

    KT_UNROLL
    for (int i = 0; i < DIM / 16; i++) kt_ldmatrix(b + 4 * i, b_at + (uint32_t)i * 32);
}

/* c = products of heads [head, head + 16) with these keys. */
KT_DEVICE void multiply(const uint32_t *b, int head, int heads, float *c) {
    KT_UNROLL
    for (int x = 0; x < 8; x++) c[x] = 0;
    KT_UNROLL
    for (int part = PARTS - 1; part >= 0; part--) KT_UNROLL
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t a[4];
        kt_ldmatrix(a, query_at(part, head + (kt_lane() & 15), heads) +
                           (uint32_t)((kt_lane() >> 4) * 16 + i * 32));
        kt_mma_bf16(c, a, b[4 * i], b[4 * i + 1]);
        kt_mma_bf16(c + 4, a, b[4 * i + 2], b[4 * i + 3]);
    }
}

/* The scores of a lane's four keys: 2t, 2t + 1 and 8 further on. */
KT_DEVICE void score_warp(int heads, float *sum) {
    const int lane = kt_lane();
    uint32_t b[MAX_DIM / 4];

    load_keys(b);
    KT_UNROLL
    for (int x = 0; x < 4; x++) sum[x] = 0;
    for (int head = 0; head < heads; head += 16) {
        float c[8];
        multiply(b, head, heads, c);
        KT_UNROLL
        for (int x = 0; x < 8; x++)
            sum[x / 4 * 2 + x % 2] +=
                weight_of(head + lane / 4 + x / 2 % 2 * 8, heads) * positive(c[x]);
    }
    KT_UNROLL
    for (int x = 0; x < 4; x++)
        for (int lanes = 4; lanes < 32; lanes *= 2) sum[x] += kt_warp_xor(sum[x], lanes);
}

KT_DEVICE void scores(const kt_attn_index *p) {
    const int row = kt_block_y(), n = keys_of(p, row), key = kt_block_x() * KEYS;
    float *score = p->score + row * p->ld_score + key + kt_warp() * 16 + kt_lane() % 4 * 2;
    float sum[4];

    if (n <= p->topk || key >= n) return;
    fetch(p, row, key, n);
    put_queries(p, row);
    KT_COPY_WAIT(0);
    kt_sync();
    score_warp(heads_of(p), sum);
    if (kt_lane() >= 4) return;
    KT_UNROLL
    for (int x = 0; x < 4; x++) {
        const int at = x / 2 * 8 + x % 2;
        if (key + kt_warp() * 16 + kt_lane() * 2 + at < n) score[at] = sum[x];
    }
}

/* ---- blocks ---- */

KT_DEVICE int blocks_of(const kt_attn_index *p, int row) {
    return p->position[row] / p->block + 1;
}

/* The largest score of eight keys, for each head. A lane has heads g and g + 8 of 16 with keys 2t,
 * 2t + 1; four lanes have the eight. */
KT_DEVICE void units(const kt_attn_index *p) {
    const int row = kt_block_y(), n = keys_of(p, row), key = kt_block_x() * KEYS;
    const int heads = heads_of(p), first = key + kt_warp() * 16;
    uint32_t b[MAX_DIM / 4];

    if (blocks_of(p, row) <= p->topk || key >= n) return;
    fetch(p, row, key, n);
    put_queries(p, row);
    KT_COPY_WAIT(0);
    kt_sync();
    load_keys(b);
    for (int head = 0; head < heads; head += 16) {
        float c[8];
        multiply(b, head, heads, c);
        KT_UNROLL
        for (int x = 0; x < 8; x += 2) {
            const int at = first + x / 4 * 8, of = head + kt_lane() / 4 + x / 2 % 2 * 8;
            float most = KT_ATTN_NOTHING;
            if (at + kt_lane() % 4 * 2 < n) most = kt_max(most, c[x]);
            if (at + kt_lane() % 4 * 2 + 1 < n) most = kt_max(most, c[x + 1]);
            most = kt_max(most, kt_warp_xor(most, 1));
            most = kt_max(most, kt_warp_xor(most, 2));
            if (kt_lane() % 4 == 0 && of < p->heads && at < n)
                p->score[((int64_t)row * p->heads + of) * p->ld_score + at / 8] = most;
        }
    }
}

/* A thread has a block of one head: grid (blocks / THREADS rounded up, rows * heads). */
KT_DEVICE void blocks(const kt_attn_index *p) {
    const int64_t list = kt_block_y();
    const int row = kt_block_y() / p->heads, block = kt_block_x() * THREADS + kt_thread();
    const int n = blocks_of(p, row), end = (keys_of(p, row) + 7) / 8, of_block = p->block / 8;
    float most = KT_ATTN_NOTHING;

    if (n <= p->topk || block >= n) return;
    for (int i = block * of_block; i < (block + 1) * of_block && i < end; i++)
        most = kt_max(most, p->score[list * p->ld_score + i]);
    p->best[list * p->ld_best + block] = block >= n - p->local ? -KT_ATTN_NOTHING : most;
}

/* ---- picking ---- */

enum { FOUND_AT = BINS * 4, TOTALS_AT = FOUND_AT + 8 }; /* two words; 2 * WARPS words */

/* Larger scores are larger integers; NaN is 0, which no number is. */
KT_DEVICE uint32_t ordered(float x) {
    const uint32_t bits = kt_bits_float(x + 0.0f); /* -0 becomes 0 */

    if (x != x) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The first warp finds the bin, from the highest down, that has the rank-th number: a lane adds
 * eight bins up. The bin and the rank inside it go to shared memory. */
KT_DEVICE void find_bin(uint32_t rank) {
    const int top = BINS - 1 - 8 * kt_lane();
    uint32_t own = 0, before, holds;

    for (int i = 0; i < 8; i++) own += kt_shared_u32((uint32_t)(top - i) * 4);
    before = own;
    for (int lanes = 1; lanes < 32; lanes *= 2) {
        const uint32_t x = kt_warp_from(before, kt_lane() - lanes);
        if (kt_lane() >= lanes) before += x;
    }
    before -= own;
    holds = kt_warp_ballot(before < rank && rank <= before + own);
    if (!(holds >> kt_lane() & 1)) return;
    for (int i = 0; i < 8; i++) {
        const uint32_t count = kt_shared_u32((uint32_t)(top - i) * 4);
        if (rank <= before + count) {
            kt_set_shared_u32(FOUND_AT, (uint32_t)(top - i));
            kt_set_shared_u32(FOUND_AT + 4, rank - before);
            return;
        }
        before += count;
    }
}

/* The integer of the topk-th highest of n scores; *equals becomes how many of that are picked. */
KT_DEVICE uint32_t find_least(const float *score, int n, int topk, uint32_t *equals) {
    uint32_t found = 0, rank = (uint32_t)topk;

    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = kt_thread(); i < BINS; i += THREADS) kt_set_shared_u32((uint32_t)i * 4, 0);
        kt_sync();
        for (int i = kt_thread(); i < n; i += THREADS) {
            const uint32_t x = ordered(score[i]);
            if (shift == 24 || x >> ((shift + 8) & 31) == found)
                kt_shared_add((x >> shift & (BINS - 1)) * 4, 1);
        }
        kt_sync();
        if (kt_warp() == 0) find_bin(rank);
        kt_sync();
        found = found << 8 | kt_shared_u32(FOUND_AT);
        rank = kt_shared_u32(FOUND_AT + 4);
    }
    *equals = rank;
    return found;
}

/* Of the threads before this one in a round: how many scores lie above the least (low half), and
 * how many are equal to it; *all gets both of the whole round. Rounds alternate between two places,
 * so that one barrier is enough. */
KT_DEVICE uint32_t count_before(int is_above, int is_equal, int round, uint32_t *all) {
    const uint32_t below = (1u << kt_lane()) - 1,
                   at = TOTALS_AT + (uint32_t)(round % 2 * WARPS * 4);
    const uint32_t above = kt_warp_ballot(is_above), equal = kt_warp_ballot(is_equal);
    uint32_t before = (uint32_t)(kt_bit_count(above & below) | kt_bit_count(equal & below) << 16);

    if (kt_lane() == 0)
        kt_set_shared_u32(at + (uint32_t)kt_warp() * 4,
                          (uint32_t)(kt_bit_count(above) | kt_bit_count(equal) << 16));
    kt_sync();
    *all = 0;
    for (int w = 0; w < WARPS; w++) {
        const uint32_t total = kt_shared_u32(at + (uint32_t)w * 4);
        if (w < kt_warp()) before += total;
        *all += total;
    }
    return before;
}

KT_DEVICE void pick(const kt_attn_index *p) {
    const int row = kt_block_y(), n = p->block ? blocks_of(p, row) : keys_of(p, row);
    const int64_t list = p->block ? (int64_t)row * p->heads + kt_block_x() : row;
    const float *score = p->block ? p->best + list * p->ld_best : p->score + list * p->ld_score;
    int32_t *picked = p->picked + list * p->topk;
    uint32_t least, equals, above = 0, equal = 0;

    if (n <= p->topk) return;
    least = find_least(score, n, p->topk, &equals);
    for (int first = 0, round = 0; first < n; first += THREADS, round++) {
        const int i = first + kt_thread(), is = i < n;
        const uint32_t x = is ? ordered(score[i]) : 0;
        uint32_t all;
        const uint32_t before = count_before(is && x > least, is && x == least, round, &all);
        const uint32_t rank = equal + (before >> 16);
        if (is && (x > least || (x == least && rank < equals)))
            picked[above + (before & 0xffff) + (rank < equals ? rank : equals)] = i;
        above += all & 0xffff;
        equal += all >> 16;
    }
}

KT_ENTRY(attn_index_scores, kt_attn_index, scores, THREADS)
KT_ENTRY(attn_index_pick, kt_attn_index, pick, THREADS)
KT_ENTRY(attn_index_units, kt_attn_index, units, THREADS)
KT_ENTRY(attn_index_blocks, kt_attn_index, blocks, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t dim_values[] = {64, 128}, parts_values[] = {1, 2}, warps_values[] = {4, 8, 16};
static const kt_param params[] = {
    {"dim", dim_values, 2, 128}, {"parts", parts_values, 2, 2}, {"warps", warps_values, 3, 8}};

static int threads(const kt_config *config) {
    return 32 * config->value[2];
}

/* `heads` of the indexer. */
static size_t shared_bytes(const kt_config *config, int64_t heads) {
    const int32_t *c = config->value;
    const int64_t rows = (heads + 15) / 16 * 16;
    const int64_t scoring = (16 * c[2] + c[1] * rows) * KT_ATTN_PITCH(c[0]) + rows * 4;
    const int64_t picking = TOTALS_AT + 2 * c[2] * 4;

    return (size_t)(scoring > picking ? scoring : picking);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    if (config->value[0] % 16 || config->value[0] > MAX_DIM)
        return "index keys are no multiple of 16 numbers up to 128";
    if (shared_bytes(config, MOST_HEADS) > (size_t)target->shared_bytes)
        return "queries of 64 heads exceed a block's shared memory";
    return NULL;
}

KT_CUDA_KERNEL(attn_index) = {
    .name = "attn_index",
    .about = "scores of sparse attention's index keys, and the keys of the highest",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 3,
    .entry_count = 4,
    .entry = {{"attn_index_scores", attn_index_scores},
              {"attn_index_pick", attn_index_pick},
              {"attn_index_units", attn_index_units},
              {"attn_index_blocks", attn_index_blocks}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
