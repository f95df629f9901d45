/* What a model takes of a machine's memory: counted before its first byte is loaded, the only such
 * count. `kt plan`, `kt doctor`, the engine and the server print and decide by it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MEMORY_PLAN_H
#define KT_RUNTIME_MEMORY_PLAN_H

#include <stdbool.h>

#include "runtime/kv/kv_plan.h"
#include "runtime/model/model_plan.h"

typedef enum kt_memory_part {
    KT_MEMORY_EMBEDDING,
    KT_MEMORY_ATTENTION, /* every matrix of a layer that is none of the following */
    KT_MEMORY_EXPERTS,   /* those that rows are routed to */
    KT_MEMORY_SHARED,    /* feed-forward beside them, for every row */
    KT_MEMORY_DENSE,     /* feed-forward of layers without experts */
    KT_MEMORY_HEAD,
    KT_MEMORY_SMALL,    /* routers, norms, biases */
    KT_MEMORY_ROUNDING, /* each layer's memory ends with a huge page */
    KT_MEMORY_STAGING,  /* while loading; given back before what follows is taken */
    KT_MEMORY_STEP,     /* working memory of a step */
    KT_MEMORY_CACHE,    /* pages and states: of one sequence, or as asked */
    KT_MEMORY_LOGITS,   /* of a step: request.logit_rows times the vocabulary, in f32 */
    KT_MEMORY_PARTS
} kt_memory_part;

const char *kt_memory_part_name(kt_memory_part part);

typedef struct kt_memory_request {
    const kt_model_plan *plan; /* borrowed: formats of weights and cache, threads, rows of a step */
    int n_nodes;               /* memory nodes that experts are cut over; 1 = whole */
    int64_t context;           /* tokens of a sequence */
    size_t kv_memory;          /* of pages and states; 0 = the least for that context */
    uint64_t available;        /* bytes to take: kt_memory_available_bytes, or any machine's */
    int64_t logit_rows;        /* whose logits are kept at once (kt_scheduler_logit_rows); 0 = 1 */
    bool is_cache_away;        /* a device keeps all pages and states */
    size_t behind;             /* of the host, for pages behind those */
    bool takes_longest;        /* the context is the least: the pool is made for the longest */
} kt_memory_request;

typedef struct kt_memory_plan {
    size_t bytes[KT_MEMORY_PARTS];
    size_t weights; /* of all weights */
    size_t needed; /* weights and, as they are not there together, the larger of staging and all the
                      rest */
    uint64_t available;
    int64_t context;
    int64_t cached;  /* tokens that the cache holds: the context, or what was asked for */
    int64_t longest; /* context that would fit, at most the model's; 0 = none */
    /* What the engine makes of the memory that is there (kt_kv_plan_pool): the cache above, and
     * more where nothing was asked for. Taken page by page as it is written. Zeros: no context
     * fits. */
    kt_kv_plan pool;
} kt_memory_plan;

/* Count. "too large to count" (KT_E_UNSUPPORTED) where a sum or product overflows. */
kt_status kt_memory_plan_make(const kt_memory_request *request, kt_memory_plan *out, kt_err *err);

/* Is the memory there, and does the cache hold the context? */
static inline bool kt_memory_fits(const kt_memory_plan *p) {
    return p->needed <= p->available && p->cached >= p->context;
}

/* The same model with other weights. */
typedef struct kt_memory_choice {
    kt_quant quant;
    kt_memory_plan plan; /* zeros where not possible */
    kt_err why;          /* why not: status KT_OK where it is possible */
} kt_memory_choice;

#define KT_MEMORY_CHOICES (KT_QUANT_INT4 + 1) /* native, bf16, int8, int4 */

/* Count for each of --weights native, bf16, int8, int4, with this build's kernels; request->plan
 * gives the rest. */
kt_status kt_memory_survey(const kt_memory_request *request,
                           kt_memory_choice out[KT_MEMORY_CHOICES], kt_err *err);

/* KT_OK when it fits; else KT_E_NOMEM with the numbers and what would fit. name: of the model. */
kt_status kt_memory_check(const kt_memory_request *request, const char *name, kt_err *err);

/* "memory: 14.0 GiB (weights 12.3, working memory 0.4, cache of 4096 tokens 1.2, logits 0.1); 30.1
 * of 44.0 GiB remain; pool of 256 pages: 16384 tokens, 4.8 GiB" */
char *kt_memory_line(const kt_memory_plan *plan, char *out, size_t out_bytes);

const char *kt_quant_word(kt_quant quant); /* of the four; "this format" for others */

#endif
