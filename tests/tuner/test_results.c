/* What lies in results/: complete, of the class its folder says, and every decision follows from
 * the raw samples beside it. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/json.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/store/replay.h"

/* Run the contest of a row again on the recorded samples. */
static void derive(const kt_table_row *row, const kt_journal *j, const char *path) {
    static kt_replay r;
    kt_verdict v;
    kt_err err;

    cr_assert_eq(kt_replay_of_row(j, row, &r, &err), KT_OK, "%s: %s", path, err.message);
    cr_assert_eq(kt_replay_decide(&r, &v, &err), KT_OK, "%s: %s", path, err.message);
    cr_expect_eq(v.winner, r.winner, "%s: %s: the samples say %s", path, r.cell, r.names[v.winner]);
    cr_expect_eq(v.is_tuned, strcmp(row->status, "tuned") == 0, "%s: %s", path, r.cell);
    cr_expect(fabs(v.winner_ns - row->time_ns) < 0.11,
              "%s: %s: %.1f ns from the samples, %.1f said", path, r.cell, v.winner_ns,
              row->time_ns);
    cr_expect(fabs(v.default_ns - row->default_ns) < 0.11, "%s: %s", path, r.cell);
    cr_expect_eq(v.rounds, row->rounds, "%s: %s", path, r.cell);
}

static void check_table(const char *path) {
    char journal_path[1024], class_name[64], folder[1024];
    kt_table *t;
    kt_journal *j;
    kt_err err;

    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    snprintf(folder, sizeof folder, "%s", path);
    *strrchr(folder, '/') = '\0';
    kt_machine_class(&t->fingerprint, class_name, sizeof class_name);
    cr_expect_str_eq(strrchr(folder, '/') + 1, class_name, "%s", path);
    cr_expect_gt(t->n_rows, 0);
    cr_assert_eq(kt_journal_path_of(path, journal_path, sizeof journal_path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(journal_path, &j, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_journal_dropped(j), 0, "%s has damaged lines", journal_path);
    for (size_t i = 0; i < t->n_rows; i++) derive(&t->rows[i], j, path);
    kt_journal_close(j);
    kt_table_destroy(t);
}

Test(results, every_decision_follows_from_the_samples, .timeout = 120) {
    glob_t files;
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.kttable.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) check_table(files.gl_pathv[i]);
    globfree(&files);
}

/* A kernel over panels is one file and keeps the names and versions of the two variants that it was. */
static void check_names(const char *path, int *n_found) {
    kt_table *t;
    kt_err err;

    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *row = &t->rows[i];
        int version = -1;
        if (!strstr(row->variant, "_p64__") && !strstr(row->variant, "_moe64__")) continue;
        for (size_t v = 0; v < kt_builtin_variant_count; v++)
            if (strcmp(kt_builtin_variants[v]->name, row->variant) == 0)
                version = (int)kt_builtin_variants[v]->version;
        cr_expect_eq((int)row->version, version, "%s: row %zu: %s@%d, the build has version %d",
                     path, i, row->variant, (int)row->version, version);
        ++*n_found;
    }
    kt_table_destroy(t);
}

Test(results, filed_rows_name_kernels_of_this_build) {
    int n_found = 0;
    glob_t files;

    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.kttable.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) check_names(files.gl_pathv[i], &n_found);
    cr_expect_gt(n_found, 100);
    globfree(&files);
}

Test(results, every_class_has_its_machine_and_readme) {
    static const char *const needed[] = {"machine.json", "README.md"};
    glob_t folders;
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/", 0, NULL, &folders), 0);
    for (size_t i = 0; i < folders.gl_pathc; i++)
        for (int k = 0; k < 2; k++) {
            char path[1024];
            snprintf(path, sizeof path, "%s%s", folders.gl_pathv[i], needed[k]);
            cr_expect_eq(access(path, R_OK), 0, "%s is missing", path);
        }
    globfree(&folders);
}

static const kt_json *row_of(const kt_json *rows, const kt_check_row *want) {
    for (size_t i = 0; i < kt_json_length(rows); i++) {
        const kt_json *r = kt_json_at(rows, i);
        const char *name = kt_json_string(kt_json_get(r, "name"), NULL);
        if (name && kt_json_int(kt_json_get(r, "goal"), 0) == want->goal &&
            strcmp(name, want->name) == 0)
            return r;
    }
    return NULL;
}

/* The rows of selfcheck.json that follow from journals and tables alone, from those beside it;
 * and all its rows in selfcheck.txt. */
