/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_gate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/encode/encode_ref.h"
#include "kernels/formats/acts.h"

static float any_bits(kt_rng *rng) {
    uint32_t u = (uint32_t)kt_rng_u64(rng);
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static float draw(kt_rng *rng, int kind, int64_t i) {
    float n = kt_rng_normal(rng);
    switch (kind) {
    case 0: return n;
    case 1: return n * n * n * (kt_rng_below(rng, 50) == 0 ? 300.0f : 1.0f);
    case 2: return i % 32 == 0 ? 127.0f : (float)((int64_t)kt_rng_below(rng, 507) - 253) * 0.5f;
    case 3: return i % 3 == 0 ? -0.0f : 0.0f;
    case 4: return n * 1e-37f * (float)(i / 32 % 7) * 0.25f; /* at the overflow of 127 / A */
    case 5: return n * 1e38f;
    default: return any_bits(rng); /* NaN, infinity, denormals: one group in eight has one */
    }
}

void kt_encode_fill(float *x, int64_t k, int kind, uint64_t seed) {
    kt_rng rng;
    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < k; i++) x[i] = draw(&rng, kind % 7, i);
}

/* First differing byte as a message; KT_OK when the blocks are equal. */
static kt_status compare(const kt_variant *v, const kt_problem *p, uint64_t seed,
                         const unsigned char *got, const unsigned char *want, size_t stride,
                         kt_err *err) {
    size_t bytes = (size_t)p->m * stride;
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != want[i])
            return kt_fail(
                err, KT_E_MISMATCH,
                "%s: %s m=%lld k=%lld seed=%llu row %zu byte %zu: got 0x%02x, want 0x%02x", v->name,
                kt_act_format_name(p->acts), (long long)p->m, (long long)p->k,
                (unsigned long long)seed, i / stride, i % stride, got[i], want[i]);
    return KT_OK;
}

kt_status kt_encode_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                         uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t stride = kt_act_row_bytes(problem->acts, problem->k);
    size_t rows = (size_t)problem->m, k = (size_t)problem->k;
    float *x = NULL;
    unsigned char *got = NULL, *want = NULL;
    kt_encode_call call;
    kt_status st = KT_E_NOMEM;

    if (v->accepts) KT_TRY(v->accepts(problem, config, err));
    x = malloc(rows * k * sizeof *x + 1);
    got = aligned_alloc(64, rows * stride + 64);
    want = aligned_alloc(64, rows * stride + 64);
    if (!x || !got || !want) {
        kt_fail(err, st, "%s: no memory for %zu rows of %zu floats", v->name, rows, k);
        goto done;
    }
    for (size_t i = 0; i < rows; i++)
        kt_encode_fill(x + i * k, problem->k, (int)i, seed * 1000003u + i);
    memset(got, 0xa5, rows * stride);
    memset(want, 0xa5, rows * stride);
    call = (kt_encode_call){.x = x,
                            .ldx = problem->k,
                            .k = problem->k,
                            .out = want,
                            .out_stride = stride,
                            .row_begin = 0,
                            .row_end = problem->m};
    kt_encode_ref(problem->acts, &call);
    call.out = got;
    v->encode(&call);
    st = compare(v, problem, seed, got, want, stride, err);
    if (report) {
        report->rel_rms = 0.0;
        snprintf(report->detail, sizeof report->detail, "%zu bytes %s", rows * stride,
                 st == KT_OK ? "equal" : "differ");
    }
done:
    free(x);
    free(got);
    free(want);
    return st;
}
