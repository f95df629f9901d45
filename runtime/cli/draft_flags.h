/* The options about drafts of every command that generates. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DRAFT_FLAGS_H
#define KT_RUNTIME_DRAFT_FLAGS_H

#include "runtime/cli/engine_flags.h"
#include "runtime/draft/draft_rate.h"
#include "runtime/sched/scheduler.h"

typedef struct kt_draft_flags {
    const char *speculate; /* NULL = off */
    int64_t draft;         /* 0 = the scheduler's */
} kt_draft_flags;

/* To be placed inside a kt_option array; f is a kt_draft_flags. */
#define KT_DRAFT_OPTIONS(f)                                                                     \
    KT_OPTION_STRING("speculate", 0, &(f).speculate, "HOW",                                     \
                     "compute tokens that may come next together with the last one, where the " \
                     "cost of steps says that it pays: off (default), ngram (what followed "    \
                     "earlier in the text), mtp (the model's draft head) or auto: mtp where "   \
                     "the model has a head and it fits, else ngram"),                           \
        KT_OPTION_INT("draft", 0, &(f).draft, 1, KT_DRAFT_MOST,                                 \
                      "tokens of a draft, at most (default 8; of a head 3)")

/* What the flags ask for, into *out. Prints what is wrong with them; 0 or the exit code. */
int kt_draft_flags_settle(const kt_draft_flags *flags, const kt_usage *usage, kt_speculation *out);

/* kt_engine_create, with the model's draft head where the flags ask for it. Where they leave it
 * open (auto), a model without one, and one that does not fit memory with it, is loaded without: a
 * line of the log says why. */
kt_status kt_draft_flags_create(const kt_draft_flags *flags, const kt_engine_options *options,
                                kt_engine **out, kt_err *err);

/* The same as kt_engine_flags_load. */
int kt_draft_flags_load(const kt_draft_flags *flags, const kt_engine_flags *engine,
                        const kt_usage *usage, const char *model_dir, const kt_log *log,
                        kt_engine **out);

#endif
