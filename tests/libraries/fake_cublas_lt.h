/* How a test steers the pretended cuBLASLt, and the library's own functions.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_CUBLAS_LT_H
#define KT_TESTS_FAKE_CUBLAS_LT_H

#include <stddef.h>
#include <stdint.h>

/* The function gives `code` from its call number `after` (0 = the next) on; NULL = none does. */
void fake_lt_fail(const char *function, int after, int code);
int fake_lt_live(void);     /* handles, descriptions, layouts, preferences */
int fake_lt_products(void); /* that were computed */

struct fake_way {
    uint64_t number[8];
    size_t memory;
    int status;
    float waves;
    int reserved[4];
};

size_t cublasLtGetVersion(void);
const char *cublasLtGetStatusName(int status);
int cublasLtCreate(void **handle);
int cublasLtDestroy(void *handle);
int cublasLtMatmulDescCreate(void **desc, int compute, int scale);
int cublasLtMatmulDescDestroy(void *desc);
int cublasLtMatmulDescSetAttribute(void *desc, int attribute, const void *value, size_t bytes);
int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns,
                               int64_t ld);
int cublasLtMatrixLayoutDestroy(void *layout);
int cublasLtMatmulPreferenceCreate(void **preference);
int cublasLtMatmulPreferenceDestroy(void *preference);
int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value,
                                         size_t bytes);
int cublasLtMatmulAlgoGetHeuristic(void *handle, void *desc, void *a, void *b, void *c, void *d,
                                   void *preference, int most, struct fake_way *out, int *n);
int cublasLtMatmul(void *handle, void *desc, const void *alpha, const void *a, void *a_layout,
                   const void *b, void *b_layout, const void *beta, const void *c, void *c_layout,
                   void *d, void *d_layout, const void *algorithm, void *memory, size_t bytes,
                   void *stream);

#endif
