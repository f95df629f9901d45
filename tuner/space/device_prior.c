/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/device_prior.h"

#include <math.h>

#include "kernels/cuda/device_weights.h"

static const double bytes_per_ns = 1500, products_per_ns = 1.5e5, launch_ns = 2500, step_ns = 12;
enum { FEW_OUTPUTS = 16, STEP_INPUTS = 128 };

static int64_t cut(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

/* Of a matrix [n, k] by `rows` rows, `count` of them. */
typedef struct shape {
    int64_t n, k, rows, count;
    kt_weight_format format;
} shape;

/* Kernels of few rows: each weight once; more warps and fewer tiles are more of them at once. */
static double few_ns(const kt_device_choice *c, const shape *s, int sms) {
    const int64_t warps = c->config.value[0], tiles = c->config.value[1];
    const double blocks = (double)(cut(s->n, FEW_OUTPUTS * tiles) * s->count);
    const double waves = ceil(blocks / sms), bytes = (double)kt_device_row_bytes(s->format, s->k);
    const double steps = (double)cut(cut(s->k, STEP_INPUTS), warps);

    return waves * (step_ns * steps * (double)tiles + 4 * step_ns * log2((double)warps + 1)) +
           (double)(s->n * s->count) * bytes / bytes_per_ns;
}

/* Warpgroups keep tensor cores busier than warps do. */
static double rate_of(const kt_cuda_kernel *k) {
    const uint32_t of_groups = 1u << KT_OPCODE_HGMMA | 1u << KT_OPCODE_QGMMA;

    return products_per_ns * (k->rows == KT_CUDA_ROWS_BF16 ? 1 : 2) *
           (k->needs_opcodes & of_groups ? 1.5 : 1);
}

static double many_ns(const kt_device_choice *c, const shape *s, int sms) {
    const int64_t bm = c->config.value[0], bn = c->config.value[1];
    const double blocks = (double)(cut(s->rows, bm) * cut(s->n, bn) * s->count);
    const double fill = blocks / (ceil(blocks / sms) * sms);
    const double rate =
        rate_of(c->kernel) * (double)bm / (double)(bm + 32) * (double)bn / (double)(bn + 32);
    const double products =
        (double)(cut(s->rows, bm) * bm * s->count) * (double)(cut(s->n, bn) * bn) * (double)s->k;
    const double bytes = (double)kt_device_row_bytes(s->format, s->k) * (double)(s->n * s->count);
    const double by_bytes = bytes / bytes_per_ns, by_products = products / rate;

    return (by_bytes > by_products ? by_bytes : by_products) / fill;
}

double kt_device_prior_ns(const kt_device_choice *c, const kt_device_job *job, int64_t rows,
                          int sms) {
    const bool is_gemm = job->op == KT_OP_GEMM;
    const bool is_few = (c->kernel->jobs & (KT_CUDA_GEMM_FEW | KT_CUDA_EXPERTS_FEW)) != 0;
    const int64_t slots = rows * job->topk;
    const int64_t used = is_gemm ? 1 : slots < job->experts ? slots : job->experts;
    const shape up = {job->n, job->k, cut(slots, used), used, job->weights};
    const shape down = {job->k, job->n, cut(slots, used), used, job->down};
    double ns = launch_ns * (is_few ? 1 : is_gemm ? 2 : 7);

    if (c->kernel->rows != KT_CUDA_ROWS_BF16) ns += launch_ns;
    if (sms < 1) sms = 1;
    ns += (is_few ? few_ns(c, &up, sms) : many_ns(c, &up, sms)) * (is_gemm ? 1 : 2);
    if (!is_gemm) ns += is_few ? few_ns(c, &down, sms) : many_ns(c, &down, sms);
    return ns;
}
