/* The `kttune` program as a user meets it: exit codes, messages, JSON, files, Ctrl-C.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "dispatch/registry/registry.h"
#include "dispatch/table/table.h"
#include "tests/support/attempts.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/store/journal.h"
#include "tuner/store/zipped.h"

#define KTTUNE KT_BUILD_DIR "/kttune "

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);
    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

/* The standard output of a command that succeeds, as JSON. */
static kt_json_doc *json_of(const char *command, int code) {
    kt_json_doc *doc = NULL;
    char *out;
    kt_err err;
    int got = kt_tune_home_run(command, &out);
    cr_assert_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s: %s: %s", command,
                 err.message, out);
    free(out);
    return doc;
}

static int64_t int_at(const kt_json_doc *doc, const char *key) {
    const kt_json *v = kt_json_get(kt_json_root(doc), key);
    cr_assert(v, "no '%s'", key);
    return kt_json_int(v, -1);
}

static kt_table *load(const char *path) {
    kt_table *t;
    kt_err err;
    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    return t;
}

Test(kttune, wrong_command_lines_exit_with_2) {
    kt_tune_home h;
    kt_tune_home_make(&h);
    expect(KTTUNE, 2, "usage: kttune VERB");
    expect(KTTUNE "parrot", 2, "'parrot' is not a verb");
    expect(KTTUNE "run", 2, "--model or --workload is missing");
    expect(KTTUNE "run --workload moon", 2, "workload 'moon'");
    expect(KTTUNE "run --workload tiny-moe --mix x", 2, "no mix 'x', expected decode-1");
    expect(KTTUNE "run --workload tiny-moe --routing zipf", 2, "expected uniform, zipf:S");
    expect(KTTUNE "run --workload tiny-moe --routing trace:/none", 2, "/none");
    expect(KTTUNE "run tiny-moe --cache hot", 2, "expected served, cold or warm");
    expect(KTTUNE "run tiny-moe --cache warm", 2, "--cache warm needs --out");
    expect(KTTUNE "run tiny-moe --numa remote", 2, "only local is measured");
    expect(KTTUNE "list cells --workload tiny-moe --mix decode-1 --routing zipf:1", 0,
           "90 % by mix 'decode-1', routing zipf:1");
    expect(KTTUNE "list cells --format int4", 0, "prefill_offload w4g32/a8");
    expect(KTTUNE "run tiny-moe --plans maybe", 2, "expected yes or no");
    expect(KTTUNE "run --model tiny-moe more", 2, "'more' is one argument too many");
    expect(KTTUNE "run tiny-moe --device emulated", 2, "is none of a GPU's");
    expect(KTTUNE "run tiny-moe --device emulated --pretend-clock", 2, "needs --out FILE");
    expect(KTTUNE "run tiny-moe --device cpu", 2, "leave --device out");
    expect(KTTUNE "run tiny-moe --device cuda --pretend-clock", 2, "has a clock of its own");
    expect(KTTUNE "run tiny-moe --device abacus", 2, "expected cpu, cuda");
    expect(KTTUNE "run tiny-moe --device cuda --device-rows 8,1", 2, "expected ascending");
    expect(KTTUNE "run tiny-moe --colour", 2, "'--colour' is not an option");
    expect(KTTUNE "run tiny-moe --budget", 2, "--budget needs a value");
    expect(KTTUNE "run tiny-moe --budget 60", 2, "'60', expected a duration such as 60s");
    expect(KTTUNE "run tiny-moe --budget=-1s", 2, "expected a duration");
    expect(KTTUNE "run tiny-moe --json=1", 2, "--json takes no value");
    expect(KTTUNE "run tiny-moe --seed x", 2, "expected a whole number");
    expect(KTTUNE "run tiny-moe --fresh --resume", 2, "exclude each other");
    expect(KTTUNE "run tiny-moe --format q4", 2, "expected native, bf16, int8 or int4");
    expect(KTTUNE "run tiny-moe --threads 1,x", 2, "--threads '1,x'");
    expect(KTTUNE "run tiny-moe --strategy luck", 2, "kttune list strategies");
    expect(KTTUNE "run tiny-moe --cells m~4", 2, "'m~4' is no condition");
    expect(KTTUNE "run no-such-model", 2, "kttune list models");
    expect(KTTUNE "list", 0, "usage: kttune list");
    expect(KTTUNE "list parrots", 2, "'parrots': expected variants, cells");
    expect(KTTUNE "list cells --model no-such", 2, "model 'no-such': no such folder");
    expect(KTTUNE "explain --m 0", 2, "--m: expected 1 or more");
    expect(KTTUNE "explain --op norm", 2, "expected gemm, moe_ffn");
    expect(KTTUNE "explain --op delta --n 32 --k 128 --kv-heads 16 --v 128 --m 1", 0,
           "delta none/none m=1 n=32 k=128 kv=16");
    expect(KTTUNE "explain --op conv --n 8192 --k 4 --m 64 --deterministic", 0, "bits    'lanes");
    expect(KTTUNE "explain --role nose", 2, "named nose");
    expect(KTTUNE "explain --model no-such", 2, "no-such");
    expect(KTTUNE "verify --sample 101%", 2, "expected a share");
    expect(KTTUNE "bench", 2, "say --suite or --variant");
    expect(KTTUNE "bench --suite moon", 2, "'moon'");
    /* Probing alone takes longer; a variant that never returns ends likewise. */
    expect(KTTUNE
           "bench --variant any_any_p64__scalar --op gemm --weights w8c --m 64 --n 4096 --k 4096 "
           "--limit 0.2s",
           6, "no result within --limit");
    expect(KTTUNE "bench --variant x --op gemm --weights w8c --m 1 --n 64 --k 64", 2,
           "variant 'x': not usable here");
    expect(KTTUNE "bench --variant x --op gemm --weights w8c --m 1 --n 64 --k 65", 2,
           "k a multiple of 32");
    kt_tune_home_remove(&h);
}

