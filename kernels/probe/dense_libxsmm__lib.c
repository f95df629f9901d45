/* What LIBXSMM makes of a dense INT8 or BF16 GEMM: panels of 64 outputs by blocks of 64 rows, each one call
 * of a JIT-compiled kernel over all of k. The panels are those of p64 without its offset: its VNNI layout.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/probe/dense_probe.h"
#include "kernels/gemm/tile_libs.h"

enum { BLOCK = 64 };

static double probe(const kt_probe_call *call) {
    const kt_problem *q = call->problem;
    const size_t each = kt_dense_element_bytes(q);
    const size_t panel_bytes = 64 * (size_t)q->k * each;

    for (int64_t r = 0; r < call->repeats; r++)
        for (int64_t i = 0; i < q->m; i += BLOCK)
            for (int64_t j = 0; j < q->n; j += 64) {
                const kt_libxsmm_matmul block = {
                    .as_bytes = each == 1,
                    .rows = (int)(q->m - i < BLOCK ? q->m - i : BLOCK),
                    .columns = (int)(q->n - j < 64 ? q->n - j : 64),
                    .k = q->k,
                    .a_stride = q->k,
                    .c_stride = q->n,
                    .a = (const char *)call->a + (size_t)(i * q->k) * each,
                    .panel = (const char *)call->data + (size_t)(j / 64) * panel_bytes,
                    .c = (char *)call->c + (size_t)(i * q->n + j) * 4};
                if (!kt_libxsmm_multiply(&block)) return 0;
            }
    return kt_dense_operations(q) * (double)call->repeats;
}

static kt_status usable(kt_err *why) {
    KT_TRY(kt_libxsmm_usable(why));
    KT_TRY(kt_dense_check("LIBXSMM", probe, kt_dense_pack, kt_dense_bytes, KT_W_INT8_CHANNEL, why));
    return kt_dense_check("LIBXSMM", probe, kt_dense_pack, kt_dense_bytes, KT_W_BF16, why);
}

KT_VARIANT(dense_libxsmm__lib) = {
    .name = "dense_libxsmm__lib",
    .op = KT_OP_PROBE,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_BF16,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "libxsmm",
    .usable = usable,
    .packed_bytes = kt_dense_bytes,
    .pack_gemm = kt_dense_pack,
    .probe = probe,
};
