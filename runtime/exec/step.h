/* One step of a model: rows of some sequences through the graph's nodes, as phases of
 * the thread pool. Two programs are compiled once: for a few rows (decode) the work between two
 * matrix products is done by one thread in the next phase's prepare, which saves half of the
 * synchronisations; for many rows it is a phase of its own. Both call the same functions row by
 * row, so that a row's result is the same bits whatever the chunking.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STEP_H
#define KT_RUNTIME_STEP_H

#include "base/arena.h"
#include "base/buffer.h"
#include "base/pool.h"
#include "kernels/attn/attn_job.h"
#include "kernels/gemm/gemm_job.h"
#include "kernels/moe_ffn/moe_nodes.h"
#include "kernels/router/router_select.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/expert_map.h"
#include "runtime/exec/importance.h"
#include "runtime/exec/recorder.h"
#include "runtime/kv/pages.h"
#include "runtime/model/weights.h"

/* What `kt bench` reports time by. */
typedef enum kt_step_kind {
    KT_STEP_ROWS =
        0,         /* norms, encoding, rotary embedding, cache writes; what one thread prepares */
    KT_STEP_QKV,   /* matrices before attention */
    KT_STEP_HEADS, /* matrices of single heads: the halves of absorbed latent attention */
    KT_STEP_CONV,
    KT_STEP_DELTA, /* linear attention */
    KT_STEP_INDEX, /* scores of the indexer, and which keys they pick */
    KT_STEP_ATTN,
    KT_STEP_O,      /* matrices whose product goes to the residual */
    KT_STEP_ROUTER, /* the choice from its logits is row work */
    KT_STEP_FFN,
    KT_STEP_HEAD,
    KT_STEP_KINDS
} kt_step_kind;

/* Up to here serial row work costs less than another synchronisation: the program for few rows. */
#define KT_STEP_FEW_ROWS 4

/* Rows that one task of sparse attention scores together, so that keys are turned round once. */
#define KT_STEP_SCORED_ROWS 4

typedef struct kt_step kt_step;
typedef struct kt_exec_node kt_exec_node;

/* Work on rows [begin, end) that needs no other row. */
typedef void kt_row_work(const kt_step *s, const kt_exec_node *n, int64_t begin, int64_t end);

/* A view of a value in memory: row r begins at x + r * ld. */
typedef struct kt_rows {
    float *x;
    int64_t ld, width;
} kt_rows;

/* A node as it runs. What depends on its kind is in `state`, made by its op. */
struct kt_exec_node {
    const kt_node *node;
    const struct kt_exec_op *op;
    kt_step *step;
    kt_rows in, in2, in3, out;
    const kt_choice *choice,
        *many; /* of operations without packed weights; many: for many rows, of DELTA */
    const kt_loaded *weight, *weight2, *weight3, *weight4;
    void *state; /* in step->arena */
};

#define KT_EXEC_PHASES 6

/* One file runtime/exec/ops/<kind>.c defines `const kt_exec_op kt_exec_op_<kind>`; the build
 * writes the table. */
typedef struct kt_exec_op {
    kt_node_kind kind;
    /* Once, when memory is laid out: fill choice and state. NULL = nothing to do. */
    kt_status (*init)(kt_exec_node *n, kt_err *err);
    /* Row work of the node, or (with phases) what its phases need done with rows before; NULL =
     * none. */
    kt_row_work *rows;
    /* The phases of the few-rows or many-rows program, at most KT_EXEC_PHASES; NULL or 0 = row
     * work only. */
    int (*phases)(kt_exec_node *n, int is_few, kt_phase out[KT_EXEC_PHASES]);
    kt_row_work *after; /* row work behind the phases, done with the next node's; NULL = none */
    /* Point jobs that layers share at this node, on one thread before the first phase. */
    void (*bind)(kt_exec_node *n);
    kt_step_kind (*time)(const kt_exec_node *n);
    /* Of all phases but the last, where that is another kind; or NULL. */
    kt_step_kind (*time_before)(const kt_exec_node *n);
    void (*count)(
        kt_exec_node *n); /* adds the work to the profile, or NULL: when the last phase starts */
    void (*note)(kt_exec_node *n); /* what recorder and expert map want to know, likewise */
    void (*observe)(
        kt_exec_node *n); /* adds inputs to the importance, when the first phase starts */
    void (*observe_last)(kt_exec_node *n); /* likewise when the last one does */
} kt_exec_op;

extern const kt_exec_op *const kt_builtin_exec_ops[];
extern const size_t kt_builtin_exec_op_count;

/* Row work that waits for a phase. */
typedef struct kt_step_work {
    kt_row_work *run;
    const kt_exec_node *node;
} kt_step_work;

/* One phase of a program. */
typedef struct kt_step_op {
    kt_step *step;
    kt_step_kind kind;
    kt_exec_node *node;  /* whose phase this is; of row work NULL */
    kt_step_work *works; /* before the tasks by one thread; or, when is_rows, what the tasks do */
    int n_works;
    int is_rows, is_first, is_last; /* of the node's phases */
    int64_t rows_per_task;          /* when is_rows, of this step */
    kt_phase inner;
} kt_step_op;

