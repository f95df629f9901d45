/* The values of a kernel's parameter "format". SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_WEIGHT_VALUES_H
#define KT_CUDA_WEIGHT_VALUES_H

#include "kernels/cuda/kt_dev_weights.h"

/* Every format that kt_weight_spec_of knows. */
#define KT_WEIGHT_VALUE(id, ...) KT_W_##id,
static const int32_t kt_weight_values[] = {KT_DEVICE_FORMATS(KT_WEIGHT_VALUE)};

enum { KT_WEIGHT_VALUES = sizeof kt_weight_values / sizeof *kt_weight_values };

#endif
