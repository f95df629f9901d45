/* Small work on rows: a bias, a sigmoid gate, the gate of a shared expert, columns in another
 * order.
 *
 *   bias, gate  grid (width / THREADS rounded up, rows)
 *   dot         grid (rows / WARPS rounded up, 1): a warp a row, sums in one order
 *   regroup     grid (groups * all parts / THREADS rounded up, rows)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define WARPS KT_CONSTANT(0)
#define THREADS (32 * WARPS)

KT_DEVICE void bias(const kt_rows_bias *p) {
    const int i = kt_block_x() * THREADS + kt_thread();

    if (i < p->width) p->x[(int64_t)kt_block_y() * p->ldx + i] += p->bias[i];
}

/* One gate for a whole row when it is one number wide. */
KT_DEVICE void gate(const kt_rows_gate *p) {
    const int i = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y();

    if (i < p->width)
        p->x[row * p->ldx + i] *= kt_sigmoid(p->gate[row * p->ldg + (p->gate_width == 1 ? 0 : i)]);
}

KT_DEVICE void dot(const kt_rows_dot *p) {
    const int64_t row = kt_block_x() * WARPS + kt_warp();
    const float *x = p->x + row * p->ldx;
    float sum = 0;

    if (row >= p->rows) return;
    for (int i = kt_lane(); i < p->width; i += 32) sum = kt_fma(x[i], p->w[i], sum);
    sum = kt_warp_sum(sum);
    if (kt_lane() == 0) p->out[row * p->ldo] = kt_sigmoid(sum);
}

KT_DEVICE void regroup(const kt_rows_regroup *p) {
    const int width = p->parts[0] + p->parts[1] + p->parts[2] + p->parts[3];
    const int column = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y();
    int i = column, before = 0;

    if (column >= p->groups * width) return;
    KT_UNROLL
    for (int part = 0; part < 4; part++) {
        const int size = p->parts[part], all = size * p->groups;
        if (i >= 0 && i < all)
            p->out[row * p->ldo + column] =
                p->x[row * p->ldx + i / size * width + before + i % size];
        i -= all;
        before += size;
    }
}

KT_ENTRY(rows_misc_bias, kt_rows_bias, bias, THREADS)
KT_ENTRY(rows_misc_gate, kt_rows_gate, gate, THREADS)
KT_ENTRY(rows_misc_dot, kt_rows_dot, dot, THREADS)
KT_ENTRY(rows_misc_regroup, kt_rows_regroup, regroup, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8};
static const kt_param params[] = {{"warps", warps_values, 3, 4}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(rows_misc) = {
    .name = "rows_misc",
    .about = "bias, sigmoid gate, gate of a shared expert, columns in another order",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 4,
    .entry = {{"rows_misc_bias", rows_misc_bias},
              {"rows_misc_gate", rows_misc_gate},
              {"rows_misc_dot", rows_misc_dot},
              {"rows_misc_regroup", rows_misc_regroup}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