/* Rows of one sequence in the current step. */
typedef struct kt_step_span {
    const uint32_t *page; /* numbers of its pages, with room for its new rows */
    int64_t first_row, rows;
    int64_t position; /* of the first row */
    /* States of recurrent nodes, slot i at slot_at[i]: before the step and after it, which may be
     * the same memory; NULL = the model has none. */
    const float *from;
    float *to;
} kt_step_span;

/* Time of one thread in tasks, on a line of its own. */
typedef struct kt_step_busy {
    _Alignas(64) int64_t ns;
} kt_step_busy;

/* A feed-forward job, shared by the layers whose experts have one problem and number. */
typedef struct kt_step_ffn {
    const kt_problem_plan *plan;
    int64_t experts; /* with a shared one that runs with them (joined.h) */
    kt_moe_job job;
    kt_moe_nodes *nodes; /* in step->arena; NULL = experts are whole and job runs them */
    kt_buffer workspace[KT_MOE_MAX_NODES]; /* of the nodes */
} kt_step_ffn;

/* An attention job, shared likewise. */
typedef struct kt_step_attn {
    kt_problem problem;
    kt_attn_job job;
    struct kt_expand *expand; /* in step->arena; NULL = rows are never expanded */
} kt_step_attn;

#define KT_STEP_SHARED 8 /* different jobs of one kind */

typedef struct kt_step_program {
    kt_phase *phases; /* in step->arena */
    int count;
    /* With a device: [segments + 1] the phases of each segment, and which segments are the
     * program's: those of the model, or of its draft head. Else NULL. */
    int *begin;
    int first, end;
} kt_step_program;

struct kt_step {
    const kt_graph *graph;
    const kt_model_plan *plan;
    const kt_weights *weights;
    const kt_node_plan *nodes;
    int n_threads;
    int64_t max_rows, max_context;

    /* Of the current step; kt_step_run tells what its caller sets. */
    const kt_page_pool *pages;
    kt_step_span *spans; /* [n_spans of at most max_rows]; in arena, as what follows */
    kt_attn_span *attn_spans;
    int n_spans;
    int32_t *span_of; /* [rows] index of a row's span */
    int64_t rows, n_out;
    const int32_t *tokens;  /* [rows], of the step that runs */
    const int32_t *out_row; /* [n_out] ascending */
    int32_t *out_of;        /* [rows] index of a row's logits, or -1 */
    float *logits;          /* [n_out, vocab] */
    float *hidden;          /* NULL, or this step's rows in [layers + 1][.., hidden] */
    int64_t hidden_stride;  /* floats from one layer's rows to the next's */

    /* Working memory for max_rows rows, in one buffer. */
    float *values;     /* each at value_at[i] * max_rows */
    int64_t *value_at; /* [values] floats per row; in arena */
    int64_t *slot_at;  /* [slots]; in arena */
    float *router_logits, *route_weight, *ones;
    int32_t *positions, *expert_id, *zeros;
    uint8_t *acts;   /* encoded rows */
    float **cos_sin; /* [rotations] tables of max_context positions; in arena */
    float *angles;   /* their memory */
    uint8_t *gemm_scratch;
    size_t gemm_stride; /* per thread */
    double *embedding_row;
    kt_buffer buffer;
    kt_arena arena;

    kt_exec_node *exec; /* [nodes of the graph]; in arena */
    kt_step_ffn ffn[KT_STEP_SHARED];
    kt_step_attn attn[KT_STEP_SHARED];
    int n_ffn, n_attn;
    kt_step_program few, many;
    kt_step_program few_drafts, many_drafts; /* the draft head's, where the graph has one */

    /* With a device (segments.h): what it does, itself, and ids [rows, topk] of the experts that
     * the CPU has. All NULL without one. */
    const struct kt_placement *place;
    struct kt_device_step *device;      /* the first one */
    struct kt_device_step **devices;    /* [place->n_devices] all of them; in arena */
    int32_t *cold_id, *noted;           /* noted: [experts] rows of each, while they are counted */
    struct kt_segment_letters *letters; /* [segments] of a step that is put whole */
    struct kt_mail_span *mail_spans;    /* [place->n_devices, most_mail_spans] of its letters */
    int most_mail_spans;
    float *cold_sum;      /* [rows, hidden] the CPU's part of a sum that is formed there */
    kt_left_out left_out; /* kt_engine_leave_out */

    kt_recorder *recorder;     /* borrowed; NULL = nothing is recorded */
    kt_importance *importance; /* borrowed; NULL = inputs are not observed */
    kt_expert_map *expert_map; /* borrowed; NULL = the model has no routed experts */
    bool is_mapped;            /* this step's experts are counted in it: somebody looks */

    /* When profiled. */
    int is_profiled;
    kt_step_kind last_kind;
    int64_t stamp_ns;
    kt_profile profile;
    kt_step_busy *busy; /* [threads] */
};

/* Graph, plan, weights, nodes (those that the weights were loaded for) and place are borrowed.
 * place: NULL, or which nodes a device runs, which is s->device before the first run. */
