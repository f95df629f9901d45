/* INT8 and INT4 weights with oneDNN's weight decompression: rows expanded to BF16, codes expanded by the
 * library, which also applies the scales. Since oneDNN 3.5; older versions are refused.
 *
 * Rows are rounded to BF16 and the products are those of BF16 arithmetic. Each panel of 64 outputs is a matrix
 * of its own, in plain order, so that no layout of the library is laid down in ours:
 *
 *   w8c    int8 [k][64]             float scale[64]
 *   w4g32  nibbles [k][32], low first, two's complement    float scale[k/32][64]
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <oneapi/dnnl/dnnl.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/aocl.h"
#include "kernels/gemm/signed_groups.h"
#include "kernels/gemm/tile_libs.h"

enum { GROUP = KT_SIGNED_GROUP };

static const int32_t blocks[] = {64, 256};
static const kt_param params[] = {{"block", blocks, 2, 64}};

static size_t code_bytes(const kt_problem *q) {
    return (q->weights == KT_W_INT8_CHANNEL ? 64 : 32) * (size_t)q->k;
}

static size_t panel_bytes(const kt_problem *q) {
    const size_t groups = q->weights == KT_W_INT8_CHANNEL ? 1 : (size_t)q->k / GROUP;
    return code_bytes(q) + groups * 64 * sizeof(float);
}

static size_t packed_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * panel_bytes(q);
}

static void pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    const int64_t groups = q->weights == KT_W_INT8_CHANNEL ? 1 : q->k / GROUP;

    memset(dst, 0, packed_bytes(q));
    for (int64_t row = 0; row < w->n; row++) {
        char *panel = (char *)dst + (size_t)(row / 64) * panel_bytes(q);
        float *scales = (float *)(void *)(panel + code_bytes(q));
        for (int64_t l = 0; l < w->k; l++) {
            const int code = kt_signed_code(w, row, l);
            const int64_t at = 64 * l + row % 64;
            if (q->weights == KT_W_INT8_CHANNEL)
                panel[at] = (char)code;
            else
                panel[at / 2] |= (char)((code & 15) << (at % 2 * 4));
        }
        for (int64_t g = 0; g < groups; g++) scales[64 * g + row % 64] = kt_signed_scale(w, row, g);
    }
}

/* A tile of sums and the rows as BF16. */
static size_t workspace_bytes(const kt_problem *q, const kt_config *config) {
    return (size_t)config->value[0] * ((size_t)q->k * sizeof(uint16_t) + 64 * sizeof(float));
}

#if DNNL_VERSION_MAJOR > 3 || (DNNL_VERSION_MAJOR == 3 && DNNL_VERSION_MINOR >= 5)

/* What a call multiplies: a[rows][k] * panel into c[rows][64]. */
typedef struct product {
    const kt_problem *problem;
    int64_t rows;
    const void *a, *panel;
    void *c;
} product;

enum { SOURCE, WEIGHTS, SUMS, SCALES, N_MEMORIES };

static dnnl_status_t describe(const product *x, dnnl_memory_desc_t md[N_MEMORIES]) {
    const int64_t k = x->problem->k;
    const bool is_int8 = x->problem->weights == KT_W_INT8_CHANNEL;
    const dnnl_dims_t dims[N_MEMORIES] = {
        {x->rows, k}, {k, 64}, {x->rows, 64}, {is_int8 ? 1 : k / GROUP, 64}};
    const dnnl_data_type_t types[N_MEMORIES] = {dnnl_bf16, is_int8 ? dnnl_s8 : dnnl_s4, dnnl_f32,
                                                dnnl_f32};
    dnnl_status_t st = dnnl_success;

    for (int i = 0; i < N_MEMORIES && st == dnnl_success; i++)
        st = dnnl_memory_desc_create_with_tag(&md[i], 2, dims[i], types[i], dnnl_ab);
    return st;
}

static dnnl_status_t make(const product *x, dnnl_engine_t engine, dnnl_memory_desc_t md[N_MEMORIES],
                          dnnl_primitive_t *out) {
    const bool is_int8 = x->problem->weights == KT_W_INT8_CHANNEL;
    const dnnl_dims_t group = {GROUP, 1};
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t pd = NULL;
    dnnl_status_t st = dnnl_primitive_attr_create(&attr);

    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_fpmath_mode_v2(attr, dnnl_fpmath_mode_bf16, 1);
    if (st == dnnl_success)
        st = dnnl_primitive_attr_set_scales(attr, DNNL_ARG_WEIGHTS, is_int8 ? 2 : 3,
                                            is_int8 ? 0 : 2, is_int8 ? NULL : group, dnnl_f32);
    if (st == dnnl_success)
        st = dnnl_matmul_primitive_desc_create(&pd, engine, md[SOURCE], md[WEIGHTS], NULL, md[SUMS],
                                               attr);
    if (st == dnnl_success && kt_onednn_is_plain(pd)) st = dnnl_unimplemented;
    if (st == dnnl_success) st = dnnl_primitive_create(out, pd);
    if (pd) (void)dnnl_primitive_desc_destroy(pd);
    if (attr) (void)dnnl_primitive_attr_destroy(attr);
    return st;
}

