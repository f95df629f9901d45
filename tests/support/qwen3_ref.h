/* The Qwen3-MoE forward pass written out in double, as a yardstick for the engine. Plain loops, no
 * code shared with the engine but the reading of tensors and the decoding of formats.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_QWEN3_REF_H
#define KT_TESTS_QWEN3_REF_H

#include "kernels/formats/format.h"
#include "runtime/model/model_dir.h"

typedef struct kt_ref_model kt_ref_model;

/* What is rounded on the way, as the engine does: inputs of linear layers to BF16 or to INT8 in
 * groups of 32 (exact_acts) or in groups of 16 with powers of two (what engines take where it is
 * faster); keys and values to BF16, and queries with them where inputs are BF16 (kernels that
 * multiply in BF16). */
typedef enum kt_ref_rounding {
    KT_REF_EXACT,
    KT_REF_BF16,
    KT_REF_INT8,
    KT_REF_INT8_POWERS
} kt_ref_rounding;

/* Load a folder; `weights` quantises and decodes again what the engine would quantise. NULL and a
 * message in err when it cannot be read. */
kt_ref_model *kt_ref_load(const char *folder, kt_quant weights, kt_err *err);
void kt_ref_free(kt_ref_model *m);

/* logits [n, vocab]; hidden NULL or [layers + 1, n, hidden]; router NULL or [layers, n, experts]
 * router logits (zero in dense layers). */
void kt_ref_forward(const kt_ref_model *m, const int32_t *tokens, int64_t n,
                    kt_ref_rounding rounding, double *logits, double *hidden, double *router);

/* Is the choice of experts at position t clear: in every layer, does the last chosen router logit
 * lie above the first refused one by more than twice what rounding moves a logit there (router of
 * the exact run, other of the rounded one)? Where it does not, a right implementation in lower
 * precision may choose another expert. */
int kt_ref_is_decided(const kt_ref_model *m, const double *router, const double *other, int64_t n,
                      int64_t t);

/* Compare logits [n, vocab] with the exact forward of these weights over the decided positions: the
 * relative error, and how many positions were decided. rounded (may be NULL) receives the error of
 * the reference itself when it rounds as told. */
double kt_ref_compare(const kt_ref_model *m, const int32_t *tokens, int64_t n,
                      kt_ref_rounding rounding, const float *logits, int64_t *n_decided,
                      double *rounded);

/* ||a - b|| / ||b||. */
double kt_relative_error(const float *a, const double *b, int64_t count);

#endif
