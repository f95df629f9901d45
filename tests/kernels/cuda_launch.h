/* What tests of kernels for GPUs share: memory that ends at a page that cannot be read, filled at
 * random, and launches under the emulator. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_CUDA_LAUNCH_H
#define KT_TESTS_CUDA_LAUNCH_H

#include <criterion/criterion.h>
#include <string.h>

#include "base/guard_page.h"
#include "base/rng.h"
#include "kernels/cuda/cuda_kernel.h"

enum { CUDA_GUARDS = 48 };

/* The memory of one test case. */
typedef struct cuda_memory {
    kt_guard guard[CUDA_GUARDS];
    int n;
} cuda_memory;

static inline void *cuda_bytes(cuda_memory *m, size_t bytes, unsigned char fill) {
    kt_err err;

    cr_assert_lt(m->n, CUDA_GUARDS);
    cr_assert_eq(kt_guard_create(bytes, 16, fill, &m->guard[m->n], &err), KT_OK, "%s", err.message);
    return m->guard[m->n++].data;
}

/* n floats; with scale 0 they are NaN, for results. */
static inline float *cuda_floats(cuda_memory *m, int64_t n, float scale, kt_rng *rng) {
    float *x = cuda_bytes(m, (size_t)n * sizeof *x, 0xff);

    for (int64_t i = 0; scale != 0 && i < n; i++) x[i] = scale * kt_rng_normal(rng);
    return x;
}

static inline void cuda_release(cuda_memory *m) {
    for (int i = 0; i < m->n; i++) kt_guard_destroy(&m->guard[i]);
    m->n = 0;
}

static inline const kt_cuda_kernel *cuda_find(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

/* Blocks that `n` needs by `each`. */
static inline int cuda_cut(int64_t n, int64_t each) {
    return (int)((n + each - 1) / each);
}

/* Runs the entry of that name; odd seeds copy late. */
static inline void cuda_launch(const kt_cuda_kernel *k, const char *entry, const kt_config *config,
                               const void *call, int x, int y, int64_t size, uint32_t seed) {
    const kt_emulator_options options = {.seed = seed, .lazy = seed % 2, .races = true};
    kt_launch l = {.parameters = call,
                   .grid_x = x,
                   .grid_y = y,
                   .shared_bytes = k->shared_bytes(config, size),
                   .constant = config->value};
    kt_err err;

    for (int i = 0; i < k->entry_count; i++)
        if (strcmp(k->entry[i].name, entry) == 0) {
            l.name = entry, l.entry = k->entry[i].emulated;
            l.threads = kt_cuda_threads(k, config, i);
        }
    cr_assert_not_null(l.entry, "%s has no entry %s", k->name, entry);
    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
}

#endif
