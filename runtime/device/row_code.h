/* Kernels of rows as the ops of a device find them. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ROW_CODE_H
#define KT_RUNTIME_ROW_CODE_H

#include "kernels/cuda/row_calls.h"
#include "runtime/device/device_op.h"

/* A kernel of kernels/cuda with a config. */
typedef struct kt_row_code {
    const kt_cuda_kernel *kernel;
    kt_config config;
    const kt_device_code *code;
    int threads; /* of a block */
} kt_row_code;

/* The kernel of that name; constant (NULL = the initial one) takes the place of config.value[0]. */
kt_status kt_row_code_find(kt_device_step *s, const char *name, const int32_t *constant,
                           kt_row_code *out, kt_err *err);

/* Products of rows with the rows of a router's weights, or of anything that is as small: codes for
 * few and for many rows. */
typedef struct kt_score_code {
    kt_row_code few, many; /* by the rows that one warp takes */
} kt_score_code;

kt_status kt_score_code_find(kt_device_step *s, bool is_bf16, kt_score_code *out, kt_err *err);
/* The code for so many rows. */
const kt_row_code *kt_score_code_for(const kt_score_code *code, int64_t rows);
kt_status kt_score_code_put(kt_device_step *s, const kt_score_code *code,
                            const kt_router_scores *call, kt_err *err);

/* Blocks for n things, `each` of them a block. */
static inline int kt_row_blocks(int64_t n, int64_t each) {
    return (int)((n + each - 1) / each);
}

#endif
