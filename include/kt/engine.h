/* The engine: a model that is loaded on this machine, conversations (sequences), and steps of many
 * of them at once (batches) that turn tokens into logits.
 *
 * A row's logits are the same bits alone or in a batch, computed or reused, forked or not, as far
 * as they are the same in any chunks (kt_model_options.deterministic).
 *
 * Threads: an engine, its sequences and its counters belong to one thread at a time; only a stop
 * flag may be raised by others meanwhile. The engine brings the threads that compute: one per core,
 * each bound to its own. Different engines are independent, but share the cores.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ENGINE_H
#define KT_ENGINE_H

#include "kt/api.h"
#include "kt/tokenizer.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kt_engine kt_engine;
typedef struct kt_sequence kt_sequence; /* one conversation's tokens; owned by the caller */

/* ---- loading ---- */

/* How a model is loaded. All pointers are borrowed during the call. */
typedef struct kt_model_options {
    size_t size;       /* of this structure: kt_model_options_init */
    const char *model; /* folder of safetensors, GGUF file, packed folder, or a bundled name */
    /* "native" (as stored), "bf16", "int8", "int4", or any other word of `kt serve --weights` */
    const char *weights;
    const char *kv;          /* cache of keys and values: "bf16", "fp8" or "int8" */
    const char *numa;        /* experts over memory nodes: "auto", "off", or a number from 2 on */
    const char *table;       /* dispatch table; NULL = this machine's, "" = none */
    const char *importance;  /* file of `kt importance`, for the search of scales; or NULL */
    int64_t context;         /* tokens of the longest sequence; 0 = the model's, or what fits */
    int64_t step_rows;       /* most rows of a step; 0 = 512, with tiles 2048 */
    uint64_t kv_bytes;       /* of all pages and states; 0 = one context's, and more where free */
    int32_t n_threads;       /* 0 = one per usable core */
    bool deterministic;      /* no bit follows chunks or threads */
    bool exact_acts;         /* finest activations, weights never rounded again */
    bool allow_nonfinite;    /* load weights that are NaN or infinite, to look at them */
    bool tokenizer_optional; /* no error when the tokenizer's file is missing */
    bool strict_tokenizer;   /* refuse a tokenizer that is not the published model's */
    /* NULL, or asked between layers by the thread that loads: nonzero = stop (KT_E_CANCELLED). */
    int (*cancel)(void *arg);
    void *cancel_arg;
    /* NULL, or given each warning: one line without its end, from the thread that loads. */
    void (*warn)(void *arg, const char *message);
    void *warn_arg;
} kt_model_options;

/* The defaults: native weights, a BF16 cache, all cores, this machine's table. `size` is the
 * caller's sizeof. */
KT_API void kt_model_options_init(kt_model_options *options, size_t size);

/* Load a model: quantise when asked, pack for this machine's kernels. What does not fit memory is
 * refused with the numbers before anything is read (KT_E_NOMEM). KT_E_INVALID for a word or number
 * of the options that means nothing, KT_E_NOT_FOUND for a model that is not there, KT_E_FORMAT or
 * KT_E_UNSUPPORTED for one that cannot be used, KT_E_CANCELLED. The calling thread is bound to the
 * first of the engine's cores until the engine is destroyed. */
KT_API kt_status kt_engine_load(const kt_model_options *options, kt_engine **out, kt_err *err);
KT_API void kt_engine_destroy(kt_engine *e); /* after its sequences */

/* What was loaded. Text is the engine's. */
typedef struct kt_model_info {
    size_t size; /* sizeof(kt_model_info), set by the caller */
    const char *name, *family;
    int64_t vocab, hidden, layers;
    int64_t context;   /* tokens of the longest sequence */
    int64_t step_rows; /* of a step, at most */
    int32_t n_threads, n_eos;
    int64_t eos[8];                     /* ids that end an answer: the first n_eos */
    uint64_t weight_bytes, cache_bytes; /* cache: of a sequence of `context` tokens */
} kt_model_info;

/* KT_E_INVALID when `size` is not set. */
KT_API kt_status kt_engine_model(const kt_engine *e, kt_model_info *out, kt_err *err);

/* The model's tokenizer, which lives as long as the engine; NULL when it was missing. */
KT_API const kt_tokenizer *kt_engine_tokenizer(const kt_engine *e);

/* ---- planning ---- */

/* The memory that a model would take on this machine, in bytes. */
typedef struct kt_memory_need {
    size_t size;            /* sizeof(kt_memory_need), set by the caller */
    uint64_t weight_bytes;  /* packed */
    uint64_t staging_bytes; /* while loading; given back before the next three are taken */
    uint64_t step_bytes;    /* working memory of steps */
    uint64_t cache_bytes;   /* pages and states: of one sequence, or as asked */
    uint64_t logits_bytes;
    uint64_t needed_bytes;    /* weights, and the larger of staging and the other three */
    uint64_t available_bytes; /* what can be taken without swapping */
    int64_t context;          /* that was counted for */
    int64_t longest_context;  /* that would fit, at most the model's; 0 = none */
    bool fits;
} kt_memory_need;

