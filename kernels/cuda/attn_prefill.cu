/* Attention of many rows: a tile of queries passes over the keys once.
 *
 * A tile of ROWS pairs of a row and a head (attn_calls.h) and one kv head are a block; each warp
 * has 16 of the pairs, their scores, weights and sums in registers (FlashAttention-2, arXiv
 * 2307.08691). Keys and values come KEYS at a time by asynchronous copies, STAGES deep, and all
 * warps share them. Keys that no pair of a warp sees are not computed, those that no pair of the
 * block sees not even fetched. Queries of over 192 numbers stay in shared memory, shorter ones in
 * registers.
 *
 *   grid (kv heads, tiles); splits is 1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_attn.h"

#define HEAD KT_CONSTANT(0)
#define VALUE (KT_CONSTANT(1) ? KT_CONSTANT(1) : HEAD)
#define CACHE KT_CONSTANT(2)
#define ROWS KT_CONSTANT(3)
#define KEYS KT_CONSTANT(4)
#define STAGES KT_CONSTANT(5)
#define THREADS (2 * ROWS)
#define STEP (KEYS < KT_ATTN_MAX_KEYS ? KEYS : KT_ATTN_MAX_KEYS) /* keys of a softmax step */
#define IS_HELD (HEAD <= KT_ATTN_MAX_HELD)
#define QUERY_BYTES (IS_HELD ? 0 : ROWS * KT_ATTN_PITCH(HEAD))
#define K_PITCH (CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(HEAD) : HEAD) /* of a stage's rows */
#define V_PITCH (CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(VALUE) : VALUE)
#define STAGE_BYTES (KEYS * (K_PITCH + V_PITCH))
KT_REQUIRE(HEAD % 16 == 0 && VALUE % 16 == 0 && VALUE <= HEAD, "sizes of heads");
KT_REQUIRE(HEAD <= KT_ATTN_MAX_VALUE && KEYS % 16 == 0 && ROWS % 16 == 0, "registers");
KT_REQUIRE(STAGES >= 2 && KEYS % STEP == 0, "stages");

KT_DEVICE uint32_t stage_at(int stage) {
    return (uint32_t)(QUERY_BYTES + stage * STAGE_BYTES);
}

/* Keys from `key` on, page by page. */
KT_DEVICE void fetch(const kt_attn_paged *p, const kt_attn_block *b, int key, uint32_t stage) {
    const int item = CACHE == KT_ATTN_BF16 ? 2 : 1;

    KT_UNROLL
    for (int i = 0; i < KEYS; i += STEP) {
        const int left = b->end - key - i;
        const uint32_t page = left > 0 ? b->page[(key + i) / KT_ATTN_PAGE] : 0;
        kt_attn_fetch(stage + (uint32_t)(i * K_PITCH), K_PITCH,
                      kt_attn_rows_at(&p->k, b->k, page, key + i), p->k.row, HEAD * item / 16, STEP,
                      left, kt_thread(), THREADS);
        kt_attn_fetch(stage + (uint32_t)(KEYS * K_PITCH + i * V_PITCH), V_PITCH,
                      kt_attn_rows_at(&p->v, b->v, page, key + i), p->v.row, VALUE * item / 16,
                      STEP, left, kt_thread(), THREADS);
    }
}

/* Codes of a stage as bfloat16, behind the stages. */
KT_DEVICE uint32_t widen(uint32_t from) {
    const uint32_t to = stage_at(STAGES);

    if (CACHE == KT_ATTN_BF16) return from;
    kt_attn_widen(to, from, HEAD, KEYS, CACHE, kt_thread(), THREADS);
    kt_attn_widen(to + (uint32_t)(KEYS * KT_ATTN_PITCH(HEAD)), from + (uint32_t)(KEYS * HEAD),
                  VALUE, KEYS, CACHE, kt_thread(), THREADS);
    kt_sync();
    return to;
}

/* The warp's pairs and STEP keys from `key` on, whose rows lie at k_at and v_at. */
KT_DEVICE void meet(const kt_attn_block *b, const uint32_t *q, uint32_t k_at, uint32_t v_at,
                    int key, kt_attn_pairs *r, float *o) {
    const uint32_t q_at = (uint32_t)(kt_warp() * 16 * KT_ATTN_PITCH(HEAD));
    const int64_t scale = (int64_t)b->page[key / KT_ATTN_PAGE] * KT_ATTN_PAGE + key % KT_ATTN_PAGE;
    float s[KT_ATTN_MAX_KEYS / 2], factor[2];

    kt_attn_scores(s, IS_HELD ? q : 0, q_at, k_at, HEAD, STEP);
    if (CACHE != KT_ATTN_BF16) kt_attn_scale_columns(s, b->k_scale + scale, STEP, b->end - key);
    kt_attn_mask(r, s, key, STEP);
    kt_attn_soften(r, s, STEP, factor);
    if (CACHE != KT_ATTN_BF16) kt_attn_scale_columns(s, b->v_scale + scale, STEP, b->end - key);
    kt_attn_rescale(o, factor, VALUE);
    kt_attn_add_values(o, s, v_at, VALUE, VALUE, STEP);
}

/* First and last key that one of the warp's pairs sees; none when it has no pair. */
KT_DEVICE void warp_range(const kt_attn_paged *p, const kt_attn_block *b, int *first, int *last) {
    const int pair = kt_warp() * 16, left = b->tile.pairs - pair;

    *first = 0;
    *last = -1;
    if (left <= 0) return;
    *first = kt_attn_first_seen(p, p->position[kt_attn_row(b, pair)]);
    *last = p->position[kt_attn_row(b, pair + (left < 16 ? left : 16) - 1)];
}

