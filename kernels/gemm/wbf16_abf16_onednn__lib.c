/* BF16 weights x BF16 activations with oneDNN's matmul primitive.
 *
 * A p64 panel is oneDNN's BA16a64b2a layout of a k x 64 matrix (k a multiple of 32), so nothing is
 * repacked. A primitive is made per number of rows of a call; oneDNN keeps them in its own cache, but
 * even a hit costs microseconds, which is why this variant needs many rows to win.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/err.h"
#include "kernels/simd/tile_libs.h"
#include "kernels/simd/tile_plain.h"

/* oneDNN runs on OpenMP; a pool thread must not start a team of its own. The setting is per thread.
 * Declared here because omp.h does not come with every compiler. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int n);

enum { ENGINE, STREAM, FIRST_PRIMITIVE }; /* handle[]; then two primitives */

static const int32_t blocks[] = {32, 64};
static const kt_param params[] = {{"block", blocks, 2, 64}};

void kt_onednn_open(kt_lib_context *context) {
    dnnl_engine_t engine = NULL;
    dnnl_stream_t stream = NULL;

    context->threads = omp_get_max_threads();
    omp_set_num_threads(1);
    if (dnnl_engine_create(&engine, dnnl_cpu, 0) == dnnl_success)
        (void)dnnl_stream_create(&stream, engine, dnnl_stream_default_flags);
    context->handle[ENGINE] = engine;
    context->handle[STREAM] = stream;
}

void kt_onednn_close(kt_lib_context *context) {
    for (int i = 0; i < 2; i++)
        if (context->handle[FIRST_PRIMITIVE + i])
            (void)dnnl_primitive_destroy(context->handle[FIRST_PRIMITIVE + i]);
    if (context->handle[STREAM]) (void)dnnl_stream_destroy(context->handle[STREAM]);
    if (context->handle[ENGINE]) (void)dnnl_engine_destroy(context->handle[ENGINE]);
    omp_set_num_threads(context->threads);
}

static dnnl_status_t describe(int rows, int64_t k, dnnl_memory_desc_t md[3]) {
    const dnnl_dims_t a = {rows, k}, w = {k, 64}, c = {rows, 64};
    dnnl_status_t st = dnnl_memory_desc_init_by_tag(&md[0], 2, a, dnnl_bf16, dnnl_ab);
    if (st == dnnl_success)
        st = dnnl_memory_desc_init_by_tag(&md[1], 2, w, dnnl_bf16, dnnl_BA16a64b2a);
    if (st == dnnl_success) st = dnnl_memory_desc_init_by_tag(&md[2], 2, c, dnnl_f32, dnnl_ab);
    return st;
}

/* The primitive for this many rows: one of the two that the call has met (full and last block). */
static dnnl_primitive_t primitive_for(kt_lib_context *context, int rows,
                                      const dnnl_memory_desc_t md[3]) {
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_t primitive = NULL;
    dnnl_matmul_desc_t matmul;
    int i = context->handle[FIRST_PRIMITIVE] && context->rows[0] != rows;

    if (context->handle[FIRST_PRIMITIVE + i] && context->rows[i] == rows)
        return context->handle[FIRST_PRIMITIVE + i];
    if (dnnl_matmul_desc_init(&matmul, &md[0], &md[1], NULL, &md[2]) != dnnl_success) return NULL;
    if (dnnl_primitive_desc_create(&pd, &matmul, NULL, context->handle[ENGINE], NULL) !=
        dnnl_success)
        return NULL;
    if (dnnl_primitive_create(&primitive, pd) != dnnl_success) primitive = NULL;
    (void)dnnl_primitive_desc_destroy(pd);
    if (context->handle[FIRST_PRIMITIVE + i])
        (void)dnnl_primitive_destroy(context->handle[FIRST_PRIMITIVE + i]);
    context->handle[FIRST_PRIMITIVE + i] = primitive;
    context->rows[i] = rows;
    return primitive;
}

