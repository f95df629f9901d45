/* INT8 and INT4 weights x INT8 activations with AOCL's s8s8s32of32_sym_quant, in groups of 32.
 *
 * The library multiplies a group in integers and its sums by a factor of the row's group and one of the
 * column's: exactly what a8 activations mean. Each panel of 64 outputs is a matrix of its own, padded with
 * zeros, since the library reads the factors of fewer columns past their end:
 *
 *   bytes   the library's reordered int8 codes [k, 64]
 *   scales  float [k/32][64] (of w8c the same in every group), at the next multiple of 64 bytes
 *
 * INT4 codes are stored as bytes, since the library has no 4-bit integer product.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/aocl.h"
#include "kernels/gemm/signed_groups.h"

enum { GROUP = KT_SIGNED_GROUP };

static const int32_t blocks[] = {64, 256};
static const kt_param params[] = {{"block", blocks, 2, 64}};

/* Bytes of one panel's codes, and of the panel. */
static size_t code_bytes(int64_t k) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    kt_aocl_group_size group = {GROUP};
    return aocl ? (aocl->grouped_bytes('r', 'n', 'B', k, 64, &group) + 63) / 64 * 64 : 0;
}

static size_t panel_bytes(int64_t k) {
    return code_bytes(k) + (size_t)k / GROUP * 64 * sizeof(float);
}

static size_t packed_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * panel_bytes(q->k);
}

/* packed_bytes was asked first, so the library is there; without memory the panel stays zero and the gate
 * of whoever packs sees it. */
static void pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    int8_t *codes = malloc(64 * (size_t)q->k);
    kt_aocl_group_size group = {GROUP};

    memset(dst, 0, packed_bytes(q));
    for (int64_t first = 0; codes && first < q->n; first += 64) {
        char *panel = (char *)dst + (size_t)(first / 64) * panel_bytes(q->k);
        float *scales = (float *)(void *)(panel + code_bytes(q->k));

        kt_signed_panel(w, first, codes, scales);
        aocl->grouped_reorder('r', 'n', 'B', codes, panel, q->k, 64, 64, &group);
    }
    free(codes);
}

/* The factors of a block of rows, and a tile for the columns of a panel that is not full. */
static size_t workspace_bytes(const kt_problem *q, const kt_config *config) {
    return (size_t)config->value[0] * (64 + (size_t)(q->k / GROUP)) * sizeof(float);
}

static void multiply(const kt_gemm_call *call, const kt_aocl *aocl, int64_t row, int64_t rows,
                     int64_t p) {
    const kt_problem *q = call->problem;
    const char *panel = (const char *)call->weights + (size_t)p * panel_bytes(q->k);
    float *tile = call->scratch, *c = call->c + row * call->ldc + 64 * p;
    const kt_aocl_factors a = {tile + 64 * call->config->value[0], rows, KT_AOCL_F32};
    const kt_aocl_factors b = {panel + code_bytes(q->k), 64, KT_AOCL_F32};
    const kt_aocl_groups groups = {.group = GROUP, .count = 1, .a = &a, .b = &b};
    const kt_aocl_steps steps = {.groups = &groups};
    const bool is_full = q->n - 64 * p >= 64;

    aocl->grouped('r', 'n', 'n', rows, 64, q->k, 1,
                  (const char *)call->a + (size_t)row * call->a_stride, (int64_t)call->a_stride,
                  'n', panel, 64, 'r', is_full && call->accumulate, is_full ? c : tile,
                  is_full ? call->ldc : 64, &steps);
    if (!is_full) kt_signed_store(call, row, rows, p, tile);
}

static void gemm(const kt_gemm_call *call) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    const int64_t block = call->config->value[0], groups = call->problem->k / GROUP;

    aocl->set_threads(1); /* of this thread: a pool thread must not start a team of its own */
    for (int64_t row = 0; row < call->m; row += block) {
        const int64_t rows = call->m - row < block ? call->m - row : block;
        for (int64_t i = 0; i < rows; i++)
            memcpy((float *)call->scratch + 64 * block + i * groups,
                   kt_a8_scales((const char *)call->a + (size_t)(row + i) * call->a_stride,
                                call->problem->k),
                   (size_t)groups * sizeof(float));
        for (int64_t p = call->panel_begin; p < call->panel_end; p++)
            multiply(call, aocl, row, rows, p);
    }
}

static kt_status usable(kt_err *why);

KT_VARIANT(w48_a8_aocl__lib) = {
    .name = "w48_a8_aocl__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512VNNI,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "aocl:s8g32",
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
    const kt_variant *v = &kt_variant_w48_a8_aocl__lib;
    KT_TRY(kt_aocl_usable(why));
    KT_TRY(kt_lib_self_test("AOCL sym_quant", v, KT_W_INT8_CHANNEL, KT_A_INT8_G32, why));
    return kt_lib_self_test("AOCL sym_quant", v, KT_W_INT4_G32, KT_A_INT8_G32, why);
}
