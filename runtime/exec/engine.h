/* The engine: a loaded model that turns tokens into logits on this machine.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_H
#define KT_RUNTIME_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/cpu.h"
#include "base/log.h"
#include "kt/isa.h"
#include "kt/problem.h"
#include "kt/status.h"
#include "dispatch/model/quant.h"
#include "runtime/exec/batch.h"
#include "runtime/token/tokenizer.h"

/* Tokens that the cache must hold, or the model's context, unless a context is asked for. */
#define KT_LEAST_CONTEXT 512

/* Rows of a step unless others are asked for. Experts on tiles are the faster the more rows they
 * have (Granite Rapids, INT4: with 128 rows 1.6 times as fast as with 32). */
static inline int64_t kt_default_chunk(int64_t context) {
    const int64_t rows = kt_isa_available() & KT_ISA_AMXBF16 ? 2048 : 512;
    return rows < context ? rows : context;
}

typedef struct kt_engine_options {
    const char *model_dir; /* or a name (kt_model_resolve) */
    kt_quant weights;
    const char
        *importance;     /* file of kt_engine_write_importance, for the search of scales; or NULL */
    kt_weight_format kv; /* of the cache (runtime/kv/kv_cache.h); KT_W_NONE = KT_W_BF16 */
    const char *table_path; /* NULL = look where kt_table_locate says; "" = none */
    int n_threads;          /* 0 = one per usable core */
    int numa; /* experts over memory nodes (runtime/model/node_plan.h); 0 = as they are */
    int64_t max_context;     /* 0 = the model's, or what fits of it */
    int64_t max_chunk;       /* rows per step, 0 = kt_default_chunk */
    size_t kv_memory;        /* bytes of pages and states, 0 = a context's and more where free */
    size_t kv_host;          /* bytes of the host's memory behind a device's pages (page_tier.h) */
    int64_t logit_rows;      /* that the caller keeps logits of, to be counted; 0 = 1 */
    bool exact_acts;         /* activations in their finest encoding (kt_planner_prefer_exact) */
    bool allow_nonfinite;    /* load weights that are NaN or infinite, to look at them */
    int64_t expand_rows;     /* kt_model_plan_set_expand; 0 = as planned, -1 = never */
    bool deterministic;      /* no bit follows chunks or threads (kt_planner_keep_bits) */
    bool tokenizer_optional; /* no error when the tokenizer's file is missing */
    bool with_draft_head;  /* load the model's draft head, too, and refuse a model that has none */
    bool strict_tokenizer; /* refuse what else is a warning (token/known_tokens.h) */
    /* Instead of model_dir: random weights of a published shape
     * (runtime/model/synthetic_model.h), with so many of its layers (0 = all). Such a model has
     * no tokenizer, and its experts may be in a format that we never encode (GGUF blocks). */
    const char *synthetic;
    int64_t synthetic_layers;
    bool made_up_tokens; /* where there is no tokenizer: kt_tokenizer_make_up */
    /* A device beside the CPU (runtime/device/README.md); all NULL = the CPU alone. */
    const char *device;      /* "cpu", "cuda[:N,N]", "emulated[:...]" (device_word.h) */
    const char *gpu_experts; /* how many lie there, which, by what load (hot_experts.h) */
    const char *expert_placement, *expert_load;
    const char *prefill_offload; /* from how many rows on others cross to it (stream_share.h) */
    const char *device_split;    /* of several devices: shares of the layers (layer_cut.h) */
    bool experts_only;           /* everything but routed experts stays on the CPU */
    int (*cancel)(void *arg);    /* NULL, or asked while loading: nonzero = stop (KT_E_CANCELLED) */
    void *cancel_arg;
    kt_isa isa; /* instruction sets to use; 0 = this machine's. Tests run tiles by an emulator so */
    const kt_log *log;
} kt_engine_options;

kt_status kt_engine_create(const kt_engine_options *options, kt_engine **out, kt_err *err);

typedef struct kt_engine_info {
    const char *model_name; /* readable (kt_model_resolve) */
    const char *family;
    int64_t vocab, hidden, layers, max_context, n_threads;
    int64_t eos[8];
    int n_eos;
    size_t weight_bytes;
    kt_weight_format cache_format;
    size_t cache_bytes, cache_bytes_bf16; /* of a sequence of max_context tokens; if it were BF16 */
    int64_t
        layers_of_all; /* of the whole model, when this is some of a synthetic one's; else layers */
    int64_t load_ns;   /* from the first look at the weights to the last byte packed */
    int n_nodes;       /* memory nodes that each expert is cut over; 1 = whole */
    char memory_line[256];  /* what was counted (kt_memory_line) */
    char device_line[1024]; /* likewise of the devices; "" = none */
    char node_line[256];    /* how, or why not; "" = the machine has one node */
    char table_line[768];   /* which table and how many cells are tuned; printable */
} kt_engine_info;

