/* Hyper-connections (kernels/hyper): a token's residual streams become the row that half a layer
 * begins with, and are mixed anew behind it. All in f32.
 *
 * The products with the mixing weights come from router.cu. A block takes a token: the sum of
 * squares is formed in one order whatever the batch, and the first warp makes the coefficients, a
 * lane for each row or column of the matrix that is balanced. Behind half a layer a thread has one
 * column of all streams.
 *
 *   begin  grid (count * hidden / THREADS rounded up, rows)
 *   mix    grid (rows, 1)
 *   join   grid (hidden / THREADS rounded up, rows)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define WARPS KT_CONSTANT(0)
#define THREADS (32 * WARPS)
enum { OUTPUTS = 2 * KT_STREAMS_MOST + KT_STREAMS_MOST * KT_STREAMS_MOST };
#define OUTPUTS_AT ((uint32_t)WARPS * 4) /* behind what kt_block_sum uses */

KT_DEVICE void begin(const kt_streams_begin *p) {
    const int i = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y();

    if (i < p->count * p->hidden) p->out[row * p->ldo + i] = p->x[row * p->ldx + i % p->hidden];
}

/* ---- coefficients, by the first warp ---- */

KT_DEVICE float output_at(int i) {
    return kt_shared_f32(OUTPUTS_AT + (uint32_t)i * 4);
}

KT_DEVICE void set_output(int i, float v) {
    kt_set_shared_f32(OUTPUTS_AT + (uint32_t)i * 4, v);
}

/* Weights of the streams, and twice the sigmoids of what they get of the result; the matrix as it
 * is before it is balanced. */
KT_DEVICE void open_outputs(const kt_streams_mix *p, const float *product, float factor) {
    const int all = p->is_end ? p->count : 2 * p->count + p->count * p->count;

    for (int i = kt_lane(); i < all; i += 32) {
        const int part = i < p->count ? 0 : i < 2 * p->count ? 1 : 2;
        const float m = product[i] * factor * p->scale[part] + p->base[i];
        set_output(i, part == 2 ? m : part == 1 ? 2 * kt_sigmoid(m) : kt_sigmoid(m) + p->eps);
    }
    kt_warp_sync();
}

/* Lane j has row j. */
KT_DEVICE void soften_rows(int first, int count, float eps) {
    const int row = first + kt_lane() * count;
    float top, sum = 0;

    if (kt_lane() < count) {
        top = output_at(row);
        for (int i = 1; i < count; i++) top = kt_max(top, output_at(row + i));
        for (int i = 0; i < count; i++) {
            const float e = kt_exp(output_at(row + i) - top);
            set_output(row + i, e);
            sum += e;
        }
        for (int i = 0; i < count; i++) set_output(row + i, output_at(row + i) / sum + eps);
    }
    kt_warp_sync();
}

/* Lane j has the numbers first, first + apart ..: a row or a column. */
KT_DEVICE void divide(int first, int apart, int count, float eps) {
    float sum = 0;

    if (kt_lane() < count) {
        for (int i = 0; i < count; i++) sum += output_at(first + i * apart);
        for (int i = 0; i < count; i++)
            set_output(first + i * apart, output_at(first + i * apart) / (sum + eps));
    }
    kt_warp_sync();
}

KT_DEVICE void balance(const kt_streams_mix *p) {
    const int first = 2 * p->count, count = p->count;

    soften_rows(first, count, p->eps);
    divide(first + kt_lane(), count, count, p->eps);
    for (int i = 1; i < p->iterations; i++) {
        divide(first + kt_lane() * count, 1, count, p->eps);
        divide(first + kt_lane(), count, count, p->eps);
    }
}

/* ---- mixing ---- */

KT_DEVICE void mix(const kt_streams_mix *p) {
    const int64_t row = kt_block_x();
    const int n = p->count * p->hidden, outputs = 2 * p->count + p->count * p->count;
    const float *x = p->x + row * p->ldx;
    float *out = p->out + row * p->ldo;
    float sum = 0;

    for (int i = kt_thread(); i < n; i += THREADS) sum = kt_fma(x[i], x[i], sum);
    sum = kt_block_sum(sum, 0, WARPS);
    if (kt_warp() == 0) {
        open_outputs(p, p->product + row * p->outputs,
                     1.0f / kt_sqrt(sum / (float)n + p->norm_eps));
        if (!p->is_end) balance(p);
    }
    kt_sync();
    for (int i = kt_thread(); i < p->hidden; i += THREADS) {
        float mixed = output_at(0) * x[i];
        for (int s = 1; s < p->count; s++) mixed += output_at(s) * x[s * p->hidden + i];
        out[i] = mixed;
        if (!p->is_end) out[p->result + i] = 0;
    }
    if (p->is_end) return;
    for (int i = kt_thread(); i < outputs; i += THREADS) out[p->hidden + i] = output_at(i);
}

KT_DEVICE void join(const kt_streams_join *p) {
    const int i = kt_block_x() * THREADS + kt_thread(), count = p->count;
    const int64_t row = kt_block_y();
    const float *m = p->outputs + row * p->ldm + count, *c = m + count;
    float *x = p->streams + row * p->lds + i;
    float was[KT_STREAMS_MOST], y, mean = 0;

    if (i >= p->hidden) return;
    y = p->y[row * p->ldy + i];
    KT_UNROLL
    for (int j = 0; j < KT_STREAMS_MOST; j++) was[j] = j < count ? x[j * p->hidden] : 0;
    for (int k = 0; k < count; k++) {
        float sum = m[k] * y;
        KT_UNROLL
        for (int j = 0; j < KT_STREAMS_MOST; j++)
            if (j < count) sum += c[j * count + k] * was[j];
        x[k * p->hidden] = sum;
        mean += sum;
    }
    if (p->mean) p->mean[row * p->ldmean + i] = mean / (float)count;
}

KT_ENTRY(hyper_streams_begin, kt_streams_begin, begin, THREADS)
KT_ENTRY(hyper_streams_mix, kt_streams_mix, mix, THREADS)
KT_ENTRY(hyper_streams_join, kt_streams_join, join, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8};
static const kt_param params[] = {{"warps", warps_values, 3, 8}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)k;
    return (size_t)(config->value[0] + OUTPUTS) * 4;
}

KT_CUDA_KERNEL(hyper_streams) = {
    .name = "hyper_streams",
    .about = "residual streams of hyper-connections become a row, and are mixed anew",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 3,
    .entry = {{"hyper_streams_begin", hyper_streams_begin},
              {"hyper_streams_mix", hyper_streams_mix},
              {"hyper_streams_join", hyper_streams_join}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