/* Count before loading. Reads the model's description alone (config.json, or a GGUF file's
 * metadata); the name of a bundled shape will do. Errors as kt_engine_load has them; what does not
 * fit is no error but `fits`. */
KT_API kt_status kt_engine_plan(const kt_model_options *options, kt_memory_need *out, kt_err *err);

/* ---- steps ---- */

#define KT_PAGE_TOKENS 64 /* tokens of a page of keys and values, which sequences share */

/* Rows of one sequence, which they continue at kt_sequence_length(seq). */
typedef struct kt_span {
    kt_sequence *seq; /* borrowed */
    int64_t first_row, rows;
    /* Later prompts may begin with the tokens up to this span's end: a copy of the states of
     * recurrent layers is kept there, if that is the end of a page (kt_sequence_chunk) and a slot
     * can be had. Models without such layers need none. */
    bool is_mark;
} kt_span;

/* One step. All pointers are borrowed during the call. */
typedef struct kt_batch {
    int64_t rows;         /* 1 to kt_engine_max_rows */
    const int32_t *token; /* [rows] */
    int n_spans;
    const kt_span *spans; /* in the order of rows, all of which they cover; no sequence twice */
    int64_t n_out;
    const int32_t *out_row; /* [n_out] ascending: rows that get logits */
} kt_batch;

/* Run one step and append its tokens to their sequences.
 *
 * logits  f32 [n_out, vocab], written; may be NULL when n_out is 0.
 * stop    NULL, or a flag that is read before each phase of the step (a layer has about eight).
 *         Where slots for states of recurrent layers are short, it is not read.
 *
 * Errors, each with all sequences as they were: KT_E_INVALID for a batch that breaks the rules
 * above, unknown tokens and spans over a sequence's reserved tokens; KT_E_CANCELLED when stop was
 * seen. KT_E_FORMAT, all tokens appended and all logits written, when a logit is not finite.
 * Allocates nothing. */
KT_API kt_status kt_engine_step(kt_engine *e, const kt_batch *batch, float *logits,
                                const kt_stop *stop, kt_err *err);
KT_API int64_t kt_engine_max_rows(const kt_engine *e);

/* ---- sequences ---- */

/* An empty sequence with pages for `capacity` tokens; 0 = none yet. KT_E_INVALID over the engine's
 * context, KT_E_NOMEM when the pool has not so many pages. */
KT_API kt_status kt_sequence_create(kt_engine *e, int64_t capacity, kt_sequence **out, kt_err *err);
KT_API void kt_sequence_destroy(kt_sequence *s); /* accepts NULL; before its engine */
KT_API int64_t kt_sequence_length(const kt_sequence *s);

/* Pages for `tokens` tokens in all, those that the sequence has among them; never fewer than
 * before. KT_E_NOMEM when the pool has not so many, even without cached prefixes, KT_E_INVALID over
 * the engine's context: then nothing has changed. */
KT_API kt_status kt_sequence_reserve(kt_sequence *s, int64_t tokens, kt_err *err);

/* Of an empty sequence: take over the longest beginning of tokens [n] that the cache has, whole
 * pages and at most n - 1 tokens, so that at least one is left to compute. Returns the sequence's
 * length then. With recurrent layers only up to where a state was kept. */
KT_API int64_t kt_sequence_reuse(kt_sequence *s, const int32_t *tokens, int64_t n);

/* How many of the next `left` tokens of a prompt a span takes at most, so that its end is where a
 * state should be kept: with recurrent layers up to the last page's end that leaves a token; else
 * all of them. Spans that end so want is_mark. */
KT_API int64_t kt_sequence_chunk(const kt_sequence *s, int64_t left);

/* Another sequence of the same tokens and reserved length: whole pages are shared, the last one and
 * states are copied. KT_E_NOMEM as in kt_sequence_reserve. */
KT_API kt_status kt_sequence_fork(const kt_sequence *s, kt_sequence **out, kt_err *err);

/* Forget tokens past length; returns the length that it has then. States of recurrent layers go
 * back to the last kept one at or before it: the end of the last prompt that one sequence computed
 * alone, of a span with is_mark, or the beginning. Reserved pages remain reserved, but for those
 * that another sequence has too where the pool has none instead: then fewer tokens are reserved,
 * and where such a page is the one that length ends in, the sequence goes back to that page's
 * beginning. */
KT_API int64_t kt_sequence_truncate(kt_sequence *s, int64_t length);

/* How full the pools are. used + cached + free = all: used belongs to sequences, cached is kept for
 * reuse alone and given up when pages are short. Slots hold states of recurrent layers. */
typedef struct kt_kv_usage {
    int64_t pages, pages_used, pages_cached, pages_free;
    int64_t slots, slots_used, slots_cached, slots_free;
    int64_t reused_tokens; /* taken over by kt_sequence_reuse since the engine began */
} kt_kv_usage;

KT_API void kt_engine_kv_usage(const kt_engine *e, kt_kv_usage *out);
/* Forget all cached prefixes that no sequence uses (for tests and measurements). */
KT_API void kt_engine_drop_cache(kt_engine *e);

#ifdef __cplusplus
}
#endif
#endif
