/* The matrices of a model, from its config.json or from a shipped workload.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SHAPES_H
#define KT_TUNER_SHAPES_H

#include <stdbool.h>

#include "base/json.h"
#include "dispatch/model/graph.h"
#include "tuner/space/cell.h"

#define KT_MAX_DENSE 40
#define KT_MAX_FFN 12
#define KT_MAX_KEPT 8

/* Under which weights a matrix is asked for in this size: parts that are stored in different
 * formats are multiplied apart, and together once they are of one. */
typedef enum kt_dense_form { KT_DENSE_ALWAYS = 0, KT_DENSE_NATIVE, KT_DENSE_ASKED } kt_dense_form;

/* Feed-forward as stored: matrices of one format and size, of experts or (experts = 1) of a layer's
 * only one. matrices: over all layers, gate, up and down counted apart. */
typedef struct kt_ffn_shape {
    char name[16];
    kt_weight_format weights;
    int64_t n, k, experts, topk, matrices;
} kt_ffn_shape;

typedef struct kt_shapes {
    char name[64];
    uint64_t shape_id; /* dispatch/model/resolve.h; 0 = not known */
    int64_t hidden, layers;
    int64_t moe_layers, intermediate, experts, topk; /* routed experts; 0 = none */
    int64_t dense_layers, dense_intermediate;        /* layers with one feed-forward network */
    int64_t shared_layers, shared_intermediate;      /* with one beside the routed experts */
    kt_weight_format native;                         /* of the experts in the checkpoint */
    int n_dense;
    struct {
        char name[16];
        int64_t n, k, layers; /* outputs, inputs, in how many layers (heads: of all layers) */
        kt_dense_form form;
        kt_weight_format native;  /* in the checkpoint; KT_W_NONE = BF16 */
        bool is_bf16;             /* whatever is asked for: matrices of single heads */
    } dense[KT_MAX_DENSE];        /* plain matrices as they are multiplied: q, k and v as one */
    int n_ffn;                    /* 0 = only the sizes above are known, in `native` */
    kt_ffn_shape ffn[KT_MAX_FFN]; /* the routed experts with the most matrices first */
    int n_kept;
    struct {
        char name[16];
        kt_problem problem; /* m = 0; of attention and the indexer context = 0 */
        int64_t layers;
    } kept[KT_MAX_KEPT]; /* operations that keep something of a sequence (kt_problem_is_packed) */
} kt_shapes;

/* From the object of config.json. Accepts the key aliases of the supported families; refuses sizes
 * that no kernel takes (not a multiple of 32). */
kt_status kt_shapes_from_config(const kt_json *config, const char *where, kt_shapes *out,
                                kt_err *err);

/* The same of a folder that `kt convert` wrote, with the formats that its panels have: they are
 * what `native` is there. config is the folder's, checkpoint the folder opened. */
kt_status kt_shapes_from_packed(const kt_json *config, const char *where,
                                const kt_checkpoint *checkpoint, kt_shapes *out, kt_err *err);

/* From a GGUF file, or the first of its parts, with the formats that its tensors have. */
kt_status kt_shapes_from_gguf(const char *path, kt_shapes *out, kt_err *err);

/* From a model that is described already. */
kt_status kt_shapes_from_graph(const kt_graph *graph, kt_shapes *out, kt_err *err);

/* From the object of a shipped workload (datasets/workloads): by its "config", where this build has
 * that family, else by its list of matrices. */
kt_status kt_shapes_from_workload(const kt_json *workload, const char *where, kt_shapes *out,
                                  kt_err *err);

/* Find a model as kt_model_resolve does: a folder, a GGUF file, a name. path (may be NULL) receives
 * the file that was read. */
kt_status kt_shapes_find(const char *model, kt_shapes *out, char *path, size_t path_bytes,
                         kt_err *err);

/* How weights are asked for when serving: native, everything BF16, INT8, or experts INT4 and the
 * rest INT8. -1 = unknown name. */
typedef enum kt_serving_format {
    KT_SERVE_NATIVE,
    KT_SERVE_BF16,
    KT_SERVE_INT8,
    KT_SERVE_INT4
} kt_serving_format;
int kt_serving_format_parse(const char *name);
const char *kt_serving_format_name(kt_serving_format format);

/* The format in which a matrix with these weights is served. */
kt_serving_format kt_serving_format_of(kt_weight_format weights);

/* Bytes of all weights of the model in this serving format, without what packing adds. */
double kt_shapes_weight_bytes(const kt_shapes *shapes, kt_serving_format format);

/* Largest number of m buckets and which ones a budget has time for. */
typedef enum kt_profile { KT_PROFILE_QUICK, KT_PROFILE_FULL } kt_profile;

/* All cells of the model for this serving format and these thread counts, weighted by a serving
 * mix; weights sum to 1. Matrices of one shape are one cell, under the role that comes first. */
kt_status kt_cells_of_shapes(const kt_shapes *shapes, kt_serving_format format, kt_profile profile,
                             const int *threads, int n_threads, kt_cell_list *out, kt_err *err);

#endif
