/* A model folder: its name, family and config. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MODEL_DIR_H
#define KT_RUNTIME_MODEL_DIR_H

#include "runtime/model/quant.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/model/family.h"

#define KT_MODEL_PATH_BYTES 4096

typedef struct kt_model_dir {
    char folder[KT_MODEL_PATH_BYTES]; /* real path */
    char name[256];                   /* kt_model_resolve's: readable */
    uint64_t shape_id;                /* kt_model_shape_id; of the whole model when synthetic */
    const kt_family *family;
    kt_model_config config;
} kt_model_dir;

/* Find the model (kt_model_resolve) and read config.json, and generation_config.json when there is one. */
kt_status kt_model_dir_read(const char *folder, kt_model_dir *out, kt_err *err);

/* The cache of one sequence in a format. */
kt_kv_shape kt_model_dir_kv(const kt_model_dir *dir, kt_weight_format format);

/* Memory a model needs, by kt_quant, on this machine's kernels. */
typedef struct kt_model_needs {
    size_t weight_bytes[KT_QUANT_INT4 + 1];
    size_t cache_bytes_per_token;
} kt_model_needs;

kt_status kt_model_dir_needs(const kt_model_dir *dir, kt_model_needs *out, kt_err *err);

#endif
