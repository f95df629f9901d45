/* The values of a kernel's parameter "format". SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_WEIGHT_VALUES_H
#define KT_CUDA_WEIGHT_VALUES_H

#include "kernels/cuda/kt_dev_weights.h"

enum { KT_WEIGHT_VALUES = 36 };

/* Every format that kt_weight_spec_of knows. */
static const int32_t kt_weight_values[KT_WEIGHT_VALUES] = {
    KT_DEV_BF16,        KT_DEV_INT8_CHANNEL, KT_DEV_INT4_G32,   KT_DEV_INT4_G64,  KT_DEV_INT4_G128,
    KT_DEV_INT4Z_G32,   KT_DEV_INT4Z_G64,    KT_DEV_INT4Z_G128, KT_DEV_INT8_G128, KT_DEV_FP8_B128,
    KT_DEV_FP8_CHANNEL, KT_DEV_Q4_0,         KT_DEV_Q4_1,       KT_DEV_Q5_0,      KT_DEV_Q5_1,
    KT_DEV_Q8_0,        KT_DEV_Q2_K,         KT_DEV_Q3_K,       KT_DEV_Q4_K,      KT_DEV_Q5_K,
    KT_DEV_Q6_K,        KT_DEV_IQ4_NL,       KT_DEV_IQ4_XS,     KT_DEV_MXFP4,     KT_DEV_INT8_G16M,
    KT_DEV_MXFP8,       KT_DEV_NVFP4,        KT_DEV_TQ2_0,      KT_DEV_TQ1_0,     KT_DEV_IQ1_S,
    KT_DEV_IQ1_M,       KT_DEV_IQ2_XXS,      KT_DEV_IQ2_XS,     KT_DEV_IQ2_S,     KT_DEV_IQ3_XXS,
    KT_DEV_IQ3_S};

#endif
