/* Which experts a row goes to: scores, and the choice by the rule of
 * kernels/router/router_select.h.
 *
 * Scores. A warp multiplies TOKENS rows by EXPERTS rows of the router's weights, of which a lane
 * takes 8 numbers at a time; the warps of a block have the same rows, which stay in the nearest
 * cache. Sums are f32, in one order for every row of every batch, so that a token routes the same
 * way however requests are batched.
 *
 * Choice. A warp takes a row. Scores become integers that order as they do (NaN last), and the best
 * is picked topk times, the lower index among equals; or the row's token has its experts in a
 * table. Exponentials are formed in double and rounded once, and so are the weights: but for scores
 * that differ by less than the last place the choice and the weights are those of the CPU.
 *
 *   scores  grid (experts / (WARPS * EXPERTS) rounded up, rows / TOKENS rounded up)
 *   choose  grid (rows / WARPS rounded up, 1), 4 (experts + 64) WARPS bytes of shared memory
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/cuda/row_calls.h"

#define IS_BF16 KT_CONSTANT(0)
#define WARPS KT_CONSTANT(1)
#define TOKENS KT_CONSTANT(2)
#define EXPERTS KT_CONSTANT(3)
#define THREADS (32 * WARPS)
enum {
    MAX_TOKENS = 8,
    MAX_EXPERTS = 4,
    CHUNKS = 8 /* of weights, on their way at once */,
    GROUPS = 64
};
KT_REQUIRE(TOKENS <= MAX_TOKENS && EXPERTS <= MAX_EXPERTS, "sums of a lane");

/* ---- scores ---- */

/* 8 numbers as they lie, of bfloat16 in the first half alone; is_whole: they may be read 16 bytes
 * at a time. */
typedef struct chunk {
    kt_u128 half[2];
} chunk;

KT_DEVICE kt_u128 words4(const float *from, int is_whole) {
    kt_u128 v;

    if (is_whole) return kt_load_cached(from);
    v.x = kt_bits_float(from[0]), v.y = kt_bits_float(from[1]);
    v.z = kt_bits_float(from[2]), v.w = kt_bits_float(from[3]);
    return v;
}

KT_DEVICE uint32_t pair_at(const uint16_t *from) {
    return (uint32_t)from[0] | (uint32_t)from[1] << 16;
}

KT_DEVICE chunk weights8(const kt_router_scores *p, int64_t at, int is_whole) {
    chunk c;

    if (!IS_BF16) {
        c.half[0] = words4((const float *)p->w + at, is_whole);
        c.half[1] = words4((const float *)p->w + at + 4, is_whole);
        return c;
    }
    if (is_whole) {
        c.half[0] = kt_load_cached((const uint16_t *)p->w + at);
    } else {
        const uint16_t *from = (const uint16_t *)p->w + at;
        c.half[0].x = pair_at(from), c.half[0].y = pair_at(from + 2);
        c.half[0].z = pair_at(from + 4), c.half[0].w = pair_at(from + 6);
    }
    c.half[1] = c.half[0]; /* nobody reads it */
    return c;
}

KT_DEVICE void floats_of(const kt_u128 *v, float *x) {
    x[0] = kt_float_bits(v->x), x[1] = kt_float_bits(v->y);
    x[2] = kt_float_bits(v->z), x[3] = kt_float_bits(v->w);
}

KT_DEVICE void open_weights(const chunk *c, float *w) {
    if (IS_BF16) {
        w[0] = kt_bf16_low(c->half[0].x), w[1] = kt_bf16_high(c->half[0].x);
        w[2] = kt_bf16_low(c->half[0].y), w[3] = kt_bf16_high(c->half[0].y);
        w[4] = kt_bf16_low(c->half[0].z), w[5] = kt_bf16_high(c->half[0].z);
        w[6] = kt_bf16_low(c->half[0].w), w[7] = kt_bf16_high(c->half[0].w);
        return;
    }
    floats_of(&c->half[0], w);
    floats_of(&c->half[1], w + 4);
}

KT_DEVICE float weight_at(const kt_router_scores *p, int64_t at) {
    return IS_BF16 ? kt_bf16_low(((const uint16_t *)p->w)[at]) : ((const float *)p->w)[at];
}

KT_DEVICE int is_aligned(const void *p, int64_t bytes_apart) {
    return (((uint64_t)p | (uint64_t)bytes_apart) & 15) == 0;
}

