/* Experts of a few tokens, INT4 weights in groups of 32 with a bfloat16 scale, bfloat16
 * activations.
 *
 * Decode waits for the weights, so each is read once, 16 bytes (one group) a lane, past the first
 * cache. A warp makes ROWS outputs: lanes take groups in turn, keep the 32 activations of a group
 * in registers for all rows, and sum across lanes at the end. A nibble q becomes 128 + q as
 * bfloat16 by one and-or on two nibbles at once (0x4300 is 128, whose last place is 1), which
 * widens to float by a shift or a mask; the offset of 136 = 128 + 8 times the group's sum of
 * activations is taken off once a group.
 *
 * Two launches: gate and up of every (token, slot) with SwiGLU, then down with the routing weights
 * over the token's slots, which needs no atomics: the order of sums is fixed.
 *
 *   gate_up  grid (n / (WARPS * ROWS) rounded up, tokens * slots), 2 k bytes of shared memory
 *   down     grid (k / (WARPS * ROWS) rounded up, tokens), 2 slots n bytes
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/moe_calls.h"

#define WARPS KT_CONSTANT(0)
#define ROWS KT_CONSTANT(1)
#define THREADS (32 * WARPS)
enum { MAX_ROWS = 8, GROUP = 32 };
KT_REQUIRE(WARPS >= 1 && ROWS >= 1 && ROWS <= MAX_ROWS, "rows");

/* Where 8 values of a row lie in shared memory: chunks of a group are turned by the group's number,
 * so that eight lanes with groups side by side meet eight banks. */
KT_DEVICE uint32_t chunk_at(int group, int chunk) {
    return (uint32_t)(group * 64 + ((chunk ^ (group >> 1 & 3)) << 4));
}

KT_DEVICE void keep_row(const uint16_t *row, int values) {
    for (int i = kt_thread(); i < values / 8; i += THREADS)
        kt_set_shared_u128(chunk_at(i / 4, i % 4), kt_load_stream(row + i * 8));
    kt_sync();
}

/* The 32 activations of a group, and their sum. */
KT_DEVICE float read_group(int group, float *x) {
    float sum = 0;

    KT_UNROLL
    for (int c = 0; c < 4; c++) {
        const kt_u128 v = kt_shared_u128(chunk_at(group, c));
        x[c * 8 + 0] = kt_bf16_low(v.x), x[c * 8 + 1] = kt_bf16_high(v.x);
        x[c * 8 + 2] = kt_bf16_low(v.y), x[c * 8 + 3] = kt_bf16_high(v.y);
        x[c * 8 + 4] = kt_bf16_low(v.z), x[c * 8 + 5] = kt_bf16_high(v.z);
        x[c * 8 + 6] = kt_bf16_low(v.w), x[c * 8 + 7] = kt_bf16_high(v.w);
    }
    KT_UNROLL
    for (int i = 0; i < GROUP; i++) sum += x[i];
    return sum;
}

/* 8 weights times x[0 .. 7], each weight with 128 + 8 added. */
KT_DEVICE float dot8(uint32_t q, const float *x, float sum) {
    KT_UNROLL
    for (int j = 0; j < 4; j++) {
        const uint32_t pair = kt_and_or(q >> (4 * j), 0x000f000fu, 0x43004300u);
        sum = kt_fma(kt_bf16_low(pair), x[j], sum);
        sum = kt_fma(kt_bf16_high(pair), x[j + 4], sum);
    }
    return sum;
}

/* One group of one row. */
KT_DEVICE float dot_group(const uint8_t *weights, const uint16_t *scale, const float *x,
                          float x_sum) {
    const kt_u128 q = kt_load_stream(weights);
    float sum = dot8(q.x, x, 0);

    sum = dot8(q.y, x + 8, sum);
    sum = dot8(q.z, x + 16, sum);
    sum = dot8(q.w, x + 24, sum);
    return kt_float_bits((uint32_t)*scale << 16) * kt_fma(-136.0f, x_sum, sum);
}

KT_DEVICE void gate_up(const kt_moe_w4_decode *p) {
    const int slot = kt_block_y(), groups = p->k / GROUP;
    const int first = (kt_block_x() * WARPS + kt_warp()) * ROWS;
    const int64_t expert = p->expert[slot];
    float sum[2 * MAX_ROWS], x[GROUP];

    if (expert < 0) return;
    keep_row(p->x + (int64_t)(slot / p->slots) * p->k, p->k);
    KT_UNROLL
    for (int i = 0; i < 2 * ROWS; i++) sum[i] = 0;
    for (int g = kt_lane(); g < groups; g += 32) {
        const float x_sum = read_group(g, x);
        KT_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = (expert * p->n + first + r) * groups + g;
            if (first + r >= p->n) break;
            sum[2 * r] += dot_group(p->gate + at * 16, p->gate_scale + at, x, x_sum);
            sum[2 * r + 1] += dot_group(p->up + at * 16, p->up_scale + at, x, x_sum);
        }
    }
    KT_UNROLL
    for (int r = 0; r < ROWS; r++) {
        const float gate = kt_warp_sum(sum[2 * r]), up = kt_warp_sum(sum[2 * r + 1]);
        if (kt_lane() == 0 && first + r < p->n)
            p->h[(int64_t)slot * p->n + first + r] = (uint16_t)kt_bf16_pair(kt_silu(gate) * up, 0);
    }
}

KT_DEVICE void down(const kt_moe_w4_decode *p) {
    const int groups = p->n / GROUP;
    const int first = (kt_block_x() * WARPS + kt_warp()) * ROWS;
    const int64_t token = kt_block_y();
    float sum[MAX_ROWS], x[GROUP];

    keep_row(p->h + token * p->slots * p->n, p->slots * p->n);
    KT_UNROLL
    for (int r = 0; r < ROWS; r++) sum[r] = 0;
    for (int i = kt_lane(); i < p->slots * groups; i += 32) {
        const int slot = i / groups;
        const int64_t expert = p->expert[token * p->slots + slot];
        const float route = p->route[token * p->slots + slot];
        float x_sum;
        if (expert < 0) continue; /* its h was not written */
        x_sum = read_group(i, x);
        KT_UNROLL
        for (int r = 0; r < ROWS; r++) {
            const int64_t at = (expert * p->k + first + r) * groups + (i - slot * groups);
            if (first + r >= p->k) break;
            sum[r] += route * dot_group(p->down + at * 16, p->down_scale + at, x, x_sum);
        }
    }
    KT_UNROLL
    for (int r = 0; r < ROWS; r++) {
        const float total = kt_warp_sum(sum[r]);
        if (kt_lane() == 0 && first + r < p->k) p->out[token * p->k + first + r] = total;
    }
}

KT_ENTRY(moe_w4_decode_gate_up, kt_moe_w4_decode, gate_up, THREADS)
KT_ENTRY(moe_w4_decode_down, kt_moe_w4_decode, down, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8, 16}, rows_values[] = {1, 2, 4, 8};
static const kt_param params[] = {{"warps", warps_values, 4, 4}, {"rows", rows_values, 4, 2}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config;
    return (size_t)k * 2;
}

KT_CUDA_KERNEL(moe_w4_decode) = {
    .name = "moe_w4_decode",
    .about = "experts of 1 to 8 tokens, INT4 in groups of 32, bfloat16 activations",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 2,
    .entry_count = 2,
    .entry = {{"moe_w4_decode_gate_up", moe_w4_decode_gate_up},
              {"moe_w4_decode_down", moe_w4_decode_down}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
