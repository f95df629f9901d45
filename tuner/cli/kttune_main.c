/* The `kttune` program: find the verb, run it. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "kt/version.h"
#include "tuner/cli/verb.h"

/* The only mutable global of the program: signal handlers have no argument of ours. */
static volatile sig_atomic_t stop_asked;

/* The first signal lets the sample in hand finish and the table be written; the second leaves at
 * once, which the journal survives. */
static void on_signal(int number) {
    (void)number;
    if (stop_asked) _exit(KT_TUNE_INTERRUPTED);
    stop_asked = 1;
}

static void catch_signals(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal;
    action.sa_flags = SA_RESTART;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void print_help(FILE *to) {
    fprintf(to,
            "kttune %s: find the fastest kernels for a model on this machine, with proof\n\n"
            "usage: kttune VERB [OPTION]... (`kttune VERB --help` explains one)\n\n",
            KT_VERSION);
    for (size_t i = 0; i < kt_builtin_verb_count; i++)
        fprintf(to, "  %-9s %s\n", kt_builtin_verbs[i]->name, kt_builtin_verbs[i]->summary);
    fprintf(to, "\nExamples:\n"
                "  kttune probe\n"
                "  kttune run --model tiny-moe --budget 60s\n"
                "  kttune bench --suite line\n"
                "\nEnvironment: KT_LOG=debug|info|off, KT_DISABLE_ISA=NAMES, XDG_DATA_HOME\n"
                "Exit codes: 0 ok, 1 internal, 2 usage, 3 no usable table, 4 wrong variant,\n"
                "  5 slower than it should be, 6 budget ended with cells undecided (table valid),\n"
                "  7 machine too noisy, 8 memory, file or lock, 130 interrupted (table valid)\n");
}

static kt_log make_log(void) {
    const char *wanted = getenv("KT_LOG");
    kt_log log = {.stream = stderr, .level = KT_LOG_WARN};
    if (wanted && strcmp(wanted, "debug") == 0) log.level = KT_LOG_DEBUG;
    if (wanted && strcmp(wanted, "info") == 0) log.level = KT_LOG_INFO;
    if (wanted && strcmp(wanted, "off") == 0) log.stream = NULL;
    return log;
}

int main(int argc, char **argv) {
    kt_verb_context context = {.stop = &stop_asked, .start_ns = kt_clock_ns(), .log = make_log()};
    const char *name = argc > 1 ? argv[1] : NULL;

    if (!name) {
        print_help(stderr);
        return KT_TUNE_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return KT_TUNE_OK;
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("kttune %s (compiler %s)\n", KT_VERSION, __VERSION__);
        return KT_TUNE_OK;
    }
    for (size_t i = 0; i < kt_builtin_verb_count; i++) {
        if (strcmp(kt_builtin_verbs[i]->name, name) != 0) continue;
        if (kt_builtin_verbs[i]->finishes_on_signal) catch_signals();
        return kt_builtin_verbs[i]->run(&context, argc - 1, argv + 1);
    }
    fprintf(stderr, "kttune: '%s' is not a verb\n\n", name);
    print_help(stderr);
    return KT_TUNE_USAGE;
}