Test(kttune, a_missing_or_foreign_table_exits_with_3) {
    kt_tune_home h;
    char command[1024], *text;
    size_t size;
    kt_table *t;

    kt_tune_home_make(&h);
    expect(KTTUNE "show --model kimi-k2-t", 3, "make one with `kttune run --model kimi-k2-t`");
    snprintf(command, sizeof command, KTTUNE "show --model %s", h.model);
    expect(command, 3, "make one with `kttune run --model /");
    expect(KTTUNE "show /nonexistent.kttable.json", 3, "/nonexistent.kttable.json");
    expect(KTTUNE "verify --model nobody", 3, "no table of 'nobody' for machine class ");
    expect(KTTUNE "verify --model nobody", 3, "model 'nobody': no such folder");
    kt_temp_write(h.folder, "bad.json", "{\"schema\":", 10);
    snprintf(command, sizeof command, KTTUNE "show %s/bad.json", h.folder);
    expect(command, 3, "bad.json");
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = h.machine;
    t->fingerprint.family++;
    snprintf(t->fingerprint.microarch, sizeof t->fingerprint.microarch, "another");
    snprintf(command, sizeof command, "%s/foreign.kttable.json", h.folder);
    cr_assert_eq(kt_table_save(t, command, NULL), KT_OK);
    kt_table_destroy(t);
    snprintf(command, sizeof command, KTTUNE "verify %s/foreign.kttable.json", h.folder);
    expect(command, 3, "another machine's");
    snprintf(command, sizeof command, KTTUNE "show %s/foreign.kttable.json", h.folder);
    expect(command, 0, "another machine's: ");
    expect(command, 0, "this machine does not use it");
    snprintf(command, sizeof command, "%s/foreign.kttable.json", h.folder);
    cr_assert_eq(kt_file_read(command, 1 << 20, &text, &size, NULL), KT_OK);
    free(text);
    kt_tune_home_remove(&h);
}

Test(kttune, every_verb_explains_itself) {
    static const char *const verbs[] = {"bench", "explain", "list",  "probe",
                                        "run",   "show",    "verify"};
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++) {
        char command[512], usage[64];
        snprintf(command, sizeof command, KTTUNE "%s --help", verbs[i]);
        snprintf(usage, sizeof usage, "usage: kttune %s", verbs[i]);
        expect(command, 0, usage);
        expect(command, 0, "--json");
        expect(command, 0, "Examples:");
        snprintf(usage, sizeof usage, "  %s ", verbs[i]);
        expect(KTTUNE "--help", 0, usage);
    }
    expect(KTTUNE "help run", 0, "usage: kttune run --model");
    expect(KTTUNE "help parrot", 2, "'parrot' is not a verb");
    expect(KTTUNE "export --help", 0, "usage: kttune export");
    expect(KTTUNE "new --help", 0, "usage: kttune new");
    expect(KTTUNE "--version", 0, "kttune 0.");
}

