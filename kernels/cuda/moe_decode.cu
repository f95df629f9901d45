/* Experts of 1 to 8 tokens, weights of any format, activations rounded to bfloat16.
 *
 * Decode waits for the weights, so each is read once, whatever number of the tokens chose its
 * expert: the block of a slot works for all tokens that have the slot's expert, and blocks of later
 * slots with that expert end at once. 16 TILES outputs a block, whose warps split the inputs
 * (kt_dev_few.h).
 *
 * Two launches: gate and up of every expert with SwiGLU, then down, where a block goes through all
 * experts of the step and adds their products times the tokens' routing weights: no atomics, one
 * order of sums.
 *
 *   gate_up  grid (n / (16 TILES) rounded up, tokens * slots)
 *   down     grid (k / (16 TILES) rounded up, 1)
 *
 * The format may differ between the two: then each is started from the code of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_few.h"
#include "kernels/cuda/kt_dev_glu.h"
#include "kernels/cuda/moe_calls.h"

#define WARPS KT_CONSTANT(0)
#define TILES KT_CONSTANT(1)
#define AHEAD KT_CONSTANT(2) /* 1: the next step's weights are loaded while one is multiplied */
#define FORMAT KT_CONSTANT(3)
#define DOWN_WARPS KT_CONSTANT(4) /* of down, which has fewer blocks, and more to do in each */
#define THREADS (32 * WARPS)
#define DOWN_THREADS (32 * DOWN_WARPS)
enum { MAX_TILES = 2 };
KT_REQUIRE(WARPS >= 1 && DOWN_WARPS >= 1 && TILES >= 1 && TILES <= MAX_TILES, "tiles");

/* The slot of a token that has the expert, or -1. */
KT_DEVICE int slot_of(const kt_moe_decode *p, int token, int expert) {
    int slot = -1;

    if (token >= p->tokens) return -1;
    for (int i = token * p->slots; i < (token + 1) * p->slots; i++)
        if (p->expert[i] == expert) slot = i;
    return slot;
}

KT_DEVICE int steps_of(int k) {
    return (k + KT_FEW_STEP - 1) / KT_FEW_STEP;
}

/* Sum i of a lane is of this output of the block and this token. */
KT_DEVICE int output_of(int i) {
    return i / 4 * KT_FEW_TILE + (kt_lane() >> 2) + i % 4 / 2 * 8;
}
KT_DEVICE int token_of(int i) {
    return (kt_lane() & 3) * 2 + i % 2;
}

/* ---- gate and up ---- */

KT_DEVICE void load_gate_up(const kt_moe_decode *p, const kt_weight_row *at, int64_t offset,
                            int first, int step, kt_few_weights *w) {
    KT_UNROLL
    for (int i = 0; i < 2 * TILES; i++) {
        const int row = i % TILES * KT_FEW_TILE;
        kt_few_load(FORMAT, (i < TILES ? p->gate : p->up) + offset + (int64_t)row * at->bytes,
                    p->n - first - row, at, p->k, step, &w[i]);
    }
}

/* sum[0 .. 4 TILES): gate, behind them up; of the lane's token, whose row is x. */
KT_DEVICE void multiply_gate_up(const kt_moe_decode *p, int expert, int first, const float *x,
                                float *sum) {
    const kt_weight_row at = kt_weight_row_of(FORMAT, p->k);
    const int64_t offset = expert * p->gate_bytes + (int64_t)first * at.bytes;
    const int steps = steps_of(p->k);
    kt_few_weights now[2 * MAX_TILES], next[2 * MAX_TILES];
    int step = kt_warp();

    if (AHEAD && step < steps) load_gate_up(p, &at, offset, first, step, now);
    KT_ROLLED
    for (; step < steps; step += WARPS) {
        uint32_t pairs[16];
        if (!AHEAD) load_gate_up(p, &at, offset, first, step, now);
        if (AHEAD && step + WARPS < steps) load_gate_up(p, &at, offset, first, step + WARPS, next);
        kt_few_load_f32(FORMAT, x, p->k, step, pairs);
        KT_UNROLL
        for (int i = 0; i < 2 * TILES; i++) kt_few_multiply(FORMAT, &now[i], pairs, sum + 4 * i);
        KT_UNROLL
        for (int i = 0; AHEAD && i < 2 * TILES; i++) now[i] = next[i];
    }
}

KT_DEVICE void write_h(const kt_moe_decode *p, int expert, int first, int mine, const float *sum) {
    const float *gate_bias = kt_dev_bias(p->ending.gate_bias, expert, p->n, 0);
    const float *up_bias = kt_dev_bias(p->ending.up_bias, expert, p->n, 0);
    int slot[2];

    KT_UNROLL
    for (int i = 0; i < 2; i++) slot[i] = (int)kt_warp_from((uint32_t)mine, token_of(i) * 4);
    KT_UNROLL
    for (int i = 0; i < TILES * 4; i++) {
        const int output = first + output_of(i);
        float gate = sum[i], up = sum[TILES * 4 + i];
        if (output >= p->n || slot[i % 2] < 0) continue;
        if (gate_bias) gate += gate_bias[output];
        if (up_bias) up += up_bias[output];
        p->h[(int64_t)slot[i % 2] * p->n + output] =
            (uint16_t)kt_bf16_pair(kt_dev_glu(&p->ending, gate, up), 0);
    }
}

