/* Every format with BLIS: panels and rows are expanded to f32 and multiplied by sgemm.
 *
 * The expansion is exact up to one f32 rounding per weight (code * scale) and per activation, so this
 * variant's numbers are those of f32 arithmetic on the stored values.
 *
 * BLIS 0.9 takes Zen 4 and Zen 5 for "generic" and then runs at a twelfth of its speed, so its
 * sub-configuration is set from the instruction sets before it initialises, unless the user has set
 * BLIS_ARCH_TYPE.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdlib.h>

/* BLIS's header has declarations that our warnings refuse. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#pragma GCC diagnostic ignored "-Wcast-qual"
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-function"
#include <blis.h>
#pragma GCC diagnostic pop

#include "base/cpu.h"
#include "base/err.h"
#include "kernels/gemm/tile_libs.h"
#include "kernels/gemm/tile_plain.h"

static const int32_t blocks[] = {16, 64};
static const kt_param params[] = {{"block", blocks, 2, 64}};

size_t kt_blis_scratch_bytes(int block, int64_t k) {
    return ((size_t)block * (64 + (size_t)k) + 64 * (size_t)k) * sizeof(float);
}

void kt_blis_tile(const kt_p64_tile *t) {
    const kt_lib_context *context = t->context;
    float *panel = context->scratch, *rows = panel + 64 * t->k;
    float one = 1.0f, zero = 0.0f;
    rntm_t runtime;

    if (t->new_rows)
        for (int i = 0; i < t->rows; i++) kt_row_expand(t->weights, t->a[i], t->k, rows + i * t->k);
    kt_panel_expand(t->weights, t->panel, t->k, panel);
    bli_rntm_init_from_global(&runtime);
    bli_rntm_set_num_threads(1, &runtime);
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, t->rows, 64, t->k, &one, rows, t->k, 1,
                 panel, 64, 1, &zero, t->tile, 64, 1, NULL, &runtime);
}

/* Small integers: every product and sum is exact in f32, so the result must be exact. */
kt_status kt_blis_usable(kt_err *why) {
    enum { rows = 16, n = 64, k = 128 };
    const kt_isa isa = kt_isa_available();
    float *memory, *a, *b, *c;
    float one = 1.0f, zero = 0.0f;
    rntm_t runtime;
    kt_status st = KT_OK;

    if (isa & KT_ISA_AVX512)
        (void)setenv("BLIS_ARCH_TYPE", "0", 0); /* skx */
    else
        (void)setenv("BLIS_ARCH_TYPE", "3", 0); /* haswell */
    bli_init();
    memory = malloc((rows * k + k * n + rows * n) * sizeof *memory);
    if (!memory) return kt_fail(why, KT_E_NOMEM, "BLIS self-test: no memory");
    a = memory;
    b = a + rows * k;
    c = b + k * n;
    for (int i = 0; i < rows * k; i++) a[i] = (float)(i * 7 % 15 - 7);
    for (int i = 0; i < k * n; i++) b[i] = (float)(i * 11 % 13 - 6);
    bli_rntm_init_from_global(&runtime);
    bli_rntm_set_num_threads(1, &runtime);
    bli_sgemm_ex(BLIS_NO_TRANSPOSE, BLIS_NO_TRANSPOSE, rows, n, k, &one, a, k, 1, b, n, 1, &zero, c,
                 n, 1, NULL, &runtime);
    for (int i = 0; i < rows * n && st == KT_OK; i++) {
        float want = 0.0f;
        for (int j = 0; j < k; j++) want += a[i / n * k + j] * b[j * n + i % n];
        if (c[i] != want)
            st = kt_fail(why, KT_E_MISMATCH,
                         "BLIS %s (%s) failed its self-test: element %d is %g, expected %g",
                         bli_info_get_version_str(), bli_arch_string(bli_arch_query_id()), i,
                         (double)c[i], (double)want);
    }
    free(memory);
    return st;
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return kt_blis_scratch_bytes(config->value[0], problem->k);
}

static void gemm(const kt_gemm_call *call) {
    kt_lib_context context;
    const kt_walk walk = kt_lib_walk(call->config, call->scratch, &context);
    kt_p64_gemm(call, kt_blis_tile, &walk);
}

KT_VARIANT(any_f32_blis__lib) = {
    .name = "any_f32_blis__lib",
    .op = KT_OP_GEMM,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = KT_BITS_UNSTABLE,
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .usable = kt_blis_usable,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .workspace_bytes = workspace_bytes,
    .gemm = gemm,
};
