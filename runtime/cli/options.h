/* Typed command-line options: "--name value", "--name=value", "-n value", flags without a value,
 * "--" ends options. --help is always there.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_OPTIONS_H
#define KT_RUNTIME_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kt_option_kind {
    KT_OPT_FLAG,   /* bool *: set to true */
    KT_OPT_INT,    /* int64_t *: min <= value <= max */
    KT_OPT_DOUBLE, /* double *: min <= value <= max, finite */
    KT_OPT_STRING  /* const char **: borrowed from argv */
} kt_option_kind;

typedef struct kt_option {
    const char *name; /* without the dashes */
    char letter;      /* short form, 0 = none */
    kt_option_kind kind;
    void *target;      /* keeps its value, the default, when the option is absent */
    const char *value; /* name of the value in the help, NULL for flags */
    double min, max;
    const char *help; /* one line; say the default */
} kt_option;

#define KT_OPTION_FLAG(name_, target_, help_) \
    { .name = (name_), .kind = KT_OPT_FLAG, .target = (target_), .help = (help_) }
#define KT_OPTION_STRING(name_, letter_, target_, value_, help_)                          \
    {                                                                                     \
        .name = (name_), .letter = (letter_), .kind = KT_OPT_STRING, .target = (target_), \
        .value = (value_), .help = (help_)                                                \
    }
#define KT_OPTION_INT(name_, letter_, target_, min_, max_, help_)                      \
    {                                                                                  \
        .name = (name_), .letter = (letter_), .kind = KT_OPT_INT, .target = (target_), \
        .value = "N", .min = (double)(min_), .max = (double)(max_), .help = (help_)    \
    }
#define KT_OPTION_DOUBLE(name_, target_, min_, max_, help_)                                       \
    {                                                                                             \
        .name = (name_), .kind = KT_OPT_DOUBLE, .target = (target_), .value = "X", .min = (min_), \
        .max = (max_), .help = (help_)                                                            \
    }

typedef struct kt_usage {
    const char *command;   /* "generate" */
    const char *arguments; /* "MODEL -p TEXT" */
    const char *about;     /* what it does, whole sentences */
    const char *examples;  /* lines to print under "Examples:", or NULL */
} kt_usage;

/* Read argv[1..]. Words that are not options go to positional[0 .. *n_positional), at most
 * max_positional of them (positional may be NULL when that is 0). Returns -1 to go on, or the exit
 * code to leave with: 0 after --help, 2 after a message about a wrong command line. */
int kt_options_parse(const kt_usage *usage, const kt_option *options, size_t n_options, int argc,
                     char **argv, const char **positional, int max_positional, int *n_positional);

/* "kt <command>: <message>" and the hint to --help on stderr; returns 2. */
int kt_usage_fail(const kt_usage *usage, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
