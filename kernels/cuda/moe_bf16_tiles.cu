/* Experts of many tokens on tensor cores: bfloat16 weights and activations, sums in float.
 *
 * Tokens are sorted by expert (`row_token` names the token of each sorted row), and the sorted rows
 * of an expert are cut into tiles of at most BM. A block multiplies one tile by BN / 2 columns of
 * gate and the same of up (or BN of down), so that SwiGLU happens in registers. 64 inputs at a time
 * come to shared memory by asynchronous copies, STAGES deep; a row is 128 bytes there, whose
 * 16-byte chunks are turned by the row's number, which keeps ldmatrix free of bank conflicts.
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *   combine  grid (k / THREADS rounded up, tokens): out = sum of a token's rows of y, in slot order
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/moe_calls.h"

#define BM KT_CONSTANT(0)
#define BN KT_CONSTANT(1)
#define WARPS_M KT_CONSTANT(2)
#define WARPS_N KT_CONSTANT(3)
#define STAGES KT_CONSTANT(4)
#define THREADS (32 * WARPS_M * WARPS_N)
#define TILES_M (BM / WARPS_M / 16)    /* of 16 rows, of a warp */
#define TILES_N (BN / 2 / WARPS_N / 8) /* of 8 columns, of a warp and half */
#define STAGE_BYTES ((BM + BN) * 128)
enum { BK = 64, MAX_SUMS = 128 };
KT_REQUIRE(BM % (16 * WARPS_M) == 0 && BN / 2 % (16 * WARPS_N) == 0, "whole tiles of a warp");
KT_REQUIRE(BM *BN / THREADS <= MAX_SUMS && STAGES >= 2, "sums and stages");

KT_DEVICE uint32_t chunk_at(int row, int chunk) {
    return (uint32_t)(row * 128 + ((chunk ^ (row & 7)) << 4));
}

/* What a block multiplies: rows of `a` by rows of b[0] and, for the other half of its columns,
 * b[1]. */
typedef struct kt_moe_operands {
    const uint16_t *a, *b[2];
    const int32_t *a_row;         /* NULL: row i of the tile is row i of a */
    int rows, columns[2], inputs; /* that exist: of the tile, of each half, of k */
} kt_moe_operands;

KT_DEVICE void fetch(const kt_moe_operands *o, int step, uint32_t stage) {
    for (int i = kt_thread(); i < BM * 8; i += THREADS) {
        const int row = i / 8, chunk = i % 8, k = step * BK + chunk * 8;
        const int valid = row < o->rows && k < o->inputs;
        const int64_t at = valid ? (int64_t)(o->a_row ? o->a_row[row] : row) * o->inputs + k : 0;
        kt_copy16(stage + chunk_at(row, chunk), o->a + at, valid ? 16 : 0);
    }
    for (int i = kt_thread(); i < BN * 8; i += THREADS) {
        const int row = i / 8, half = row >= BN / 2, chunk = i % 8, k = step * BK + chunk * 8;
        const int column = row - half * (BN / 2);
        const int valid = column < (half ? o->columns[1] : o->columns[0]) && k < o->inputs;
        const int64_t at = valid ? (int64_t)column * o->inputs + k : 0;
        kt_copy16(stage + (uint32_t)BM * 128 + chunk_at(row, chunk),
                  (half ? o->b[1] : o->b[0]) + at, valid ? 16 : 0);
    }
}

/* sum[((i * 2 + half) * TILES_N + j) * 4 ..]: tile (i, j) of a half. */
KT_DEVICE void multiply(uint32_t stage, float *sum) {
    const int lane = kt_lane();
    const int row = kt_warp() / WARPS_N * (BM / WARPS_M) + (lane & 15);
    const int column = kt_warp() % WARPS_N * (BN / 2 / WARPS_N) + (lane & 7) + (lane >> 4 << 3);

    KT_UNROLL
    for (int k = 0; k < BK / 16; k++) {
        KT_UNROLL
        for (int half = 0; half < 2; half++) KT_UNROLL
        for (int j = 0; j < TILES_N; j += 2) {
            uint32_t b[4];
            kt_ldmatrix(b, stage + (uint32_t)BM * 128 +
                               chunk_at(half * (BN / 2) + column + j * 8, k * 2 + (lane >> 3 & 1)));
            KT_UNROLL
            for (int i = 0; i < TILES_M; i++) {
                float *c = sum + ((i * 2 + half) * TILES_N + j) * 4;
                uint32_t a[4];
                kt_ldmatrix(a, stage + chunk_at(row + i * 16, k * 2 + (lane >> 4)));
                kt_mma_bf16(c, a, b[0], b[1]);
                kt_mma_bf16(c + 4, a, b[2], b[3]);
            }
        }
    }
}

/* The stages go round: while one is multiplied, STAGES - 2 more are on their way. A stage is
 * written again after the barrier behind which all warps have done with it. */
KT_DEVICE void product(const kt_moe_operands *o, float *sum) {
    const int steps = (o->inputs + BK - 1) / BK;

    KT_UNROLL
    for (int i = 0; i < BM * BN / THREADS; i++) sum[i] = 0;
    for (int s = 0; s < STAGES - 1; s++) {
        if (s < steps) fetch(o, s, (uint32_t)(s * STAGE_BYTES));
        kt_copy_commit();
    }
    for (int s = 0; s < steps; s++) {
        const int ahead = s + STAGES - 1;
        KT_COPY_WAIT(STAGES - 2);
        kt_sync();
        if (ahead < steps) fetch(o, ahead, (uint32_t)(ahead % STAGES * STAGE_BYTES));
        kt_copy_commit();
        multiply((uint32_t)(s % STAGES * STAGE_BYTES), sum);
    }
}

