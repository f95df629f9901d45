/* The tensors of a checkpoint by role, found and checked before anything is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TENSOR_MAP_H
#define KT_RUNTIME_TENSOR_MAP_H

#include <stdbool.h>

#include "base/log.h"
#include "runtime/loader/matrix_source.h"
#include "runtime/model/family.h"

typedef struct kt_tensor_map {
    const kt_checkpoint *checkpoint; /* borrowed, like all below */
    const kt_family *family;
    const kt_model_config *config;
    bool native;           /* linear weights must be stored as BF16 */
    bool allows_nonfinite; /* false (as init leaves it): see kt_matrix_source */
    uint8_t *used;         /* owned: [tensors] */
    const kt_checkpoint
        *importance; /* NULL (as init leaves it), or F32 [k] by the name of each matrix */
} kt_tensor_map;

kt_status kt_tensor_map_init(kt_tensor_map *map, const kt_checkpoint *checkpoint,
                             const kt_family *family, const kt_model_config *config, bool native,
                             kt_err *err);
void kt_tensor_map_deinit(kt_tensor_map *map);

/* The tensor of a role with the shape the config asks for and a floating-point type. */
kt_status kt_tensor_map_need(kt_tensor_map *map, kt_role role, int64_t layer, int64_t expert,
                             const kt_tensor **out, kt_err *err);

/* Sources of the matrices, with their importance. */
kt_status kt_tensor_map_qkv(kt_tensor_map *map, int64_t layer, kt_matrix_source *out, kt_err *err);
kt_status kt_tensor_map_linear(kt_tensor_map *map, kt_role role, int64_t layer,
                               kt_matrix_source *out, kt_err *err);
/* gate, up and down of one expert, stored one by one or fused; of the dense feed-forward when the
 * layer is dense. */
kt_status kt_tensor_map_expert(kt_tensor_map *map, int64_t layer, int64_t expert,
                               kt_matrix_source out[3], kt_err *err);

/* One warning when the checkpoint holds tensors that nobody asked for. */
void kt_tensor_map_report(const kt_tensor_map *map, const kt_log *log);

#endif
