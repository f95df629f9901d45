/* Command line of a verb: "--name value", "--name=value" and flags, in any order with plain words.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_OPTIONS_H
#define KT_TUNER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kt_switch_kind {
    KT_SWITCH_FLAG,     /* bool *: set */
    KT_SWITCH_TEXT,     /* const char **: borrowed from argv */
    KT_SWITCH_COUNT,    /* int64_t *: a whole number >= 0 */
    KT_SWITCH_SHARE,    /* double *: "10%" or "0.1", 0..1 */
    KT_SWITCH_DURATION, /* double *, seconds: "500ms", "60s", "10m", "2h" */
    KT_SWITCH_SIZE      /* int64_t[2] *: "128/8" (second part optional, 0) */
} kt_switch_kind;

typedef struct kt_switch {
    const char *name; /* without the dashes */
    kt_switch_kind kind;
    void *target;      /* keeps its value when the switch is absent */
    const char *value; /* name of the value in the help; NULL for flags */
    const char *help;  /* one line that names the default */
} kt_switch;

typedef struct kt_verb_usage {
    const char *verb, *arguments, *about; /* arguments: "A B " with its last space, or "" */
    const char *examples;                 /* whole lines */
} kt_verb_usage;

/* Read argv[1..]; plain words go to words[0 .. *n_words). Returns -1 to go on, or the exit code to
 * leave with (0 after --help, 2 after a message about a wrong command line). */
int kt_switches_parse(const kt_verb_usage *usage, const kt_switch *switches, size_t n_switches,
                      int argc, char **argv, const char **words, int max_words, int *n_words);

/* "kttune <verb>: <message>" and a hint on stderr; returns 2. */
int kt_switch_fail(const kt_verb_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Seconds of "60s", "10m", "1.5h", "250ms"; negative when malformed. */
double kt_duration_parse(const char *text);

/* Print words, broken at column 79: the first line begins at column `at`, the others at `indent`. Ends the
 * line. */
void kt_print_words(const char *text, size_t size, int at, int indent);

#endif
