/* INT4 weights x INT8 activations with AOCL's bf16s4f32of32: the library expands weights to BF16, and rows
 * are expanded here. Both round, so the numbers are those of BF16 arithmetic. Each panel of 64 outputs is a
 * matrix of its own:
 *
 *   bytes   the library's reordered signed 4-bit codes [k, columns]
 *   scales  float [k/32][columns], at the next multiple of 64 bytes
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/gemm/aocl.h"
#include "kernels/gemm/signed_groups.h"

enum { GROUP = 32 };

static const int32_t blocks[] = {64, 256};
static const kt_param params[] = {{"block", blocks, 2, 64}};

static size_t code_bytes(int64_t k) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    return aocl ? (aocl->bf16s4_bytes('r', 'n', 'B', k, 64) + 63) / 64 * 64 : 0;
}

static size_t panel_bytes(int64_t k) {
    return code_bytes(k) + (size_t)k / GROUP * 64 * sizeof(float);
}

static size_t packed_bytes(const kt_problem *q) {
    return (size_t)kt_p64_panels(q->n) * panel_bytes(q->k);
}

/* Signed nibbles [k][64], padded with zeros: the library takes two columns from a byte, low first. */
static void pack_gemm(const kt_problem *q, const kt_matrix *w, void *dst) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    uint8_t *codes = malloc(32 * (size_t)q->k);

    memset(dst, 0, packed_bytes(q));
    for (int64_t first = 0; codes && first < q->n; first += 64) {
        char *panel = (char *)dst + (size_t)(first / 64) * panel_bytes(q->k);
        float *scales = (float *)(void *)(panel + code_bytes(q->k));

        memset(codes, 0, 32 * (size_t)q->k);
        for (int64_t r = 0; r < 64 && first + r < q->n; r++) {
            const int64_t row = first + r;
            for (int64_t l = 0; l < q->k; l++) {
                const int code =
                    (((const uint8_t *)w->data)[(row * q->k + l) / 2] >> (l % 2 * 4) & 15) - 8;
                codes[l * 32 + r / 2] |= (uint8_t)((code & 15) << (r % 2 * 4));
            }
            for (int64_t g = 0; g < q->k / GROUP; g++)
                scales[g * 64 + r] =
                    kt_bf16_to_f32(((const uint16_t *)w->scales)[row * (q->k / GROUP) + g]);
        }
        aocl->bf16s4_reorder('r', 'n', 'B', codes, panel, q->k, 64, 64);
    }
    free(codes);
}

static size_t workspace_bytes(const kt_problem *q, const kt_config *config) {
    return (size_t)config->value[0] * ((size_t)q->k * sizeof(uint16_t) + 64 * sizeof(float));
}

static void expand(const void *row, int64_t k, uint16_t *out) {
    for (int64_t l = 0; l < k; l++)
        out[l] = kt_f32_to_bf16((float)((const int8_t *)row)[l] * kt_a8_scales(row, k)[l / GROUP]);
}

/* A panel always has its 64 columns for the library, which unpacks codes by whole bytes and scales by whole
 * vectors; the tile is copied to c. */
static void multiply(const kt_gemm_call *call, const kt_aocl *aocl, int64_t row, int64_t rows,
                     int64_t p) {
    const kt_problem *q = call->problem;
    const char *panel = (const char *)call->weights + (size_t)p * panel_bytes(q->k);
    float *tile = call->scratch;
    const uint16_t *a = (const uint16_t *)(const void *)(tile + 64 * call->config->value[0]);
    const kt_aocl_factors b = {panel + code_bytes(q->k), 64, KT_AOCL_F32};
    const kt_aocl_expand step = {.b = &b, .count = 1, .group = GROUP};
    const kt_aocl_steps steps = {.expand = &step};

    aocl->bf16s4('r', 'n', 'n', rows, 64, q->k, 1.0f, a, q->k, 'n', panel, 64, 'r', 0.0f, tile, 64,
                 &steps);
    kt_signed_store(call, row, rows, p, tile);
}

static void gemm(const kt_gemm_call *call) {
    const kt_aocl *aocl = kt_aocl_find(NULL);
    const int64_t block = call->config->value[0], k = call->problem->k;
    uint16_t *a = (uint16_t *)(void *)((float *)call->scratch + 64 * block);

    aocl->set_threads(1); /* of this thread: a pool thread must not start a team of its own */
    for (int64_t row = 0; row < call->m; row += block) {
        const int64_t rows = call->m - row < block ? call->m - row : block;
        for (int64_t i = 0; i < rows; i++)
            expand((const char *)call->a + (size_t)(row + i) * call->a_stride, k, a + i * k);
        for (int64_t p = call->panel_begin; p < call->panel_end; p++)
            multiply(call, aocl, row, rows, p);
    }
}

static kt_status usable(kt_err *why);

KT_VARIANT(w4g32_bf16_aocl__lib) = {
    .name = "w4g32_bf16_aocl__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "aocl:s4g32",
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
    KT_TRY(kt_aocl_usable(why));
    return kt_lib_self_test("AOCL bf16s4", &kt_variant_w4g32_bf16_aocl__lib, KT_W_INT4_G32,
                            KT_A_INT8_G32, why);
}
