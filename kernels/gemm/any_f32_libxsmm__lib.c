/* BF16, INT8 and INT4 weights with LIBXSMM's f32 GEMM, on panels and rows expanded to f32.
 *
 * The expansion is exact up to one f32 rounding per weight (code * scale) and per activation, as in the
 * BLIS variant. A panel [k][64] is a column-major 64 x k matrix and rows are a column-major k x rows
 * matrix.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <libxsmm.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "kernels/gemm/tile_libs.h"
#include "kernels/gemm/tile_plain.h"

static const int32_t blocks[] = {16, 64};
static const kt_param params[] = {{"block", blocks, 2, 64}};

/* out [rows][64] = panel . rows; false when the library has no such kernel. */
static bool multiply(const float *panel, const float *rows, int n_rows, int64_t k, float *out) {
    const libxsmm_blasint lda = 64, ldb = (libxsmm_blasint)k, ldc = 64;
#if KT_LIBXSMM_API >= 2
    const libxsmm_gemm_shape shape =
        libxsmm_create_gemm_shape(64, n_rows, ldb, lda, ldb, ldc, LIBXSMM_DATATYPE_F32,
                                  LIBXSMM_DATATYPE_F32, LIBXSMM_DATATYPE_F32, LIBXSMM_DATATYPE_F32);
    const libxsmm_gemmfunction kernel =
        libxsmm_dispatch_gemm(shape, LIBXSMM_GEMM_FLAG_BETA_0, LIBXSMM_GEMM_PREFETCH_NONE);
    libxsmm_gemm_param call;

    if (!kernel) return false;
    memset(&call, 0, sizeof call);
    memcpy(&call.a.primary, &panel, sizeof panel); /* the interface has no const */
    memcpy(&call.b.primary, &rows, sizeof rows);
    call.c.primary = out;
    kernel(&call);
#else
    const float alpha = 1.0f, beta = 0.0f;
    const int flags = LIBXSMM_GEMM_FLAG_BETA_0;
    const libxsmm_smmfunction kernel =
        libxsmm_smmdispatch(64, n_rows, ldb, &lda, &ldb, &ldc, &alpha, &beta, &flags, NULL);

    if (!kernel) return false;
    kernel(panel, rows, out);
#endif
    return true;
}

static void multiply_plain(const float *panel, const float *rows, int n_rows, int64_t k,
                           float *out) {
    memset(out, 0, sizeof(float) * 64 * (size_t)n_rows);
    for (int i = 0; i < n_rows; i++)
        for (int64_t l = 0; l < k; l++)
            for (int r = 0; r < 64; r++) out[64 * i + r] += panel[64 * l + r] * rows[i * k + l];
}

static size_t scratch_bytes(int block, int64_t k) {
    return ((size_t)block * (64 + (size_t)k) + 64 * (size_t)k) * sizeof(float);
}

static void tile(const kt_p64_tile *t) {
    const kt_lib_context *context = t->context;
    float *panel = context->scratch, *rows = panel + 64 * t->k;

    if (t->new_rows)
        for (int i = 0; i < t->rows; i++) kt_row_expand(t->weights, t->a[i], t->k, rows + i * t->k);
    kt_panel_expand(t->weights, t->panel, t->k, panel);
    if (!multiply(panel, rows, t->rows, t->k, t->tile))
        multiply_plain(panel, rows, t->rows, t->k, t->tile);
}

/* Small integers: every product and sum is exact in f32, so the result must be exact. */
static kt_status usable(kt_err *why) {
    enum { K = 64, ROWS = 5 };
    float panel[64 * K], rows[ROWS * K], got[ROWS * 64] = {0}, want[ROWS * 64];

    kt_libxsmm_start();
    for (int i = 0; i < 64 * K; i++) panel[i] = (float)(i * 11 % 13 - 6);
    for (int i = 0; i < ROWS * K; i++) rows[i] = (float)(i * 7 % 15 - 7);
    multiply_plain(panel, rows, ROWS, K, want);
    if (!multiply(panel, rows, ROWS, K, got))
        return kt_fail(why, KT_E_UNSUPPORTED, "LIBXSMM has no f32 kernel for target %s",
                       libxsmm_get_target_arch());
    for (int i = 0; i < ROWS * 64; i++)
        if (got[i] != want[i])
            return kt_fail(
                why, KT_E_MISMATCH,
                "LIBXSMM (target %s) failed its f32 self-test: element %d is %g, expected %g",
                libxsmm_get_target_arch(), i, (double)got[i], (double)want[i]);
    return KT_OK;
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return scratch_bytes(config->value[0], problem->k);
}

static void gemm(const kt_gemm_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_gemm(call, tile, &walk);
}

KT_VARIANT(any_f32_libxsmm__lib) = {
    .name = "any_f32_libxsmm__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