KT_DEVICE void gate_up(const kt_moe_decode *p) {
    const int slot = kt_block_y(), expert = p->expert[slot];
    const int first = kt_block_x() * TILES * KT_FEW_TILE;
    const int mine = expert < 0 ? -1 : slot_of(p, kt_lane() >> 2, expert);
    const float *x = mine < 0 ? 0 : p->x + (kt_lane() >> 2) * p->ldx;
    float sum[8 * MAX_TILES];

    if (expert < 0 || kt_warp_sum(mine >= 0 && mine < slot ? 1.0f : 0.0f) > 0) return;
    KT_UNROLL
    for (int i = 0; i < 8 * TILES; i++) sum[i] = 0;
    multiply_gate_up(p, expert, first, x, sum);
    kt_few_reduce(WARPS, 0, sum, 8 * TILES);
    if (kt_warp() == 0) write_h(p, expert, first, mine, sum);
}

/* ---- down ---- */

/* Shared memory: for each slot 8 words, the slots of all tokens with its expert (-1 = none), then a
 * word for each slot: is it the first with its expert? */
KT_DEVICE uint32_t member_at(int slot, int token) {
    return (uint32_t)(slot * KT_FEW_ROWS + token) * 4;
}

KT_DEVICE uint32_t first_at(const kt_moe_decode *p, int slot) {
    return member_at(p->tokens * p->slots, 0) + (uint32_t)slot * 4;
}

KT_DEVICE void list_members(const kt_moe_decode *p) {
    const int all = p->tokens * p->slots;

    for (int i = kt_thread(); i < all * KT_FEW_ROWS; i += DOWN_THREADS) {
        const int expert = p->expert[i / KT_FEW_ROWS], token = i % KT_FEW_ROWS;
        kt_set_shared_u32(member_at(0, i), (uint32_t)(expert < 0 ? -1 : slot_of(p, token, expert)));
    }
    kt_sync();
    for (int slot = kt_thread(); slot < all; slot += DOWN_THREADS) {
        uint32_t is_first = p->expert[slot] >= 0;
        for (int token = 0; token < slot / p->slots; token++)
            if ((int)kt_shared_u32(member_at(slot, token)) >= 0) is_first = 0;
        kt_set_shared_u32(first_at(p, slot), is_first);
    }
    kt_sync();
}

/* A step of the expert of a slot: what a warp does in one turn. */
typedef struct turn {
    int slot, step;
} turn;

/* The first one from this on that exists: the slot may be no first one of its expert, and the step
 * may lie behind its last. Slots end at `all`. */
KT_DEVICE turn turn_from(const kt_moe_decode *p, int all, int steps, turn t) {
    while (t.slot < all && !kt_shared_u32(first_at(p, t.slot))) t.slot++;
    while (t.slot < all && t.step >= steps) {
        t.step -= steps;
        do t.slot++;
        while (t.slot < all && !kt_shared_u32(first_at(p, t.slot)));
    }
    return t;
}

KT_DEVICE void load_down(const kt_moe_decode *p, const kt_weight_row *at, int first, turn t,
                         kt_few_weights *w) {
    const uint8_t *from = p->down + p->expert[t.slot] * p->down_bytes + (int64_t)first * at->bytes;

    KT_UNROLL
    for (int i = 0; i < TILES; i++)
        kt_few_load(FORMAT, from + (int64_t)(i * KT_FEW_TILE) * at->bytes,
                    p->k - first - i * KT_FEW_TILE, at, p->n, t.step, &w[i]);
}

/* sum += one step of the slot's expert. */
KT_DEVICE void multiply_down(const kt_moe_decode *p, turn t, const kt_few_weights *w, float *sum) {
    const int mine = (int)kt_shared_u32(member_at(t.slot, kt_lane() >> 2));
    uint32_t pairs[16];

    kt_few_load_bf16(FORMAT, mine < 0 ? 0 : p->h + (int64_t)mine * p->n, p->n, t.step, pairs);
    KT_UNROLL
    for (int i = 0; i < TILES; i++) kt_few_multiply(FORMAT, &w[i], pairs, sum + 4 * i);
}

/* total += route * sum, where the token has the slot's expert. */
KT_DEVICE void add_routed(const kt_moe_decode *p, int slot, const float *sum, float *total) {
    KT_UNROLL
    for (int j = 0; j < 2; j++) {
        const int member = (int)kt_shared_u32(member_at(slot, token_of(j)));
        const float route = member < 0 ? 0 : p->route[member];
        if (member < 0) continue;
        KT_UNROLL
        for (int i = j; i < TILES * 4; i += 2) total[i] = kt_fma(route, sum[i], total[i]);
    }
}

