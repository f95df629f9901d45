/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/dev_ending.h"

#include <math.h>
#include <stdlib.h>

#include "kt/problem.h"

void kt_test_ending_make(kt_test_ending *e, uint32_t seed, int64_t experts, int64_t n, int64_t k) {
    const int64_t count = experts * (2 * n + k);
    kt_rng rng;

    *e = (kt_test_ending){.n = n, .k = k};
    e->ending.glu = (int32_t)(seed % KT_GLU_COUNT);
    e->ending.limit = 0.75f;
    e->ending.alpha = 1.702f;
    if (seed / KT_GLU_COUNT % 2 == 0) return;
    kt_rng_seed(&rng, seed);
    e->memory = malloc((size_t)count * sizeof *e->memory);
    for (int64_t i = 0; i < count; i++) e->memory[i] = kt_rng_normal(&rng);
    e->ending.gate_bias = e->memory;
    e->ending.up_bias = e->memory + experts * n;
    e->ending.down_bias = e->memory + experts * 2 * n;
}

void kt_test_ending_drop(kt_test_ending *e) {
    free(e->memory);
}

static double at(const float *bias, int64_t i) {
    return bias ? (double)bias[i] : 0;
}

double kt_test_ending_h(const kt_test_ending *t, int64_t expert, int64_t j, double gate,
                        double d_gate, double up, double d_up, double *bound) {
    const kt_dev_ending *e = &t->ending;
    const double limit = (double)e->limit, alpha = e->glu == KT_GLU_OAI ? (double)e->alpha : 1;
    double silu, want;

    gate += at(e->gate_bias, expert * t->n + j);
    up += at(e->up_bias, expert * t->n + j);
    d_gate += 0x1p-24 * (fabs(gate) + d_gate);
    d_up += 0x1p-24 * (fabs(up) + d_up + 1);
    if (e->glu != KT_GLU_SILU) {
        gate = fmin(gate, limit);
        up = fmax(fmin(up, limit), -limit);
    }
    if (e->glu == KT_GLU_OAI) up += 1;
    silu = gate / (1 + exp(-alpha * gate));
    want = silu * up;
    *bound = 1.1 * d_gate * (fabs(up) + d_up) + fabs(silu) * d_up +
             fabs(want) * (0x1p-8 + 0x1p-19) + 1e-37;
    return want;
}

double kt_test_ending_down(const kt_test_ending *t, int64_t expert, int64_t j) {
    return at(t->ending.down_bias, expert * t->k + j);
}
