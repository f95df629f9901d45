/* What encoding a model's weights loses, tensor by tensor. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_WEIGHT_LOSS_H
#define KT_RUNTIME_WEIGHT_LOSS_H

#include "base/pool.h"
#include "kernels/formats/format.h"
#include "dispatch/model/checkpoint.h"
#include "dispatch/model/quant.h"
#include "runtime/model/model_dir.h"

/* One matrix; name is in the list's memory. */
typedef struct kt_weight_loss {
    const char
        *name; /* the tensor's; of an expert in a fused tensor that which it would have alone */
    const char *role;      /* of its weight, in the graph's memory */
    int part;              /* gate, up or down of experts; q, k or v */
    int64_t layer, expert; /* -1 = outside layers; not an expert's */
    const kt_format *format;
    int64_t rows, k;
    kt_format_loss loss;
} kt_weight_loss;

typedef struct kt_weight_losses kt_weight_losses;

/* Encode every linear layer of a folder as `weights` says, one matrix per task, and compare.
 * importance: NULL or an open file of kt_engine_write_importance; then scales are searched with
 * it and loss has the weighted sums too. Refuses weights that are not encoded (native), and
 * checkpoints that are quantised already. stop is asked between layers (may be NULL; nonzero =
 * KT_E_CANCELLED). */
kt_status kt_weight_losses_measure(const kt_model_dir *dir, kt_quant weights,
                                   const kt_checkpoint *importance, kt_pool *pool,
                                   int (*stop)(void *), kt_weight_losses **out, kt_err *err);
void kt_weight_losses_destroy(kt_weight_losses *l); /* accepts NULL */

size_t kt_weight_losses_count(const kt_weight_losses *l);
/* In the order layers are run in, head last. */
const kt_weight_loss *kt_weight_losses_at(const kt_weight_losses *l, size_t i);

#endif
