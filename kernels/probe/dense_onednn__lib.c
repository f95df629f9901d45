/* What oneDNN makes of a dense INT8 or BF16 GEMM: one matmul over the whole matrix.
 *
 * The weights are in the layout that oneDNN itself chooses for these shapes, BA16a64b4a and BA16a64b2a: those
 * of p64 without its offset, since weights are signed here and activations are not.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/probe/dense_probe.h"
#include "kernels/gemm/tile_libs.h"

static double probe(const kt_probe_call *call) {
    const kt_problem *q = call->problem;
    const kt_onednn_matmul matmul = {.as_bytes = q->weights == KT_W_INT8_CHANNEL,
                                     .rows = q->m,
                                     .columns = q->n,
                                     .k = q->k,
                                     .a_stride = q->k,
                                     .c_stride = q->n,
                                     .a = call->a,
                                     .panels = call->data,
                                     .c = call->c};
    kt_lib_context own = {0}, *context = call->session ? *call->session : NULL;
    int64_t done = 0;

    if (q->k % 64 != 0) return 0; /* the depth of a block of bytes */
    if (!context) {
        context = call->session ? calloc(1, sizeof *context) : &own;
        if (!context) return 0;
        kt_onednn_open(context);
    }
    while (done < call->repeats && kt_onednn_multiply(context, &matmul) == 0) done++;
    if (context == &own || call->repeats == 0) {
        kt_onednn_close(context);
        if (context != &own) free(context);
        context = NULL;
    }
    if (call->session) *call->session = context;
    return kt_dense_operations(q) * (double)done;
}

static kt_status usable(kt_err *why) {
    KT_TRY(kt_onednn_usable(why));
    KT_TRY(kt_dense_check("oneDNN", probe, kt_dense_pack, kt_dense_bytes, KT_W_INT8_CHANNEL, why));
    return kt_dense_check("oneDNN", probe, kt_dense_pack, kt_dense_bytes, KT_W_BF16, why);
}

KT_VARIANT(dense_onednn__lib) = {
    .name = "dense_onednn__lib",
    .op = KT_OP_PROBE,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_BF16,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "onednn",
    .usable = usable,
    .packed_bytes = kt_dense_bytes,
    .pack_gemm = kt_dense_pack,
    .probe = probe,
};