/* What a warp has: rows and experts behind the end are those of the end, and are not written. */
typedef struct part {
    int expert, row;
} part;

KT_DEVICE int64_t row_at(const kt_router_scores *p, const part *t, int i) {
    return t->row + i < p->rows ? t->row + i : p->rows - 1;
}

KT_DEVICE void load_weights(const kt_router_scores *p, const part *t, int at, int is_whole,
                            chunk *w) {
    KT_UNROLL
    for (int e = 0; e < EXPERTS; e++) {
        const int64_t expert = t->expert + e < p->experts ? t->expert + e : p->experts - 1;
        if (at + 8 <= p->k) w[e] = weights8(p, expert * p->k + at, is_whole);
    }
}

KT_DEVICE void add_chunk(const kt_router_scores *p, const part *t, int at, int is_whole,
                         const chunk *w, float *sum) {
    float open[MAX_EXPERTS * 8], x[8];

    if (at + 8 > p->k) return;
    KT_UNROLL
    for (int e = 0; e < EXPERTS; e++) open_weights(&w[e], open + e * 8);
    KT_UNROLL
    for (int i = 0; i < TOKENS; i++) {
        const float *from = p->x + row_at(p, t, i) * p->ldx + at;
        const kt_u128 low = words4(from, is_whole), high = words4(from + 4, is_whole);
        floats_of(&low, x);
        floats_of(&high, x + 4);
        KT_UNROLL
        for (int e = 0; e < EXPERTS; e++) KT_UNROLL
        for (int j = 0; j < 8; j++)
            sum[i * EXPERTS + e] = kt_fma(x[j], open[e * 8 + j], sum[i * EXPERTS + e]);
    }
}

/* The first chunks of weights are on their way before the launch before has ended. */
KT_DEVICE void multiply(const kt_router_scores *p, const part *t, int is_whole, float *sum) {
    chunk early[CHUNKS], w[MAX_EXPERTS];

    KT_UNROLL
    for (int c = 0; c < CHUNKS / EXPERTS; c++)
        load_weights(p, t, kt_lane() * 8 + c * 256, is_whole, early + c * EXPERTS);
    KT_LAUNCH_WAIT();
    KT_UNROLL
    for (int c = 0; c < CHUNKS / EXPERTS; c++)
        add_chunk(p, t, kt_lane() * 8 + c * 256, is_whole, early + c * EXPERTS, sum);
    for (int at = kt_lane() * 8 + CHUNKS / EXPERTS * 256; at + 8 <= p->k; at += 256) {
        load_weights(p, t, at, is_whole, w);
        add_chunk(p, t, at, is_whole, w, sum);
    }
}

KT_DEVICE void scores(const kt_router_scores *p) {
    const part t = {(kt_block_x() * WARPS + kt_warp()) * EXPERTS, kt_block_y() * TOKENS};
    float sum[MAX_TOKENS * MAX_EXPERTS];

    KT_UNROLL
    for (int i = 0; i < TOKENS * EXPERTS; i++) sum[i] = 0;
    if (is_aligned(p->w, (int64_t)p->k * (IS_BF16 ? 2 : 4)) &&
        is_aligned(p->x, (int64_t)p->ldx * 4))
        multiply(p, &t, 1, sum);
    else
        multiply(p, &t, 0, sum);
    if (t.expert >= p->experts) return;
    KT_UNROLL
    for (int i = 0; i < TOKENS * EXPERTS; i++) {
        const int64_t r = t.row + i / EXPERTS, e = t.expert + i % EXPERTS;
        const int rest = p->k / 8 * 8 + kt_lane(); /* fewer than 8 inputs, a lane each */
        float total = sum[i];
        if (r < p->rows && e < p->experts && rest < p->k)
            total = kt_fma(p->x[r * p->ldx + rest], weight_at(p, e * p->k + rest), total);
        total = kt_warp_sum(total);
        if (kt_lane() > 0 || r >= p->rows || e >= p->experts) continue;
        p->logits[r * p->experts + e] = p->bias ? total + p->bias[e] : total;
    }
}

/* ---- the choice ---- */

#define CLOSED ((int32_t)0x80000000)   /* no candidate */
#define RANK_NAN ((int32_t)0x80000001) /* the last of the candidates */

/* An integer in place of a score: larger ones rank before, -0 is 0. */
KT_DEVICE int32_t rank_of(float score) {
    const int32_t bits = (int32_t)kt_bits_float(score), size = bits & 0x7fffffff, sign = bits >> 31;
    return size > 0x7f800000 ? RANK_NAN : (size ^ sign) - sign;
}