Test(kttune, lists_are_json_when_asked) {
    static const char *const kinds[] = {
        "variants --why-invalid", "cells --model mini-path", "models", "tables", "strategies",
        "--why-invalid"};
    kt_tune_home h;
    kt_tune_home_make(&h);
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        char command[1024];
        kt_json_doc *doc;
        if (i == 1)
            snprintf(command, sizeof command, KTTUNE "list cells --model %s --json", h.model);
        else
            snprintf(command, sizeof command, KTTUNE "list %s --json", kinds[i]);
        doc = json_of(command, 0);
        cr_expect_eq(kt_json_type_of(kt_json_root(doc)), KT_JSON_ARRAY);
        if (strcmp(kinds[i], "tables") != 0)
            cr_expect_gt(kt_json_length(kt_json_root(doc)), 1, "%s", command);
        kt_json_destroy(doc);
    }
    kt_tune_home_remove(&h);
}

/* Quick to tune: the experts and three dense matrices, two buckets each; attention of one row. */
#define FEW "--cells 'm<=2,threads=1'"

Test(kttune, run_tunes_shows_explains_and_verifies, .timeout = 180) {
    kt_tune_home h;
    char command[2048];
    kt_json_doc *doc;
    kt_table *t;
    size_t rows;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command, KTTUNE "run --model %s " FEW " --dry-run --json", h.model);
    doc = json_of(command, 0);
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "cells")), 9);
    cr_expect_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "table"), NULL), h.table);
    kt_json_destroy(doc);
    cr_expect_neq(access(h.journal, F_OK), 0, "a dry run writes nothing");

    snprintf(command, sizeof command,
             KTTUNE "run --model %s " FEW " --budget 120s --json --noisy-ok --widest 1", h.model);
    doc = json_of(command, 0);
    cr_expect_eq(int_at(doc, "cells"), 9);
    cr_expect_eq(int_at(doc, "decided"), 9);
    cr_expect_eq(int_at(doc, "rejected"), 0);
    cr_expect_eq(int_at(doc, "reused"), 0);
    kt_json_destroy(doc);
    t = load(h.table);
    cr_expect_eq(t->n_rows, 9);
    cr_expect_str_eq(t->workload, "mini");
    rows = t->n_rows;
    kt_table_destroy(t);

    doc = json_of(command, 0);
    cr_expect_eq(int_at(doc, "reused"), 9, "the journal holds them all");
    cr_expect_eq(int_at(doc, "rounds"), 0);
    kt_json_destroy(doc);
    expect(KTTUNE "show --model mini", 0, "9 cells, ");
    expect(KTTUNE "show --model mini", 0, "Gain over the default");
    expect(KTTUNE "show --model mini --rows", 0, " us ±");
    doc = json_of(KTTUNE "show --model mini --json", 0);
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "rows")), rows);
    cr_expect_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "match"), NULL), "same");
    kt_json_destroy(doc);
    expect(KTTUNE "show --model mini --rejected", 0, "0 rejected in ");
    expect(KTTUNE "show --model mini --deterministic", 0, "  keeps ");
    doc = json_of(KTTUNE "show --model mini --deterministic --json", 0);
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "deterministic")), 4,
                 "one per matrix");
    kt_json_destroy(doc);
    expect(KTTUNE "list tables", 0, h.table);
    snprintf(command, sizeof command, KTTUNE "explain --model %s --m 2 --threads 1 --json",
             h.model);
    doc = json_of(command, 0);
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "rows")), 1);
    kt_json_destroy(doc);
    doc = json_of(KTTUNE "verify --model mini --gates-only --json", 0);
    cr_expect_eq(int_at(doc, "verified"), (int64_t)rows);
    cr_expect_eq(int_at(doc, "wrong"), 0);
    kt_json_destroy(doc);
    kt_tune_home_remove(&h);
}

/* Every row of such a run knows its class, and FMA's although its bound is twice that of dot
 * products. */
