/* Tiles (kt_dev_tiles.h) of weights of any format: 64 inputs a step.
 *
 * bfloat16 comes to shared memory by asynchronous copies like the activations. Codes of other
 * formats are loaded into registers, opened two steps later (by warpgroups: one) and written as
 * bfloat16 where a later step reads them, so that the wait for memory lies under the work of other
 * steps and each weight of the block is opened once. Scales that are applied late elsewhere are
 * applied here when a weight is opened, which rounds it once.
 *
 * With KT_TILES_WIDE the products are those of warpgroups (sm_90a): the turned rows of 128 bytes in
 * shared memory are what wgmma reads, and its sums lie in registers as those of mma.sync do, with
 * one tile of 16 rows a warp. A warpgroup does not load fragments but names its operands; before
 * the barrier each thread shows what it wrote to the tensor cores by a fence.
 *
 * Parameters of such a kernel are those of KT_OPEN_PARAMS, in that order; its descriptor uses them,
 * kt_open_refuse, kt_open_threads and kt_open_shared_bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_OPEN_TILES_H
#define KT_DEV_OPEN_TILES_H

#include "kernels/cuda/kt_dev_weights.h"

#define KT_TILES_M KT_CONSTANT(0)
#define KT_TILES_N KT_CONSTANT(1)
#ifdef KT_TILES_WIDE
#include "kernels/cuda/kt_dev_wgmma.h"
#define KT_TILES_WARPS_M (KT_TILES_M / 16)
#define KT_TILES_WARPS_N 1
#define KT_TILES_STAGES KT_CONSTANT(2)
#define KT_OPEN_FORMAT KT_CONSTANT(3)
#define KT_TILES_FENCE kt_wgmma_proxy
#define KT_TILES_PARTS 0
#else
#define KT_TILES_WARPS_M KT_CONSTANT(2)
#define KT_TILES_WARPS_N KT_CONSTANT(3)
#define KT_TILES_STAGES KT_CONSTANT(4)
#define KT_OPEN_FORMAT KT_CONSTANT(5)
#endif
#define KT_TILES_B_BYTES (KT_OPEN_FORMAT == KT_W_BF16 ? 128 : 0)
#define KT_TILES_MORE (KT_OPEN_FORMAT == KT_W_BF16 ? 0 : KT_TILES_N * 128)
#include "kernels/cuda/kt_dev_tiles.h"

/* Pieces of a step: of a row, and of the block. */
#define KT_OPEN_OF_ROW (64 / kt_piece_inputs(KT_OPEN_FORMAT))
#define KT_OPEN_ALL (KT_TILES_N * KT_OPEN_OF_ROW)
enum { KT_OPEN_MAX = 4 }; /* of a thread */

typedef struct kt_open_pieces {
    kt_piece piece[KT_OPEN_MAX];
    float late[KT_OPEN_MAX];
} kt_open_pieces;

KT_DEVICE void kt_open_load(const kt_tile_operands *o, int step, kt_open_pieces *p) {
    const int k = o->a_bytes / 2;
    const kt_weight_row at = kt_weight_row_of(KT_OPEN_FORMAT, k);

    KT_UNROLL
    for (int i = 0; i < KT_OPEN_MAX; i++) {
        const int piece = kt_thread() + i * KT_TILES_THREADS, row = piece / KT_OPEN_OF_ROW;
        const int half = row >= KT_TILES_N / 2, column = row - half * (KT_TILES_N / 2);
        const int first = step * 64 + piece % KT_OPEN_OF_ROW * kt_piece_inputs(KT_OPEN_FORMAT);
        const uint8_t *record = (half ? o->b[1] : o->b[0]) + (int64_t)column * at.bytes;
        if (i * KT_TILES_THREADS >= KT_OPEN_ALL) break;
        p->late[i] = 0;
        if (piece < KT_OPEN_ALL && first < k && column < (half ? o->columns[1] : o->columns[0])) {
            kt_piece_load(KT_OPEN_FORMAT, record, &at, first, &p->piece[i]);
            p->late[i] = kt_late_scale(KT_OPEN_FORMAT, record, &at, first);
        } else {
            kt_piece_clear(&p->piece[i]);
        }
    }
}

