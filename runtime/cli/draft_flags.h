/* The options about drafts of every command that generates. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DRAFT_FLAGS_H
#define KT_RUNTIME_DRAFT_FLAGS_H

#include "runtime/cli/options.h"
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
                     "earlier in the text) or auto (runtime/draft/README.md)"),                 \
        KT_OPTION_INT("draft", 0, &(f).draft, 1, KT_DRAFT_MOST,                                 \
                      "tokens of a draft, at most (default 8)")

/* What the flags ask for, into *out. Prints what is wrong with them; 0 or the exit code. */
int kt_draft_flags_settle(const kt_draft_flags *flags, const kt_usage *usage, kt_speculation *out);

#endif
