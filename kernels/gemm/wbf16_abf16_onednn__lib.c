/* BF16 weights x BF16 activations with oneDNN's matmul primitive, 2.x and 3.x interface.
 *
 * p64 panels are oneDNN's BA16a64b2a layout of a k x n matrix (k a multiple of 32), so nothing is
 * repacked. Rows of the output must lie side by side, or oneDNN 2.6 falls back to its plain loops, so
 * a block of rows times a panel goes to a tile. A primitive is made per number of rows of a call; oneDNN
 * keeps them in its own cache, but even a hit costs microseconds, which is why this variant needs many
 * rows to win.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/err.h"
#include "kernels/gemm/tile_libs.h"
#include "kernels/gemm/tile_plain.h"

/* oneDNN runs on OpenMP; a pool thread must not start a team of its own. The setting is per thread.
 * Declared here because omp.h does not come with every compiler. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int n);

static const int32_t blocks[] = {32, 64};
static const kt_param params[] = {{"block", blocks, 2, 64}};

enum { ENGINE, STREAM, FIRST_PRIMITIVE }; /* handle[]; then two primitives */

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

/* Descriptors are objects since 3.0, values before. */
#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t descriptor;

static dnnl_status_t describe_rows(descriptor *md, int64_t rows, int64_t columns, int64_t stride,
                                   dnnl_data_type_t type) {
    const dnnl_dims_t dims = {rows, columns}, strides = {stride, 1};
    return dnnl_memory_desc_create_with_strides(md, 2, dims, type, strides);
}

static dnnl_status_t describe_batch(descriptor *md, const dnnl_dims_t dims,
                                    const dnnl_dims_t strides, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_strides(md, 3, dims, type, strides);
}

static dnnl_status_t describe_panels(descriptor *md, int64_t k, int64_t columns,
                                     dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {k, columns};
    return dnnl_memory_desc_create_with_tag(md, 2, dims, type, tag);
}

static void forget(descriptor *md) {
    if (*md) (void)dnnl_memory_desc_destroy(*md);
}

static const_dnnl_memory_desc_t view(const descriptor *md) {
    return *md;
}

static dnnl_status_t prepare(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                             const descriptor md[3]) {
    return dnnl_matmul_primitive_desc_create(pd, engine, md[0], md[1], NULL, md[2], NULL);
}
#else
typedef dnnl_memory_desc_t descriptor;

static dnnl_status_t describe_rows(descriptor *md, int64_t rows, int64_t columns, int64_t stride,
                                   dnnl_data_type_t type) {
    const dnnl_dims_t dims = {rows, columns}, strides = {stride, 1};
    return dnnl_memory_desc_init_by_strides(md, 2, dims, type, strides);
}

static dnnl_status_t describe_batch(descriptor *md, const dnnl_dims_t dims,
                                    const dnnl_dims_t strides, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_strides(md, 3, dims, type, strides);
}

static dnnl_status_t describe_panels(descriptor *md, int64_t k, int64_t columns,
                                     dnnl_data_type_t type, dnnl_format_tag_t tag) {
    const dnnl_dims_t dims = {k, columns};
    return dnnl_memory_desc_init_by_tag(md, 2, dims, type, tag);
}

static void forget(descriptor *md) {
    (void)md;
}

static const dnnl_memory_desc_t *view(const descriptor *md) {
    return md;
}

static dnnl_status_t prepare(dnnl_primitive_desc_t *pd, dnnl_engine_t engine,
                             const descriptor md[3]) {
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t st = dnnl_matmul_desc_init(&matmul, &md[0], &md[1], NULL, &md[2]);
    return st == dnnl_success ? dnnl_primitive_desc_create(pd, &matmul, NULL, engine, NULL) : st;
}
#endif

static dnnl_status_t describe_batches(const kt_onednn_matmul *x, descriptor md[3]) {
    const dnnl_dims_t dims[3] = {
        {x->batch, x->rows, x->k}, {x->batch, x->k, x->columns}, {x->batch, x->rows, x->columns}};
    const dnnl_dims_t strides[3] = {{x->k, x->a_stride, 1},
                                    {x->k * x->columns, x->columns, 1},
                                    {x->rows * x->c_stride, x->c_stride, 1}};
    dnnl_status_t st = dnnl_success;

    for (int i = 0; i < 3 && st == dnnl_success; i++)
        st = describe_batch(&md[i], dims[i], strides[i], i == 2 ? dnnl_s32 : dnnl_s8);
    return st;
}

static dnnl_status_t describe(const kt_onednn_matmul *call, descriptor md[3]) {
    const dnnl_data_type_t a = call->as_bytes ? dnnl_u8 : dnnl_bf16;
    const dnnl_data_type_t w = call->as_bytes ? dnnl_s8 : dnnl_bf16;
    const dnnl_data_type_t c = call->as_bytes ? dnnl_s32 : dnnl_f32;
    const dnnl_format_tag_t tag = call->as_bytes ? dnnl_BA16a64b4a : dnnl_BA16a64b2a;
    dnnl_status_t st = describe_rows(&md[0], call->rows, call->k, call->a_stride, a);
    if (st == dnnl_success) st = describe_panels(&md[1], call->k, call->columns, w, tag);
    if (st == dnnl_success)
        st = describe_rows(&md[2], call->rows, call->columns, call->c_stride, c);
    return st;
}