KT_DEVICE float score_of(int32_t rank) {
    const int32_t sign = rank >> 31;
    return kt_float_bits((uint32_t)((rank ^ sign) - sign) | ((uint32_t)sign & 0x80000000u));
}

KT_DEVICE float precise_exp(float x) {
    return (float)kt_exp_double((double)x);
}

KT_DEVICE float precise_sigmoid(float x) {
    return 1.0f / (1.0f + precise_exp(-x));
}

/* log(1 + e^x) without overflow, and its root. */
KT_DEVICE float sqrt_softplus(float x) {
    return kt_sqrt(x > 20.0f ? x : kt_log1p(precise_exp(x)));
}

/* The score of an expert that does not depend on the others. */
KT_DEVICE float score_alone(const kt_router_choice *p, float logit) {
    return p->rule == KT_CHOSEN_SQRT_SOFTPLUS ? sqrt_softplus(logit) : precise_sigmoid(logit);
}

KT_DEVICE int32_t rank_at(uint32_t at, int i) {
    return (int32_t)kt_shared_u32(at + (uint32_t)i * 4);
}

KT_DEVICE void set_rank(uint32_t at, int i, int32_t rank) {
    kt_set_shared_u32(at + (uint32_t)i * 4, (uint32_t)rank);
}

/* The best of a lane's ranks (l, l + 32 .. of n), the first among equals. */
typedef struct best {
    int32_t rank;
    int at;
} best;

KT_DEVICE best best_of(uint32_t at, int n) {
    best b;

    b.rank = CLOSED, b.at = 0x7fffffff;
    for (int i = kt_lane(); i < n; i += 32)
        if (rank_at(at, i) > b.rank) b.rank = rank_at(at, i), b.at = i;
    return b;
}

/* The best of all lanes', the first among equals, which is closed then: its lane has the next one.
 * 0x7fffffff when all are closed. */
KT_DEVICE int pick(uint32_t at, int n, best *mine) {
    const int32_t top = kt_warp_max(mine->rank);
    const int chosen = ~kt_warp_max(mine->rank == top ? ~mine->at : (int32_t)0x80000000);

    if (chosen == mine->at && chosen < n) {
        set_rank(at, chosen, CLOSED);
        *mine = best_of(at, n);
    }
    return chosen;
}

/* The sum of the two largest of n scores; NaN when there are no two. */
KT_DEVICE float best_two(uint32_t at, int first, int n) {
    int32_t top = CLOSED, second = RANK_NAN;

    for (int i = first; i < first + n; i++) {
        const int32_t rank = rank_at(at, i);
        if (rank > top) {
            if (top > second) second = top;
            top = rank;
        } else if (rank > second) {
            second = rank;
        }
    }
    return score_of(top) + score_of(second);
}

/* Closes the experts of all groups but the best. A group that was picked is closed in the list of
 * groups. */
KT_DEVICE void close_groups(const kt_router_choice *p, uint32_t experts, uint32_t groups) {
    const int size = p->experts / p->groups;

    best mine;

    kt_warp_sync();
    for (int g = kt_lane(); g < p->groups; g += 32)
        set_rank(groups, g, rank_of(best_two(experts, g * size, size)));
    mine = best_of(groups, p->groups);
    for (int i = 0; i < p->top_groups; i++) pick(groups, p->groups, &mine);
    kt_warp_sync();
    for (int e = kt_lane(); e < p->experts; e += 32)
        if (rank_at(groups, e / size) != CLOSED) set_rank(experts, e, CLOSED);
}

/* The weight of a chosen expert before it is divided by the sum. */
KT_DEVICE float weight_of(const kt_router_choice *p, const float *logits, int expert, float top) {
    return p->rule == KT_CHOSEN_SOFTMAX ? precise_exp(logits[expert] - top)
                                        : score_alone(p, logits[expert]);
}

/* What the weights are divided by: sums in double, in the order of slots or experts. Lane l has the
 * weights of slots l and l + 32. Ranks are not needed any more: exponentials stand there. */