/* total = the biases of all experts, once among the warps. */
KT_DEVICE void begin_total(const kt_moe_decode *p, int all, int first, float *total) {
    float sum[4 * MAX_TILES];

    KT_UNROLL
    for (int i = 0; i < 4 * TILES; i++) total[i] = 0;
    if (!p->ending.down_bias || kt_warp() > 0) return;
    for (int slot = 0; slot < all; slot++) {
        const float *bias = kt_dev_bias(p->ending.down_bias, p->expert[slot], p->k, first);
        if (!kt_shared_u32(first_at(p, slot))) continue;
        KT_UNROLL
        for (int i = 0; i < 4 * TILES; i++)
            sum[i] = first + output_of(i) < p->k ? bias[output_of(i)] : 0;
        add_routed(p, slot, sum, total);
    }
}

/* The steps of all experts, one after the other, go to the warps in turn. What the weights meet is
 * what the launch before leaves: until then the first of them, and the lists, are read. */
KT_DEVICE void add_products(const kt_moe_decode *p, int all, int first, float *total) {
    const kt_weight_row at = kt_weight_row_of(FORMAT, p->n);
    const int steps = steps_of(p->n);
    kt_few_weights now[MAX_TILES], next[MAX_TILES];
    float sum[4 * MAX_TILES];
    turn t, after;
    int slot = -1;

    t.slot = 0, t.step = kt_warp();
    t = turn_from(p, all, steps, t);
    if (t.slot < all) load_down(p, &at, first, t, now);
    KT_LAUNCH_WAIT();
    KT_ROLLED
    for (; t.slot < all; t = after) {
        after.slot = t.slot, after.step = t.step + DOWN_WARPS;
        after = turn_from(p, all, steps, after);
        if (AHEAD && after.slot < all) load_down(p, &at, first, after, next);
        if (t.slot != slot) {
            if (slot >= 0) add_routed(p, slot, sum, total);
            KT_UNROLL
            for (int i = 0; i < 4 * TILES; i++) sum[i] = 0;
            slot = t.slot;
        }
        multiply_down(p, t, now, sum);
        KT_UNROLL
        for (int i = 0; AHEAD && i < TILES; i++) now[i] = next[i];
        if (!AHEAD && after.slot < all) load_down(p, &at, first, after, now);
    }
    if (slot >= 0) add_routed(p, slot, sum, total);
}

KT_DEVICE void down(const kt_moe_decode *p) {
    const int first = kt_block_x() * TILES * KT_FEW_TILE, all = p->tokens * p->slots;
    float total[4 * MAX_TILES];

    list_members(p);
    begin_total(p, all, first, total);
    add_products(p, all, first, total);
    kt_few_reduce(DOWN_WARPS, first_at(p, (all + 3) / 4 * 4), total, 4 * TILES);
    if (kt_warp() > 0) return;
    KT_UNROLL
    for (int i = 0; i < TILES * 4; i++) {
        const int output = first + output_of(i), token = token_of(i);
        float *out = p->out + token * p->ldo + output;
        if (output >= p->k || token >= p->tokens) continue;
        *out = p->accumulate ? *out + total[i] : total[i];
    }
}

KT_ENTRY_ALONE(moe_decode_gate_up, kt_moe_decode, gate_up, THREADS)
KT_ENTRY_EARLY(moe_decode_down, kt_moe_decode, down, DOWN_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/weight_values.h"

static const int32_t warps_values[] = {1, 2, 4, 8, 16}, tiles_values[] = {1, 2},
                     ahead_values[] = {0, 1};
static const kt_param params[] = {{"warps", warps_values, 5, 4},
                                  {"tiles", tiles_values, 2, 1},
                                  {"ahead", ahead_values, 2, 1},
                                  {"format", kt_weight_values, KT_WEIGHT_VALUES, KT_W_INT4_G32},
                                  {"down", warps_values, 5, 16}};

static int entry_threads(const kt_config *config, int entry) {
    return 32 * config->value[entry == 0 ? 0 : 4];
}

static int threads(const kt_config *config) {
    return entry_threads(config, 0);
}

/* k is the number of slots of all tokens. */
static size_t shared_bytes(const kt_config *config, int64_t k) {
    const size_t gate_up = kt_few_reduce_bytes(config->value[0], config->value[1] * 8);
    const size_t down = (size_t)(k + 3) / 4 * 4 * (KT_FEW_ROWS + 1) * 4 +
                        kt_few_reduce_bytes(config->value[4], config->value[1] * 4);

    return gate_up > down ? gate_up : down;
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)target;
    if (kt_weight_spec_of(config->value[3]).low == 0) return "no such format of weights";
    if (config->value[1] > 1 && kt_weight_spec_of(config->value[3]).high)
        return "two tiles of codes in two fields: they would spill";
    return NULL;
}

KT_CUDA_KERNEL(moe_decode) = {
    .name = "moe_decode",
    .about = "experts of 1 to 8 tokens, weights of any format",
    .version = 3,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 5,
    .entry_count = 2,
    .entry = {{"moe_decode_gate_up", moe_decode_gate_up}, {"moe_decode_down", moe_decode_down}},
    .jobs = KT_CUDA_EXPERTS_FEW,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .entry_threads = entry_threads,
    .shared_bytes = shared_bytes,
};
#endif
