/* From tensors of a checkpoint to the bytes that kernels read: quantised when asked, packed by all
 * threads in blocks of rows. The loader packs into a model's memory, `kt convert` into files.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PACKER_H
#define KT_RUNTIME_PACKER_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/buffer.h"
#include "base/pool.h"
#include "kernels/moe_ffn/moe_nodes.h"
#include "runtime/model/fresh_pages.h"
#include "runtime/model/model_plan.h"
#include "runtime/model/staging.h"
#include "runtime/model/weight_source.h"

/* Everything borrowed for the life of the packer. */
typedef struct kt_packer_request {
    const kt_checkpoint *checkpoint;
    const kt_graph *graph;
    const kt_model_plan *plan;
    const kt_checkpoint *importance; /* of inputs, for formats that search scales; or NULL */
    bool allow_nonfinite; /* take NaN and infinite numbers too, where the format can hold them */
    bool has_twins;       /* experts may have the same stored bytes: pack one, copy the others */
    int n_nodes;          /* memory nodes that experts are cut over; 1 = whole */
    kt_pool *pool;
    const kt_log *log;
} kt_packer_request;

/* Where `count` experts go: whole ones, or a slice of each into every node's memory. */
typedef struct kt_placing {
    kt_moe_layer whole;
    int n; /* nodes */
    int64_t count;
    int64_t begin[KT_MOE_MAX_NODES + 1]; /* channels of each node, when n > 1 */
    size_t bytes[KT_MOE_MAX_NODES];      /* of a slice, rounded up to 64 */
    uint8_t **at;                        /* [n][count]; borrowed. NULL = this one is not packed */
} kt_placing;

/* An expert that is packed, and the stored bytes it was made of. */
typedef struct kt_packer_twin {
    const kt_problem_plan *part;
    const uint8_t *stored[3];
    uint8_t *const *placed;
} kt_packer_twin;

#define KT_PACKER_TWINS 16

/* What encoding loses, when somebody wants to know. Set `block` before each call that packs; blocks
 * are kt_packer_blocks of a matrix or expert, times the experts of the call. A part whose stored
 * numbers are taken as they are has zeros. */
typedef struct kt_packer_losses {
    kt_format_loss (*block)[KT_WEIGHT_PARTS]; /* borrowed; [blocks][parts of the run, or an
                                                 expert's gate, up and down]; NULL = do not ask */
    size_t desk_bytes;                        /* of each lane: floats, then a row of doubles */
    kt_buffer desks;
    size_t floats_bytes;
} kt_packer_losses;

typedef struct kt_packer {
    kt_packer_request request;
    kt_weight_finder finder;
    kt_buffer staging;    /* a slice per lane, and one plain matrix for all threads */
    kt_staging plain;     /* how staging is shared out */
    kt_fresh_pages fresh; /* of the memory that is packed into, if its pages are to be given */
    atomic_int bad;       /* a row could not be taken */
    kt_err why;           /* of the first that could not */
    kt_packer_twin twins[KT_PACKER_TWINS];
    int n_twins;
    kt_packer_losses losses;
} kt_packer;

/* The caller's struct, ended by kt_packer_deinit also after an error. Used by one thread, which
 * runs the pool. */
kt_status kt_packer_init(kt_packer *p, const kt_packer_request *request, kt_err *err);
void kt_packer_deinit(kt_packer *p);

/* Find every tensor and check its shape and type; say what is not used or changed. */
kt_status kt_packer_check(kt_packer *p, kt_err *err);

/* Take the staging. Before any of what follows. */
kt_status kt_packer_start(kt_packer *p, kt_err *err);

/* Measure what packing loses: memory for it. After kt_packer_start. */
kt_status kt_packer_measure(kt_packer *p, kt_err *err);
int64_t kt_packer_blocks(const kt_problem_plan *plan, int64_t rows);
/* Memory that a packer takes when it starts and measures. */
size_t kt_packer_bytes(const kt_packer_request *request);

/* What is packed from now on goes to this memory, reserved but without pages; NULL = the rest of
 * its pages are given, and no memory is. */
kt_status kt_packer_fresh(kt_packer *p, const kt_buffer *buffer, kt_err *err);

/* A run of a matrix, plan->bytes to packed (64-byte aligned, as below); then its pages of the
 * checkpoint are given back. Numbers that cannot be taken are told by kt_packer_failure. */
void kt_packer_dense(kt_packer *p, const kt_problem_plan *plan, const kt_matrix_source *source,
                     uint8_t *packed);

/* All matrices of HEADS, one behind the other, plan->bytes apart. */
kt_status kt_packer_heads(kt_packer *p, int weight, uint8_t *packed, kt_err *err);

/* Experts [first, first + place->count) of a weight. */
kt_status kt_packer_experts(kt_packer *p, int weight, int64_t first, const kt_placing *place,
                            kt_err *err);

/* The tensor of a vector, router or table and the bytes it becomes; NULL and 0 of an optional one
 * that is not there. Then those bytes, in the type kt_weight_kept_as. */
kt_status kt_packer_find_small(kt_packer *p, int weight, const kt_tensor **out, size_t *bytes,
                               kt_err *err);
void kt_packer_small(kt_packer *p, int weight, const kt_tensor *tensor, uint8_t *out);

/* The first number that could not be taken so far, or KT_OK. */
kt_status kt_packer_failure(const kt_packer *p, kt_err *err);

#endif
