/* INT8 and INT4 weights x INT8 activations with LIBXSMM's JIT-compiled small GEMM.
 *
 * A group of 32 inputs of a w8c panel, [8][64][4] unsigned bytes, is LIBXSMM's VNNI layout of a
 * column-major 64 x 32 matrix; a group of w4g32 is unpacked to it. Activations have a scale per group,
 * so the library multiplies 32 deep into int32 and the scales are applied here between its calls: the
 * numbers are those of our own kernels, at the price of a pass over the sums per group.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <libxsmm.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "kernels/gemm/tile_libs.h"
#include "kernels/gemm/tile_plain.h"

enum { GROUP = 32, GROUP_BYTES = 64 * GROUP };

static const int32_t blocks[] = {16, 32, 64};
static const kt_param params[] = {{"block", blocks, 3, 64}};

size_t kt_libxsmm_int8_scratch_bytes(int block, int64_t k) {
    return (size_t)block * (256 + (size_t)k) + GROUP_BYTES;
}

/* out [rows][64] = codes . rows over one group; false when the library has no such kernel. */
#if KT_LIBXSMM_API >= 2
typedef libxsmm_gemmfunction int8_kernel;

static int8_kernel kernel_for(int rows, int64_t stride) {
    const libxsmm_gemm_shape shape = libxsmm_create_gemm_shape(
        64, rows, GROUP, 64, (libxsmm_blasint)stride, 64, LIBXSMM_DATATYPE_U8, LIBXSMM_DATATYPE_I8,
        LIBXSMM_DATATYPE_I32, LIBXSMM_DATATYPE_I32);
    return libxsmm_dispatch_gemm(shape, LIBXSMM_GEMM_FLAG_VNNI_A | LIBXSMM_GEMM_FLAG_BETA_0,
                                 LIBXSMM_GEMM_PREFETCH_NONE);
}

static void multiply(int8_kernel kernel, const void *codes, const void *rows, int32_t *out) {
    libxsmm_gemm_param call;
    memset(&call, 0, sizeof call);
    memcpy(&call.a.primary, &codes, sizeof codes); /* the interface has no const */
    memcpy(&call.b.primary, &rows, sizeof rows);
    call.c.primary = out;
    kernel(&call);
}
#else
typedef libxsmm_usbimmfunction int8_kernel;

static int8_kernel kernel_for(int rows, int64_t stride) {
    const libxsmm_blasint lda = 64, ldb = (libxsmm_blasint)stride, ldc = 64;
    const int alpha = 1, beta = 0;
    const int flags =
        LIBXSMM_GEMM_FLAG_VNNI_A | LIBXSMM_GEMM_FLAG_BETA_0 | LIBXSMM_GEMM_FLAG_A_UNSIGNED;
    return libxsmm_usbimmdispatch(64, rows, GROUP, &lda, &ldb, &ldc, &alpha, &beta, &flags, NULL);
}

static void multiply(int8_kernel kernel, const void *codes, const void *rows, int32_t *out) {
    kernel(codes, rows, out);
}
#endif

/* What a call does when the JIT compiler has given up, for want of memory: slow, but right. */
static void multiply_plain(const uint8_t *codes, const int8_t *rows, int n_rows, int64_t stride,
                           int32_t *out) {
    for (int i = 0; i < n_rows; i++)
        for (int r = 0; r < 64; r++) {
            int32_t sum = 0;
            for (int l = 0; l < GROUP; l++)
                sum += codes[l / 4 * 256 + 4 * r + l % 4] * rows[i * stride + l];
            out[64 * i + r] = sum;
        }
}

void kt_libxsmm_int8_tile(const kt_p64_tile *t) {
    const kt_lib_context *context = t->context;
    int32_t *dots = context->scratch;
    uint8_t *unpacked = (uint8_t *)(dots + 64 * t->rows);
    int64_t stride = kt_lib_even_stride(t, t->k);
    const int8_t *rows = t->a[0];
    int8_kernel kernel;

    if (stride == 0) {
        int8_t *gathered = (int8_t *)unpacked + GROUP_BYTES;
        if (t->new_rows)
            for (int i = 0; i < t->rows; i++) memcpy(gathered + i * t->k, t->a[i], (size_t)t->k);
        rows = gathered;
        stride = t->k;
    }
    kernel = kernel_for(t->rows, stride);
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t g = 0; g < t->k / GROUP; g++) {
        const uint8_t *codes = kt_panel_group(t, g, unpacked);
        if (kernel)
            multiply(kernel, codes, rows + GROUP * g, dots);
        else
            multiply_plain(codes, rows + GROUP * g, t->rows, stride, dots);
        for (int i = 0; i < t->rows; i++) kt_tile_add_group(t, i, g, dots + 64 * i);
    }
    kt_tile_close_groups(t);
}

/* 64 x 5 x 32 with the extreme codes and activations: integers, so exact. */
kt_status kt_libxsmm_int8_usable(kt_err *why) {
    uint8_t codes[GROUP_BYTES];
    int8_t rows[5 * GROUP];
    int32_t got[5 * 64] = {0}, want[5 * 64];
    int8_kernel kernel;

    kt_libxsmm_start();
    for (int i = 0; i < GROUP_BYTES; i++) codes[i] = (uint8_t)(i % 9 ? i * 37 : 255);
    for (int i = 0; i < 5 * GROUP; i++) rows[i] = (int8_t)(i % 7 ? i * 53 % 255 - 127 : -127);
    multiply_plain(codes, rows, 5, GROUP, want);
    kernel = kernel_for(5, GROUP);
    if (!kernel)
        return kt_fail(why, KT_E_UNSUPPORTED, "LIBXSMM has no INT8 kernel for target %s",
                       libxsmm_get_target_arch());
    multiply(kernel, codes, rows, got);
    for (int i = 0; i < 5 * 64; i++)
        if (got[i] != want[i])
            return kt_fail(
                why, KT_E_MISMATCH,
                "LIBXSMM (target %s) failed its INT8 self-test: element %d is %d, expected %d",
                libxsmm_get_target_arch(), i, (int)got[i], (int)want[i]);
    return KT_OK;
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return (size_t)config->value[0] * 256 +
           kt_libxsmm_int8_scratch_bytes(config->value[0], problem->k);
}

static void gemm(const kt_gemm_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_gemm(call, kt_libxsmm_int8_tile, &walk);
}

KT_VARIANT(w48_a8_libxsmm__lib) = {
    .name = "w48_a8_libxsmm__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = kt_libxsmm_int8_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
