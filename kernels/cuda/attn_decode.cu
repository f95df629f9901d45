/* Attention of few rows over a long context: split keys, each warp by itself.
 *
 * The heads that share a kv head, of one row or a few, are the 16 rows of a tensor core's tile
 * (attn_calls.h). A block has one such tile, one kv head and one split of the keys; its warps take
 * turns with KEYS keys, which each copies for itself, STAGES deep, so that no barrier of the block
 * stands between memory and sums. At the end the warps' sums are joined in shared memory, in order,
 * and the splits by the second entry. What a block works on is read before the launch before has
 * ended.
 *
 *   split  grid (kv heads * splits, tiles)
 *   join   grid (kv heads * 16, tiles), if splits is not 1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_attn.h"

#define HEAD KT_CONSTANT(0)
#define VALUE (KT_CONSTANT(1) ? KT_CONSTANT(1) : HEAD)
#define CACHE KT_CONSTANT(2)
#define KEYS KT_CONSTANT(3)
#define WARPS KT_CONSTANT(4)
#define STAGES KT_CONSTANT(5)
#define THREADS (32 * WARPS)
#define IS_HELD (HEAD <= MAX_HELD)
#define QUERY_BYTES (IS_HELD ? 0 : 16 * KT_ATTN_PITCH(HEAD))
#define WIDE_BYTES (KEYS * (KT_ATTN_PITCH(HEAD) + KT_ATTN_PITCH(VALUE)))
#define STAGE_BYTES (CACHE == KT_ATTN_BF16 ? WIDE_BYTES : KEYS * (HEAD + VALUE))
#define WARP_BYTES (STAGES * STAGE_BYTES + (CACHE == KT_ATTN_BF16 ? 0 : WIDE_BYTES))
enum { PAIRS = 16, MAX_HELD = 128 }; /* of a tile; numbers of a query in registers */
#define SUMS_PITCH (4 * VALUE + 32)  /* of a pair's sums in shared memory, when warps are joined */
KT_REQUIRE(HEAD % 16 == 0 && VALUE % 16 == 0 && VALUE <= HEAD, "sizes of heads");
KT_REQUIRE(HEAD <= KT_ATTN_MAX_VALUE && KEYS % 16 == 0 && KEYS <= KT_ATTN_MAX_KEYS, "registers");
KT_REQUIRE(STAGES >= 2, "stages");

typedef struct kt_attn_kv {
    uint32_t k, v; /* where a stage's rows lie */
} kt_attn_kv;

KT_DEVICE kt_attn_kv stage_at(int stage) {
    const int pitch = CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(HEAD) : HEAD;
    kt_attn_kv at;

    at.k = (uint32_t)(QUERY_BYTES + kt_warp() * WARP_BYTES + stage * STAGE_BYTES);
    at.v = at.k + (uint32_t)(KEYS * pitch);
    return at;
}

/* The warp's own copy of KEYS keys, of which those up to `end` exist. */
KT_DEVICE void fetch(const kt_attn_paged *p, const kt_attn_block *b, int key, int end, int stage) {
    const kt_attn_kv at = stage_at(stage);
    const uint32_t page = b->page[key / KT_ATTN_PAGE];
    const int item = CACHE == KT_ATTN_BF16 ? 2 : 1;

    kt_attn_fetch(at.k, CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(HEAD) : HEAD,
                  kt_attn_rows_at(&p->k, b->k, page, key), p->k.row, HEAD * item / 16, KEYS,
                  end - key, kt_lane(), 32);
    kt_attn_fetch(at.v, CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(VALUE) : VALUE,
                  kt_attn_rows_at(&p->v, b->v, page, key), p->v.row, VALUE * item / 16, KEYS,
                  end - key, kt_lane(), 32);
}

/* Codes of a stage as bfloat16, behind the stages. */
KT_DEVICE kt_attn_kv widen(kt_attn_kv from) {
    kt_attn_kv to = stage_at(STAGES);

    if (CACHE == KT_ATTN_BF16) return from;
    to.v = to.k + (uint32_t)(KEYS * KT_ATTN_PITCH(HEAD));
    kt_attn_widen(to.k, from.k, HEAD, KEYS, CACHE, kt_lane(), 32);
    kt_attn_widen(to.v, from.v, VALUE, KEYS, CACHE, kt_lane(), 32);
    kt_warp_sync();
    return to;
}

