/* What an operation on a device is: one file runtime/device/ops/device_op_<kind>.c defines
 * `const kt_device_op kt_device_op_<kind>`; the build writes the table.
 *
 * Values of the graph are f32 arrays [max_rows, width] in the memory of the device, as they are on
 * the CPU, so that an op is a translation of its CPU op (runtime/exec/ops) into launches. All
 * launches go to KT_STREAM_MAIN and run in the order they are put; nothing waits. Pointers below
 * are the device's unless they are said to be the host's.
 *
 * An op whose kind is missing, or that refuses a node, leaves it to the CPU, and the values that
 * cross are copied (runtime/exec/place.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_RUNTIME_DEVICE_OP_H
#define KT_RUNTIME_DEVICE_OP_H

#include "dispatch/device/device_kernel.h"
#include "dispatch/plan/plan_device.h"
#include "runtime/kv/pages.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/model_plan.h"

typedef struct kt_device_step kt_device_step;
typedef struct kt_device_node kt_device_node;

/* Rows of one sequence in the current step, as kernels read them (kt_state_span of row_calls.h has
 * the same layout). */
typedef struct kt_device_span {
    int32_t first_row, rows;
    int32_t position; /* of the first row */
    int32_t from, to; /* slots of its states before and after the step; may be the same */
} kt_device_span;

/* Keys, values and index keys of the planes that this device keeps, with the page numbers of the
 * host's pool (runtime/kv/pages.h). Token `at` of page g of head h of plane p, keys (which = 0) or
 * values (which = 1; not with shape.has_shared_rows), is row number
 *
 *   r = plane_row[p] + ((which * kv_heads + h) * n + g) * 64 + at
 *
 * whose head_dim elements begin at rows + r * head_dim * (2 bytes of BF16, else 1) and whose scale
 * (int8, fp8) is scales[r]. Its index key begins at index + (index_row[p] + g * 64 + at) *
 * index_dim. */
typedef struct kt_device_pages {
    kt_kv_shape shape;
    int64_t n;                /* pages */
    const int64_t *plane_row; /* host's: [planes of the graph]; -1 = the CPU keeps it */
    const int64_t *index_row; /* host's: [planes], likewise; -1 also of one without index keys */
    uint8_t *rows;
    float *scales;   /* NULL = none */
    uint16_t *index; /* NULL = none */
    /* Of planes whose rows stand for several tokens: page g begins g * shape.entry_bytes behind,
     * which are those of the planes that are here, and a plane's lie there as
     * kt_device_entry_layout says. NULL = none. */
    uint8_t *entries;
} kt_device_pages;

/* A device while it runs a model. Sizes are those of kt_step. The current step's arrays are there
 * before the first op of the step is asked to enqueue. */
struct kt_device_step {
    kt_device *device;
    const kt_graph *graph;
    const kt_model_plan *plan;
    int64_t max_rows, max_context;
    const kt_table *table;   /* whose rows of this device choose kernels; NULL = none */
    bool is_exact;           /* no rows in 8 bits */
    kt_device_advice advice; /* what became of the table's rows */

    /* Of the current step: numbers of the host, then arrays of the device. */
    uint64_t number; /* of the step: what an op has staged is there while it is the same */
    int64_t rows, n_out;
    int n_spans;
    bool wants_hidden;    /* HEAD: norm all rows into out, not only those with logits */
    bool is_left_out;     /* routed EXPERTS compute nothing (kt_engine_leave_out) */
    int32_t *position;    /* [rows] */
    int32_t *token;       /* [rows] */
    int32_t *span_of;     /* [rows] */
    int32_t *out_row;     /* [n_out] ascending */
    kt_device_span *span; /* [n_spans] */
    int32_t *first_page;  /* [n_spans] a span's page numbers begin at page + first_page[span] */
    uint32_t *page;       /* page numbers of all spans */
    /* Host's copies, to make grids and lists of. */
    const kt_device_span *host_span;
    const int32_t *host_first_page, *host_span_of;

    /* Of the last ROUTE. ROUTE on the device writes all three; where it ran on the CPU they are
     * copied. slots = topk: with a device a shared expert is always a node of its own. */
    int32_t *expert_id;  /* [rows, slots] numbers in the model, -1 = slot unused */
    int32_t *device_id;  /* [rows, slots] place among the experts on this device, -1 = none */
    float *route_weight; /* [rows, slots] */
    int64_t slots;

    float *const *cos_sin; /* host's: [rotations] tables [max_context, rotary_dim] as kt_rope_call
                               reads them */
    float *logits;         /* [n_out, vocab]: HEAD writes them */
    kt_device_pages pages;
    float *states; /* slot i of a sequence's states at states + i * state_floats */
    int64_t state_floats;
    const int64_t *slot_at; /* host's: [slots of the graph] where a node's state begins there */

    void *scratch; /* what ops asked for by kt_device_step_need; of one node at a time */
    struct kt_device_home *home; /* the rest; not for ops */
};

/* A node as it runs on the device. They lie as the graph's nodes do: the first is
 * n - (n->node - graph->nodes); op is NULL where another side has the node. */