KT_DEVICE void kt_open_store(const kt_open_pieces *p, uint32_t stage) {
    const int inputs = kt_piece_inputs(KT_OPEN_FORMAT);

    KT_UNROLL
    for (int i = 0; i < KT_OPEN_MAX; i++) {
        const int piece = kt_thread() + i * KT_TILES_THREADS;
        uint32_t pair[16];
        if (i * KT_TILES_THREADS >= KT_OPEN_ALL) break;
        if (piece >= KT_OPEN_ALL) continue;
        kt_piece_open(KT_OPEN_FORMAT, &p->piece[i], pair);
        KT_UNROLL
        for (int c = 0; c < inputs / 8; c++) {
            kt_u128 v;
            KT_UNROLL
            for (int j = 4 * c; j < 4 * c + 4; j++)
                if (kt_weight_spec_of(KT_OPEN_FORMAT).is_late)
                    pair[j] = kt_scale_pair(pair[j], p->late[i], 0);
            v.x = pair[4 * c], v.y = pair[4 * c + 1];
            v.z = pair[4 * c + 2], v.w = pair[4 * c + 3];
            kt_set_shared_u128(
                stage + (uint32_t)KT_TILES_B + kt_tiles_turned((piece * inputs + 8 * c) * 2), v);
        }
    }
}

KT_DEVICE void kt_tiles_fetch_own(const kt_tile_operands *o, int step, uint32_t stage) {
    (void)o, (void)step, (void)stage;
}

#ifndef KT_TILES_WIDE

/* Fragments of b as kt_tiles_load_b, of opened rows of 128 bytes. */
KT_DEVICE void kt_open_load_b(uint32_t stage, int half, int j, int slice, uint32_t *b) {
    const int column = half * (KT_TILES_N / 2) + kt_tiles_warp_column() + j * 8 + (kt_lane() & 7) +
                       (kt_lane() >> 4 << 3);

    kt_ldmatrix(b, stage + (uint32_t)KT_TILES_B +
                       kt_tiles_turned(column * 128 + slice * 32 + (kt_lane() >> 3 & 1) * 16));
}

KT_DEVICE void kt_tiles_multiply(const kt_tile_operands *o, int step, uint32_t stage,
                                 kt_tile_sums *sum) {
    (void)o, (void)step;
    KT_UNROLL
    for (int slice = 0; slice < 4; slice++) {
        uint32_t a[KT_TILES_MAX_I * 4];
        kt_tiles_load_a(stage, slice, a);
        KT_UNROLL
        for (int half = 0; half < 2; half++) KT_UNROLL
        for (int j = 0; j < KT_TILES_J; j += 2) {
            uint32_t b[4];
            kt_open_load_b(stage, half, j, slice, b);
            KT_UNROLL
            for (int i = 0; i < KT_TILES_I; i++) {
                float *c = sum->f + KT_TILES_SUM(i, half, j);
                kt_mma_bf16(c, a + i * 4, b[0], b[1]);
                kt_mma_bf16(c + 4, a + i * 4, b[2], b[3]);
            }
        }
    }
}

/* Step s: the codes in p, which were loaded two steps ago, are opened into the stage before this
 * one, which comes again in KT_TILES_STAGES - 1 steps, and those that follow in two steps are
 * loaded. A stage that is opened into was read before the barrier of this step, and is read behind
 * that of a later one. */
KT_DEVICE void kt_open_step(const kt_tile_operands *o, const kt_tile_rows *r, int s,
                            kt_open_pieces *p, kt_tile_sums *sum) {
    const int ahead = s + KT_TILES_STAGES - 1;

    KT_COPY_WAIT(KT_TILES_STAGES - 2);
    kt_sync();
    if (ahead < o->steps) kt_tiles_fetch_a(o, r, ahead, kt_tiles_stage(ahead));
    kt_copy_commit();
    kt_tiles_multiply(o, s, kt_tiles_stage(s), sum);
    if (ahead < o->steps) kt_open_store(p, kt_tiles_stage(ahead));
    if (ahead + 2 < o->steps) kt_open_load(o, ahead + 2, p);
}

