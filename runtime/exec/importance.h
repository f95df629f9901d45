/* How much each input of a matrix counts: the mean of its squares over the tokens of a text, which the search
 * of INT4 and INT8 scales weighs errors with. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_IMPORTANCE_H
#define KT_RUNTIME_IMPORTANCE_H

#include "runtime/model/family.h"

typedef struct kt_importance kt_importance;

/* What a row is the input of. */
typedef enum kt_input {
    KT_INPUT_QKV = 0, /* hidden */
    KT_INPUT_O,       /* heads * head_dim */
    KT_INPUT_GATE_UP, /* hidden, per expert */
    KT_INPUT_DOWN,    /* intermediate size, per expert */
    KT_INPUT_HEAD,    /* hidden; layer and expert are ignored */
    KT_INPUT_COUNT
} kt_input;

/* family and config are borrowed. */
kt_status kt_importance_create(const kt_family *family, const kt_model_config *config,
                               kt_importance **out, kt_err *err);
void kt_importance_destroy(kt_importance *m); /* accepts NULL */

/* Add one row, as long as the kind's inputs are many; a dense layer has one expert. One thread at a time. */
void kt_importance_add(kt_importance *m, kt_input kind, int64_t layer, int64_t expert,
                       const float *row);

/* The same for KT_INPUT_DOWN, with a row as kernels encode it (kernels/formats/acts.h). */
void kt_importance_add_encoded(kt_importance *m, int64_t layer, int64_t expert,
                               kt_act_format format, const void *row);

/* Means as F32 [k] under the names of all matrices. */
kt_status kt_importance_write(const kt_importance *m, const char *path, kt_err *err);

#endif
