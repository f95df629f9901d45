/* What all encoders share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENCODE_COMMON_H
#define KT_KERNELS_ENCODE_COMMON_H

#include "kt/variant.h"

/* Descriptor member of every encoder: refuses row lengths that are not a multiple of 32. */
kt_status kt_encode_accepts(const kt_problem *problem, const kt_config *config, kt_err *why);

static inline const float *kt_encode_source(const kt_encode_call *c, int64_t row) {
    return c->x + row * c->ldx;
}
static inline void *kt_encode_target(const kt_encode_call *c, int64_t row) {
    return (char *)c->out + (size_t)row * c->out_stride;
}

#endif