KT_DEVICE void gate_up(const kt_moe_bf16_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * (BN / 2), left = p->n - n0;
    const int64_t at = ((int64_t)t.expert * p->n + n0) * p->k;
    const kt_moe_operands o = {
        p->x, {p->gate + at, p->up + at}, p->row_token + t.first, t.rows, {left, left}, p->k};
    const int row0 = kt_warp() / WARPS_N * (BM / WARPS_M) + kt_lane() / 4;
    const int column0 = kt_warp() % WARPS_N * (BN / 2 / WARPS_N) + kt_lane() % 4 * 2;
    float sum[MAX_SUMS];

    product(&o, sum);
    KT_UNROLL
    for (int i = 0; i < TILES_M; i++) KT_UNROLL
    for (int j = 0; j < TILES_N; j++) KT_UNROLL
    for (int down8 = 0; down8 < 2; down8++) {
        const float *gate = sum + (i * 2 * TILES_N + j) * 4 + down8 * 2;
        const float *up = gate + TILES_N * 4;
        const int row = row0 + i * 16 + down8 * 8, column = column0 + j * 8;
        if (row >= t.rows || column >= left) continue;
        *(uint32_t *)(p->h + (int64_t)(t.first + row) * p->n + n0 + column) =
            kt_bf16_pair(kt_silu(gate[0]) * up[0], kt_silu(gate[1]) * up[1]);
    }
}

KT_DEVICE void down(const kt_moe_bf16_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * BN, left = p->k - n0;
    const uint16_t *w = p->down + ((int64_t)t.expert * p->k + n0) * p->n;
    const kt_moe_operands o = {p->h + (int64_t)t.first * p->n,
                               {w, w + (int64_t)(left > BN / 2 ? BN / 2 : 0) * p->n},
                               0,
                               t.rows,
                               {left, left - BN / 2},
                               p->n};
    const int row0 = kt_warp() / WARPS_N * (BM / WARPS_M) + kt_lane() / 4;
    const int column0 = kt_warp() % WARPS_N * (BN / 2 / WARPS_N) + kt_lane() % 4 * 2;
    float sum[MAX_SUMS];

    product(&o, sum);
    KT_UNROLL
    for (int i = 0; i < TILES_M; i++) KT_UNROLL
    for (int j = 0; j < 2 * TILES_N; j++) /* of both halves */
        KT_UNROLL
    for (int down8 = 0; down8 < 2; down8++) {
        const float *c = sum + (i * 2 * TILES_N + j) * 4 + down8 * 2;
        const int row = row0 + i * 16 + down8 * 8;
        const int column = column0 + j % TILES_N * 8 + j / TILES_N * (BN / 2);
        float *y = p->y + (int64_t)(t.first + row) * p->k + n0 + column;
        float route;
        if (row >= t.rows || column >= left) continue;
        route = p->route[t.first + row];
        y[0] = route * c[0];
        y[1] = route * c[1];
    }
}

KT_DEVICE void combine(const kt_moe_bf16_tiles *p) {
    const int64_t token = kt_block_y();
    const int column = kt_block_x() * THREADS + kt_thread();
    float sum = 0;

    if (column >= p->k) return;
    for (int s = 0; s < p->slots; s++) {
        const int64_t row = p->row_of[token * p->slots + s];
        if (row >= 0) sum += p->y[row * p->k + column];
    }
    p->out[token * p->k + column] = sum;
}

KT_ENTRY(moe_bf16_tiles_gate_up, kt_moe_bf16_tiles, gate_up, THREADS)
KT_ENTRY(moe_bf16_tiles_down, kt_moe_bf16_tiles, down, THREADS)
KT_ENTRY(moe_bf16_tiles_combine, kt_moe_bf16_tiles, combine, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bm_values[] = {16, 32, 64, 128}, bn_values[] = {64, 128, 256},
                     warps_m_values[] = {1, 2, 4}, warps_n_values[] = {1, 2, 4},
                     stages_values[] = {2, 3, 4};
static const kt_param params[] = {{"bm", bm_values, 4, 64},
                                  {"bn", bn_values, 3, 128},
                                  {"warps_m", warps_m_values, 3, 2},
                                  {"warps_n", warps_n_values, 3, 2},
                                  {"stages", stages_values, 3, 3}};

static int threads(const kt_config *config) {
    return 32 * config->value[2] * config->value[3];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)k;
    return (size_t)config->value[4] * (size_t)(config->value[0] + config->value[1]) * 128;
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const int32_t *v = config->value;

    if (v[0] % (16 * v[2])) return "bm is not a multiple of 16 warps_m";
    if (v[1] / 2 % (16 * v[3])) return "half of bn is not a multiple of 16 warps_n";
    if (v[0] * v[1] / threads(config) > MAX_SUMS) return "over 128 sums a thread: they would spill";
    if (shared_bytes(config, 0) > (size_t)target->shared_bytes)
        return "its stages exceed a block's shared memory";
    return NULL;
}

KT_CUDA_KERNEL(moe_bf16_tiles) = {
    .name = "moe_bf16_tiles",
    .about = "experts of many tokens on tensor cores, bfloat16",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 5,
    .entry_count = 3,
    .entry = {{"moe_bf16_tiles_gate_up", moe_bf16_tiles_gate_up},
              {"moe_bf16_tiles_down", moe_bf16_tiles_down},
              {"moe_bf16_tiles_combine", moe_bf16_tiles_combine}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
