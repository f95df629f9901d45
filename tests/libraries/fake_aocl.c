/* A library with the interface of aocl_gemm, in plain C, for the tests of its loader. Built several times:
 * right, and with one thing wrong each (KT_FAKE_WRONG, KT_FAKE_OLD, KT_FAKE_SHORT, KT_FAKE_NARROW).
 * Reordered matrices are kept as they came. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/gemm/aocl.h"

const char *bli_info_get_version_str(void);
int64_t bli_info_get_int_type_size(void);
void bli_thread_set_num_threads(int64_t n);

const char *bli_info_get_version_str(void) {
#ifdef KT_FAKE_OLD
    return "AOCL-BLAS 4.2.1 Build 20240101";
#else
    return "AOCL-BLAS 5.2.2 Build 20260101";
#endif
}

int64_t bli_info_get_int_type_size(void) {
#ifdef KT_FAKE_NARROW
    return 32;
#else
    return 64;
#endif
}

void bli_thread_set_num_threads(int64_t n) {
    (void)n;
}

#ifdef KT_FAKE_WRONG
enum { WRONG = 1 }; /* the last product of each sum is left out */
#else
enum { WRONG = 0 };
#endif

#define SIZE(name, bits)                                                                      \
    size_t aocl_get_reorder_buf_size_##name(char, char, char, int64_t, int64_t);              \
    size_t aocl_get_reorder_buf_size_##name(char order, char trans, char which, int64_t k,    \
                                            int64_t n) {                                      \
        return order == 'r' && trans == 'n' && which == 'B' ? (size_t)(k * n) * bits / 8 : 0; \
    }
SIZE(s8s8s32os32, 8)
SIZE(u8s8s32os32, 8)
SIZE(bf16bf16f32of32, 16)
SIZE(bf16s4f32of32, 4)

size_t aocl_get_reorder_buf_size_s8s8s32os32_sym_quant(char, char, char, int64_t, int64_t,
                                                       kt_aocl_group_size *);
size_t aocl_get_reorder_buf_size_s8s8s32os32_sym_quant(char order, char trans, char which,
                                                       int64_t k, int64_t n,
                                                       kt_aocl_group_size *group) {
    (void)order, (void)trans, (void)which;
    return group->group % 4 == 0 ? (size_t)(k * n) : 0;
}

/* out [k, n] of elements of `bytes`. */
static void copy(char trans, const char *in, char *out, int64_t k, int64_t n, int64_t ld,
                 size_t bytes) {
    for (int64_t l = 0; l < k; l++)
        for (int64_t j = 0; j < n; j++)
            memcpy(out + (size_t)(l * n + j) * bytes,
                   in + (size_t)(trans == 't' ? j * ld + l : l * ld + j) * bytes, bytes);
}

#define REORDER(name, bytes)                                                                     \
    void aocl_reorder_##name(char, char, char, const void *, void *, int64_t, int64_t, int64_t); \
    void aocl_reorder_##name(char order, char trans, char which, const void *in, void *out,      \
                             int64_t k, int64_t n, int64_t ld) {                                 \
        (void)order, (void)which;                                                                \
        copy(trans, in, out, k, n, ld, bytes);                                                   \
    }
REORDER(s8s8s32os32, 1)
REORDER(u8s8s32os32, 1)
REORDER(bf16bf16f32of32, 2)

void aocl_reorder_bf16s4f32of32(char, char, char, const void *, void *, int64_t, int64_t, int64_t);
void aocl_reorder_bf16s4f32of32(char order, char trans, char which, const void *in, void *out,
                                int64_t k, int64_t n, int64_t ld) {
    (void)order, (void)trans, (void)which;
    copy('n', in, out, k, n / 2, ld / 2, 1);
}

void aocl_reorder_s8s8s32os32_sym_quant(char, char, char, const void *, void *, int64_t, int64_t,
                                        int64_t, kt_aocl_group_size *);
void aocl_reorder_s8s8s32os32_sym_quant(char order, char trans, char which, const void *in,
                                        void *out, int64_t k, int64_t n, int64_t ld,
                                        kt_aocl_group_size *group) {
    (void)order, (void)which, (void)group;
    copy(trans, in, out, k, n, ld, 1);
}

