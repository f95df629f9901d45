/* Verbs of `kttune`. One file tuner/cli/verb_<name>.c defines `const kt_verb kt_verb_<name> = {...};`
 * The build finds it and writes the table. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_VERB_H
#define KT_TUNER_VERB_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/log.h"
#include "kt/status.h"

typedef enum kt_tune_exit {
    KT_TUNE_OK = 0,
    KT_TUNE_INTERNAL = 1,
    KT_TUNE_USAGE = 2,    /* a wrong flag, or a model, file or size that cannot be worked on */
    KT_TUNE_NO_TABLE = 3, /* no usable table, or it belongs to another machine */
    KT_TUNE_GATE = 4,     /* a variant computes wrong results */
    KT_TUNE_REGRESSION =
        5,                 /* slower than it should be: a bar missed, a duel lost, a row outdated */
    KT_TUNE_UNDECIDED = 6, /* cells undecided, or not reached in the budget; the table is valid */
    KT_TUNE_NOISY = 7,     /* too many disturbed rounds; the table is valid */
    KT_TUNE_RESOURCE = 8,  /* memory, a file or the journal's lock could not be had */
    KT_TUNE_INTERRUPTED = 130
} kt_tune_exit;

/* What main hands to a verb. */
typedef struct kt_verb_context {
    const volatile sig_atomic_t *stop; /* nonzero after SIGINT or SIGTERM */
    int64_t start_ns;                  /* kt_clock_ns at the start of the program */
    kt_log log;
} kt_verb_context;

typedef struct kt_verb {
    const char *name, *summary; /* one line for `kttune --help` */
    /* argv[0] is the verb; returns an exit code. */
    int (*run)(const kt_verb_context *context, int argc, char **argv);
    bool finishes_on_signal; /* watches context->stop; others end where SIGINT finds them */
} kt_verb;

extern const kt_verb *const kt_builtin_verbs[];
extern const size_t kt_builtin_verb_count;

/* Print "kttune: <message>" on stderr; returns the exit code that belongs to the status. */
int kt_verb_fail(const kt_err *err);

#endif
