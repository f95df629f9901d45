/* Expert layers for other engines: the routed experts of one mixture-of-experts layer, computed by
 * the kernels that serve whole models here.
 *
 *     out[t] = sum over i < topk of route_weight[t, i] * expert[id[t, i]](x[t])
 *     expert(x) = down * (silu(gate * x) * (up * x)), or another activation of kt_moe_options
 *
 * A team is a set of threads that layers share: calls of all its layers run one after the other, in
 * the order in which they were submitted, each on all threads. Any number of calls of any number of
 * layers may be in flight.
 *
 * Threads: every function may be called by any thread at any time, but for a layer's or team's end,
 * after which nobody may use it. The team's threads are bound to a core each; callers stay as they
 * are. Teams and layers may be destroyed in any order: a team lives until its last layer ends. No
 * call of a loaded layer allocates.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_MOE_H
#define KT_MOE_H

#include "kt/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kt_moe_team kt_moe_team;
typedef struct kt_moe kt_moe; /* one layer */

/* ---- teams ---- */

typedef struct kt_moe_team_options {
    size_t size;        /* kt_moe_team_options_init */
    int32_t n_threads;  /* 0 = one per usable core */
    const char *table;  /* dispatch table, borrowed during the call; NULL = none: kernels are chosen
                           by estimate */
    bool deterministic; /* no bit follows the number of threads or the rows of a call */
    bool exact_acts;    /* finest activations, weights never rounded again */
    /* Memory nodes that experts are cut over, a slice of each in every node's memory: 0 = those
     * that the threads' cores belong to (deterministic: 1), 1 = experts stay whole, n = as many
     * groups of threads, for machines that hide their nodes. Experts too small to be cut stay
     * whole, or are refused when they are loaded, where a number was asked for. */
    int32_t memory_nodes;
} kt_moe_team_options;

KT_API void kt_moe_team_options_init(kt_moe_team_options *options, size_t size);

/* options NULL = the defaults. */
KT_API kt_status kt_moe_team_create(const kt_moe_team_options *options, kt_moe_team **out,
                                    kt_err *err);
KT_API void kt_moe_team_destroy(kt_moe_team *team);

/* ---- layers ---- */

typedef struct kt_moe_options {
    size_t size;                  /* kt_moe_options_init */
    int64_t experts, topk;        /* of the layer; chosen for each token, at most 64 */
    int64_t hidden, intermediate; /* size of a token, and between the matrices */
    int64_t max_tokens;           /* computed at once; longer calls are cut; 0 = 512 */
    const char *weights;    /* what they become: "native", "bf16", "int8", "int4", "w8g128" ... */
    const char *activation; /* "swiglu", or "swigluoai": see below */
    /* "swiglu" is silu(g) * u of g = gate * x and u = up * x; with a limit over 0 it is that of
     * g' = min(g, limit) and u' = u between -limit and limit. "swigluoai" (limit and alpha over 0)
     * is (u' + 1) * g' / (1 + exp(-alpha * g')). */
    float swiglu_limit, swiglu_alpha;
} kt_moe_options;

/* Native weights and SwiGLU; the sizes are the caller's to set. */
KT_API void kt_moe_options_init(kt_moe_options *options, size_t size);

/* A layer without weights. KT_E_INVALID for sizes or words that mean nothing. */
KT_API kt_status kt_moe_create(kt_moe_team *team, const kt_moe_options *options, kt_moe **out,
                               kt_err *err);
/* Waits for the layer's calls. */
KT_API void kt_moe_destroy(kt_moe *m);

/* Load the experts of a model's layer: folder of safetensors, GGUF file or bundled name. Waits for
 * the calls that were submitted before; they run with the weights before. On an error those remain.
 * KT_E_MISMATCH when the layer's sizes are others than the model's, KT_E_NOT_FOUND when the model
 * has no experts there, KT_E_NOMEM, KT_E_FORMAT, KT_E_UNSUPPORTED as kt_engine_load. */
KT_API kt_status kt_moe_load(kt_moe *m, const char *model, int64_t layer, kt_err *err);

/* A tensor in memory, its rows (the last dimension) dense. */
typedef struct kt_moe_tensor {
    const char *name;  /* as checkpoints spell it behind "experts.": see below */
    const char *dtype; /* "BF16", "F16", "F32", "F8_E4M3", "I32", or a GGUF block: "Q4_K" */
    int32_t rank;
    int64_t shape[4];  /* blocks: counts weights */
    int64_t row_bytes; /* from row to row of a matrix; 0 = dense */
    const void *data;
} kt_moe_tensor;

/* The same from memory, all encodings that checkpoints have. Names, {e} for each expert's number:
 *
 *   {e}.gate_proj.weight, {e}.up_proj.weight [intermediate, hidden], {e}.down_proj.weight [hidden,
 *   intermediate]; with .weight_scale_inv or .weight_scale for F8_E4M3; or .weight_packed and
 *   .weight_scale (compressed-tensors INT4); or .qweight, .qzeros, .scales, .g_idx (AWQ, GPTQ)
 *   gate_up_proj [experts, 2 intermediate, hidden], gate first, and down_proj [experts, hidden,
 *   intermediate]
 *
 * packing: of qweight, "awq", "gptq" or "gptq_v2"; else NULL. All memory is borrowed during the
 * call; what the layer keeps is its own copy. */
