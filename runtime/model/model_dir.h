/* A model as people have it: a folder of safetensors or a GGUF file; its name and its graph.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MODEL_DIR_H
#define KT_RUNTIME_MODEL_DIR_H

#include "dispatch/model/family.h"
#include "dispatch/model/quant.h"
#include "runtime/kv/pages.h"

#define KT_MODEL_PATH_BYTES 4096

typedef struct kt_model_dir {
    char folder[KT_MODEL_PATH_BYTES]; /* real path; of a GGUF file the file's */
    char name[256];                   /* kt_model_resolve's: readable */
    uint64_t shape_id;                /* kt_model_shape_id; of the whole model when synthetic */
    kt_checkpoint *checkpoint;        /* owned; NULL when there are no weights, see why */
    kt_err why;                       /* what kt_checkpoint_open said then */
    kt_graph graph;
} kt_model_dir;

/* Find the model (kt_model_resolve), read config.json and generation_config.json or the
 * metadata, open the checkpoint and describe the model. A folder with a config.json and no
 * weights is a model without checkpoint. End with kt_model_dir_deinit. */
kt_status kt_model_dir_read(const char *folder, kt_model_dir *out, kt_err *err);
/* The same with the model's draft head, if it carries one that its family knows. */
kt_status kt_model_dir_read_drafting(const char *folder, kt_model_dir *out, kt_err *err);
void kt_model_dir_deinit(kt_model_dir *dir); /* accepts a zeroed one */

/* The cache of one sequence in a format. Refuses layers that keep rows of different sizes. */
/* Where a page keeps the entries of a plane whose rows stand for several tokens: `at` bytes behind
 * kt_pages_entries, rows row_bytes apart, then (from `at` on) their f32 scales and BF16 index keys.
 */
typedef struct kt_entry_layout {
    size_t at, row_bytes, scales_at, index_at, bytes;
} kt_entry_layout;
kt_entry_layout kt_model_entry_layout(const kt_graph *graph, kt_weight_format format, int plane);

kt_status kt_model_kv_shape(const kt_graph *graph, kt_weight_format format, kt_kv_shape *out,
                            kt_err *err);

/* Floats that a sequence keeps beside its cache: states of recurrent nodes, whole lines each; and
 * those of one slot. */
int64_t kt_model_state_floats(const kt_graph *graph);
int64_t kt_model_slot_floats(const kt_graph *graph, int slot);

/* Routed experts of the model, of which one token takes topk, and layers that have them; zeros =
 * none. */
typedef struct kt_model_experts {
    int64_t experts, topk, layers;
} kt_model_experts;

kt_model_experts kt_model_count_experts(const kt_graph *graph);

#endif
