/* What AOCL makes of a dense INT8 (u8s8s32os32) or BF16 (bf16bf16f32of32) GEMM: one call over the whole matrix,
 * reordered by the library. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/gemm/aocl.h"
#include "kernels/probe/dense_probe.h"

static size_t packed_bytes(const kt_problem *q) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    if (!aocl) return 0;
    return q->weights == KT_W_BF16 ? aocl->bf16_bytes('r', 'n', 'B', q->k, q->n)
                                   : aocl->u8s8_bytes('r', 'n', 'B', q->k, q->n);
}

static void pack(const kt_problem *q, const kt_matrix *w, void *dst) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    if (q->weights == KT_W_BF16)
        aocl->bf16_reorder('r', 't', 'B', w->data, dst, q->k, q->n, q->k);
    else
        aocl->u8s8_reorder('r', 't', 'B', w->data, dst, q->k, q->n, q->k);
}

static double probe(const kt_probe_call *call) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    const kt_problem *q = call->problem;

    aocl->set_threads(1);
    for (int64_t r = 0; r < call->repeats; r++) {
        if (q->weights == KT_W_BF16)
            aocl->bf16('r', 'n', 'n', q->m, q->n, q->k, 1.0f, call->a, q->k, 'n', call->data, q->n,
                       'r', 0.0f, call->c, q->n, NULL);
        else
            aocl->u8s8s32('r', 'n', 'n', q->m, q->n, q->k, 1, call->a, q->k, 'n', call->data, q->n,
                          'r', 0, call->c, q->n, NULL);
    }
    return kt_dense_operations(q) * (double)call->repeats;
}

static kt_status usable(kt_err *why) {
    KT_TRY(kt_aocl_usable(why));
    KT_TRY(kt_dense_check("AOCL u8s8s32", probe, pack, packed_bytes, KT_W_INT8_CHANNEL, why));
    return kt_dense_check("AOCL bf16", probe, pack, packed_bytes, KT_W_BF16, why);
}

KT_VARIANT(dense_aocl__lib) = {
    .name = "dense_aocl__lib",
    .op = KT_OP_PROBE,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_BF16,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "aocl",
    .usable = usable,
    .packed_bytes = packed_bytes,
    .pack_gemm = pack,
    .probe = probe,
};
