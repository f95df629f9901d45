/* A kernel over p64 panels: one file, one descriptor, two variants.
 *
 * kernels/p64/<stem>__<isa>.c holds the code and, at its end,
 *
 *     KT_P64_KERNEL(<stem>, <isa>, 1, 1,
 *                   .weights = ..., .acts = ..., .isa = ..., .numerics = ..., .bits = ..., .rank =
 * 1)
 *
 * with functions gemm, gate_up and down above it. The build registers the dense variant
 * <stem>_p64__<isa> (KT_OP_GEMM) and the expert variant <stem>_moe64__<isa> (KT_OP_MOE_FFN): names,
 * layout, packing and members are filled in here. The two numbers are the versions of either, which
 * tuned rows carry; what the variants do not share goes into KT_P64_KERNEL_APART's lists in
 * parentheses.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_KERNEL_H
#define KT_P64_KERNEL_H

#include "kernels/formats/p64.h"

#define KT_P64_UNWRAP(...) __VA_ARGS__

#define KT_P64_KERNEL_APART(stem, word, dense, expert, ...)                  \
    KT_VARIANT(stem##_p64__##word) = {.name = #stem "_p64__" #word,          \
                                      .op = KT_OP_GEMM,                      \
                                      .layout = "p64",                       \
                                      .packed_bytes = kt_p64_gemm_bytes,     \
                                      .pack_gemm = kt_p64_pack_gemm,         \
                                      .gemm = gemm,                          \
                                      KT_P64_UNWRAP dense,                   \
                                      __VA_ARGS__};                          \
    KT_VARIANT(stem##_moe64__##word) = {.name = #stem "_moe64__" #word,      \
                                        .op = KT_OP_MOE_FFN,                 \
                                        .layout = "p64",                     \
                                        .packed_bytes = kt_p64_expert_bytes, \
                                        .pack_expert = kt_p64_pack_expert,   \
                                        .moe_gate_up = gate_up,              \
                                        .moe_down = down,                    \
                                        KT_P64_UNWRAP expert,                \
                                        __VA_ARGS__}

#define KT_P64_KERNEL(stem, word, dense_version, expert_version, ...)                        \
    KT_P64_KERNEL_APART(stem, word, (.version = dense_version), (.version = expert_version), \
                        __VA_ARGS__)

#endif