static dnnl_status_t multiply(kt_lib_context *context, const kt_p64_tile *t, void *gathered) {
    dnnl_memory_desc_t md[3];
    dnnl_memory_t memory[3] = {NULL, NULL, NULL};
    dnnl_primitive_t primitive;
    void *data[3];
    dnnl_exec_arg_t args[3];
    dnnl_status_t st;
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};

    if (!context->handle[STREAM]) return dnnl_runtime_error;
    st = describe(t->rows, t->k, md);
    if (st != dnnl_success) return st;
    primitive = primitive_for(context, t->rows, md);
    if (!primitive) return dnnl_unimplemented;
    data[0] = gathered;
    memcpy(&data[1], &t->panel, sizeof data[1]); /* the interface has no const */
    data[2] = t->tile;
    for (int i = 0; i < 3 && st == dnnl_success; i++) {
        st = dnnl_memory_create(&memory[i], &md[i], context->handle[ENGINE], data[i]);
        args[i].arg = names[i];
        args[i].memory = memory[i];
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(primitive, context->handle[STREAM], 3, args);
    if (st == dnnl_success) st = dnnl_stream_wait(context->handle[STREAM]);
    for (int i = 0; i < 3; i++)
        if (memory[i]) (void)dnnl_memory_destroy(memory[i]);
    return st;
}

void kt_onednn_tile(const kt_p64_tile *t) {
    kt_lib_context *context = t->context;
    uint16_t *gathered = context->scratch;

    if (t->new_rows)
        for (int i = 0; i < t->rows; i++) memcpy(gathered + i * t->k, t->a[i], 2 * (size_t)t->k);
    if (multiply(context, t, gathered) != dnnl_success) kt_tile_wbf16_plain(t);
}

/* 7 x 64 x 64 against plain C, bound as in the LIBXSMM variant. */
kt_status kt_onednn_usable(kt_err *why) {
    uint16_t panel[64 * 64] __attribute__((aligned(64))), rows[7 * 64] __attribute__((aligned(64)));
    float got[7 * 64] __attribute__((aligned(64))) = {0}, want[7 * 64];
    kt_lib_context context = {0};
    kt_p64_tile t = {.panel = (const uint8_t *)panel, .k = 64, .rows = 7, .tile = want};
    dnnl_status_t st;

    for (int i = 0; i < 64 * 64; i++) panel[i] = kt_f32_to_bf16((float)(i * 37 % 61 - 30) / 8.0f);
    for (int i = 0; i < 7 * 64; i++) rows[i] = kt_f32_to_bf16((float)(i * 53 % 47 - 23) / 8.0f);
    for (int i = 0; i < 7; i++) t.a[i] = rows + 64 * i;
    kt_tile_wbf16_plain(&t);
    t.tile = got;
    kt_onednn_open(&context);
    st = multiply(&context, &t, rows);
    kt_onednn_close(&context);
    if (st != dnnl_success)
        return kt_fail(why, KT_E_UNSUPPORTED, "oneDNN refused a BF16 matmul (status %d)", (int)st);
    for (int i = 0; i < 7 * 64; i++) {
        const float difference = got[i] > want[i] ? got[i] - want[i] : want[i] - got[i];
        if (!(difference <= 64 * 64 * 16 * 0x1p-24f))
            return kt_fail(why, KT_E_MISMATCH,
                           "oneDNN failed its self-test: element %d is %g, expected %g", i,
                           (double)got[i], (double)want[i]);
    }
    return KT_OK;
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return (size_t)config->value[0] * (256 + 2 * (size_t)problem->k);
}

static void gemm(const kt_gemm_call *call) {
    const int block = call->config->value[0];
    float *tile = call->scratch;
    kt_lib_context context = {.scratch = tile + 64 * block};
    const kt_walk walk = {.block = block, .rows_outermost = 1, .tile = tile, .context = &context};
    kt_onednn_open(&context);
    kt_p64_gemm(call, kt_onednn_tile, &walk);
    kt_onednn_close(&context);
}

KT_VARIANT(wbf16_abf16_onednn__lib) = {
    .name = "wbf16_abf16_onednn__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_BF16_F32,
    .version = 1,
    .layout = "p64",
    .params = params,
    .n_params = 1,
    .usable = kt_onednn_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
