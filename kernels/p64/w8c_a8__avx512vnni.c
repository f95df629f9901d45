/* INT8 weights with a scale per channel times int8 activations on AVX-512 VNNI.
 * The tile is explained in kernels/p64/vnni512.h, the order of work in p64_ops512.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/vnni512.h"
#include "kernels/p64/p64_ops512.h"

static const kt_tile_kind kind = {kt_tile_w8c_run, KT_W_INT8_CHANNEL, 3, NULL, 0};

static const int32_t rows[] = {3, 4, 6};
static const int32_t prefetch[] = {0, 1024, 2048, 4096, 6144, 8192};
static const kt_param dense[] = {{"rows", rows, 3, 3}, {"prefetch", prefetch, 6, 0}};
static const kt_param expert[] = {{"rows", rows, 3, 6}, {"prefetch", prefetch, 6, 0}};

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, &kind);
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, &kind, KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, &kind);
}

KT_P64_KERNEL_APART(w8c_a8, avx512vnni, (.version = 6, .params = dense),
                    (.version = 4, .params = expert), .weights = 1u << KT_W_INT8_CHANNEL,
                    .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI,
                    .numerics = KT_NUM_EXACT_INT32, .bits = "a8-groups", .rank = 1, .n_params = 2,
                    .accepts = kt_p64_accepts);