int kt_onednn_is_plain(const void *primitive_desc) {
    const char *name = NULL;
    const_dnnl_primitive_desc_t pd = primitive_desc;

    if (dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name) != dnnl_success) return 1;
    return !name || strncmp(name, "ref", 3) == 0;
}

static dnnl_status_t make(const kt_lib_context *context, const descriptor md[3],
                          dnnl_primitive_t *out) {
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t st = prepare(&pd, context->handle[ENGINE], md);

    *out = NULL;
    if (st == dnnl_success && kt_onednn_is_plain(pd)) st = dnnl_unimplemented;
    if (st == dnnl_success) st = dnnl_primitive_create(out, pd);
    if (pd) (void)dnnl_primitive_desc_destroy(pd);
    return st;
}

/* The primitive for this many rows and batches: one of the two that a walk meets most (full and last block).
 * Nothing else of the shape changes while a context is open. */
static dnnl_status_t primitive_for(kt_lib_context *context, const kt_onednn_matmul *call,
                                   const descriptor md[3], dnnl_primitive_t *out) {
    const int64_t shape = call->rows + (call->batch << 32);
    int i = context->handle[FIRST_PRIMITIVE] && context->shape[0] != shape;
    void **slot = &context->handle[FIRST_PRIMITIVE + i];
    dnnl_status_t st = dnnl_success;

    *out = *slot;
    if (*slot && context->shape[i] == shape) return dnnl_success;
    if (*slot) (void)dnnl_primitive_destroy(*slot);
    st = make(context, md, out);
    *slot = *out;
    context->shape[i] = shape;
    return st;
}

int kt_onednn_multiply(kt_lib_context *context, const kt_onednn_matmul *call) {
    static const int names[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
    descriptor md[3];
    dnnl_memory_t memory[3] = {NULL, NULL, NULL};
    dnnl_primitive_t primitive = NULL;
    dnnl_exec_arg_t args[3];
    dnnl_status_t st;
    void *data[3];

    memset(md, 0, sizeof md);
    if (!context->handle[STREAM]) return dnnl_runtime_error;
    st = call->batch ? describe_batches(call, md) : describe(call, md);
    if (st == dnnl_success) st = primitive_for(context, call, md, &primitive);
    memcpy(&data[0], &call->a, sizeof data[0]); /* the interface has no const */
    memcpy(&data[1], &call->panels, sizeof data[1]);
    data[2] = call->c;
    for (int i = 0; i < 3 && st == dnnl_success; i++) {
        st = dnnl_memory_create(&memory[i], view(&md[i]), context->handle[ENGINE], data[i]);
        args[i].arg = names[i];
        args[i].memory = memory[i];
    }
    if (st == dnnl_success)
        st = dnnl_primitive_execute(primitive, context->handle[STREAM], 3, args);
    if (st == dnnl_success) st = dnnl_stream_wait(context->handle[STREAM]);
    for (int i = 0; i < 3; i++) {
        if (memory[i]) (void)dnnl_memory_destroy(memory[i]);
        forget(&md[i]);
    }
    return (int)st;
}

/* A row alone goes twice: for a single one 3.x cuts k where it does not for more, and a row's bits would depend
 * on the rows beside it. A block, its scratch and its tile have room for 32. */
void kt_onednn_tile(const kt_p64_tile *t) {
    kt_lib_context *context = t->context;
    uint16_t *gathered = context->scratch;
    const int rows = t->rows > 1 ? t->rows : 2;
    const kt_onednn_matmul call = {.rows = rows,
                                   .columns = 64,
                                   .k = t->k,
                                   .a_stride = t->k,
                                   .c_stride = 64,
                                   .a = gathered,
                                   .panels = t->panel,
                                   .c = t->tile};

    if (t->new_rows)
        for (int i = 0; i < rows; i++)
            memcpy(gathered + i * t->k, t->a[i < t->rows ? i : 0], 2 * (size_t)t->k);
    if (kt_onednn_multiply(context, &call) != 0) kt_tile_wbf16_plain(t);
}

/* 7 x 64 x 64 against plain C, bound as in the LIBXSMM variant. */
kt_status kt_onednn_usable(kt_err *why) {
    uint16_t panel[64 * 64] __attribute__((aligned(64))), rows[7 * 64] __attribute__((aligned(64)));
    float got[7 * 64] __attribute__((aligned(64))) = {0}, want[7 * 64];
    kt_lib_context context = {0};
    kt_p64_tile t = {.panel = (const uint8_t *)panel, .k = 64, .rows = 7, .tile = want};
    const kt_onednn_matmul call = {.rows = 7,
                                   .columns = 64,
                                   .k = 64,
                                   .a_stride = 64,
                                   .c_stride = 64,
                                   .a = rows,
                                   .panels = panel,
                                   .c = got};
    int st;

    for (int i = 0; i < 64 * 64; i++) panel[i] = kt_f32_to_bf16((float)(i * 37 % 61 - 30) / 8.0f);
    for (int i = 0; i < 7 * 64; i++) rows[i] = kt_f32_to_bf16((float)(i * 53 % 47 - 23) / 8.0f);
    for (int i = 0; i < 7; i++) t.a[i] = rows + 64 * i;
    kt_tile_wbf16_plain(&t);
    kt_onednn_open(&context);
    st = kt_onednn_multiply(&context, &call);
    kt_onednn_close(&context);
    if (st != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "oneDNN refused a BF16 matmul (status %d)", st);
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
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
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
    .bits = KT_BITS_UNSTABLE,
    .version = 2,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = kt_onednn_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
