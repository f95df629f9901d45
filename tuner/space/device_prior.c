/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/device_prior.h"

#include <math.h>
#include <string.h>

#include "kernels/cuda/device_weights.h"

static const double bytes_per_ns = 1500, products_per_ns = 1.5e5, launch_ns = 2500;
/* Of kernels of few rows: until the first weights are there, from one step of a warp to the next
 * (by half where that one's weights are loaded ahead), memory that everybody reads at once. */
static const double first_ns = 900, step_ns = 700, few_bytes_per_ns = 2500;
enum {
    FEW_OUTPUTS = 16,
    STEP_INPUTS = 128,
    FEW_WARPS = 16 /* that a multiprocessor has room for */
};

static int64_t cut(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

/* Of a matrix [n, k] by `rows` rows, `count` of them. */
typedef struct shape {
    int64_t n, k, rows, count;
    kt_weight_format format;
} shape;

static int32_t param_of(const kt_device_choice *c, const char *name, int32_t otherwise) {
    for (int i = 0; i < c->kernel->param_count; i++)
        if (strcmp(c->kernel->params[i].name, name) == 0) return c->config.value[i];
    return otherwise;
}

/* Kernels of few rows wait for memory. A wave of blocks takes until its longest warp has all its
 * steps behind it; `steps` are those of a block of `warps` warps. */
static double few_ns(const kt_device_choice *c, double blocks, int64_t steps, int32_t warps,
                     int sms) {
    const int32_t tiles = param_of(c, "tiles", 1);
    const int64_t room = FEW_WARPS / tiles / warps, own = cut(steps, warps);
    const double waves = ceil(blocks / (double)(sms * (room > 1 ? room : 1)));
    const double step = param_of(c, "ahead", 0) ? step_ns / 2 : step_ns;

    return waves * (first_ns + step * (double)own + 10 * (double)warps);
}

/* A block of gate and up, or of a dense product, has the outputs of one matrix. */
static double first_few_ns(const kt_device_choice *c, const shape *s, int sms) {
    const int64_t outputs = FEW_OUTPUTS * param_of(c, "tiles", 1);

    return few_ns(c, (double)(cut(s->n, outputs) * s->count), cut(s->k, STEP_INPUTS),
                  param_of(c, "warps", 1), sms);
}

/* A block of down goes through the matrices of all experts. */
static double down_few_ns(const kt_device_choice *c, const shape *s, int sms) {
    const int64_t outputs = FEW_OUTPUTS * param_of(c, "tiles", 1);

    return few_ns(c, (double)cut(s->n, outputs), cut(s->k, STEP_INPUTS) * s->count,
                  param_of(c, "down", 1), sms);
}

static double bytes_of(const shape *s) {
    return (double)kt_device_row_bytes(s->format, s->k) * (double)(s->n * s->count);
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
    const double by_bytes = bytes_of(s) / bytes_per_ns, by_products = products / rate;

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
    if (is_few) {
        ns += first_few_ns(c, &up, sms) + bytes_of(&up) * (is_gemm ? 1 : 2) / few_bytes_per_ns;
        return is_gemm ? ns : ns + down_few_ns(c, &down, sms) + bytes_of(&down) / few_bytes_per_ns;
    }
    ns += many_ns(c, &up, sms) * (is_gemm ? 1 : 2);
    return is_gemm ? ns : ns + many_ns(c, &down, sms);
}
