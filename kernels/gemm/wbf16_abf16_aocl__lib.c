/* BF16 weights x BF16 activations with AOCL's bf16bf16f32of32. Each panel of 64 outputs is a matrix of its
 * own, reordered by the library. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/aocl.h"

static size_t panel_bytes(int64_t k) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    return aocl ? (aocl->bf16_bytes('r', 'n', 'B', k, 64) + 63) / 64 * 64 : 0;
}

static size_t packed_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * panel_bytes(q->k);
}

static void pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    const kt_aocl *aocl = kt_aocl_find(NULL);

    memset(dst, 0, packed_bytes(q));
    for (int64_t first = 0; first < q->n; first += 64)
        aocl->bf16_reorder('r', 't', 'B', (const uint16_t *)w->data + first * q->k,
                           (char *)dst + (size_t)(first / 64) * panel_bytes(q->k), q->k,
                           q->n - first < 64 ? q->n - first : 64, q->k);
}

static void gemm(const kt_gemm_call *call) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    const kt_problem *q = call->problem;

    aocl->set_threads(1); /* of this thread: a pool thread must not start a team of its own */
    for (int64_t p = call->panel_begin; p < call->panel_end && call->m > 0; p++) {
        const int64_t columns = q->n - 64 * p < 64 ? q->n - 64 * p : 64;
        aocl->bf16('r', 'n', 'n', call->m, columns, q->k, 1.0f, call->a,
                   (int64_t)(call->a_stride / 2), 'n',
                   (const char *)call->weights + (size_t)p * panel_bytes(q->k), columns, 'r',
                   call->accumulate ? 1.0f : 0.0f, call->c + 64 * p, call->ldc, NULL);
    }
}

static kt_status usable(kt_err *why);

KT_VARIANT(wbf16_abf16_aocl__lib) = {
    .name = "wbf16_abf16_aocl__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "aocl:bf16",
    .rank = 1,
    .usable = usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = packed_bytes,
    .pack_gemm = pack_gemm,
    .gemm = gemm,
};

static kt_status usable(kt_err *why) {
    KT_TRY(kt_aocl_usable(why));
    return kt_lib_self_test("AOCL bf16", &kt_variant_wbf16_abf16_aocl__lib, KT_W_BF16, KT_A_BF16,
                            why);
}
