/* BF16 weights x BF16 activations with LIBXSMM's JIT-compiled small GEMM.
 *
 * A p64 panel [k/2][64][2] is LIBXSMM's VNNI layout of a column-major 64 x k matrix, and encoded rows
 * are a column-major k x rows matrix, so nothing is repacked; rows that are not evenly spaced are
 * gathered first. Kernels are compiled on first use of a (rows, k, stride).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _DEFAULT_SOURCE
#include <libxsmm.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/gemm/tile_libs.h"
#include "kernels/gemm/tile_plain.h"

static const int32_t blocks[] = {16, 32, 64};
static const kt_param params[] = {{"block", blocks, 3, 32}};

size_t kt_libxsmm_scratch_bytes(int block, int64_t k) {
    return (size_t)block * (256 + 2 * (size_t)k);
}

#if KT_LIBXSMM_API >= 2
int kt_libxsmm_multiply(const kt_libxsmm_matmul *call) {
    const libxsmm_gemm_shape shape =
        libxsmm_create_gemm_shape(call->columns, call->rows, (libxsmm_blasint)call->k, 64,
                                  (libxsmm_blasint)call->a_stride, (libxsmm_blasint)call->c_stride,
                                  call->as_bytes ? LIBXSMM_DATATYPE_I8 : LIBXSMM_DATATYPE_BF16,
                                  call->as_bytes ? LIBXSMM_DATATYPE_U8 : LIBXSMM_DATATYPE_BF16,
                                  call->as_bytes ? LIBXSMM_DATATYPE_I32 : LIBXSMM_DATATYPE_F32,
                                  call->as_bytes ? LIBXSMM_DATATYPE_I32 : LIBXSMM_DATATYPE_F32);
    const libxsmm_gemmfunction kernel = libxsmm_dispatch_gemm(
        shape, LIBXSMM_GEMM_FLAG_VNNI_A | LIBXSMM_GEMM_FLAG_BETA_0, LIBXSMM_GEMM_PREFETCH_NONE);
    libxsmm_gemm_param arguments;

    if (!kernel) return 0;
    memset(&arguments, 0, sizeof arguments);
    memcpy(&arguments.a.primary, &call->panel, sizeof call->panel); /* the interface has no const */
    memcpy(&arguments.b.primary, &call->a, sizeof call->a);
    arguments.c.primary = call->c;
    kernel(&arguments);
    return 1;
}
#else
int kt_libxsmm_multiply(const kt_libxsmm_matmul *call) {
    const libxsmm_blasint m = call->columns, n = call->rows, k = (libxsmm_blasint)call->k;
    const libxsmm_blasint lda = 64, ldb = (libxsmm_blasint)call->a_stride,
                          ldc = (libxsmm_blasint)call->c_stride;
    const float alpha = 1.0f, beta = 0.0f;
    const int i_alpha = 1, i_beta = 0, flags = LIBXSMM_GEMM_FLAG_VNNI_A | LIBXSMM_GEMM_FLAG_BETA_0;

    if (call->as_bytes) {
        const libxsmm_subimmfunction kernel =
            libxsmm_subimmdispatch(m, n, k, &lda, &ldb, &ldc, &i_alpha, &i_beta, &flags, NULL);
        if (kernel) kernel(call->panel, call->a, call->c);
        return kernel != NULL;
    }
    const libxsmm_bsmmfunction kernel =
        libxsmm_bsmmdispatch(m, n, k, &lda, &ldb, &ldc, &alpha, &beta, &flags, NULL);
    if (kernel) kernel(call->panel, call->a, call->c);
    return kernel != NULL;
}
#endif

void kt_libxsmm_tile(const kt_p64_tile *t) {
    const kt_lib_context *context = t->context;
    int64_t stride = kt_lib_even_stride(t, 2 * t->k);
    const void *rows = t->a[0];

    if (stride == 0) {
        uint16_t *gathered = context->scratch;
        if (t->new_rows)
            for (int i = 0; i < t->rows; i++)
                memcpy(gathered + i * t->k, t->a[i], 2 * (size_t)t->k);
        rows = gathered;
        stride = 2 * t->k;
    }
    const kt_libxsmm_matmul call = {.rows = t->rows,
                                    .columns = 64,
                                    .k = t->k,
                                    .a_stride = stride / 2,
                                    .c_stride = 64,
                                    .a = rows,
                                    .panel = t->panel,
                                    .c = t->tile};
    if (!kt_libxsmm_multiply(&call)) kt_tile_wbf16_plain(t);
}

void kt_libxsmm_start(void) {
    const bool is_set = getenv("OMP_PROC_BIND") != NULL;
    libxsmm_init();
    if (!is_set) unsetenv("OMP_PROC_BIND");
}

/* 64 x 5 x 64 against plain C. BF16 products are exact in f32 and 64 of them are added: both results
 * are within 64 * 2^-24 of the sum of magnitudes (each at most 16 here). */
kt_status kt_libxsmm_usable(kt_err *why) {
    static const int64_t k = 64;
    uint16_t panel[64 * 64], rows[5 * 64];
    float got[5 * 64] = {0}, want[5 * 64];
    kt_p64_tile t = {
        .panel = (const uint8_t *)panel, .k = k, .rows = 5, .new_rows = 1, .tile = want};
    const kt_libxsmm_matmul call = {.rows = 5,
                                    .columns = 64,
                                    .k = k,
                                    .a_stride = k,
                                    .c_stride = 64,
                                    .a = rows,
                                    .panel = panel,
                                    .c = got};

    kt_libxsmm_start();
    for (int i = 0; i < 64 * 64; i++) panel[i] = kt_f32_to_bf16((float)(i * 37 % 61 - 30) / 8.0f);
    for (int i = 0; i < 5 * 64; i++) rows[i] = kt_f32_to_bf16((float)(i * 53 % 47 - 23) / 8.0f);
    for (int i = 0; i < 5; i++) t.a[i] = rows + 64 * i;
    kt_tile_wbf16_plain(&t);
    if (!kt_libxsmm_multiply(&call))
        return kt_fail(why, KT_E_UNSUPPORTED, "LIBXSMM has no BF16 kernel for target %s",
                       libxsmm_get_target_arch());
    for (int i = 0; i < 5 * 64; i++) {
        const float difference = got[i] > want[i] ? got[i] - want[i] : want[i] - got[i];
        if (!(difference <= 64 * 64 * 16 * 0x1p-24f))
            return kt_fail(
                why, KT_E_MISMATCH,
                "LIBXSMM (target %s) failed its self-test: element %d is %g, expected %g",
                libxsmm_get_target_arch(), i, (double)got[i], (double)want[i]);
    }
    return KT_OK;
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return kt_libxsmm_scratch_bytes(config->value[0], problem->k);
}

static void gemm(const kt_gemm_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_gemm(call, kt_libxsmm_tile, &walk);
}

KT_VARIANT(wbf16_abf16_libxsmm__lib) = {
    .name = "wbf16_abf16_libxsmm__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_BF16_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = kt_libxsmm_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
