/* The `kttune` program: find the verb, run it. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/environment.h"
#include "base/shell_word.h"
#include "base/clock.h"
#include "kt/version.h"
#include "tuner/cli/verb.h"

extern const kt_verb kt_verb_run;

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

/* What was printed may still lie in the buffer, and the disk be full. */
static int end(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "kttune: standard output: cannot be written\n");
    return code == KT_TUNE_OK ? KT_TUNE_RESOURCE : code;
}

static int run_verb(const kt_verb *verb, const kt_verb_context *context, int argc, char **argv) {
    if (verb->finishes_on_signal) catch_signals();
    return end(verb->run(context, argc, argv));
}

/* `kttune DIR`, or without arguments inside a model's folder: the quick run, which probes when nobody
 * has. */
static bool is_model(const char *folder) {
    char path[1024];
    return snprintf(path, sizeof path, "%s/config.json", folder) < (int)sizeof path &&
           access(path, R_OK) == 0;
}

static int run_quick(const kt_verb_context *context, char *folder) {
    char run[] = "run", model[] = "--model", budget[] = "--budget", time[] = "60s";
    char *argv[] = {run, model, folder, budget, time, NULL}, word[KT_SHELL_WORD_BYTES];

    fprintf(stderr, "kttune run --model %s --budget 60s\n",
            kt_shell_word(folder, word, sizeof word));
    return run_verb(&kt_verb_run, context, 5, argv);
}

static void print_help(FILE *to) {
    fprintf(to,
            "kttune %s: find the fastest kernels for a model on this machine, with proof\n\n"
            "usage: kttune VERB [OPTION]... (`kttune VERB --help` explains one)\n"
            "       kttune [DIR]             (the quick run for the model in DIR, or in this "
            "folder)\n\n",
            KT_VERSION);
    for (size_t i = 0; i < kt_builtin_verb_count; i++)
        fprintf(to, "  %-9s %s\n", kt_builtin_verbs[i]->name, kt_builtin_verbs[i]->summary);
    fprintf(
        to,
        "\nExamples:\n"
        "  kttune probe\n"
        "  kttune run --model tiny-moe --budget 60s\n"
        "  kttune bench --suite line\n"
        "\nEnvironment: KT_LOG=debug|info|off, KT_DISABLE_ISA=NAMES, XDG_DATA_HOME\n"
        "Exit codes: 0 ok, 1 internal, 2 usage, 3 no usable table or journal, 4 wrong variant,\n"
        "  5 slower than it should be, 6 cells undecided or not reached (table valid),\n"
        "  7 machine too noisy: over 30 %% of the rounds disturbed (table valid), 8 memory, file\n"
        "  or lock, 130 interrupted (table valid)\n");
}

static const kt_verb *find_verb(const char *name) {
    for (size_t i = 0; i < kt_builtin_verb_count; i++)
        if (strcmp(kt_builtin_verbs[i]->name, name) == 0) return kt_builtin_verbs[i];
    return NULL;
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
    char *name = argc > 1 ? argv[1] : NULL, here[] = ".";
    kt_err err = {KT_OK, ""};

    if (kt_environment_check(&err) != KT_OK) {
        fprintf(stderr, "kttune: %s\n", err.message);
        return KT_TUNE_USAGE;
    }
    if (!name && is_model(here)) return run_quick(&context, here);
    if (!name) {
        print_help(stderr);
        fprintf(stderr, "\nkttune: this folder holds no model (no config.json): expected a verb\n");
        return KT_TUNE_USAGE;
    }
    if (strcmp(name, "help") == 0 && argc == 3) {
        char help[] = "--help", *words[] = {argv[2], help, NULL};
        if (find_verb(argv[2])) return run_verb(find_verb(argv[2]), &context, 2, words);
        fprintf(stderr, "kttune help: '%s' is not a verb; see `kttune --help`\n", argv[2]);
        return KT_TUNE_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help(stdout);
        return end(KT_TUNE_OK);
    }
    if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0) {
        printf("kttune %s (compiler %s)\n", KT_VERSION, __VERSION__);
        return end(KT_TUNE_OK);
    }
    if (find_verb(name)) return run_verb(find_verb(name), &context, argc - 1, argv + 1);
    if (argc == 2 && is_model(name)) return run_quick(&context, name);
    print_help(stderr);
    fprintf(stderr, "\nkttune: '%s' is not a verb%s\n", name,
            strchr(name, '/') ? ", nor the folder of a model (no config.json in it)" : "");
    return KT_TUNE_USAGE;
}