/* As kt_tiles_product. */
KT_DEVICE void kt_open_product(const kt_tile_operands *o, kt_tile_sums *sum) {
    kt_tile_rows r;
    kt_open_pieces even, odd; /* of the steps from KT_TILES_STAGES - 1 on */
    int s;

    if (KT_OPEN_FORMAT == KT_W_BF16) {
        kt_tiles_product(o, sum);
        return;
    }
    r = kt_tiles_rows(o);
    KT_UNROLL
    for (int i = 0; i < KT_TILES_M * KT_TILES_N / KT_TILES_THREADS; i++) sum->f[i] = 0;
    for (s = 0; s < KT_TILES_STAGES - 1; s++) {
        if (s < o->steps) kt_tiles_fetch_a(o, &r, s, kt_tiles_stage(s));
        kt_copy_commit();
    }
    kt_open_load(o, 0, &even);
    if (KT_TILES_STAGES > 2 && o->steps > 1) kt_open_load(o, 1, &odd);
    kt_open_store(&even, 0);
    if (KT_TILES_STAGES > 3 && o->steps > 2) kt_open_load(o, 2, &even);
    if (KT_TILES_STAGES > 2 && o->steps > 1) kt_open_store(&odd, kt_tiles_stage(1));
    if (KT_TILES_STAGES > 3 && o->steps > 2) kt_open_store(&even, kt_tiles_stage(2));
    if (KT_TILES_STAGES - 1 < o->steps) kt_open_load(o, KT_TILES_STAGES - 1, &even);
    if (KT_TILES_STAGES < o->steps) kt_open_load(o, KT_TILES_STAGES, &odd);
    KT_ROLLED
    for (s = 0; s + 1 < o->steps; s += 2) {
        kt_open_step(o, &r, s, &even, sum);
        kt_open_step(o, &r, s + 1, &odd, sum);
    }
    if (s < o->steps) kt_open_step(o, &r, s, &even, sum);
}

#else

KT_REQUIRE(KT_TILES_M % 64 == 0 && (KT_TILES_N == 64 || KT_TILES_N == 128 || KT_TILES_N == 256),
           "warpgroups");

KT_DEVICE void kt_tiles_put(uint32_t stage, float *to) {
    const uint32_t rows = stage + (uint32_t)(kt_warp() / 4 * 64 * 128);

    kt_wgmma_fence();
    KT_UNROLL
    for (int slice = 0; slice < 4; slice++) {
        const uint64_t a = kt_wgmma_rows(rows + (uint32_t)slice * 32);
        const uint64_t b = kt_wgmma_rows(stage + (uint32_t)(KT_TILES_B + slice * 32));
        if (KT_TILES_N == 64)
            kt_wgmma_bf16_n64(to, a, b);
        else if (KT_TILES_N == 128)
            kt_wgmma_bf16_n128(to, a, b);
        else
            kt_wgmma_bf16_n256(to, a, b);
    }
    kt_wgmma_commit();
}

KT_DEVICE void kt_tiles_fold(uint32_t stage, const float *part, kt_tile_sums *sum) {
    (void)stage, (void)part, (void)sum;
}

/* As kt_tiles_product. While the tensor cores are at a step, the codes of the next one, which were
 * loaded during the step before, are opened into its stage, and those of the one after it loaded.
 * That stage was read two steps ago or longer. */