Test(kttune, a_deterministic_run_measures_every_class, .timeout = 180) {
    kt_tune_home h;
    char command[2048];
    kt_table *t;
    kt_json_doc *doc;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             KTTUNE
             "run --model %s --format bf16 --cells 'm=512,threads=1,op=gemm' --deterministic "
             "--budget 120s --json --noisy-ok --widest 1",
             h.model);
    doc = json_of(command, 0);
    cr_expect_geq(kt_json_length(kt_json_get(kt_json_root(doc), "deterministic")), 1);
    cr_expect(
        strstr(kt_json_string(kt_json_get(kt_json_root(doc), "repeat"), NULL), " --deterministic"));
    kt_json_destroy(doc);
    t = load(h.table);
    cr_assert_gt(t->n_rows, 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        int has_fma = strcmp(r->bits, "bf16-fma") == 0;
        cr_expect(*r->bits, "row %zu", i);
        for (int k = 0; k < r->n_others; k++) {
            cr_expect_str_neq(r->other[k].bits, r->bits);
            cr_expect_gt(r->other[k].time_ns, 0);
            has_fma |= strcmp(r->other[k].bits, "bf16-fma") == 0;
        }
        cr_expect(has_fma || !(kt_isa_available() & KT_ISA_AVX2), "row %zu: %s alone", i, r->bits);
    }
    kt_table_destroy(t);
    kt_tune_home_remove(&h);
}

Test(kttune, a_run_keeps_the_rows_of_other_cells, .timeout = 180) {
    kt_tune_home h;
    char command[1024];
    kt_table *t;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             KTTUNE "run %s --cells 'm=1,threads=1,role=experts' --noisy-ok --widest 1", h.model);
    expect(command, 0, "1 of 1 cells decided");
    snprintf(command, sizeof command,
             KTTUNE
             "run %s --format int8 --cells 'm=1,threads=1,role=experts' --noisy-ok --widest 1",
             h.model);
    expect(command, 0, "(1 rows of other cells kept)");
    t = load(h.table);
    cr_expect_eq(t->n_rows, 2);
    kt_table_destroy(t);
    /* Nothing decided: the table stays as it is. */
    snprintf(command, sizeof command, KTTUNE "run %s --fresh --budget 1ms", h.model);
    expect(command, 6, "to go on: kttune run --model ");
    t = load(h.table);
    cr_expect_eq(t->n_rows, 2);
    kt_table_destroy(t);
    kt_tune_home_remove(&h);
}

/* No room for the journal any more: what was decided before is there, and the message says so. */
Test(kttune, a_full_disk_loses_nothing, .timeout = 120) {
    kt_tune_home h;
    char command[1024];

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             "trap '' XFSZ; ulimit -f 8; " KTTUNE "run %s " FEW " --noisy-ok 2>&1", h.model);
    expect(command, 8, "nothing that was decided is lost: it lies in ");
    cr_expect_eq(access(h.journal, R_OK), 0, "%s", h.journal);
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --noisy-ok --widest 1 -v", h.model);
    expect(command, 0, "9 of 9 cells decided");
    kt_tune_home_remove(&h);
}

/* A row of a variant that has changed since is told apart by its version. */
Test(kttune, outdated_rows_are_recognised, .timeout = 180) {
    kt_tune_home h;
    char command[1024];
    kt_table *t;
    kt_table_row row;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             KTTUNE "run %s --cells 'm=1,threads=1,role=experts' --noisy-ok --widest 1", h.model);
    expect(command, 0, "1 of 1 cells decided");
    t = load(h.table);
    row = t->rows[0];
    row.version++;
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    cr_assert_eq(kt_table_save(t, h.table, NULL), KT_OK);
    kt_table_destroy(t);
    expect(KTTUNE "show --model mini", 0, "1 outdated: ");
    expect(KTTUNE "verify --model mini --gates-only", 5, "outdated moe_ffn");
    kt_tune_home_remove(&h);
}

Test(kttune, results_are_complete_and_name_nobody, .timeout = 180) {
    static const char *const files[] = {"mini.kttable.json", "mini.journal.jsonl.gz",
                                        "machine.json", "README.md"};
    kt_tune_home h;
    char command[1024], class_name[64], path[1024], host[256] = "";

    kt_tune_home_make(&h);
    snprintf(command, sizeof command,
             KTTUNE "run %s --cells 'm=1,threads=1' --noisy-ok --widest 1 --results %s/results",
             h.model, h.folder);
    expect(command, 0, "5 of 5 cells decided");
    kt_machine_class(&h.machine, class_name, sizeof class_name);
    gethostname(host, sizeof host - 1);
    for (int i = 0; i < 4; i++) {
        char *text;
        size_t size;
        snprintf(path, sizeof path, "%s/results/%s/%s", h.folder, class_name, files[i]);
        cr_assert_eq(kt_zipped_read(path, 1 << 24, &text, &size, NULL), KT_OK, "%s", path);
        cr_expect_not(strstr(text, h.folder), "%s names a folder", path);
        if (strlen(host) > 3) cr_expect_not(strstr(text, host), "%s names the host", path);
        if (i == 3) {
            cr_expect(strstr(text, "kttune run --model mini --format native "), "%s", text);
            cr_expect(strstr(text, "5 cells on "), "%s", text);
        }
        free(text);
    }
    kt_tune_home_remove(&h);
}

