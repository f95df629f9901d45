/* Every verb of `kttune`, in one table: its help, its JSON on good input, and what it says of bad input -
 * a missing file, a torn one, one of another machine, an option or variant that does not exist.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "dispatch/table/table.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/store/journal.h"
#include "tuner/store/zipped.h"

#define KTTUNE KT_BUILD_DIR "/kttune "
#define SHARED KT_SOURCE_DIR "/results/zen4-2c-24g/"
#define SHIPPED SHARED "tiny-moe.kttable.json"

static kt_tune_home home;

/* In the home (= $XDG_DATA_HOME): good, torn and foreign files. The shipped table is that of another machine
 * where these tests usually run, so ours has its rows under this machine's fingerprint. */
static void make_home(void) {
    char path[1024], *text;
    size_t size;
    kt_table *t;
    kt_err err;

    kt_tune_home_make(&home);
    cr_assert_eq(kt_table_load(SHIPPED, &t, &err), KT_OK, "%s", err.message);
    t->fingerprint = home.machine;
    snprintf(path, sizeof path, "%s/good.kttable.json", home.folder);
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_file_read(path, 1 << 24, &text, &size, &err), KT_OK);
    kt_temp_write(home.folder, "torn.kttable.json", text, size / 2);
    kt_temp_write(home.folder, "torn.journal.jsonl", text, size / 2);
    free(text);
    t->shape_id = 0; /* not known, as before schema 2 */
    t->fingerprint.family++;
    snprintf(t->fingerprint.microarch, sizeof t->fingerprint.microarch, "another");
    snprintf(path, sizeof path, "%s/foreign.kttable.json", home.folder);
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
    cr_assert_eq(
        kt_zipped_read(SHARED "tiny-moe.journal.jsonl", (size_t)1 << 28, &text, &size, &err),
        KT_OK);
    kt_temp_write(home.folder, "good.journal.jsonl", text, size);
    free(text);
    kt_temp_write(home.folder, "torn.json", "{\"hidden_size\": 20", 18);
    snprintf(path, sizeof path, "%s/torn", home.folder);
    mkdir(path, 0777);
    kt_temp_write(path, "config.json", "{\"hidden_size\": 20", 18);
}

static void remove_home(void) {
    kt_tune_home_remove(&home);
}

TestSuite(verbs, .init = make_home, .fini = remove_home);

/* H = the home, in commands. */
static int run(const char *words, const char *redirect, char **out) {
    char command[2048];
    snprintf(command, sizeof command, "H=$XDG_DATA_HOME; " KTTUNE "%s %s", words, redirect);
    return kt_tune_home_run(command, out);
}

enum { MOST_VERBS = 64, NAME_BYTES = 24 };

/* The names that `kttune --help` lists. */
static int list_verbs(char names[MOST_VERBS][NAME_BYTES]) {
    char *out, *line;
    int n = 0;

    cr_assert_eq(run("--help", "", &out), 0);
    for (line = strstr(out, "\n\n  "); line && n < MOST_VERBS; line = strchr(line + 1, '\n')) {
        while (*line == '\n') line++;
        if (sscanf(line, "  %23[a-z] ", names[n]) != 1) break;
        n++;
    }
    free(out);
    cr_assert_geq(n, 14, "%d verbs", n);
    return n;
}

Test(verbs, all_explain_themselves_with_examples_in_80_columns) {
    char names[MOST_VERBS][NAME_BYTES];
    int n = list_verbs(names);

    for (int i = 0; i < n; i++) {
        const char *name = names[i];
        bool is_example = false;
        char words[64], head[64], *out, *line, *end;
        snprintf(words, sizeof words, "%.23s --help", name);
        cr_expect_eq(run(words, "", &out), 0, "%s", name);
        snprintf(head, sizeof head, "usage: kttune %.23s ", name);
        cr_expect(strstr(out, head) == out, "%s: %s", name, out);
        cr_expect(strstr(out, "\nExamples:\n"), "%s", name);
        cr_expect(strstr(out, "--json"), "%s has no --json", name);
        for (line = out; *line; line = *end ? end + 1 : end) {
            end = line + strcspn(line, "\n");
            is_example |= strncmp(line, "Examples:", 9) == 0; /* commands stay whole */
            cr_expect(is_example || end - line < 80, "%s: %.*s", name, (int)(end - line), line);
        }
        free(out);
    }
}