KT_DEVICE void write(const kt_attn_paged *p, const kt_attn_block *b, const kt_attn_pairs *r,
                     const float *o) {
    KT_UNROLL
    for (int half = 0; half < 2; half++) {
        const int pair = kt_warp() * 16 + kt_lane() / 4 + 8 * half;
        float *out, share;
        int head;
        if (pair >= b->tile.pairs) continue;
        head = kt_attn_head(b, pair);
        share = kt_attn_share(p, head, r->top[half], r->total[half]);
        out = p->out + kt_attn_row(b, pair) * p->ldo + (int64_t)head * VALUE + kt_lane() % 4 * 2;
        KT_UNROLL
        for (int i = 0; i < VALUE / 8; i++) {
            out[8 * i] = o[4 * i + 2 * half] * share;
            out[8 * i + 1] = o[4 * i + 2 * half + 1] * share;
        }
    }
}

KT_DEVICE void prefill(const kt_attn_paged *p) {
    const kt_attn_block b = kt_attn_block_of(p, kt_block_y(), kt_block_x());
    const int begin = b.begin / KEYS * KEYS;
    kt_attn_pairs r = kt_attn_pairs_of(p, &b, kt_warp() * 16);
    uint32_t q[KT_ATTN_MAX_HELD / 4];
    float o[KT_ATTN_MAX_VALUE / 2];
    int first, last, stage = 0;

    warp_range(p, &b, &first, &last);
    if (IS_HELD)
        kt_attn_hold_queries(p, &b, kt_warp() * 16, HEAD, q);
    else
        kt_attn_put_queries(p, &b, ROWS, HEAD, 0, THREADS);
    KT_UNROLL
    for (int i = 0; i < VALUE / 2; i++) o[i] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (begin + s * KEYS < b.end) fetch(p, &b, begin + s * KEYS, stage_at(s));
        kt_copy_commit();
    }
    for (int key = begin; key < b.end; key += KEYS, stage = (stage + 1) % STAGES) {
        const int ahead = key + (STAGES - 1) * KEYS;
        uint32_t at;
        KT_COPY_WAIT(STAGES - 2);
        kt_sync();
        if (ahead < b.end) fetch(p, &b, ahead, stage_at((stage + STAGES - 1) % STAGES));
        kt_copy_commit();
        at = widen(stage_at(stage));
        for (int i = 0; i < KEYS; i += STEP) {
            if (key + i > last || key + i + STEP <= first) continue;
            meet(&b, q, at + (uint32_t)(i * KT_ATTN_PITCH(HEAD)),
                 at + (uint32_t)(KEYS * KT_ATTN_PITCH(HEAD) + i * KT_ATTN_PITCH(VALUE)), key + i,
                 &r, o);
        }
    }
    kt_attn_total(&r);
    write(p, &b, &r, o);
}

KT_ENTRY(attn_prefill, kt_attn_paged, prefill, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t head_values[] = {32, 64, 96, 128, 192, 256}, value_values[] = {0, 128},
                     cache_values[] = {KT_ATTN_BF16, KT_ATTN_INT8, KT_ATTN_FP8},
                     rows_values[] = {64, 128}, keys_values[] = {32, 64, 128},
                     stages_values[] = {2, 3};
static const kt_param params[] = {{"head", head_values, 6, 128}, {"value", value_values, 2, 0},
                                  {"cache", cache_values, 3, 0}, {"rows", rows_values, 2, 64},
                                  {"keys", keys_values, 3, 64},  {"stages", stages_values, 2, 2}};

static int threads(const kt_config *config) {
    return 2 * config->value[3];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const int32_t *c = config->value;
    const int32_t head = c[0], value = c[1] ? c[1] : head;
    const int32_t wide = c[4] * (KT_ATTN_PITCH(head) + KT_ATTN_PITCH(value));
    const int32_t query = head <= KT_ATTN_MAX_HELD ? 0 : c[3] * KT_ATTN_PITCH(head);

    (void)k;
    return (size_t)(query +
                    (c[2] == KT_ATTN_BF16 ? c[5] * wide : c[5] * c[4] * (head + value) + wide));
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const int32_t head = config->value[0], value = config->value[1];

    if (head % 16 || value % 16) return "a head is no multiple of 16 numbers";
    if (head > KT_ATTN_MAX_VALUE) return "a head has over 256 numbers: its sums would spill";
    if (value >= head) return "values have fewer numbers than keys, or 0 for as many";
    if ((value ? value : head) > 128 && config->value[4] > 32)
        return "sums of over 128 numbers and scores of over 32 keys would spill";
    if (head > 128 && config->value[2] != KT_ATTN_BF16 && config->value[4] > 32)
        return "queries of over 128 numbers, codes and scores of over 32 keys would spill";
    if (shared_bytes(config, 0) > (size_t)target->shared_bytes)
        return "its stages exceed a block's shared memory";
    return NULL;
}

KT_CUDA_KERNEL(attn_prefill) = {
    .name = "attn_prefill",
    .about = "attention of many rows over pages of keys, on tensor cores",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 6,
    .entry_count = 1,
    .entry = {{"attn_prefill", attn_prefill}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