void kt_engine_describe(const kt_engine *e, kt_engine_info *out);
struct kt_pool *kt_engine_pool(const kt_engine *e); /* borrowed: for other work between steps */

/* Asked between chunks of a prefill; nonzero = stop (KT_E_CANCELLED, sequence stays at the last
 * complete chunk). */
typedef int (*kt_cancel_fn)(void *arg);

/* Append n tokens to the sequence in chunks of at most the engine's chunk.
 * logits  f32 [n_logits, vocab] of the last n_logits tokens (0 <= n_logits <= n); may be NULL if 0.
 * hidden  NULL or f32 [layers + 1, n, hidden].
 * Fails with KT_E_FORMAT, all tokens appended and everything written, when a logit is not finite.
 * One call at a time per engine. */
kt_status kt_engine_forward(kt_engine *e, kt_sequence *s, const int32_t *tokens, int64_t n,
                            int64_t n_logits, float *logits, float *hidden, kt_cancel_fn cancel,
                            void *cancel_arg, kt_err *err);
/* Rows per prefill step for the next calls, clamped to 1 .. options.max_chunk (for tests and `kt
 * logits --prefill-chunk`). */
void kt_engine_set_chunk(kt_engine *e, int64_t rows);

/* Add up the squares of what every matrix is applied to, from now on; slow. Refused over memory
 * nodes. */
kt_status kt_engine_observe_inputs(kt_engine *e, kt_err *err);
/* Their means so far as a safetensors file: F32 [k] under each matrix's name, zeros for experts
 * that no token chose. */
kt_status kt_engine_write_importance(const kt_engine *e, const char *path, kt_err *err);

/* Instructions whose peak bounds a kind of work. */
typedef enum kt_unit { KT_UNIT_F32, KT_UNIT_BF16, KT_UNIT_INT8, KT_UNIT_COUNT } kt_unit;

/* One kind of work of forward calls. */
typedef struct kt_profile_kind {
    const char *name; /* "ffn" */
    int64_t time_ns;  /* from the first thread's start to the last one's end */
    double ops;       /* two per multiply-add */
    double bytes;     /* weights and cached keys and values, read once per step */
    kt_unit unit;
} kt_profile_kind;

#define KT_PROFILE_KINDS 11

/* Since the last kt_engine_profile(e, true). */
typedef struct kt_profile {
    kt_profile_kind kind[KT_PROFILE_KINDS];
    kt_unit unit;         /* of the feed-forward, which does most of the work */
    int64_t time_ns;      /* of all steps */
    int64_t busy_ns;      /* in tasks, all threads together */
    int64_t serial_ns;    /* between phases, on one thread */
    double moe_layers;    /* MoE layers run */
    double experts_hit;   /* experts with rows, summed over them */
    double expert_rows;   /* rows of all experts, summed */
    int64_t busiest_rows; /* most rows of one expert */
} kt_profile;

/* Whose routed experts forward calls leave out from now on. */
typedef enum kt_left_out { KT_LEFT_NONE = 0, KT_LEFT_CPU, KT_LEFT_DEVICE } kt_left_out;
/* For measuring one side's part of a step that both work at (`kt bench --hybrid`), and for nothing
 * else: the numbers are wrong then. Routing, what crosses, and everything but the experts'
 * products stay. KT_E_UNSUPPORTED: no device beside the CPU, or a model without routed experts. */
kt_status kt_engine_leave_out(kt_engine *e, kt_left_out side, kt_err *err);

/* Where the time of forward calls goes, from now on (false = stop). Costs a clock read per phase
 * and two per task. */
void kt_engine_profile(kt_engine *e, bool is_on);
void kt_engine_profile_read(const kt_engine *e, kt_profile *out);

/* Record what steps route to which expert into a file (runtime/exec/recorder.h), from now on;
 * path NULL ends it. max_bytes 0 = the recorder's default. Costs some microseconds a step. */
kt_status kt_engine_record(kt_engine *e, const char *path, int64_t max_bytes, kt_err *err);
/* Steps recorded and lost so far. */
void kt_engine_recorded(const kt_engine *e, int64_t *steps, int64_t *lost);

/* What the engine's threads reach together on this machine right now: the ceilings of the
 * profile. Takes half a second. */
typedef struct kt_roofline {
    double stream_gbs;                /* reading memory, 2 MiB pages */
    double peak_gops[KT_UNIT_COUNT];  /* 0 = no probe */
    const char *probe[KT_UNIT_COUNT]; /* name of its variant, or NULL */
} kt_roofline;

kt_status kt_engine_measure_roofline(kt_engine *e, kt_roofline *out, kt_err *err);

#endif