/* Start the program directly, so that a signal reaches it and no shell. */
static pid_t start(const char *const argv[]) {
    pid_t child = fork();
    cr_assert_geq(child, 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
        execv(KT_BUILD_DIR "/kttune", (char *const *)(uintptr_t)argv);
        _exit(98);
    }
    return child;
}

/* Wait until the journal holds a decision; false after a minute and more. */
static bool wait_for_decision(const char *journal) {
    static const struct timespec nap = {.tv_nsec = 20000000};
    for (int i = 0; i < 3000; i++) {
        kt_journal *j;
        bool found = false;
        nanosleep(&nap, NULL);
        if (kt_journal_read(journal, &j, NULL) != KT_OK) continue;
        for (size_t r = 0; r < kt_journal_count(j); r++) {
            const char *t = kt_json_string(kt_json_get(kt_journal_at(j, r), "t"), NULL);
            found |= t && strcmp(t, "decision") == 0;
        }
        kt_journal_close(j);
        if (found) return true;
    }
    return false;
}

static void interrupt_with(int signal_number) {
    kt_tune_home h;
    const char *argv[] = {KT_BUILD_DIR "/kttune", "run", "--model", NULL, NULL};
    kt_table *t;
    kt_journal *j;
    pid_t child;
    int status;
    int64_t asked;

    kt_tune_home_make(&h);
    argv[3] = h.model;
    child = start(argv);
    cr_assert(wait_for_decision(h.journal));
    asked = kt_clock_ns();
    kill(child, signal_number);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 130, "status %x", (unsigned)status);
    /* A sample and the writing of two small files; that it did not run on to its end says the
     * code. */
    cr_expect_lt((double)(kt_clock_ns() - asked) * 1e-9, 15, "it took too long to end");
    t = load(h.table);
    cr_expect_geq(t->n_rows, 1);
    cr_assert_eq(kt_journal_read(h.journal, &j, NULL), KT_OK);
    cr_expect_eq(kt_journal_dropped(j), 0);
    cr_expect_str_eq(
        kt_json_string(kt_json_get(kt_journal_at(j, kt_journal_count(j) - 1), "reason"), NULL),
        "stopped");
    kt_journal_close(j);
    kt_table_destroy(t);
    kt_tune_home_remove(&h);
}

Test(kttune, ctrl_c_writes_what_is_decided, .timeout = 180) {
    interrupt_with(SIGINT);
    interrupt_with(SIGTERM);
}

Test(kttune, two_tuners_do_not_share_a_journal, .timeout = 180) {
    kt_tune_home h;
    const char *argv[] = {KT_BUILD_DIR "/kttune", "run", "--model", NULL, NULL};
    char command[1024];
    pid_t child;

    kt_tune_home_make(&h);
    argv[3] = h.model;
    child = start(argv);
    cr_assert(wait_for_decision(h.journal));
    snprintf(command, sizeof command, KTTUNE "run --model %s", h.model);
    expect(command, 8, "another kttune is writing it");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    kt_tune_home_remove(&h);
}

/* Does a duel of a variant with itself find less than a tenth between the two? */
static bool duel_of_equals_is_even(void) {
    kt_json_doc *doc =
        json_of(KTTUNE "bench --op gemm --weights w8c --m 2 --n 256 --k 256 --rounds 60 "
                       "--variant any_any_p64__scalar --against any_any_p64__scalar --json",
                0);
    const kt_json *faster = kt_json_get(kt_json_root(doc), "faster");
    double point = kt_json_double(kt_json_at(faster, 1), 9);

    cr_assert_eq(kt_json_length(faster), 3);
    kt_json_destroy(doc);
    return -0.1 < point && point < 0.1;
}

Test(kttune, a_duel_of_equals_shows_no_difference, .timeout = 180) {
    kt_tune_home h;
    kt_attempts tries = {3, 0};
    bool even = false;

    kt_tune_home_make(&h);
    while (kt_attempts_next(&tries, even)) even = duel_of_equals_is_even();
    cr_expect(even, "three times a tenth between a variant and itself");
    kt_tune_home_remove(&h);
}
