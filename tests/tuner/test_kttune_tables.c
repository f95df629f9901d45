/* Verbs of `kttune` that work on tables: compare, merge with shards. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/table/table.h"
#include "tests/support/tune_home.h"

extern const kt_variant kt_variant_any_any_p64__scalar;

#define KTTUNE KT_BUILD_DIR "/kttune "
#define FEW "--cells 'm<=2,threads=1,op=gemm' --noisy-ok" /* six cells */

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);
    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

static kt_table *load(const char *path) {
    kt_table *t;
    kt_err err;
    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    return t;
}

static void in(const kt_tune_home *h, const char *name, char path[512]) {
    snprintf(path, 512, "%s/%s", h->folder, name);
}

Test(kttune_tables, shards_merge_to_the_whole, .timeout = 60) {
    kt_tune_home h;
    char a[512], b[512], all[512], merged[512], command[3000];
    kt_table *whole, *joined;

    kt_tune_home_make(&h);
    in(&h, "a.kttable.json", a);
    in(&h, "b.kttable.json", b);
    in(&h, "all.kttable.json", all);
    in(&h, "merged.kttable.json", merged);
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 1/2 --out %s", h.model, a);
    expect(command, 0, "3 of 3 cells decided");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 2/2 --out %s", h.model, b);
    expect(command, 0, "3 of 3 cells decided");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --out %s", h.model, all);
    expect(command, 0, "6 of 6 cells decided");
    snprintf(command, sizeof command, KTTUNE "merge %s %s --out %s", b, a, merged);
    expect(command, 0, "2 tables, 6 cells, 0 of them");
    whole = load(all);
    joined = load(merged);
    cr_assert_eq(whole->n_rows, joined->n_rows);
    for (size_t i = 0; i < whole->n_rows; i++)
        cr_expect(kt_table_find(joined, &whole->rows[i].problem, whole->rows[i].threads));
    kt_table_destroy(whole);
    kt_table_destroy(joined);
    /* Which of equals wins is noise; that neither is slower by a tenth is not. */
    snprintf(command, sizeof command, KTTUNE "compare %s %s --rerun --fail-above 10%%", all,
             merged);
    expect(command, 0, "6 cells in both: 0 faster, 0 slower by at least 10.0 %");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 1/7", h.model);
    expect(command, 2, "only 6 cells");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 3/2", h.model);
    expect(command, 2, "expected 1/N to N/N");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 2/3 --dry-run", h.model);
    expect(command, 0, "mini.shard-2-of-3.kttable.json");
    kt_tune_home_remove(&h);
}

Test(kttune_tables, merge_refuses_what_does_not_belong_together, .timeout = 60) {
    kt_tune_home h;
    char a[512], b[512], c[512], command[2048];
    kt_table *t;

    kt_tune_home_make(&h);
    in(&h, "a.kttable.json", a);
    in(&h, "b.kttable.json", b);
    in(&h, "c.kttable.json", c);
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = h.machine;
    snprintf(t->workload, sizeof t->workload, "mini");
    snprintf(t->created, sizeof t->created, "2026-01-01T00:00:00Z");
    snprintf(t->build, sizeof t->build, "test");
    cr_assert_eq(kt_table_save(t, a, NULL), KT_OK);
    snprintf(t->workload, sizeof t->workload, "maxi");
    cr_assert_eq(kt_table_save(t, b, NULL), KT_OK);
    snprintf(t->workload, sizeof t->workload, "mini");
    t->fingerprint.usable_cores += 2;
    cr_assert_eq(kt_table_save(t, c, NULL), KT_OK);
    kt_table_destroy(t);
    snprintf(command, sizeof command, KTTUNE "merge %s %s --out %s/x", a, b, h.folder);
    expect(command, 3, "model 'maxi', expected 'mini'");
    snprintf(command, sizeof command, KTTUNE "merge %s %s --out %s/x", a, c, h.folder);
    expect(command, 3, "of another machine");
    snprintf(command, sizeof command, KTTUNE "merge %s %s/none --out %s/x", a, h.folder, h.folder);
    expect(command, 3, "none");
    snprintf(command, sizeof command, KTTUNE "merge %s", a);
    expect(command, 2, "--out is missing");
    expect(KTTUNE "merge --out x", 2, "expected tables");
    snprintf(command, sizeof command, KTTUNE "compare %s %s", a, b);
    expect(command, 2, "no cell in common");
    snprintf(command, sizeof command, KTTUNE "compare %s", a);
    expect(command, 2, "expected two tables");
    kt_tune_home_remove(&h);
}

/* A row that names a much slower winner: compare --rerun finds it, plain compare by its time. */
Test(kttune_tables, compare_finds_what_got_slower, .timeout = 60) {
    kt_tune_home h;
    char a[512], b[512], command[2048], *out;
    kt_table *t;
    kt_table_row row;
    kt_json_doc *doc;

    kt_tune_home_make(&h);
    in(&h, "a.kttable.json", a);
    in(&h, "b.kttable.json", b);
    snprintf(command, sizeof command,
             KTTUNE "run %s --format int8 --cells 'm=2,threads=1,op=gemm' --noisy-ok --out %s",
             h.model, a);
    expect(command, 0, "3 of 3 cells decided");
    t = load(a);
    row = t->rows[0];
    if (strstr(row.variant, "__scalar")) cr_skip_test("no vector variant of w8c here");
    snprintf(row.variant, sizeof row.variant, "any_any_p64__scalar");
    row.config[0] = '\0';
    row.version = kt_variant_any_any_p64__scalar.version;
    row.time_ns *= 5;
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    cr_assert_eq(kt_table_save(t, b, NULL), KT_OK);
    kt_table_destroy(t);
    snprintf(command, sizeof command, KTTUNE "compare %s %s", a, b);
    expect(command, 5, "1 slower");
    snprintf(command, sizeof command, KTTUNE "compare %s %s --rerun", a, b);
    expect(command, 5, "1 slower");
    snprintf(command, sizeof command, KTTUNE "compare %s %s --rerun", b, a);
    expect(command, 0, "1 faster");
    snprintf(command, sizeof command, KTTUNE "compare %s %s --all", a, a);
    expect(command, 0, "0 faster, 0 slower");
    snprintf(command, sizeof command, KTTUNE "compare %s %s --json", a, b);
    cr_assert_eq(kt_tune_home_run(command, &out), 5);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, NULL), KT_OK, "%s", out);
    cr_expect_eq(kt_json_int(kt_json_get(kt_json_root(doc), "slower"), -1), 1);
    cr_expect_eq(kt_json_length(kt_json_get(kt_json_root(doc), "rows")), 3);
    kt_json_destroy(doc);
    free(out);
    kt_tune_home_remove(&h);
}
