/* Weights and activations that look like a model's without being one. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SYNTHETIC_H
#define KT_TUNER_SYNTHETIC_H

#include "kt/variant.h"

/* A plain matrix owned by the caller. */
typedef struct kt_synthetic {
    kt_matrix matrix; /* borrows data and scales */
    void *data, *scales;
} kt_synthetic;

/* Codes with the histogram of a quantised Gaussian matrix, drawn from a small table instead of
 * quantising (about 1 ns per weight); scales keep outputs near one. Speed may depend on the data
 * (power, denormals), so zeros would not do. */
kt_status kt_synthetic_create(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                              kt_synthetic *out, kt_err *err);
void kt_synthetic_destroy(kt_synthetic *s); /* accepts a zeroed one */

/* Normal values of variance one. */
void kt_synthetic_rows(float *x, size_t count, uint64_t seed);

/* Packed bytes of one synthetic matrix (GEMM) or expert (MOE_FFN) for this variant and problem, into dst,
 * which has room for packed_bytes and is aligned to 64 bytes. */
kt_status kt_synthetic_pack_into(const kt_problem *problem, const kt_variant *variant,
                                 uint64_t seed, void *dst, kt_err *err);

#endif
