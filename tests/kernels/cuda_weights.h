/* What tests of kernels that read weights of any format share: matrices as the format says and as
 * the device has them, launches under the emulator, and sums in double with their bounds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_CUDA_WEIGHTS_H
#define KT_TESTS_CUDA_WEIGHTS_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/gemm_calls.h"
#include "kernels/cuda/kt_dev_weights.h"
#include "kernels/cuda/moe_calls.h"
#include "kernels/formats/format.h"
#include "kernels/formats/gate_inputs.h"

static const double u32 = 0x1p-24;

static inline void *guarded(kt_guard *g, size_t bytes, unsigned char fill) {
    kt_err err;
    cr_assert_eq(kt_guard_create(bytes, 16, fill, g, &err), KT_OK, "%s", err.message);
    return g->data;
}

static inline const kt_cuda_kernel *find(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

static inline void launch(const kt_cuda_kernel *k, int entry, const void *call, int x, int y,
                          int64_t size, const kt_config *config, uint32_t seed) {
    const kt_launch l = {.name = k->entry[entry].name,
                         .entry = k->entry[entry].emulated,
                         .parameters = call,
                         .grid_x = x,
                         .grid_y = y,
                         .threads = kt_cuda_threads(k, config, entry),
                         .shared_bytes = k->shared_bytes(config, size),
                         .constant = config->value};
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_err err;

    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

/* A matrix as the format says and as the device has it. */
typedef struct weights {
    kt_gate_matrix plain;
    kt_guard records;
    double *row, *terms;
} weights;

static inline void make_weights(weights *w, kt_weight_format format, int64_t n, int64_t k,
                                uint64_t seed) {
    size_t bytes;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create(format, n, k, seed, &w->plain, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_device_weights_bytes(format, n, k, &bytes, &err), KT_OK, "%s", err.message);
    guarded(&w->records, bytes, 0xff);
    cr_assert_eq(kt_device_weights_pack(&w->plain.matrix, 0, n, w->records.data, &err), KT_OK);
    w->row = malloc(2 * (size_t)k * sizeof *w->row);
    w->terms = w->row + k;
}

static inline void drop_weights(weights *w) {
    kt_gate_matrix_destroy(&w->plain);
    kt_guard_destroy(&w->records);
    free(w->row);
}

typedef struct dot {
    double value, bound;
} dot;

/* Row `row` times x, already rounded. is_exact: opened weights are what the format says. */
static inline dot multiply(const weights *w, int64_t row, const double *x, bool is_exact) {
    const kt_matrix *m = &w->plain.matrix;
    const kt_format *f = kt_format_find(m->format);
    double magnitude = 0, lost = 0;
    dot d = {0, 0};

    f->decode_row(m, row, w->row);
    memcpy(w->terms, w->row, (size_t)m->k * sizeof *w->row);
    if (f->terms_row) f->terms_row(m, row, w->terms);
    for (int64_t i = 0; i < m->k; i++) {
        d.value += w->row[i] * x[i];
        magnitude += fabs(w->row[i] * x[i]);
        if (!is_exact)
            lost += (fabs(w->row[i]) * 0x1p-8 + fabs(w->terms[i]) * 0x1p-23) * fabs(x[i]);
    }
    d.bound = lost + 2 * (double)(m->k + 8) * u32 * magnitude + 1e-37;
    return d;
}

/* Where the scale of the product is applied to the sum, opened weights are exact. */
static inline bool is_late(const weights *w) {
    const kt_weight_format f = w->plain.matrix.format;
    return f == KT_W_BF16 || kt_weight_spec_of((int)f).is_late;
}

static inline double rounded(float x) {
    return (double)kt_float_bits(kt_emulator_bf16(x) << 16);
}

static inline void fill(float *x, int64_t n, kt_rng *rng) {
    for (int64_t i = 0; i < n; i++) x[i] = kt_rng_normal(rng);
}

static inline int cut(int64_t n, int64_t by) {
    return (int)((n + by - 1) / by);
}

/* Sizes that the format can have, ragged where it allows. */
static inline int64_t legal(kt_weight_format format, int64_t k) {
    const int64_t block = kt_format_find(format)->block;
    return block > 32 ? (k + block - 1) / block * block : (k + 31) / 32 * 32;
}

#endif
