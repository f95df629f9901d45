/* A cuBLASLt that computes on the host, whose memory is the pretended driver's. It offers four ways
 * to a product: one that is not for this device, one that never runs, and two that do. The kinds
 * other than `right` have a fault. SPDX-License-Identifier: Apache-2.0 */
#include "tests/libraries/fake_cublas_lt.h"

#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"

enum { I8 = 3, F32 = 0, I32 = 10, BF16 = 14, E4M3 = 28, INVALID = 7, NOT_SUPPORTED = 15 };
enum { NEVER_RUNS = 2 };

static struct {
    const char *function;
    int after, code;
} fault;
static int n_live, n_products;

void fake_lt_fail(const char *function, int after, int code) {
    fault.function = function;
    fault.after = after;
    fault.code = code;
}

int fake_lt_live(void) {
    return n_live;
}

int fake_lt_products(void) {
    return n_products;
}

static int called(const char *name) {
    if (!fault.function || strcmp(fault.function, name) != 0) return 0;
    return fault.after-- > 0 ? 0 : fault.code;
}

#define CALLED()                            \
    do {                                    \
        const int code_ = called(__func__); \
        if (code_) return code_;            \
    } while (0)

size_t cublasLtGetVersion(void) {
#ifdef KT_FAKE_OLD
    return 111103;
#else
    return 130100;
#endif
}

const char *cublasLtGetStatusName(int status) {
    return status == NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER";
}

/* ---- objects ---- */

struct desc {
    int compute, scale, transposed_a, fast;
    const float *scale_a, *scale_b;
};

struct layout {
    int type;
    uint64_t rows, columns;
    int64_t ld;
};

static int make(void **out, size_t bytes) {
    *out = calloc(1, bytes);
    n_live++;
    return *out ? 0 : 3;
}

static int drop(void *p) {
    free(p);
    n_live--;
    return 0;
}

int cublasLtCreate(void **handle) {
    CALLED();
    return make(handle, 1);
}

int cublasLtDestroy(void *handle) {
    return drop(handle);
}

int cublasLtMatmulDescCreate(void **out, int compute, int scale) {
    struct desc *d;

    CALLED();
    if (make(out, sizeof *d) != 0) return 3;
    d = *out;
    d->compute = compute;
    d->scale = scale;
    return 0;
}

int cublasLtMatmulDescDestroy(void *desc) {
    return drop(desc);
}

int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes) {
    struct desc *d = desc;

    CALLED();
    switch (attribute) {
    case 3:
        memcpy(&d->transposed_a, value, sizeof d->transposed_a);
        return bytes == 4 ? 0 : INVALID;
    case 17: memcpy(&d->scale_a, value, sizeof d->scale_a); return bytes == 8 ? 0 : INVALID;
    case 18: memcpy(&d->scale_b, value, sizeof d->scale_b); return bytes == 8 ? 0 : INVALID;
    case 25: d->fast = *(const int8_t *)value; return bytes == 1 ? 0 : INVALID;
    default: return INVALID;
    }
}

int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    struct layout *l;

    CALLED();
    if (make(out, sizeof *l) != 0) return 3;
    l = *out;
    *l = (struct layout){type, rows, columns, ld};
    return (uint64_t)ld >= rows ? 0 : INVALID;
}

int cublasLtMatrixLayoutDestroy(void *layout) {
    return drop(layout);
}

#ifndef KT_FAKE_SHORT
int cublasLtMatmulPreferenceCreate(void **preference) {
    CALLED();
    return make(preference, sizeof(uint64_t));
}
#endif

int cublasLtMatmulPreferenceDestroy(void *preference) {
    return drop(preference);
}

int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                         size_t bytes) {
    CALLED();
    if (attribute != 1 || bytes != sizeof(uint64_t)) return INVALID;
    memcpy(preference, value, bytes);
    return 0;
}

/* ---- products ---- */

/* Only what the library can do is asked of it. */
static int is_legal(const struct desc *d, const struct layout *a, const struct layout *b,
                    const struct layout *c) {
    const int is_8_bits = a->type == I8 || a->type == E4M3;

    if (!d->transposed_a || a->type != b->type || a->rows != b->rows || c->rows != a->columns ||
        c->columns != b->columns)
        return 0;
    if (is_8_bits && (a->rows % 16 || c->rows % 16)) return 0;
    if (a->type == I8) return d->compute == 72 && d->scale == I32 && c->type == I32;
    if (d->compute != 68 || d->scale != F32) return 0;
    if (a->type == E4M3) return d->scale_a && d->scale_b && c->type == BF16;
    return a->type == BF16 && (c->type == BF16 || c->type == F32);
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                   void *preference, int most, struct fake_way *out, int *n) {
    const uint64_t memory = *(const uint64_t *)preference;

    CALLED();
    if (!handle || d != c || most < 4) return INVALID;
    if (!is_legal(desc, a, b, c)) return NOT_SUPPORTED;
#ifdef KT_FAKE_NONE
    (void)memory, (void)out;
    *n = 0;
#else
    *n = 4;
    for (int i = 0; i < 4; i++)
        out[i] = (struct fake_way){.number = {(uint64_t)i + 1},
                                   .memory = i == 2 ? memory : 0,
                                   .status = i == 0 ? NOT_SUPPORTED : 0};
#endif
    return 0;
}

static double number_at(const void *data, int type, size_t i) {
    if (type == I8) return ((const int8_t *)data)[i];
    if (type == E4M3) return (double)kt_f8e4m3_to_f32(((const uint8_t *)data)[i]);
    return (double)kt_bf16_to_f32(((const uint16_t *)data)[i]);
}

static void put_number(void *data, int type, size_t i, double x) {
#ifdef KT_FAKE_WRONG
    if (i % 7 == 0) x *= 1.25;
#endif
    if (type == I32) ((int32_t *)data)[i] = (int32_t)x;
    if (type == F32) ((float *)data)[i] = (float)x;
    if (type == BF16) ((uint16_t *)data)[i] = kt_f32_to_bf16((float)x);
}

int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const void *algorithm, void *memory, size_t bytes,
                   void *stream) {
    const struct layout *la = a_layout, *lb = b_layout, *lc = c_layout;
    const struct desc *how = desc;
    uint64_t number;

    CALLED();
    memcpy(&number, algorithm, sizeof number);
    if (!handle || !stream || !memory || !bytes || c != d || c_layout != d_layout) return INVALID;
    if (!is_legal(how, la, lb, lc) || number < 2 || number > 4) return INVALID;
    if (how->scale == I32 ? *(const int32_t *)alpha != 1 || *(const int32_t *)beta != 0
                          : *(const float *)alpha != 1 || *(const float *)beta != 0)
        return INVALID;
    if (number == NEVER_RUNS) return NOT_SUPPORTED;
    n_products++;
    for (uint64_t row = 0; row < lc->columns; row++)
        for (uint64_t out = 0; out < lc->rows; out++) {
            double sum = 0;
            for (uint64_t k = 0; k < la->rows; k++)
                sum += number_at(a, la->type, out * (size_t)la->ld + k) *
                       number_at(b, lb->type, row * (size_t)lb->ld + k);
            if (how->scale_a) sum *= (double)(*how->scale_a * *how->scale_b);
            put_number(d, lc->type, row * (size_t)lc->ld + out, sum);
        }
    return 0;
}
