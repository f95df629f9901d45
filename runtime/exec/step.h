/* One step of a model: a chunk of rows of one sequence through all layers, as phases of the thread
 * pool. Two programs are prepared once: for a few rows (decode) the work between two matrix products
 * is done by one thread in the phase's prepare, which saves half of the synchronisations; for many
 * rows it is a phase of its own. Both call the same functions row by row, so that a row's result is
 * the same bits whatever the chunking.
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
#include "runtime/exec/importance.h"
#include "runtime/exec/recorder.h"
#include "runtime/kv/kv_cache.h"
#include "runtime/model/weights.h"

/* What `kt bench` reports time by. */
typedef enum kt_step_kind {
    KT_STEP_ROWS =
        0, /* norms, encoding, rotary embedding, cache writes; what one thread prepares */
    KT_STEP_QKV,
    KT_STEP_ATTN,
    KT_STEP_O,
    KT_STEP_ROUTER, /* for many rows with the norm before and the choice after */
    KT_STEP_FFN,
    KT_STEP_HEAD,
    KT_STEP_KINDS
} kt_step_kind;

typedef struct kt_step kt_step;

/* Work on rows [begin, end) of a layer that needs no other row. */
typedef void kt_row_work(const kt_step *s, int64_t layer, int64_t begin, int64_t end);

/* One phase. Layers share the jobs of the kernels (one workspace each): `bind` points a job at this
 * layer's weights and this chunk's rows before `inner`, the job's phase, starts. */
typedef struct kt_step_op {
    kt_step *step;
    kt_step_kind kind;
    int64_t layer;
    kt_row_work *before; /* NULL, or done for all rows by one thread before the tasks */
    kt_row_work *rows;   /* what the tasks do, when the phase is row work: then no inner */
    void (*bind)(kt_step *s, int64_t layer);
    kt_phase inner;
    void (*count)(kt_step *s, int64_t layer);   /* adds its work to the profile, or NULL */
    void (*note)(kt_step *s, int64_t layer);    /* what the recorder wants to know, or NULL */
    void (*observe)(kt_step *s, int64_t layer); /* adds its inputs to the importance, or NULL */
} kt_step_op;

/* Time of one thread in tasks, on a line of its own. */
typedef struct kt_step_busy {
    _Alignas(64) int64_t ns;
} kt_step_busy;

/* The feed-forward of MoE layers, or of dense ones. */
typedef struct kt_step_ffn {
    kt_moe_job job;
    kt_moe_nodes *nodes; /* in step->arena; NULL = experts are whole and job runs them */
    kt_buffer workspace[KT_MOE_MAX_NODES]; /* of the nodes */
} kt_step_ffn;

typedef struct kt_step_program {
    kt_phase *phases; /* in step->arena */
    int count;
} kt_step_program;

struct kt_step {
    const kt_model_config *config;
    const kt_model_plan *plan;
    const kt_weights *weights;
    kt_router_rule rule;
    int n_threads;
    int64_t max_rows;

    /* Of the current chunk. */
    const kt_kv_cache *cache;
    int64_t rows, first_position, n_out;
    float *logits;         /* [n_out, vocab] */
    float *hidden;         /* NULL, or this chunk's rows in [layers + 1][.., hidden] */
    int64_t hidden_stride; /* floats from one layer's rows to the next's */

    /* Working memory for max_rows rows, in one buffer. */
    float *x, *normed, *qkv, *attended, *router_logits, *route_weight, *ones;
    int32_t *positions, *expert_id, *zeros;
    uint8_t *acts; /* encoded rows */
    float *cos_sin;
    uint8_t *attn_workspace, *gemm_scratch;
    kt_buffer buffer;
    kt_arena arena;

    kt_gemm_job gemm;
    kt_gemm_group gemm_group;
    kt_attn_job attn;
    kt_step_ffn moe, dense;
    kt_step_program few, many;

    kt_recorder *recorder;     /* borrowed; NULL = nothing is recorded */
    kt_importance *importance; /* borrowed; NULL = inputs are not observed */
    bool is_decode;            /* these rows continue a sequence one by one */

    /* When profiled. */
    int is_profiled;
    kt_step_kind last_kind;
    int64_t stamp_ns;
    kt_profile profile;
    kt_step_busy *busy; /* [threads] */
};

/* Config, plan, weights and nodes (those that the weights were loaded for) are borrowed. */
kt_status kt_step_init(kt_step *s, const kt_model_config *config, const kt_model_plan *plan,
                       const kt_weights *weights, const kt_node_plan *nodes, kt_pool *pool,
                       int64_t max_context, kt_err *err);
void kt_step_deinit(kt_step *s);

/* Run rows tokens at position first_position. cache, n_out, logits, hidden and hidden_stride must be
 * set. Allocates nothing. */
void kt_step_run(kt_step *s, kt_pool *pool, const int32_t *tokens, int64_t rows,
                 int64_t first_position);

/* ---- what a layer does (step_ops.c), in this order ---- */

kt_row_work kt_step_attn_norm;
void kt_step_bind_qkv(kt_step *s, int64_t layer);
kt_row_work kt_step_rope_and_cache;
void kt_step_bind_attn(kt_step *s, int64_t layer);
kt_row_work kt_step_encode_attended;
void kt_step_bind_o(kt_step *s, int64_t layer);
kt_row_work kt_step_norm_and_route; /* for many rows; for few the three below */
kt_row_work kt_step_ffn_norm;       /* (also all that a dense layer needs) */
kt_phase kt_step_router_phase(kt_step_op *op);
kt_row_work kt_step_select;
void kt_step_bind_ffn(kt_step *s, int64_t layer);
/* What knows the routing of the last run: the job, or a node's. */
const kt_moe_job *kt_step_ffn_job(const kt_step_ffn *ffn);
kt_row_work kt_step_final_norm;
void kt_step_bind_head(kt_step *s, int64_t layer);

/* ---- what the profile counts (step_work.c): called when the phase starts, on one thread ---- */

void kt_step_count_qkv(kt_step *s, int64_t layer);
void kt_step_count_attn(kt_step *s, int64_t layer);
void kt_step_count_o(kt_step *s, int64_t layer);
void kt_step_count_router(kt_step *s, int64_t layer);
void kt_step_count_ffn(kt_step *s, int64_t layer); /* after its experts are known */
void kt_step_note_experts(kt_step *s, int64_t layer);
void kt_step_count_head(kt_step *s, int64_t layer);
/* The same for what the importance adds up (step_observe.c). */
void kt_step_observe_qkv(kt_step *s, int64_t layer);
void kt_step_observe_o(kt_step *s, int64_t layer);
void kt_step_observe_gate_up(kt_step *s, int64_t layer);
void kt_step_observe_down(kt_step *s, int64_t layer);
void kt_step_observe_head(kt_step *s, int64_t layer);
/* Names and units of the kinds; zero everything else. */
void kt_step_profile_reset(kt_step *s);

#endif
