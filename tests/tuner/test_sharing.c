/* What results/ shares: exchange formats that obey their schemas and follow from the journal, checksums
 * that are those of the files. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "tests/support/json_schema.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/report/export.h"
#include "base/sha256.h"
#include "tuner/report/t4_names.h"
#include "tuner/store/replay.h"

#define KTTUNE KT_BUILD_DIR "/kttune "

static char *read_text(const char *path, size_t *size) {
    char *text;
    kt_err err;
    cr_assert_eq(kt_file_read(path, (size_t)1 << 30, &text, size, &err), KT_OK, "%s", err.message);
    return text;
}

static kt_json_doc *parse(const char *text, size_t size, const char *what) {
    kt_json_doc *doc;
    kt_err err;
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s: %s", what, err.message);
    return doc;
}

static kt_json_doc *schema(const char *name) {
    char path[512], *text;
    size_t size;
    kt_json_doc *doc;
    snprintf(path, sizeof path, KT_SOURCE_DIR "/datasets/schemas/%s.schema.json", name);
    text = read_text(path, &size);
    doc = parse(text, size, path);
    free(text);
    return doc;
}

/* --- the parts --- */

Test(sharing, sha256_is_that_of_the_standard) {
    static const struct {
        const char *text, *want;
    } cases[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    char hex[65], *million = malloc(1000000);

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_sha256(cases[i].text, strlen(cases[i].text), hex);
        cr_expect_str_eq(hex, cases[i].want);
    }
    cr_assert(million);
    memset(million, 'a', 1000000);
    kt_sha256(million, 1000000, hex);
    cr_expect_str_eq(hex, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(million);
}

static void append_parameter(void *arg, const char *name, const char *value, bool is_number) {
    char *text = arg;
    sprintf(text + strlen(text), "%s%c%s;", name, is_number ? '=' : ':', value);
}

Test(sharing, names_of_contenders_come_apart) {
    static const struct {
        const char *name, *want;
    } cases[] = {{"a__avx2@3{rows=4,prefetch=0}", "variant:a__avx2@3;rows=4;prefetch=0;"},
                 {"a__avx2@3{}", "variant:a__avx2@3;"},
                 {"a__avx2", "variant:a__avx2;"},
                 {"a@1{rows}", "variant:a@1;"},
                 {"a@1{x=-5,y=05,z=q}", "variant:a@1;x=-5;y:05;z:q;"},
                 {"a{x=1", "variant:a{x=1;"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256] = "";
        kt_t4_each_parameter(cases[i].name, append_parameter, text);
        cr_expect_str_eq(text, cases[i].want);
    }
}

Test(sharing, the_schemas_refuse_what_is_wrong) {
    static const struct {
        const char *name, *text, *where;
    } cases[] = {
        {"t4", "{\"schema_version\":\"1.0.0\",\"results\":[]}", "metadata"},
        {"t4",
         "{\"schema_version\":\"1.0.0\",\"metadata\":{\"timeunit\":\"seconds\",\"device\":\"x\","
         "\"workload\":\"\",\"tuner\":\"\",\"date\":\"\",\"fingerprint\":{}},\"results\":[1]}",
         "timeunit"},
        {"t1", "{\"General\":{\"FormatVersion\":2,\"TimeUnit\":\"Seconds\"}}",
         "ConfigurationSpace"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_json_doc *rules = schema(cases[i].name);
        kt_json_doc *doc = parse(cases[i].text, strlen(cases[i].text), cases[i].name);
        char why[512];
        const char *answer =
            kt_schema_check(kt_json_root(rules), kt_json_root(doc), why, sizeof why);
        cr_assert(answer, "%s", cases[i].text);
        cr_expect(strstr(answer, cases[i].where), "%s", answer);
        kt_json_destroy(doc);
        kt_json_destroy(rules);
    }
}

/* --- what is shipped, and what a run writes --- */

/* What the table's journal gives obeys its schema, and is what is filed (is_filed). */
static void check_exchange(const char *table_path, const char *format, bool is_filed) {
    int stem = (int)(strlen(table_path) - strlen(".kttable.json"));
    char path[1024], journal_path[1024], why[512], *text = NULL, *filed;
    size_t size, filed_size;
    kt_json_doc *rules = schema(format), *doc;
    const char *answer;
    kt_export_input in = {0};
    kt_table *table;
    kt_journal *journal;
    FILE *to;
    kt_err err;

    cr_assert_eq(kt_table_load(table_path, &table, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_path_of(table_path, journal_path, sizeof journal_path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(journal_path, &journal, &err), KT_OK, "%s", err.message);
    in.table = table;
    in.journal = journal;
    to = open_memstream(&text, &size);
    cr_assert_eq(kt_exporter_find(format)->write(&in, to, &err), KT_OK, "%s", err.message);
    fclose(to);
    snprintf(path, sizeof path, "%.*s.%s.json", stem, table_path, format);
    doc = parse(text, size, path);
    answer = kt_schema_check(kt_json_root(rules), kt_json_root(doc), why, sizeof why);
    cr_expect_null(answer, "%s: %s", path, answer);
    if (is_filed) {
        filed = read_text(path, &filed_size);
        cr_expect(size == filed_size && memcmp(text, filed, size) == 0,
                  "%s is not what its journal gives: kttune export %s --results results", path,
                  table_path);
        free(filed);
    }
    kt_journal_close(journal);
    kt_table_destroy(table);
    kt_json_destroy(doc);
    kt_json_destroy(rules);
    free(text);
}

/* Every file has a line with its sum, and nothing else has one. */
static void check_sums(const char *folder) {
    char path[1024], *sums, *line, hex[65];
    size_t size, n_lines = 0;
    glob_t files;

    snprintf(path, sizeof path, "%s/SHA256SUMS", folder);
    sums = read_text(path, &size);
    for (line = sums; (line = strchr(line, '\n')); line++) n_lines++;
    snprintf(path, sizeof path, "%s/*", folder);
    cr_assert_eq(glob(path, 0, NULL, &files), 0, "%s: none", path);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        const char *name = strrchr(files.gl_pathv[i], '/') + 1;
        char wanted[512], *text;
        if (strcmp(name, "SHA256SUMS") == 0) continue;
        text = read_text(files.gl_pathv[i], &size);
        kt_sha256(text, size, hex);
        snprintf(wanted, sizeof wanted, "%s  %s\n", hex, name);
        cr_expect(strstr(sums, wanted),
                  "%s: SHA256SUMS does not say so; kttune export TABLE --results results",
                  files.gl_pathv[i]);
        free(text);
    }
    cr_expect_eq(n_lines + 1, files.gl_pathc, "%s: %zu sums of %zu files", folder, n_lines,
                 files.gl_pathc - 1);
    globfree(&files);
    free(sums);
}

Test(sharing, shipped_results_obey_their_schemas_and_checksums, .timeout = 120) {
    glob_t files, folders;
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.kttable.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        check_exchange(files.gl_pathv[i], "t1", true);
        check_exchange(files.gl_pathv[i], "t4", false);
    }
    globfree(&files);
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/", 0, NULL, &folders), 0);
    for (size_t i = 0; i < folders.gl_pathc; i++) check_sums(folders.gl_pathv[i]);
    globfree(&folders);
}

/* What people add, of a GPU for one, has a line in the README and a sum once they file again. */
static void check_added(const char *folder, const char *table, const char *results) {
    static const char *const added[] = {"bench-gpu.txt", "bench-gpu.json", "gpu-report.txt"};
    char command[2048], path[700], *out, *readme;
    size_t size;

    for (size_t i = 0; i < 3; i++) kt_temp_write(folder, added[i], "x\n", 2);
    snprintf(command, sizeof command, KTTUNE "export %s --results %s/exported", table, results);
    cr_expect_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    check_sums(folder);
    snprintf(path, sizeof path, "%s/README.md", folder);
    readme = read_text(path, &size);
    cr_expect_not_null(strstr(readme, "`bench-gpu.txt`: `kttune bench --suite gpu`"), "%s", readme);
    cr_expect_not_null(strstr(readme, "`bench-gpu.json`"));
    cr_expect_not_null(strstr(readme, "`gpu-*.txt` and `gpu-*.json`: `tests/gpu/run`"));
    free(readme);
}

Test(sharing, a_run_and_an_export_file_the_same_things, .timeout = 120) {
    char command[2048], class_name[64], folder[600], table[700], *out;
    kt_tune_home h;

    kt_tune_home_make(&h);
    kt_machine_class(&h.machine, class_name, sizeof class_name);
    snprintf(command, sizeof command,
             KTTUNE
             "run %s --cells 'm=1,threads=1' --noisy-ok --widest 1 --results %s/ran && " KTTUNE
             "export --model mini --results %s/exported && diff -r %s/ran %s/exported",
             h.model, h.folder, h.folder, h.folder, h.folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    snprintf(folder, sizeof folder, "%s/exported/%s", h.folder, class_name);
    snprintf(table, sizeof table, "%s/mini.kttable.json", folder);
    check_exchange(table, "t1", true);
    check_exchange(table, "t4", false);
    check_sums(folder);
    snprintf(command, sizeof command, "cd %s && sha256sum -c SHA256SUMS", folder);
    cr_expect_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    /* a table that lies in results/ already is filed in place */
    snprintf(command, sizeof command,
             KTTUNE "export %s --results %s/exported && diff -r %s/ran %s/exported", table,
             h.folder, h.folder, h.folder);
    cr_expect_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    check_added(folder, table, h.folder);
    snprintf(command, sizeof command, KTTUNE "export %s --to csv --results x", table);
    cr_expect_eq(kt_tune_home_run(command, &out), 2, "%s", out);
    free(out);
    kt_tune_home_remove(&h);
}

/* Every row follows from the journal beside it. */
static size_t check_rows(const char *table_path) {
    static kt_replay r;
    char journal_path[1024];
    kt_table *t;
    kt_journal *j;
    kt_verdict v;
    kt_err err;
    size_t n;

    cr_assert_eq(kt_table_load(table_path, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_path_of(table_path, journal_path, sizeof journal_path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(journal_path, &j, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_journal_dropped(j), 0);
    for (size_t i = 0; i < t->n_rows; i++) {
        cr_assert_eq(kt_replay_of_row(j, &t->rows[i], &r, &err), KT_OK, "%s", err.message);
        cr_assert_eq(kt_replay_decide(&r, &v, &err), KT_OK, "%s", err.message);
        cr_expect_eq(v.winner, r.winner, "%s", r.cell);
    }
    n = t->n_rows;
    kt_journal_close(j);
    kt_table_destroy(t);
    return n;
}

/* A second machine of the class (a second home) files into the same folder: nothing of the first is lost,
 * rows still follow from samples, and filing twice changes nothing. */
Test(sharing, a_second_machine_of_a_class_adds_to_it, .timeout = 120) {
    static const char *const steps[] = {
        KTTUNE "run %s --cells 'm=1,threads=1' --noisy-ok --widest 1 --results %s/shared",
        "export XDG_DATA_HOME=%s/second; " KTTUNE
        "run %s --cells 'm=2,threads=1' --noisy-ok --widest 1 --results %s/shared",
        "cp -r %s/shared %s/before; XDG_DATA_HOME=%s/second " KTTUNE
        "export --model mini --results %s/shared && diff -r %s/shared %s/before"};
    char command[2048], class_name[64], folder[600], table[700], *out;
    kt_tune_home h;
    size_t n;

    kt_tune_home_make(&h);
    kt_machine_class(&h.machine, class_name, sizeof class_name);
    snprintf(folder, sizeof folder, "%s/shared/%s", h.folder, class_name);
    snprintf(table, sizeof table, "%s/mini.kttable.json", folder);
    snprintf(command, sizeof command, steps[0], h.model, h.folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    n = check_rows(table);
    cr_expect_gt(n, 0);
    snprintf(command, sizeof command, steps[1], h.folder, h.model, h.folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    cr_expect_eq(check_rows(table), 2 * n - 1, /* attention has no cell of two rows */
                 "rows of the first machine are gone");
    check_exchange(table, "t1", true);
    check_exchange(table, "t4", false);
    check_sums(folder);
    snprintf(command, sizeof command, steps[2], h.folder, h.folder, h.folder, h.folder, h.folder,
             h.folder);
    cr_expect_eq(kt_tune_home_run(command, &out), 0, "filed twice: %s", out);
    free(out);
    kt_tune_home_remove(&h);
}