KT_API kt_status kt_moe_load_from_tensors(kt_moe *m, const kt_moe_tensor *tensors, size_t n,
                                          const char *packing, kt_err *err);

/* ---- calls ---- */

typedef enum kt_moe_float { KT_MOE_F32 = 0, KT_MOE_BF16 } kt_moe_float;

/* Rows to compute. What is pointed to is borrowed until the call is done. */
typedef struct kt_moe_rows {
    int64_t tokens;
    const void *x;             /* [tokens, hidden] */
    const void *expert_id;     /* [tokens, topk]: -1 = none */
    const float *route_weight; /* [tokens, topk] */
    void *out;                 /* [tokens, hidden], overwritten; zeros for tokens without experts */
    int64_t ldx, ldo;          /* elements from row to row; 0 = hidden */
    kt_moe_float x_type, out_type;
    int32_t id_bytes; /* of an expert_id: 4, or 8 */
    bool accumulate;  /* out is added to instead */
    /* Deferred experts: of each token the n_deferred of least weight go into deferred_out, of out's
     * type and shape, which is overwritten by a call of its own: done when the ticket after this
     * call's is. 0 = off: out is exact. */
    int32_t n_deferred;
    void *deferred_out;
    /* A CUDA stream's handle (CUstream, cudaStream_t; 1 = the default stream), or NULL. The call
     * begins when the stream comes to it: what is pointed to is host memory that the stream's
     * copies fill, best pinned, and the ticket is for kt_moe_sync_stream. Captured into a graph,
     * every replay is a call. Ids that cannot be count as -1, as nobody is there to be told.
     *
     * The stream calls functions of the host (cuLaunchHostFunc), or, with KT_MAILBOX=mapped in the
     * environment, writes and waits for words of mapped memory that the team's thread watches
     * (cuStreamWriteValue32, cuStreamWaitValue32; the stream's context must be current for the
     * calling thread). Then calls of several streams may begin in another order than theirs. */
    void *stream;
} kt_moe_rows;

/* Queue a call; *ticket is its number, for kt_moe_sync. Waits only while very many calls are
 * queued. KT_E_INVALID for sizes, types and expert ids that cannot be, and for a layer without
 * weights. */
KT_API kt_status kt_moe_submit(kt_moe *m, const kt_moe_rows *rows, uint64_t *ticket, kt_err *err);
/* Wait until a call of the layer's team is done; those before it are done then, too. */
KT_API void kt_moe_sync(kt_moe *m, uint64_t ticket);
/* Have a stream wait for a call that was submitted with one, or (its ticket + 1) for what that call
 * deferred; once for each, in the capture for a captured call. The stream's work must have ended
 * before the layer does. KT_E_UNSUPPORTED without a CUDA driver, KT_E_INVALID for a ticket that is
 * none or a stream that the driver does not know. */
KT_API kt_status kt_moe_sync_stream(kt_moe *m, uint64_t ticket, void *stream, kt_err *err);
/* Announce the numbers of tokens, at most 64, whose calls will be captured: what a capture needs is
 * taken now, in the CUDA context that is current where KT_MAILBOX=mapped is set, and a captured
 * call of another number is refused (KT_E_INVALID). n 0 = any number again, as at the beginning.
 * Other calls may have any number. */
KT_API kt_status kt_moe_announce(kt_moe *m, const int64_t *tokens, size_t n, kt_err *err);
/* Submit and sync, without a stream. */
KT_API kt_status kt_moe_forward(kt_moe *m, const kt_moe_rows *rows, kt_err *err);

/* ---- while serving: for all calls that are submitted later ---- */

/* expert_id p means expert map[p] of the checkpoint, p < n; NULL = as they are. Copied. Several p
 * may mean one expert. Forgets the mask. */
KT_API kt_status kt_moe_set_map(kt_moe *m, const int32_t *map, int64_t n, kt_err *err);
/* mask[p] nonzero: expert_id p is computed elsewhere and counts as -1; [experts], or the map's n;
 * NULL = none is. Copied. */
KT_API kt_status kt_moe_set_mask(kt_moe *m, const uint8_t *mask, kt_err *err);

/* What a layer was asked for so far. */
typedef struct kt_moe_counts {
    size_t size; /* sizeof(kt_moe_counts), set by the caller */
    int64_t calls, tokens;
    int64_t rows_run;       /* of experts */
    int64_t rows_elsewhere; /* left out by the mask */
    int64_t rows_deferred;  /* of those that ran */
    int64_t memory_nodes;   /* that its experts lie on; 0 = nothing is loaded */
} kt_moe_counts;

/* rows: NULL, or [experts] rows of each expert of the checkpoint. */
KT_API kt_status kt_moe_count(kt_moe *m, kt_moe_counts *out, int64_t *rows, kt_err *err);

#ifdef __cplusplus
}
#endif
#endif
