/* What library GEMM probes share (kt_probe_call): the plain panels, the count and the self-test.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_PROBE_DENSE_PROBE_H
#define KT_PROBE_DENSE_PROBE_H

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/p64.h"

static inline double kt_dense_operations(const kt_problem *q) {
    return 2.0 * (double)q->m * (double)q->n * (double)q->k;
}

static inline size_t kt_dense_element_bytes(const kt_problem *q) {
    return q->weights == KT_W_INT8_CHANNEL ? 1 : 2;
}

/* Panels of p64 without scales. */
static inline size_t kt_dense_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * 64 * (size_t)q->k * kt_dense_element_bytes(q);
}

/* The codes of w in the order of p64 panels; INT8 stays signed, without p64's offset. */
static inline void kt_dense_pack(const kt_problem *q, const kt_matrix *w, void *dst) {
    const size_t each = kt_dense_element_bytes(q), unit = 4 / each; /* inputs that lie together */
    uint8_t *out = dst;

    for (int64_t row = 0; row < 64 * kt_p64_panels(q->n); row++)
        for (int64_t l = 0; l < q->k; l++) {
            const size_t at = (size_t)(row / 64) * 64 * (size_t)q->k +
                              (size_t)l / unit * 64 * unit + (size_t)(row % 64) * unit +
                              (size_t)l % unit;
            const size_t from = (size_t)(row * q->k + l);
            if (each == 1)
                out[at] = row < w->n ? ((const uint8_t *)w->data)[from] : 0;
            else
                ((uint16_t *)dst)[at] = row < w->n ? ((const uint16_t *)w->data)[from] : 0;
        }
}

/* 16 x 64 x 128 against plain C: small integers, so exact in both. */
static inline kt_status kt_dense_check(const char *library, double (*probe)(const kt_probe_call *),
                                       void (*pack)(const kt_problem *, const kt_matrix *, void *),
                                       size_t (*bytes)(const kt_problem *), kt_weight_format format,
                                       kt_err *why) {
    enum { M = 16, N = 64, K = 128 };
    const kt_problem q = {.op = KT_OP_PROBE, .weights = format, .m = M, .n = N, .k = K};
    const size_t each = kt_dense_element_bytes(&q), packed = (bytes(&q) + 63) / 64 * 64;
    uint8_t *memory = aligned_alloc(64, packed + each * (N * K + M * K) + M * N * 4);
    uint8_t *w = memory + packed, *a = w + each * N * K;
    void *c = a + each * M * K;
    const kt_matrix matrix = {.format = format, .n = N, .k = K, .data = w};
    const kt_probe_call call = {.data = memory, .repeats = 1, .problem = &q, .a = a, .c = c};
    kt_status st = KT_OK;

    if (!memory) return kt_fail(why, KT_E_NOMEM, "%s self-test: no memory", library);
    for (int i = 0; i < N * K + M * K; i++) {
        const int value = i < N * K ? i * 11 % 13 - 6 : i * 7 % 15;
        if (each == 1)
            w[i] = (uint8_t)value;
        else
            ((uint16_t *)(void *)w)[i] = kt_f32_to_bf16((float)value);
    }
    memset(c, 0, M * N * 4);
    pack(&q, &matrix, memory);
    if (probe(&call) == 0)
        st = kt_fail(why, KT_E_UNSUPPORTED, "%s refused a %s GEMM", library,
                     kt_weight_format_name(format));
    for (int i = 0; i < M * N && st == KT_OK; i++) {
        int want = 0;
        float got = each == 1 ? (float)((int32_t *)c)[i] : ((float *)c)[i];
        for (int l = 0; l < K; l++)
            want += ((i % N * K + l) * 11 % 13 - 6) * ((N * K + i / N * K + l) * 7 % 15);
        if (got != (float)want)
            st = kt_fail(why, KT_E_MISMATCH,
                         "%s failed its %s self-test: element %d is %g, expected %d", library,
                         kt_weight_format_name(format), i, (double)got, want);
    }
    free(memory);
    return st;
}

#endif
