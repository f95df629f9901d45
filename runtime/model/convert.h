/* `kt convert`: a model in any form becomes a folder of packed panels (dispatch/model/packed.h)
 * that the next start maps and uses in place. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CONVERT_H
#define KT_RUNTIME_CONVERT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "dispatch/model/quant.h"
#include "kt/status.h"

/* In the output folder: the journal of the work, and at the end the report. */
#define KT_CONVERT_JOURNAL "conversion.jsonl"

typedef struct kt_convert_progress {
    size_t bytes_done, bytes_total; /* of the output */
    int shards_done, shards;
} kt_convert_progress;

typedef struct kt_convert_request {
    const char *model, *out; /* a folder, GGUF file or name (kt_model_resolve); the new folder */
    kt_quant quant;          /* native when there is a budget */
    /* Bytes that all shards together may take: a format is chosen for each weight, for least error
     * within them (convert_budget.c); 0 = none is. What is stored in few bits already stays. */
    size_t budget;
    const char *load;       /* of a budget: a file of `kt serve --record-workload`, which says how
                               much each expert's error counts; or NULL */
    const char *importance; /* file of `kt importance`, or NULL */
    /* Leave the model's draft head out; else it is converted, too, where all of it is there. */
    bool without_draft_head;
    size_t max_ram; /* of buffers and staging; 0 = 2 GiB, or more where a matrix needs it */
    int n_threads;  /* 0 = one per usable core */
    int (*cancel)(void *arg); /* NULL, or asked often: nonzero = stop (KT_E_CANCELLED) */
    void (*progress)(void *arg, const kt_convert_progress *now); /* or NULL */
    void *progress_arg;
    const kt_log *log; /* or NULL */
} kt_convert_request;

/* What became of all weights of a role under a budget; at last of all that is never encoded. */
typedef struct kt_convert_role {
    char role[32];
    char formats[120]; /* "w4g64 x30, w8c x18": of so many weights; of experts "gate and up/down" */
    int64_t numbers;
    size_t bytes;
    double error; /* relative root mean square, estimated from some rows when formats were chosen */
} kt_convert_role;

#define KT_CONVERT_ROLES 32

typedef struct kt_convert_result {
    int shards, resumed;   /* all, and those that an earlier run had finished */
    bool was_complete;     /* nothing was left to do */
    size_t bytes;          /* of all shards */
    int64_t tensors;       /* that were encoded anew */
    double error;          /* relative root mean square of all those together */
    double weighted_error; /* the same by importance; 0 without */
    double worst;          /* of one tensor */
    char worst_name[200];
    kt_convert_role roles[KT_CONVERT_ROLES]; /* with a budget */
    int n_roles;
} kt_convert_result;

/* Convert. An unfinished conversion of the same source in the same way goes on behind its last
 * whole shard, whatever ended it; the bytes are the same as of one that was never ended. Source
 * files are only read. Refused: an output folder that holds anything else, is the source's, or
 * whose disk has too little room; a source that is itself a converted folder; max_ram below what
 * the largest matrix needs; a budget below what the smallest formats take, with the bytes of each
 * role. Formats once chosen are kept in the folder's journal. A folder without
 * model.safetensors.index.json is not whole. */
kt_status kt_convert(const kt_convert_request *request, kt_convert_result *out, kt_err *err);

#endif