static void check_selfcheck(const char *path, const kt_registry *registry) {
    static const int goals[] = {1, 2, 11, 15, 16};
    char class_name[64], text_path[1024], *text, *json;
    kt_check *c = calloc(1, sizeof *c);
    const kt_json *rows;
    kt_json_doc *doc;
    size_t size;
    kt_err err;

    snprintf(text_path, sizeof text_path, "%s", path);
    *strrchr(text_path, '/') = '\0';
    snprintf(class_name, sizeof class_name, "%.63s", strrchr(text_path, '/') + 1);
    snprintf(text_path, sizeof text_path, KT_SOURCE_DIR "/results/%s/selfcheck.txt", class_name);
    cr_assert_eq(kt_file_read(path, 1 << 24, &json, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_file_read(text_path, 1 << 24, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(json, strlen(json), NULL, &doc, &err), KT_OK, "%s", err.message);
    rows = kt_json_get(kt_json_root(doc), "rows");
    *c = (kt_check){.registry = registry,
                    .results = KT_SOURCE_DIR "/results",
                    .filed_class = class_name,
                    .seed = 1};
    cr_assert_eq(kt_check_init(c, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < kt_builtin_goal_count; i++)
        for (size_t k = 0; k < sizeof goals / sizeof *goals; k++)
            if (kt_builtin_goals[i]->number == goals[k]) kt_check_goal(c, kt_builtin_goals[i]);
    cr_expect_geq(c->n_rows, 10, "%s: %d rows", class_name, c->n_rows);
    for (int i = 0; i < c->n_rows; i++) {
        const kt_check_row *r = &c->row[i];
        const kt_json *filed = row_of(rows, r);
        const double had = kt_json_double(kt_json_get(filed, "measured"), -1);
        cr_expect(filed && fabs(had - r->measured) <= 1e-6 * fabs(r->measured),
                  "%s: goal %d, %s: filed %g, the data beside it says %g", path, r->goal, r->name,
                  had, r->measured);
    }
    for (size_t i = 0; i < kt_json_length(rows); i++) {
        const char *how = kt_json_string(kt_json_get(kt_json_at(rows, i), "how"), NULL);
        cr_expect(how && strstr(text, how), "%s lacks: %s", text_path, how);
    }
    kt_check_deinit(c);
    kt_json_destroy(doc);
    free(text), free(json), free(c);
}

Test(results, selfchecks_are_of_the_data_beside_them, .timeout = 240) {
    kt_registry *registry;
    glob_t files;
    kt_err err;

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, ~(kt_isa)0,
                                    &registry, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/selfcheck.json", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) check_selfcheck(files.gl_pathv[i], registry);
    globfree(&files);
    kt_registry_destroy(registry);
}

/* No text without the machine-readable result that the test above holds to the data. */
Test(results, every_selfcheck_is_filed_both_ways) {
    glob_t files;

    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/selfcheck.txt", 0, NULL, &files), 0);
    for (size_t i = 0; i < files.gl_pathc; i++) {
        char json[1024];
        snprintf(json, sizeof json, "%.*s.json", (int)strlen(files.gl_pathv[i]) - 4,
                 files.gl_pathv[i]);
        cr_expect_eq(access(json, R_OK), 0, "%s is missing", json);
    }
    globfree(&files);
}

/* What is filed of a GPU was measured on one: rows of the suite, each printed and machine-readable. */
static void check_gpu_run(const char *path) {
    char text_path[1024], *text, *json;
    kt_json_doc *doc;
    const kt_json *rows;
    size_t size;
    kt_err err;

    snprintf(text_path, sizeof text_path, "%.*s.txt", (int)strlen(path) - 5, path);
    cr_assert_eq(kt_file_read(path, 1 << 24, &json, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(json, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_file_read(text_path, 1 << 24, &text, &size, &err), KT_OK, "%s", err.message);
    cr_expect_str_eq(kt_json_text(kt_json_root(doc), "class"), "cuda", "%s", path);
    cr_expect(!kt_json_bool(kt_json_get(kt_json_root(doc), "pretended"), true), "%s", path);
    cr_expect_not_null(strstr(text, kt_json_text(kt_json_root(doc), "device")), "%s", path);
    rows = kt_json_get(kt_json_root(doc), "rows");
    cr_expect_gt(kt_json_length(rows), 0, "%s has no rows", path);
    for (size_t i = 0; i < kt_json_length(rows); i++) {
        const char *name = kt_json_text(kt_json_at(rows, i), "name");
        cr_expect(*name && strstr(text, name), "%s lacks row '%s'", text_path, name);
    }
    kt_json_destroy(doc);
    free(text), free(json);
}

Test(results, runs_of_gpus_are_filed_both_ways) {
    glob_t files;

    if (glob(KT_SOURCE_DIR "/results/*/bench-gpu.json", 0, NULL, &files) != 0) return;
    for (size_t i = 0; i < files.gl_pathc; i++) check_gpu_run(files.gl_pathv[i]);
    globfree(&files);
}
