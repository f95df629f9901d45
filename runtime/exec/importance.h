/* How much each input of a matrix counts: the mean of its squares over the tokens of a text,
 * which the search of INT4 and INT8 scales weighs errors with.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_IMPORTANCE_H
#define KT_RUNTIME_IMPORTANCE_H

#include "dispatch/model/graph.h"

typedef struct kt_importance kt_importance;

/* graph is borrowed. */
kt_status kt_importance_create(const kt_graph *graph, kt_importance **out, kt_err *err);
void kt_importance_destroy(kt_importance *m); /* accepts NULL */

/* Add one row of inputs of a weight (its index in the graph): of all parts of a matrix; of
 * experts (side 0 = gate and up, 1 = down) that one's. One thread at a time. */
void kt_importance_add(kt_importance *m, int weight, int side, int64_t expert, const float *row);

/* The same for down, with a row as kernels encode it (kernels/formats/acts.h). */
void kt_importance_add_encoded(kt_importance *m, int weight, int64_t expert, kt_act_format format,
                               const void *row);

/* Means as F32 [k] under the names of all matrices, as safetensors spell them. */
kt_status kt_importance_write(const kt_importance *m, const char *path, kt_err *err);

#endif