kt_status kt_step_init(kt_step *s, const kt_graph *graph, const kt_model_plan *plan,
                       const kt_weights *weights, const kt_node_plan *nodes,
                       const struct kt_placement *place, kt_pool *pool, int64_t max_context,
                       kt_err *err);
void kt_step_deinit(kt_step *s);

/* Run rows tokens. pages, the members of spans, n_spans, n_out, out_row, logits, hidden and
 * hidden_stride must be set. Allocates nothing. KT_E_CANCELLED: stop (NULL, or read before each
 * phase) was seen; other errors are a device's. Then pages behind the spans' positions and the
 * states they write are spoilt, nothing else. */
kt_status kt_step_run(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                      const atomic_bool *stop, kt_err *err);

/* The same of the graph's draft head: row r has token tokens[r] and the hidden state that
 * kt_step_draft_hidden(s, r) holds. Nothing is recorded or observed, and nothing stops it. */
kt_status kt_step_run_drafts(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                             kt_err *err);
/* A row's [hidden] for the draft head: after kt_step_run the model's last one, normed. And what the
 * draft head's layer made of it, after kt_step_run_drafts. */
float *kt_step_draft_hidden(const kt_step *s, int64_t row);
const float *kt_step_residual(const kt_step *s, int64_t row);

/* Names and units of the kinds; zero everything else. */
void kt_step_profile_reset(kt_step *s);

/* ---- for the ops (exec/ops) and the compiler ---- */

/* Does a device run this node alone, or its part of it? */
bool kt_step_is_away(const kt_step *s, int node);
bool kt_step_is_shared(const kt_step *s, const kt_node *n, bool *is_summed_there);
/* Tell the recorder and the expert map what the last routing was, for a node that is not, or not
 * alone, the CPU's. */
void kt_step_note_routing(const kt_step *s, const kt_node *experts);

/* The op of a kind, or NULL: this build cannot run it. */
const kt_exec_op *kt_exec_op_find(kt_node_kind kind);

/* Lay out values, jobs' memory and tables; base NULL only counts. */
kt_status kt_step_lay_out(kt_step *s, kt_pool *pool, kt_err *err);

/* Compile the graph, or its draft head, for few or many rows. */
kt_status kt_step_compile(kt_step *s, kt_step_program *program, int is_few, bool is_draft,
                          kt_err *err);

/* The span of a row, and where its own key is: page and place in it. */
static inline const kt_step_span *kt_step_span_of(const kt_step *s, int64_t row) {
    return &s->spans[s->span_of[row]];
}
static inline uint32_t kt_step_page_of(const kt_step *s, int64_t row, int64_t *at) {
    *at = s->positions[row] % KT_PAGE_TOKENS;
    return kt_step_span_of(s, row)->page[s->positions[row] / KT_PAGE_TOKENS];
}

/* Keys that a row sees, its own the last, and the pages of its sequence. */
static inline int64_t kt_step_keys_of(const kt_step *s, int64_t row) {
    return s->positions[row] + 1;
}
static inline const uint32_t *kt_step_pages_of(const kt_step *s, int64_t row) {
    return kt_step_span_of(s, row)->page;
}
/* The rows from `row` on, up to `end`, that are of its sequence. */
static inline int64_t kt_step_end_of_sequence(const kt_step *s, int64_t row, int64_t end) {
    const kt_step_span *span = kt_step_span_of(s, row);
    const int64_t last = span->first_row + span->rows;

    return last < end ? last : end;
}
/* Keys from `key` on, at most to `end`, whose pages follow each other in memory. */
int64_t kt_step_end_of_run(const uint32_t *page, int64_t key, int64_t end);
/* Scratch of a thread, a multiple of 64 bytes. */
size_t kt_step_scratch_of(const kt_choice *c, const kt_problem *p);
/* Tasks [begin, end) of spans x `each` blocks of channels: span by span those of it. */
void kt_step_run_spans(const kt_exec_node *n, int64_t each, int64_t begin, int64_t end,
                       void (*run)(const kt_exec_node *n, const kt_step_span *span, int64_t first,
                                   int64_t last));

/* Bring `count` floats, from `at` on, of a span's states of a slot to where they are to be written,
 * unless they are there. */
void kt_step_bring_state(const kt_step *s, const kt_step_span *span, int slot, int64_t at,
                         int64_t count);
void kt_step_count(kt_step *s, kt_step_kind kind, double ops, double bytes);
/* RMSNorm of rows [begin, end), k numbers each. */
void kt_norm_rows(const kt_choice *choice, const float *x, int64_t ldx, const float *w, float eps,
                  float *y, int64_t ldy, int64_t k, int64_t begin, int64_t end);
/* Rows of x to hidden[index], when hidden states are asked for. */
void kt_step_copy_hidden(const kt_step *s, int64_t index, const kt_rows *x, int64_t begin,
                         int64_t end);
void *kt_step_alloc(kt_step *s, size_t bytes); /* zeroed, in the arena; NULL = no memory */

#endif
