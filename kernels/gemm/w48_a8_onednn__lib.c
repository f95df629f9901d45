/* INT8 and INT4 weights x INT8 activations with oneDNN's matmul, 32 inputs deep.
 *
 * Activations have a scale per group of 32 inputs, which the library's integer product knows nothing of; so the
 * groups are the batch of a batched product, [groups][rows][32] times [groups][32][64] into int32, and the
 * scales are applied here: the numbers are those of our own kernels. Each panel of 64 outputs is a matrix of
 * its own (kernels/gemm/signed_groups.h); INT4 codes are stored as bytes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/aocl.h"
#include "kernels/gemm/signed_groups.h"
#include "kernels/gemm/tile_libs.h"

/* Groups of one call: their sums, 4 KiB a row, are to stay in L2. */
enum { GROUP = KT_SIGNED_GROUP, AT_ONCE = 16 };

static const int32_t blocks[] = {16, 64};
static const kt_param params[] = {{"block", blocks, 2, 64}};

static size_t panel_bytes(int64_t k) {
    return 64 * (size_t)k + (size_t)k / GROUP * 64 * sizeof(float);
}

static size_t packed_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * panel_bytes(q->k);
}

static void pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    for (int64_t p = 0; p < kt_p64_panels(q->n); p++) {
        char *panel = (char *)dst + (size_t)p * panel_bytes(q->k);
        kt_signed_panel(w, 64 * p, (int8_t *)panel, (float *)(void *)(panel + 64 * q->k));
    }
}

/* A tile of sums, and the integer sums of the groups of a call. */
static size_t workspace_bytes(const kt_problem *q, const kt_config *config) {
    (void)q;
    return (size_t)config->value[0] * 64 * (sizeof(float) + AT_ONCE * sizeof(int32_t));
}

/* What a call does when the library has given up, for want of memory: slow, but right. */
static void multiply_plain(const kt_onednn_matmul *x) {
    for (int64_t i = 0; i < x->batch * x->rows * 64; i++) {
        const int64_t g = i / 64 / x->rows, row = i / 64 % x->rows;
        const int8_t *a = (const int8_t *)x->a + row * x->a_stride + g * GROUP;
        const int8_t *w = (const int8_t *)x->panels + g * GROUP * 64 + i % 64;
        int32_t sum = 0;
        for (int l = 0; l < GROUP; l++) sum += a[l] * w[64 * l];
        ((int32_t *)x->c)[i] = sum;
    }
}

static void add_groups(const kt_gemm_call *call, int64_t row, int64_t rows, int64_t first,
                       int64_t groups, const float *scales, const int32_t *dots, float *tile) {
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < rows; i++) {
            const char *a = (const char *)call->a + (size_t)(row + i) * call->a_stride;
            const float a_scale = kt_a8_scales(a, call->problem->k)[first + g];
            const int32_t *dot = dots + (g * rows + i) * 64;
            float *sum = tile + 64 * i;
            for (int r = 0; r < 64; r++)
                sum[r] += (float)dot[r] * (scales[(first + g) * 64 + r] * a_scale);
        }
}

static void multiply(const kt_gemm_call *call, kt_lib_context *context, int64_t row, int64_t rows,
                     int64_t p) {
    const kt_problem *q = call->problem;
    const int64_t groups = q->k / GROUP;
    const char *panel = (const char *)call->weights + (size_t)p * panel_bytes(q->k);
    float *tile = call->scratch;
    int32_t *dots = (int32_t *)(void *)(tile + 64 * call->config->value[0]);

    memset(tile, 0, sizeof(float) * 64 * (size_t)rows);
    for (int64_t g = 0; g < groups; g += AT_ONCE) {
        const kt_onednn_matmul product = {.batch = groups - g < AT_ONCE ? groups - g : AT_ONCE,
                                          .rows = rows,
                                          .columns = 64,
                                          .k = GROUP,
                                          .a_stride = (int64_t)call->a_stride,
                                          .c_stride = 64,
                                          .a = (const char *)call->a +
                                               (size_t)row * call->a_stride + g * GROUP,
                                          .panels = panel + g * GROUP * 64,
                                          .c = dots};
        if (kt_onednn_multiply(context, &product) != 0) multiply_plain(&product);
        add_groups(call, row, rows, g, product.batch,
                   (const float *)(const void *)(panel + 64 * q->k), dots, tile);
    }
    kt_signed_store(call, row, rows, p, tile);
}

static void gemm(const kt_gemm_call *call) {
    const int64_t block = call->config->value[0];
    kt_lib_context context = {0};

    kt_onednn_open(&context);
    for (int64_t row = 0; row < call->m; row += block)
        for (int64_t p = call->panel_begin; p < call->panel_end; p++)
            multiply(call, &context, row, call->m - row < block ? call->m - row : block, p);
    kt_onednn_close(&context);
}

static kt_status usable(kt_err *why);

KT_VARIANT(w48_a8_onednn__lib) = {
    .name = "w48_a8_onednn__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "s8g32",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = usable,
    .accepts = kt_signed_accepts,
    .packed_bytes = packed_bytes,
    .pack_gemm = pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};

static kt_status usable(kt_err *why) {
    const kt_variant *v = &kt_variant_w48_a8_onednn__lib;
    KT_TRY(kt_lib_self_test("oneDNN INT8", v, KT_W_INT8_CHANNEL, KT_A_INT8_G32, why));
    return kt_lib_self_test("oneDNN INT8", v, KT_W_INT4_G32, KT_A_INT8_G32, why);
}