KT_DEVICE void kt_open_product(const kt_tile_operands *o, kt_tile_sums *sum) {
    kt_tile_rows r;
    kt_open_pieces p;

    if (KT_OPEN_FORMAT == KT_W_BF16) {
        kt_tiles_product(o, sum);
        return;
    }
    r = kt_tiles_rows(o);
    kt_tiles_clear(sum);
    KT_ROLLED
    for (int s = 0; s < KT_TILES_STAGES - 2; s++) {
        if (s < o->steps) kt_tiles_fetch_a(o, &r, s, kt_tiles_stage(s));
        kt_copy_commit();
    }
    kt_open_load(o, 0, &p);
    kt_open_store(&p, 0);
    if (o->steps > 1) kt_open_load(o, 1, &p);
    KT_ROLLED
    for (int s = 0; s < o->steps; s++) {
        const int ahead = s + KT_TILES_STAGES - 2;
        KT_COPY_WAIT(KT_TILES_STAGES - 3);
        kt_wgmma_proxy();
        kt_sync();
        if (kt_tiles_has_rows(o)) kt_tiles_put(kt_tiles_stage(s), sum->f);
        if (ahead < o->steps) kt_tiles_fetch_a(o, &r, ahead, kt_tiles_stage(ahead));
        kt_copy_commit();
        if (s + 1 < o->steps) kt_open_store(&p, kt_tiles_stage(s + 1));
        if (s + 2 < o->steps) kt_open_load(o, s + 2, &p);
        KT_WGMMA_WAIT(1);
    }
    KT_WGMMA_WAIT(0);
}

#endif

#ifndef __CUDACC_RTC__
#include "kernels/cuda/weight_values.h"

#ifdef KT_TILES_WIDE
enum { KT_OPEN_PARAMS = 4 };

static const int32_t kt_open_bm[] = {64, 128, 256}, kt_open_bn[] = {64, 128, 256},
                     kt_open_stages[] = {3, 4, 5, 6};
static const kt_param kt_open_params[KT_OPEN_PARAMS] = {
    {"bm", kt_open_bm, 3, 128},
    {"bn", kt_open_bn, 3, 128},
    {"stages", kt_open_stages, 4, 4},
    {"format", kt_weight_values, KT_WEIGHT_VALUES, KT_W_INT4_G32}};

static inline kt_tiles_shape kt_open_shape(const kt_config *config) {
    const int32_t *v = config->value;
    return (kt_tiles_shape){v[0], v[1], v[0] / 16, 1, v[2], 128, 0, true};
}
#else
enum { KT_OPEN_PARAMS = 6 };

static const int32_t kt_open_bn[] = {64, 128, 256};
static const kt_param kt_open_params[KT_OPEN_PARAMS] = {
    {"bm", kt_tiles_bm, 4, 64},
    {"bn", kt_open_bn, 3, 128},
    {"warps_m", kt_tiles_warps, 3, 2},
    {"warps_n", kt_tiles_warps, 3, 2},
    {"stages", kt_tiles_stages, 3, 3},
    {"format", kt_weight_values, KT_WEIGHT_VALUES, KT_W_INT4_G32}};

static inline kt_tiles_shape kt_open_shape(const kt_config *config) {
    const int32_t *v = config->value;
    return (kt_tiles_shape){v[0], v[1], v[2], v[3], v[4], 128, 0, false};
}
#endif

static inline int kt_open_threads(const kt_config *config) {
    const kt_tiles_shape s = kt_open_shape(config);
    return 32 * s.warps_m * s.warps_n;
}

static inline size_t kt_open_shared_bytes(const kt_config *config, int64_t k) {
    const kt_tiles_shape s = kt_open_shape(config);
    (void)k;
    return kt_tiles_shared_bytes(&s);
}

static inline const char *kt_open_refuse(const kt_config *config, const kt_cuda_target *target) {
    const kt_tiles_shape s = kt_open_shape(config);
    const int format = config->value[KT_OPEN_PARAMS - 1];

    if (kt_weight_spec_of(format).low == 0) return "no such format of weights";
    if (format != KT_W_BF16 &&
        s.n * 64 / kt_piece_inputs(format) > KT_OPEN_MAX * 32 * s.warps_m * s.warps_n)
        return "over 4 loads of weights a thread and step: they would spill";
    return kt_tiles_refuse(&s, target);
}
#endif

#endif