struct kt_device_node {
    const kt_node *node;
    const struct kt_device_op *op;
    kt_device_step *step;
    kt_device_view in, in2, in3, out; /* width 0 = none, as in the node */
    /* LINEAR: node->accumulate. EXPERTS: true adds to out, false writes it (the sum of the experts
     * on this device alone, which is added elsewhere). */
    bool accumulate;
    /* EXPERTS and the ROUTE before it: experts that lie on this device, ascending, and (device
     * memory) the place of each of the model's experts in that list or -1. Not routed: the one
     * expert is here. */
    const int32_t *experts;        /* host's: [n_experts] */
    int64_t n_experts;             /* 0: others cross for long steps */
    int32_t *place_of;             /* device's: [experts of the model] */
    const kt_device_node *routing; /* EXPERTS: the ROUTE node when it runs here, or NULL */
    void *state;                   /* made by init (kt_device_step_alloc) */
};

/* What there is to judge a node by, before anything is loaded. */
typedef struct kt_device_ask {
    const kt_graph *graph;
    const kt_model_plan *plan; /* formats of weights: kt_model_plan_run(...)->problem */
    const kt_cuda_target *target;
    kt_kv_shape kv;
    int64_t max_rows, max_context;
    const struct kt_device_op *const *ops; /* [n_ops]; NULL = kt_builtin_device_ops */
    size_t n_ops;
    /* [weights] or NULL: experts of these can cross the link for a long step (expert_stream.h). */
    const bool *streamed;
    /* Several devices: a layer is of the last one whose first layer is not behind it. 0 or 1 = one;
     * borrowed. */
    int n_devices;
    const int *first_layer; /* [n_devices] ascending, the first is 0 */
    bool keeps_all; /* experts that lie there stay in the host's memory, too: they may change */
} kt_device_ask;

typedef struct kt_device_op {
    kt_node_kind kind;
    /* Why this node cannot run on the device ("heads of 80 numbers, expected 64, 96, 128 or 256"),
     * a text that lives as long as the program; NULL = it can. NULL function = always. */
    const char *(*refuse)(const kt_device_ask *ask, const kt_node *n);
    /* Once: code, weights, state. The checkpoint is open. NULL = nothing to do. */
    kt_status (*init)(kt_device_node *n, kt_err *err);
    /* Put the launches for step->rows rows (at least 1) into KT_STREAM_MAIN. */
    kt_status (*enqueue)(kt_device_node *n, kt_err *err);
} kt_device_op;

extern const kt_device_op *const kt_builtin_device_ops[];
extern const size_t kt_builtin_device_op_count;
const kt_device_op *kt_device_op_find(kt_node_kind kind); /* or NULL */

/* ---- for init ---- */

/* Memory of the host that ends with the step, zeroed; NULL = none is left. */
void *kt_device_step_alloc(kt_device_step *s, size_t bytes);
/* Memory of the device that ends with the step, aligned to 256 bytes; counted as working memory. */
kt_status kt_device_step_take(kt_device_step *s, size_t bytes, void **out, kt_err *err);
/* At least so many bytes at step->scratch when enqueue is called; for one node at a time. */
void kt_device_step_need(kt_device_step *s, size_t bytes);
/* Code of kernels/cuda/<name>.cu; config NULL = the initial one. */
kt_status kt_device_step_code(kt_device_step *s, const char *name, const kt_config *config,
                              const kt_device_code **out, kt_err *err);

/* A vector, router or table as the CPU holds it (kt_weight_kept_as): f32, or BF16 routers. *out is
 * NULL for an optional vector that is not there. Asked for twice it is the same memory. */
kt_status kt_device_load_small(kt_device_step *s, int weight, const void **out,
                               kt_weight_format *format, kt_err *err);

/* Matrices of a weight of the graph. */
typedef struct kt_device_pick {
    int weight;
    int first, n; /* parts, stacked where n > 1: a run of a MATRIX (kt_weight_runs); of EXPERTS
                     n = 1 and first 0 gate, 1 up, 2 down; of HEADS 0 and 1 */
    const int32_t *which; /* experts or heads; NULL = all from 0 */
    int64_t count;        /* of them; 1 for a MATRIX */
} kt_device_pick;

/* Made of the checkpoint; *out ends with the step. */
kt_status kt_device_load_matrices(kt_device_step *s, const kt_device_pick *pick,
                                  kt_device_matrices *out, kt_err *err);

/* Of a vector of `count` equal rows of floats the n rows `which`, ascending (NULL = the first), one
 * behind the other; *out is NULL where the model has none or n is 0, and ends with the step. */
kt_status kt_device_load_rows(kt_device_step *s, int weight, int64_t count, const int32_t *which,
                              int64_t n, const float **out, kt_err *err);

/* Where a page keeps the entries of a plane that is here: kt_model_entry_layout, but `at` counts
 * only planes that are. */
kt_entry_layout kt_device_entry_layout(const kt_device_step *s, int plane);

/* ---- for enqueue ---- */

/* A list that the host makes for this step, such as the tiles of its spans: copied at once, it is
 * at *out before launches that are put later and until the step ends. Layers share one by keeping
 * *out and the step's number. */
kt_status kt_device_stage(kt_device_step *s, const void *list, size_t bytes, const void **out,
                          kt_err *err);

/* One launch of an entry in KT_STREAM_MAIN; threads are the kernel's. */
kt_status kt_device_put(kt_device_step *s, const kt_device_code *code, int entry, int grid_x,
                        int grid_y, size_t shared_bytes, const void *parameters,
                        size_t parameter_bytes, kt_err *err);

#endif