KT_DEVICE void meet(const kt_attn_block *b, const uint32_t *q, kt_attn_kv at, int key, int end,
                    kt_attn_pairs *r, float *o) {
    const int64_t scale = (int64_t)b->page[key / KT_ATTN_PAGE] * KT_ATTN_PAGE + key % KT_ATTN_PAGE;
    float s[KT_ATTN_MAX_KEYS / 2], factor[2];

    kt_attn_scores(s, IS_HELD ? q : 0, 0, at.k, HEAD, KEYS);
    if (CACHE != KT_ATTN_BF16) kt_attn_scale_columns(s, b->k_scale + scale, KEYS, end - key);
    kt_attn_mask(r, s, key, KEYS);
    kt_attn_soften(r, s, KEYS, factor);
    if (CACHE != KT_ATTN_BF16) kt_attn_scale_columns(s, b->v_scale + scale, KEYS, end - key);
    kt_attn_rescale(o, factor, VALUE);
    kt_attn_add_values(o, s, at.v, VALUE, VALUE, KEYS);
}

/* Sums of all warps to shared memory: [warps][16 pairs] of VALUE numbers, and behind all of them
 * the largest score and the sum of weights of each. */
KT_DEVICE uint32_t sums_at(int warp, int pair) {
    return (uint32_t)((warp * 16 + pair) * SUMS_PITCH);
}

KT_DEVICE uint32_t stats_at(int warp, int pair) {
    return sums_at(WARPS, 0) + (uint32_t)((warp * 16 + pair) * 8);
}

KT_DEVICE void put_sums(const kt_attn_pairs *r, const float *o) {
    KT_UNROLL
    for (int half = 0; half < 2; half++) {
        const int pair = kt_lane() / 4 + 8 * half;
        const uint32_t at = sums_at(kt_warp(), pair) + (uint32_t)(kt_lane() % 4 * 8);
        KT_UNROLL
        for (int i = 0; i < VALUE / 8; i++) {
            kt_set_shared_u32(at + (uint32_t)i * 32, kt_bits_float(o[4 * i + 2 * half]));
            kt_set_shared_u32(at + (uint32_t)i * 32 + 4, kt_bits_float(o[4 * i + 2 * half + 1]));
        }
        if (kt_lane() % 4) continue;
        kt_set_shared_u32(stats_at(kt_warp(), pair), kt_bits_float(r->top[half]));
        kt_set_shared_u32(stats_at(kt_warp(), pair) + 4, kt_bits_float(r->total[half]));
    }
}

/* A warp joins the warps' sums of each of its pairs, in the order of warps. */
KT_DEVICE void join_warps(const kt_attn_paged *p, const kt_attn_block *b, int split) {
    for (int pair = kt_warp(); pair < b->tile.pairs; pair += WARPS) {
        const int row = kt_attn_row(b, pair), head = kt_attn_head(b, pair);
        float *cell = kt_attn_cell(p, b, PAIRS, pair, split, VALUE);
        float *out = p->splits > 1 ? cell : p->out + row * p->ldo + (int64_t)head * VALUE;
        float top = KT_ATTN_NOTHING, base, total = 0, share = 1;
        for (int w = 0; w < WARPS; w++)
            top = kt_max(top, kt_float_bits(kt_shared_u32(stats_at(w, pair))));
        base = top == KT_ATTN_NOTHING ? 0.0f : top;
        for (int w = 0; w < WARPS; w++)
            total += kt_float_bits(kt_shared_u32(stats_at(w, pair) + 4)) *
                     kt_exp2(kt_float_bits(kt_shared_u32(stats_at(w, pair))) - base);
        if (p->splits == 1) share = kt_attn_share(p, head, base, total);
        for (int i = kt_lane(); i < VALUE; i += 32) {
            float sum = 0;
            for (int w = 0; w < WARPS; w++)
                sum += kt_float_bits(kt_shared_u32(sums_at(w, pair) + (uint32_t)i * 4)) *
                       kt_exp2(kt_float_bits(kt_shared_u32(stats_at(w, pair))) - base);
            out[i] = sum * share;
        }
        if (p->splits == 1 || kt_lane()) continue;
        cell[VALUE] = top;
        cell[VALUE + 1] = total;
    }
}

/* Blocks of KEYS keys go round by their number in the context, so that a row's sums do not depend
 * on where the tile's first row begins to see. */