/* One command per verb, at least, that must answer in JSON. */
static const struct {
    const char *words;
    int code; /* beside 0 */
    const char *member;
} answers[] = {
    {"probe --quick --json", 0, "fingerprint"},
    {"list variants --json", 0, NULL},
    {"list cells --json", 0, NULL},
    {"list models --json", 0, NULL},
    {"list tables --json", 0, NULL},
    {"list strategies --json", 0, NULL},
    {"run $H/mini --cells m=1,threads=1 --noisy-ok --widest 1 --json", 0, "decided"},
    {"run $H/mini --dry-run --json", 0, NULL},
    {"compile --sm 80 --kernel moe_decode --json", 8, NULL}, /* without NVRTC */
    {"show $H/good.kttable.json --json", 0, "rows"},
    {"explain --table $H/good.kttable.json --m 3 --json", 0, "choice"},
    {"explain --table $H/good.kttable.json --m 3 --deterministic --json", 0, "bits"},
    {"bench --op gemm --weights w8c --m 1 --n 64 --k 64 --variant any_any_p64__scalar "
     "--against any_any_p64__scalar --seconds 50ms --json",
     5, NULL},
    {"bench --suite gpu --device emulated --pretend-clock --rows 'decode_int8_*' --json", 5,
     "rows"},
    {"verify $H/good.kttable.json --gates-only --sample 10% --json", 5, "findings"},
    {"verify $H/good.kttable.json --gates-only --sample 1% --e2e --model $H/mini --json", 5,
     "layers"},
    {"compare $H/good.kttable.json $H/good.kttable.json --json", 0, NULL},
    {"merge $H/good.kttable.json $H/good.kttable.json --out $H/merged.kttable.json --json", 0,
     "cells"},
    {"export $H/good.kttable.json --to csv --out $H/x.csv --json", 0, "wrote"},
    {"sim $H/good.journal.jsonl --trials 1 --strategy auto --json", 0, "strategies"},
    {"inspect any_any_p64__scalar --json", 0, NULL},
    {"new gemm w8c_a8_mine__avx2 --folder $H --json", 0, "wrote"},
    {"selfcheck --goals 9 --json", 5, "rows"},
};

enum { N_ANSWERS = sizeof answers / sizeof *answers };

Test(verbs, have_an_answer_in_json_each) {
    char names[MOST_VERBS][NAME_BYTES];
    int n = list_verbs(names);

    for (int i = 0; i < n; i++) {
        bool is_tried = false;
        for (size_t k = 0; k < N_ANSWERS; k++)
            is_tried |= strncmp(answers[k].words, names[i], strlen(names[i])) == 0;
        cr_expect(is_tried, "%s has no line in this table", names[i]);
    }
}

ParameterizedTestParameters(verbs, answers_in_json) {
    int *index = cr_malloc(N_ANSWERS * sizeof *index);
    for (int i = 0; i < N_ANSWERS; i++) index[i] = i;
    return cr_make_param_array(int, index, N_ANSWERS);
}

/* Exactly one value on standard output. */
ParameterizedTest(int *index, verbs, answers_in_json, .timeout = 120) {
    const char *words = answers[*index].words, *member = answers[*index].member;
    kt_json_doc *doc = NULL;
    kt_err err = {0};
    char *out;
    int code;

    if (strncmp(words, "inspect", 7) == 0 && system("objdump --version >/dev/null 2>&1") != 0)
        cr_skip_test("objdump is not installed");
    code = run(words, "2>/dev/null", &out);
    cr_expect(code == 0 || code == answers[*index].code, "%s: exit code %d: %s", words, code, out);
    cr_expect_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s: %s: %s", words,
                 err.message, out);
    if (member)
        cr_expect(kt_json_get(kt_json_root(doc), member), "%s: no '%s': %s", words, member, out);
    kt_json_destroy(doc);
    free(out);
}

/* Bad input: the exit code, and the words that name what it is about, what was found and what was expected.
 * Standard output stays empty: nothing half right for the next program in the pipe. */