/* The library keeps primitives in a cache of its own. */
static dnnl_status_t multiply(kt_lib_context *context, const product *x) {
    static const int names[N_MEMORIES] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST,
                                          DNNL_ARG_ATTR_SCALES | DNNL_ARG_WEIGHTS};
    const char *scales = (const char *)x->panel + code_bytes(x->problem);
    dnnl_engine_t engine = context->handle[0]; /* as kt_onednn_open leaves them */
    dnnl_stream_t stream = context->handle[1];
    dnnl_memory_desc_t md[N_MEMORIES] = {NULL};
    dnnl_memory_t memory[N_MEMORIES] = {NULL};
    dnnl_exec_arg_t args[N_MEMORIES];
    dnnl_primitive_t primitive = NULL;
    dnnl_status_t st = stream ? describe(x, md) : dnnl_runtime_error;
    void *data[N_MEMORIES] = {NULL, NULL, x->c, NULL};

    memcpy(&data[SOURCE], &x->a, sizeof x->a); /* the interface has no const */
    memcpy(&data[WEIGHTS], &x->panel, sizeof x->panel);
    memcpy(&data[SCALES], &scales, sizeof scales);
    if (st == dnnl_success) st = make(x, engine, md, &primitive);
    for (int i = 0; i < N_MEMORIES && st == dnnl_success; i++) {
        st = dnnl_memory_create(&memory[i], md[i], engine, data[i]);
        args[i] = (dnnl_exec_arg_t){names[i], memory[i]};
    }
    if (st == dnnl_success) st = dnnl_primitive_execute(primitive, stream, N_MEMORIES, args);
    if (st == dnnl_success) st = dnnl_stream_wait(stream);
    for (int i = 0; i < N_MEMORIES; i++) {
        if (memory[i]) (void)dnnl_memory_destroy(memory[i]);
        if (md[i]) (void)dnnl_memory_desc_destroy(md[i]);
    }
    if (primitive) (void)dnnl_primitive_destroy(primitive);
    return st;
}

static void expand(const void *row, int64_t k, uint16_t *out) {
    for (int64_t l = 0; l < k; l++)
        out[l] = kt_f32_to_bf16((float)((const int8_t *)row)[l] * kt_a8_scales(row, k)[l / GROUP]);
}

/* A failure of the library, for want of memory, leaves NaN: never a wrong number. */
static void put_panel(const kt_gemm_call *call, int64_t row, int64_t rows, int64_t p,
                      bool is_good) {
    const int64_t left = call->problem->n - 64 * p, columns = left < 64 ? left : 64;
    const float *tile = call->scratch;

    for (int64_t i = 0; i < rows; i++) {
        float *c = call->c + (row + i) * call->ldc + 64 * p;
        for (int64_t j = 0; j < columns; j++) {
            const float sum = is_good ? tile[64 * i + j] : (float)NAN;
            c[j] = call->accumulate ? c[j] + sum : sum;
        }
    }
}

static void gemm(const kt_gemm_call *call) {
    const int64_t block = call->config->value[0], k = call->problem->k;
    float *tile = call->scratch;
    uint16_t *a = (uint16_t *)(void *)(tile + 64 * block);
    kt_lib_context context = {0};

    kt_onednn_open(&context);
    for (int64_t row = 0; row < call->m; row += block) {
        const int64_t rows = call->m - row < block ? call->m - row : block;
        const int64_t least = rows > 1 ? rows : 2; /* one alone twice: as in kt_onednn_tile */
        for (int64_t i = 0; i < least; i++)
            expand((const char *)call->a + (size_t)(i < rows ? row + i : row) * call->a_stride, k,
                   a + i * k);
        for (int64_t p = call->panel_begin; p < call->panel_end; p++) {
            const product x = {call->problem, least, a,
                               (const char *)call->weights + (size_t)p * panel_bytes(call->problem),
                               tile};
            put_panel(call, row, rows, p, multiply(&context, &x) == dnnl_success);
        }
    }
    kt_onednn_close(&context);
}

static kt_status usable(kt_err *why);
static kt_status check(const kt_variant *v, kt_err *why) {
    KT_TRY(
        kt_lib_self_test("oneDNN weight decompression", v, KT_W_INT8_CHANNEL, KT_A_INT8_G32, why));
    return kt_lib_self_test("oneDNN weight decompression", v, KT_W_INT4_G32, KT_A_INT8_G32, why);
}

#else

/* Never called: usable() refuses. */
static void gemm(const kt_gemm_call *call) {
    (void)call;
}

static kt_status usable(kt_err *why);
static kt_status check(const kt_variant *v, kt_err *why) {
    (void)v;
    return kt_fail(why, KT_E_UNSUPPORTED,
                   "built with oneDNN %d.%d.%d; weight decompression needs 3.5 or newer",
                   DNNL_VERSION_MAJOR, DNNL_VERSION_MINOR, DNNL_VERSION_PATCH);
}

#endif

KT_VARIANT(w48_abf16_onednn__lib) = {
    .name = "w48_abf16_onednn__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 2,
    .layout = "onednn:ab",
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
    return check(&kt_variant_w48_abf16_onednn__lib, why);
}