KT_DEVICE void split(const kt_attn_paged *p) {
    const kt_attn_block b = kt_attn_block_of(p, kt_block_y(), kt_block_x() / p->splits);
    const int number = b.begin / p->split_keys + kt_block_x() % p->splits;
    const int limit = (number + 1) * p->split_keys, end = b.end < limit ? b.end : limit;
    const int from = number * p->split_keys, begin = (b.begin > from ? b.begin : from) / KEYS;
    const int first = begin + (kt_warp() - begin % WARPS + WARPS) % WARPS;
    const int stop = (end + KEYS - 1) / KEYS;
    kt_attn_pairs r;
    uint32_t q[MAX_HELD / 4];
    float o[KT_ATTN_MAX_VALUE / 2];

    r = kt_attn_pairs_of(p, &b, 0);
    KT_LAUNCH_WAIT();
    if (from >= b.end) return;
    if (IS_HELD) {
        kt_attn_hold_queries(p, &b, 0, HEAD, q);
    } else {
        kt_attn_put_queries(p, &b, 16, HEAD, 0, THREADS);
        kt_sync();
    }
    KT_UNROLL
    for (int i = 0; i < VALUE / 2; i++) o[i] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (first + s * WARPS < stop) fetch(p, &b, (first + s * WARPS) * KEYS, end, s);
        kt_copy_commit();
    }
    for (int i = first, stage = 0; i < stop; i += WARPS, stage = (stage + 1) % STAGES) {
        const int ahead = i + (STAGES - 1) * WARPS;
        KT_COPY_WAIT(STAGES - 2);
        kt_warp_sync();
        if (ahead < stop) fetch(p, &b, ahead * KEYS, end, (stage + STAGES - 1) % STAGES);
        kt_copy_commit();
        meet(&b, q, widen(stage_at(stage)), i * KEYS, end, &r, o);
    }
    KT_COPY_WAIT(0);
    kt_attn_total(&r);
    kt_sync(); /* the stages are free */
    put_sums(&r, o);
    kt_sync();
    join_warps(p, &b, number);
}

KT_DEVICE void join(const kt_attn_paged *p) {
    kt_attn_join(p, PAIRS, VALUE, THREADS);
}

KT_ENTRY_EARLY(attn_decode_split, kt_attn_paged, split, THREADS)
KT_ENTRY(attn_decode_join, kt_attn_paged, join, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t head_values[] = {32, 64, 96, 128, 192, 256}, value_values[] = {0, 128},
                     cache_values[] = {KT_ATTN_BF16, KT_ATTN_INT8, KT_ATTN_FP8},
                     keys_values[] = {16, 32}, warps_values[] = {2, 4, 8},
                     stages_values[] = {2, 3, 4};
static const kt_param params[] = {{"head", head_values, 6, 128}, {"value", value_values, 2, 0},
                                  {"cache", cache_values, 3, 0}, {"keys", keys_values, 2, 16},
                                  {"warps", warps_values, 3, 4}, {"stages", stages_values, 3, 2}};

static int threads(const kt_config *config) {
    return 32 * config->value[4];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const int32_t *c = config->value;
    const int32_t head = c[0], value = c[1] ? c[1] : head, keys = c[3];
    const int32_t wide = keys * (KT_ATTN_PITCH(head) + KT_ATTN_PITCH(value));
    const int32_t query = head <= MAX_HELD ? 0 : 16 * KT_ATTN_PITCH(head);
    const int32_t stages = c[2] == KT_ATTN_BF16 ? c[5] * wide : c[5] * keys * (head + value) + wide;
    const int32_t sums = c[4] * 16 * (4 * value + 32 + 8);
    const int32_t loop = query + c[4] * stages;

    (void)k;
    return (size_t)(loop > sums ? loop : sums);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const int32_t head = config->value[0], value = config->value[1];

    if (head % 16 || value % 16) return "a head is no multiple of 16 numbers";
    if (head > KT_ATTN_MAX_VALUE) return "a head has over 256 numbers: its sums would spill";
    if (value >= head) return "values have fewer numbers than keys, or 0 for as many";
    if (shared_bytes(config, 0) > (size_t)target->shared_bytes)
        return "its stages exceed a block's shared memory";
    return NULL;
}

KT_CUDA_KERNEL(attn_decode) = {
    .name = "attn_decode",
    .about = "attention of few rows over pages of keys, split over the context",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 6,
    .entry_count = 2,
    .entry = {{"attn_decode_split", attn_decode_split}, {"attn_decode_join", attn_decode_join}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
