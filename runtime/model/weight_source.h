/* From the weights that a model asks for to the tensors that hold them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_WEIGHT_SOURCE_H
#define KT_RUNTIME_WEIGHT_SOURCE_H

#include <stdbool.h>

#include "base/log.h"
#include "dispatch/model/needs.h"
#include "runtime/loader/matrix_source.h"

typedef struct kt_weight_finder {
    const kt_checkpoint *checkpoint; /* borrowed, like all below */
    const kt_graph *graph;
    bool allows_nonfinite; /* false (as init leaves it): see kt_matrix_source */
    uint8_t *used;         /* owned: [tensors] */
    const kt_checkpoint
        *importance; /* NULL (as init leaves it), or F32 [k] by the name of each matrix */
} kt_weight_finder;

kt_status kt_weight_finder_init(kt_weight_finder *f, const kt_checkpoint *checkpoint,
                                const kt_graph *graph, kt_err *err);
void kt_weight_finder_deinit(kt_weight_finder *f);

/* The tensor of a vector, router or table, with the shape that the graph asks for and a type
 * that can be read; NULL for an optional vector that is not there. */
kt_status kt_weight_tensor(kt_weight_finder *f, const kt_weight *w, const kt_tensor **out,
                           kt_err *err);

/* Parts [first, first + n) of a matrix, one behind the other, or (experts, n = 1) one matrix of
 * one expert; with importance. */
kt_status kt_weight_source(kt_weight_finder *f, const kt_weight *w, int first, int n,
                           int64_t expert, kt_matrix_source *out, kt_err *err);

/* The rows of a head of HEADS, as they are stored: [n, k], or [k, n] when transposed. */
kt_status kt_weight_head_source(kt_weight_finder *f, const kt_weight *w, int64_t head,
                                kt_matrix_source *out, kt_err *err);

/* Find all tensors of a weight, as it is wanted, and check their names, types and shapes. Fails as
 * the functions above do. Allocates nothing; a finder is of one thread. */
kt_status kt_weight_check(kt_weight_finder *f, const kt_weight *w, kt_quant quant, kt_err *err);

/* One warning when the checkpoint holds tensors that nobody asked for. */
void kt_weight_finder_report(const kt_weight_finder *f, const kt_log *log);

/* What is not loaded as it lies although nobody asked for another format, and what is encoded anew
 * from few bits because somebody did: said once for each reason. */
void kt_weights_tell_changes(const kt_graph *graph, kt_quant quant, const kt_log *log);

#endif