KT_DEVICE double divisor(const kt_router_choice *p, const float *logits, uint32_t ranks, float top,
                         float low, float high) {
    const int is_softmax = p->rule == KT_CHOSEN_SOFTMAX;
    double sum = is_softmax ? 0.0 : 1e-20;

    if (is_softmax && !p->is_normalised) {
        kt_warp_sync();
        for (int e = kt_lane(); e < p->experts; e += 32)
            kt_set_shared_f32(ranks + (uint32_t)e * 4, precise_exp(logits[e] - top));
        kt_warp_sync();
        for (int e = 0; e < p->experts; e++) sum += (double)kt_shared_f32(ranks + (uint32_t)e * 4);
        return sum;
    }
    for (int j = 0; j < p->topk; j++)
        sum += (double)kt_float_bits(kt_warp_from(kt_bits_float(j < 32 ? low : high), j & 31));
    return p->is_normalised ? sum : 1.0;
}

KT_DEVICE void put_slot(const kt_router_choice *p, int64_t row, int slot, int expert,
                        float weight) {
    const int64_t at = row * (p->topk + (p->has_shared ? 1 : 0)) + slot;
    const int here = p->map ? p->map[expert] : expert;

    if (p->id) p->id[at] = expert;
    if (p->here) p->here[at] = here;
    if (p->elsewhere) p->elsewhere[at] = here >= 0 ? -1 : expert;
    p->weight[at] = weight;
}

KT_DEVICE void rank_experts(const kt_router_choice *p, const float *logits, uint32_t ranks) {
    for (int e = kt_lane(); e < p->experts; e += 32) {
        float score = logits[e];
        if (p->rule != KT_CHOSEN_SOFTMAX) score = score_alone(p, score);
        if (p->rule != KT_CHOSEN_SOFTMAX && p->bias) score += p->bias[e];
        set_rank(ranks, e, rank_of(score));
    }
}

KT_DEVICE void choose(const kt_router_choice *p) {
    const int64_t row = (int64_t)kt_block_x() * WARPS + kt_warp();
    const float *logits = p->logits + row * p->experts;
    const uint32_t ranks = (uint32_t)(kt_warp() * (p->experts + GROUPS) * 4);
    const double scale = p->scale == 0.0f ? 1.0 : (double)p->scale;
    int low = 0, high = 0; /* of slots lane and lane + 32 */
    float top = 0, low_weight, high_weight;
    double sum;
    best mine;

    if (row >= p->rows) return;
    if (!p->ids) rank_experts(p, logits, ranks);
    if (p->rule == KT_CHOSEN_SIGMOID_GROUP)
        close_groups(p, ranks, ranks + (uint32_t)p->experts * 4);
    mine = best_of(ranks, p->ids ? 0 : p->experts);
    for (int j = 0; j < p->topk; j++) {
        const int expert = p->ids ? (int)p->ids[(int64_t)p->token[row] * p->topk + j]
                                  : pick(ranks, p->experts, &mine);
        if (j == 0) top = logits[expert];
        if (j == kt_lane()) low = expert;
        if (j == kt_lane() + 32) high = expert;
    }
    low_weight = weight_of(p, logits, low, top);
    high_weight = weight_of(p, logits, high, top);
    sum = divisor(p, logits, ranks, top, low_weight, high_weight);
    if (kt_lane() < p->topk)
        put_slot(p, row, kt_lane(), low, (float)((double)low_weight / sum * scale));
    if (kt_lane() + 32 < p->topk)
        put_slot(p, row, kt_lane() + 32, high, (float)((double)high_weight / sum * scale));
    if (p->has_shared && kt_lane() == 0)
        put_slot(p, row, p->topk, p->experts, p->shared_gate ? p->shared_gate[row * p->ldg] : 1.0f);
}

KT_ENTRY_EARLY(router_scores, kt_router_scores, scores, THREADS)
KT_ENTRY(router_choose, kt_router_choice, choose, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bf16_values[] = {0, 1}, warps_values[] = {2, 4, 8},
                     tokens_values[] = {1, 2, 4, 8}, experts_values[] = {1, 2, 4};
static const kt_param params[] = {{"bf16", bf16_values, 2, 1},
                                  {"warps", warps_values, 3, 4},
                                  {"tokens", tokens_values, 4, 8},
                                  {"experts", experts_values, 3, 4}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[1];
}

/* k: experts of the model. */
static size_t shared_bytes(const kt_config *config, int64_t k) {
    return (size_t)config->value[1] * (size_t)(k + GROUPS) * 4;
}

KT_CUDA_KERNEL(router) = {
    .name = "router",
    .about = "scores of experts, and the choice among them",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 4,
    .entry_count = 2,
    .entry = {{"router_scores", router_scores}, {"router_choose", router_choose}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