#define INT_ARGUMENTS                                                                       \
    char order, char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, int32_t alpha, \
        const void *a, int64_t lda, char a_form, const void *b, int64_t ldb, char b_form,   \
        int32_t beta, void *c, int64_t ldc, const kt_aocl_steps *steps
#define FLOAT_ARGUMENTS                                                                   \
    char order, char trans_a, char trans_b, int64_t m, int64_t n, int64_t k, float alpha, \
        const void *a, int64_t lda, char a_form, const void *b, int64_t ldb, char b_form, \
        float beta, void *c, int64_t ldc, const kt_aocl_steps *steps
#define UNUSED \
    (void)order, (void)trans_a, (void)trans_b, (void)alpha, (void)a_form, (void)ldb, (void)b_form

void aocl_gemm_u8s8s32os32(INT_ARGUMENTS);
void aocl_gemm_u8s8s32os32(INT_ARGUMENTS) {
    UNUSED;
    (void)steps;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            int32_t *out = (int32_t *)c + i * ldc + j, sum = beta ? *out : 0;
            for (int64_t l = 0; l < k - WRONG; l++)
                sum += ((const uint8_t *)a)[i * lda + l] * ((const int8_t *)b)[l * n + j];
            *out = sum;
        }
}

#ifndef KT_FAKE_SHORT
void aocl_gemm_s8s8s32of32_sym_quant(INT_ARGUMENTS);
void aocl_gemm_s8s8s32of32_sym_quant(INT_ARGUMENTS) {
    const int64_t group = steps->groups->group, groups = k / group;
    UNUSED;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float *out = (float *)c + i * ldc + j, sum = beta ? *out : 0;
            for (int64_t g = 0; g < groups; g++) {
                int32_t dot = 0;
                for (int64_t l = group * g; l < group * (g + 1) - WRONG; l++)
                    dot += ((const int8_t *)a)[i * lda + l] * ((const int8_t *)b)[l * n + j];
                sum += (float)dot * ((const float *)steps->groups->a->values)[i * groups + g] *
                       ((const float *)steps->groups->b->values)[g * n + j];
            }
            *out = sum;
        }
}
#endif

void aocl_gemm_bf16bf16f32of32(FLOAT_ARGUMENTS);
void aocl_gemm_bf16bf16f32of32(FLOAT_ARGUMENTS) {
    UNUSED;
    (void)steps;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float *out = (float *)c + i * ldc + j, sum = 0;
            for (int64_t l = 0; l < k - WRONG; l++)
                sum += kt_bf16_to_f32(((const uint16_t *)a)[i * lda + l]) *
                       kt_bf16_to_f32(((const uint16_t *)b)[l * n + j]);
            *out = beta > 0 ? *out + sum : sum;
        }
}

void aocl_gemm_bf16s4f32of32(FLOAT_ARGUMENTS);
void aocl_gemm_bf16s4f32of32(FLOAT_ARGUMENTS) {
    const int64_t group = steps->expand->group;
    UNUSED;
    (void)beta;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < k - WRONG; l++) {
                int code = ((const uint8_t *)b)[(l * n + j) / 2] >> (j % 2 * 4) & 15;
                float scale = ((const float *)steps->expand->b->values)[l / group * n + j];
                code = code > 7 ? code - 16 : code;
                sum += kt_bf16_to_f32(((const uint16_t *)a)[i * lda + l]) *
                       kt_bf16_to_f32(kt_f32_to_bf16((float)code * scale));
            }
            ((float *)c)[i * ldc + j] = sum;
        }
}

/* Asked for and never called. */
#define PRESENT(name) \
    void name(void);  \
    void name(void) { \
    }
PRESENT(aocl_gemm_s8s8s32os32)
PRESENT(aocl_gemm_u8s8s32of32)
PRESENT(aocl_batch_gemm_s8s8s32os32)
PRESENT(aocl_batch_gemm_u8s8s32os32)
PRESENT(aocl_batch_gemm_bf16bf16f32of32)
PRESENT(aocl_batch_gemm_bf16s4f32of32)