Test(verbs, all_name_object_found_and_expected, .timeout = 120) {
    static const struct {
        const char *words;
        int code;
        const char *object, *found, *expected;
    } cases[] = {
        /* probe has no input but its options */
        {"probe --fast", 2, "kttune probe", "'--fast'", "kttune probe --help"},
        {"probe here", 2, "kttune probe", "'here'", "one argument too many"},
        {"probe --quick=3", 2, "kttune probe", "--quick", "takes no value"},
        {"list birds", 2, "kttune list", "'birds'", "expected variants, cells, models"},
        {"list cells --model $H/none", 2, "model '", "/none': no such folder",
         "kttune list models"},
        {"list cells --model $H/torn", 2, "torn/config.json", "1:19", "expected"},
        {"list variants --isa birds", 2, "--isa", "'birds'", "expected scalar"},
        {"list variants --op birds", 2, "--op", "'birds'", "expected one of moe_ffn"},
        {"run", 2, "kttune run", "missing", "--model or --workload"},
        {"run $H/none", 2, "model '", "/none': no such folder", "kttune list models"},
        {"run $H/torn", 2, "torn/config.json", "1:19", "expected"},
        {"run $H/mini --colour", 2, "kttune run", "'--colour'", "kttune run --help"},
        {"run $H/mini --acts a8 --format bf16", 2, "--acts 'a8'", "none of", "two encodings"},
        {"run $H/mini --strategy luck", 2, "--strategy", "'luck'", "kttune list strategies"},
        {"run $H/mini --out $H/none/x.kttable.json --cells m=1", 8, "none/x.journal.jsonl",
         "No such file", "open"},
        {"run $H/mini --out $H/foreign.kttable.json --cells m=1", 3, "foreign.kttable.json",
         "family", "expected a new file or one of this machine"},
        {"run $H/mini --out /dev/null --cells m=1", 2, "--out '/dev/null'", "is no file",
         "expected a file"},
        {"show $H/none.kttable.json", 3, "none.kttable.json", "No such file", "open"},
        {"show $H/torn.kttable.json", 3, "torn.kttable.json", ":", "not a table"},
        {"show --model none", 3, "'none'", "no table", "kttune list models"},
        {"show $H/good.kttable.json --plot pie", 2, "--plot", "'pie'", "expected roofline"},
        {"explain --table $H/none.kttable.json", 3, "none.kttable.json", "No such file", "open"},
        {"explain --table $H/torn.kttable.json", 3, "torn.kttable.json", ":", "not a table"},
        {"explain --op birds", 2, "--op", "'birds'", "expected gemm, moe_ffn"},
        {"bench --op delta --variant delta_rows__scalar --m 1 --n 4 --k 8", 2, "--op delta",
         "--kv-heads 0", "expected m 1 to 4096"},
        {"explain --birds", 2, "kttune explain", "'--birds'", "kttune explain --help"},
        {"bench --suite birds", 2, "--suite", "'birds'", "expected line, cpu or gpu"},
        {"bench --suite gpu --device birds", 2, "device", "'birds'", "expected cpu, cuda"},
        {"bench --suite gpu --device cpu", 2, "--device cpu", "", "--suite cpu measures the CPU"},
        {"bench --suite gpu --device emulated", 2, "--device emulated", "none of a GPU's",
         "--pretend-clock tries"},
        {"bench --suite gpu --device cuda --pretend-clock", 2, "--pretend-clock", "cuda",
         "has a clock of its own"},
        {"bench --suite gpu --device emulated --pretend-clock --rows birds", 2, "suite gpu",
         "'birds'", "no row matches"},
        {"bench --suite line --device cuda", 2, "--device", "", "go with --suite gpu"},
        {"bench --op gemm --weights w8c --m 1 --n 64 --k 64 --variant birds", 2, "variant 'birds'",
         "not usable here", "kttune list variants"},
        {"bench --op gemm --weights birds --m 1 --n 64 --k 64 --variant any_any_p64__scalar", 2,
         "--weights", "'birds'", "expected"},
        {"verify $H/none.kttable.json", 3, "none.kttable.json", "No such file", "open"},
        {"verify $H/torn.kttable.json", 3, "torn.kttable.json", ":", "not a table"},
        {"verify $H/foreign.kttable.json", 3, "the table", "another machine", "family"},
        {"verify $H/good.kttable.json --sample 2", 2, "--sample", "'2'", "expected a share"},
        {"compare $H/good.kttable.json", 2, "kttune compare", "", "expected two tables"},
        {"compare $H/good.kttable.json $H/none.kttable.json", 3, "none.kttable.json",
         "No such file", "open"},
        {"compare $H/torn.kttable.json $H/good.kttable.json", 3, "torn.kttable.json", ":",
         "not a table"},
        {"compare --rerun $H/foreign.kttable.json $H/good.kttable.json", 3, "foreign",
         "another machine", "family"},
        {"merge --out $H/m.json", 2, "kttune merge", "", "expected tables"},
        {"merge $H/good.kttable.json $H/none.kttable.json --out $H/m.json", 3, "none.kttable.json",
         "No such file", "open"},
        {"merge $H/good.kttable.json $H/torn.kttable.json --out $H/m.json", 3, "torn.kttable.json",
         ":", "not a table"},
        {"merge $H/good.kttable.json $H/foreign.kttable.json --out $H/m.json", 3,
         "foreign.kttable.json", "family", "is of another machine than"},
        {"merge $H/good.kttable.json --out $H/none/m.json", 2, "none/m.json", "No such file",
         "create"},
        {"export $H/none.kttable.json --to csv", 3, "none.kttable.json", "No such file", "open"},
        {"export $H/torn.kttable.json --to csv", 3, "torn.kttable.json", ":", "not a table"},
        {"export $H/foreign.kttable.json --to t4", 3, "foreign.journal.jsonl", "No such file",
         "open"},
        {"export $H/good.kttable.json --to birds", 2, "--to", "'birds'", "expected html"},
        {"export $H/good.kttable.json --to csv --out $H/none/x", 2, "none/x", "No such file",
         "create"},
        {"export $H/good.kttable.json --to csv --json", 2, "--json", "standard output is taken",
         "--out"},
        {"sim", 2, "kttune sim", "", "expected a journal"},
        {"sim $H/none.journal.jsonl", 3, "none.journal.jsonl", "No such file", "open"},
        {"sim $H/torn.journal.jsonl", 3, "torn.journal.jsonl", "lines", "expected"},
        {"sim $H/good.journal.jsonl --strategy luck", 2, "--strategy", "'luck'",
         "kttune list strategies"},
        {"inspect", 2, "kttune inspect", "", "expected the name of a variant"},
        {"inspect birds", 2, "kttune inspect", "'birds'", "kttune list variants"},
        {"inspect any_any_p64__scalar --loop 999", 2, "--loop", "999", "1 to"},
        {"new gemm", 2, "kttune new", "", "expected an operation and a name"},
        {"new birds w8c_a8_mine__avx2", 2, "kttune new", "'birds'", "expected gemm, moe_ffn"},
        {"new gemm birds", 2, "'birds'", "", "expected <weights>_<acts>[_<trait>]__<isa>"},
        {"new gemm w8c_a8_mine__avx2 --folder $H/none", 2, "none/w8c_a8_mine__avx2.c",
         "No such file", "create"},
        {"selfcheck --goals 99", 2, "--goals", "'99'", "expected numbers from 1 to 16"},
        {"selfcheck --goals 1,", 2, "--goals", "'1,'", "expected numbers from 1 to 16"},
        {"selfcheck --goals 10 --results $H/none", 2, "/none'", "no such folder",
         "expected one with journals"},
        {"birds", 2, "'birds'", "not a verb", "usage: kttune VERB"},
        {"$H/torn.json", 2, "torn.json", "no config.json", "usage: kttune VERB"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        int code =
            run(cases[i].words, "2>&1 >$H/stdout; code=$?; wc -c <$H/stdout; exit $code", &out);
        const char *words[] = {cases[i].object, cases[i].found, cases[i].expected};
        cr_expect_eq(code, cases[i].code, "%s: exit code %d, expected %d: %s", cases[i].words, code,
                     cases[i].code, out);
        for (int w = 0; w < 3; w++)
            cr_expect(strstr(out, words[w]), "%s: '%s' lacks '%s'", cases[i].words, out, words[w]);
        cr_expect(strlen(out) > 2 && strcmp(out + strlen(out) - 3, "\n0\n") == 0,
                  "%s: something on standard output: %s", cases[i].words, out);
        free(out);
    }
}

/* --- as a stranger meets it --- */

/* What `kttune` has said in a folder when Ctrl-C ends it: on a slow machine it gets more time. */
static void expect_soon(const char *folder, const char *arguments, const char *words,
                        const char *more) {
    char command[2048], *out = NULL;
    bool said = false;

    for (int seconds = 2; seconds <= 32 && !said; seconds *= 4) {
        free(out);
        snprintf(command, sizeof command, "cd %s && timeout -s INT %d " KTTUNE "%s", folder,
                 seconds, arguments);
        kt_tune_home_run(command, &out);
        said = strstr(out, words) && strstr(out, more);
    }
    cr_expect(said, "'%s' lacks '%s' or '%s'", out, words, more);
    free(out);
}

Test(verbs, a_folder_with_a_model_is_enough, .timeout = 180) {
    char *out, command[2048];

    /* the quick run would take a minute: what it says when it is stopped will do */
    expect_soon(home.model, "", "kttune run --model . --budget 60s", "");
    expect_soon(home.folder, home.model, "--budget 60s", "mini.kttable.json");
    snprintf(command, sizeof command, "cd %s && " KTTUNE, home.folder);
    cr_expect_eq(kt_tune_home_run(command, &out), 2);
    cr_expect(strstr(out, "no config.json"), "%s", out);
    free(out);
}

Test(verbs, a_full_disk_is_said_and_not_success, .timeout = 180) {
    static const char *const cases[] = {"--help",
                                        "--version",
                                        "show --help",
                                        "list variants",
                                        "list models --json",
                                        "show $H/good.kttable.json",
                                        "show $H/good.kttable.json --json",
                                        "show $H/good.kttable.json --plot all",
                                        "explain --table $H/good.kttable.json --m 3",
                                        "compare $H/good.kttable.json $H/good.kttable.json",
                                        "export $H/good.kttable.json --to csv",
                                        "export $H/good.kttable.json --to csv --out /dev/full",
                                        "sim $H/good.journal.jsonl --trials 1 --strategy auto"};
    struct stat info;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        int code = run(cases[i], "2>&1 >/dev/full", &out);
        cr_expect_eq(code, 8, "%s: exit code %d: %s", cases[i], code, out);
        cr_expect(strstr(out, "cannot be written") || strstr(out, "cannot write"), "%s: %s",
                  cases[i], out);
        free(out);
    }
    cr_assert_eq(stat("/dev/full", &info), 0);
    cr_expect(S_ISCHR(info.st_mode), "a regular file lies at /dev/full now");
}

/* A home that cannot be written: what needs no disk works, what needs one names it. */
Test(verbs, a_home_that_cannot_be_written_is_named, .timeout = 180) {
    static const struct {
        const char *words;
        int code;
        const char *says;
    } cases[] = {
        {"probe --quick", 8, "XDG_DATA_HOME"},
        {"run $M --cells m=1,threads=1", 8, "XDG_DATA_HOME"},
        {"run $M --cells m=1,threads=1 --noisy-ok --widest 1 --out $H/x.kttable.json", 0, "wrote"},
        {"list variants", 0, "any_any_p64__scalar"},
        {"explain --op gemm --m 3", 0, "choice"},
        {"show --model $M", 3, "kttune run --model /"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char command[2048], *out;
        int code;
        snprintf(command, sizeof command,
                 "H=$XDG_DATA_HOME M=%s; touch $H/file; export XDG_DATA_HOME=$H/file/sub; " KTTUNE
                 "%s",
                 home.model, cases[i].words);
        code = kt_tune_home_run(command, &out);
        cr_expect_eq(code, cases[i].code, "%s: exit code %d: %s", cases[i].words, code, out);
        cr_expect(strstr(out, cases[i].says), "%s: %s", cases[i].words, out);
        free(out);
    }
}
