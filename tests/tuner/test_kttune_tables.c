/* Verbs of `kttune` that work on tables: compare, merge with shards, export. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/table/table.h"
#include "tests/support/attempts.h"
#include "tests/support/skip.h"
#include "tests/support/tune_home.h"

extern const kt_variant kt_variant_any_any_p64__scalar;

#define KTTUNE KT_BUILD_DIR "/kttune "
#define FEW "--cells 'm<=2,threads=1,op=gemm' --noisy-ok --widest 1" /* six cells */

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

/* Tunes a shard of the six cells, or all of them where `shard` is empty. */
static void tune(const kt_tune_home *h, const char *shard, const char *out, const char *words) {
    char command[2048];
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --fresh %s --out %s", h->model, shard,
             out);
    expect(command, 0, words);
}

/* Every row of a shard is in the merged table as it was decided. */
static void holds(const kt_table *merged, const char *path) {
    kt_table *shard = load(path);
    for (size_t i = 0; i < shard->n_rows; i++) {
        const kt_table_row *row = &shard->rows[i], *got;
        got = kt_table_find(merged, &row->problem, row->threads);
        cr_assert(got, "%s: row %zu is lost", path, i);
        cr_expect_str_eq(got->variant, row->variant, "%s: row %zu", path, i);
        cr_expect_str_eq(got->config, row->config, "%s: row %zu", path, i);
    }
    kt_table_destroy(shard);
}

/* Is no cell of `merged` slower than the same of `all` by a tenth?  Run where the model's name leads to it:
 * then weights rotate through as few bytes as when they were tuned. */
static bool as_fast(const kt_tune_home *h, const char *all, const char *merged) {
    char command[2048], *out;
    int code;
    bool fast;
    snprintf(command, sizeof command, "cd %s && " KTTUNE "compare %s %s --rerun --fail-above 10%%",
             h->folder, all, merged);
    code = kt_tune_home_run(command, &out);
    fast = strstr(out, ", 0 slower by at least 10.0 %");
    cr_expect_eq(code, fast ? 0 : 5, "%s: exit code %d: %s", command, code, out);
    cr_expect(strstr(out, "6 cells in both"), "%s", out);
    free(out);
    return fast;
}

/* Reasons that several variants share are one line, and a bound has its unit. */
Test(kttune_tables, explain_groups_refusals) {
    char *out, *line, seen[16][256];
    int n = 0, code = kt_tune_home_run(
                   KTTUNE "explain --model tiny-moe --format int4 --op moe_ffn --m 7", &out);

    cr_assert_eq(code, 0, "%s", out);
    cr_expect(strstr(out, " us a call of one expert"), "%s", out);
    for (line = out; line; line = strchr(line, '\n')) {
        char why[256];
        line += *line == '\n';
        if (sscanf(line, "refuses %*s %255[^\n]", why) != 1 &&
            sscanf(line, "refuse %*d variants, %*s and others: %255[^\n]", why) != 1)
            continue;
        cr_expect_not(strstr(why, "__"), "the reason names a variant once more: %s", why);
        for (int i = 0; i < n; i++) cr_expect_str_neq(seen[i], why, "said twice: %s", why);
        if (n < 16) strcpy(seen[n++], why);
    }
    free(out);
}

Test(kttune_tables, shards_merge_to_the_whole, .timeout = 240) {
    kt_tune_home h;
    char a[512], b[512], all[512], merged[512], command[3000];
    kt_attempts tries = {3, 0};
    bool fast = false;

    kt_tune_home_make(&h);
    in(&h, "a.kttable.json", a);
    in(&h, "b.kttable.json", b);
    in(&h, "all.kttable.json", all);
    in(&h, "merged.kttable.json", merged);
    /* Which of equals wins is noise, and on a busy machine noise may pass for a tenth of a cell of 200 ns; three
     * tunings in a row that disagree are not noise. */
    while (kt_attempts_next(&tries, fast)) {
        kt_table *whole, *joined;
        tune(&h, "--shard 1/2", a, "3 of 3 cells decided");
        tune(&h, "--shard 2/2", b, "3 of 3 cells decided");
        tune(&h, "", all, "6 of 6 cells decided");
        snprintf(command, sizeof command, KTTUNE "merge %s %s --out %s", b, a, merged);
        expect(command, 0, "2 tables, 6 cells, 0 of them");
        whole = load(all);
        joined = load(merged);
        cr_assert_eq(whole->n_rows, joined->n_rows);
        for (size_t i = 0; i < whole->n_rows; i++)
            cr_expect(kt_table_find(joined, &whole->rows[i].problem, whole->rows[i].threads));
        holds(joined, a);
        holds(joined, b);
        kt_table_destroy(whole);
        kt_table_destroy(joined);
        fast = as_fast(&h, all, merged);
    }
    cr_expect(fast, "merged shards were slower than the whole three times");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 1/7", h.model);
    expect(command, 2, "only 6 cells");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 3/2", h.model);
    expect(command, 2, "expected 1/N to N/N");
    snprintf(command, sizeof command, KTTUNE "run %s " FEW " --shard 2/3 --dry-run", h.model);
    expect(command, 0, "mini.shard-2-of-3.kttable.json");
    kt_tune_home_remove(&h);
}

Test(kttune_tables, merge_refuses_what_does_not_belong_together, .timeout = 180) {
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

/* Does a comparison that runs the variants again end so? The other two cells hold the same, and noise may take
 * one of them for slower or faster, but hardly three times. */
static void expect_rerun(const char *a, const char *b, int code, const char *words) {
    char command[2048], *out = NULL;
    kt_attempts tries = {3, 0};
    int got = -1;

    snprintf(command, sizeof command, KTTUNE "compare %s %s --rerun", a, b);
    while (kt_attempts_next(&tries, got == code && strstr(out, words))) {
        free(out);
        got = kt_tune_home_run(command, &out);
        cr_assert(got == 0 || got == 5, "%s: exit code %d: %s", command, got, out);
    }
    cr_expect(got == code && strstr(out, words), "%s: exit code %d, expected %d and '%s': %s",
              command, got, code, words, out);
    free(out);
}

/* A row that names a much slower winner: compare --rerun finds it, plain compare by its time. */
Test(kttune_tables, compare_finds_what_got_slower, .timeout = 180) {
    kt_tune_home h;
    char a[512], b[512], command[2048], *out;
    kt_table *t;
    kt_table_row row;
    kt_json_doc *doc;

    kt_tune_home_make(&h);
    in(&h, "a.kttable.json", a);
    in(&h, "b.kttable.json", b);
    snprintf(command, sizeof command,
             KTTUNE
             "run %s --format int8 --cells 'm=2,threads=1,op=gemm' --noisy-ok --widest 1 --out %s",
             h.model, a);
    expect(command, 0, "3 of 3 cells decided");
    t = load(a);
    row = t->rows[0];
    if (strstr(row.variant, "__scalar")) {
        kt_tune_home_remove(&h);
        kt_skip_without_isa(KT_ISA_AVX2, "a vector variant of w8c");
        cr_assert_fail("plain code won over vectors");
    }
    snprintf(row.variant, sizeof row.variant, "any_any_p64__scalar");
    row.config[0] = '\0';
    row.version = kt_variant_any_any_p64__scalar.version;
    row.time_ns *= 5;
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    cr_assert_eq(kt_table_save(t, b, NULL), KT_OK);
    kt_table_destroy(t);
    snprintf(command, sizeof command, KTTUNE "compare %s %s", a, b);
    expect(command, 5, "1 slower");
    expect_rerun(a, b, 5, "0 faster, 1 slower");
    expect_rerun(b, a, 0, "1 faster, 0 slower");
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

static size_t count_of(const char *text, const char *word) {
    size_t n = 0;
    for (; (text = strstr(text, word)); text += strlen(word)) n++;
    return n;
}

/* The text of an export of the tuned table, which must succeed. */
static char *exported(const char *arguments) {
    char command[1024], *out;
    int code;
    snprintf(command, sizeof command, KTTUNE "export --model mini --to %s", arguments);
    code = kt_tune_home_run(command, &out);
    cr_assert_eq(code, 0, "%s: %s", command, out);
    return out;
}

Test(kttune_tables, exports_hold_every_row, .timeout = 180) {
    kt_tune_home h;
    char path[512], command[2048], *text;
    kt_json_doc *doc;
    const kt_json *results;
    size_t with_samples = 0;

    kt_tune_home_make(&h);
    snprintf(command, sizeof command, KTTUNE "run %s " FEW, h.model);
    expect(command, 0, "6 of 6 cells decided");

    text = exported("csv");
    cr_expect_eq(count_of(text, "\r\n"), 7, "a heading and six rows");
    cr_expect_eq(count_of(text, "gemm,wbf16,abf16,"), 6);
    free(text);

    in(&h, "rows.h", path);
    snprintf(command, sizeof command, "c-header --out %s", path);
    free(exported(command));
    snprintf(command, sizeof command,
             "printf '#include \"%s\"\\nint main(void) { return kt_tuned_rows[4].m < 1 || "
             "kt_tuned_rows[6].op; }\\n' > %s/m.c && cc -std=c11 -Wall -Werror -o %s/m %s/m.c && "
             "%s/m",
             path, h.folder, h.folder, h.folder, h.folder);
    expect(command, 0, "");

    text = exported("t4");
    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, NULL), KT_OK);
    cr_expect_str_eq(kt_json_string(kt_json_get(kt_json_root(doc), "schema_version"), NULL),
                     "1.0.0");
    results = kt_json_get(kt_json_root(doc), "results");
    cr_expect_geq(kt_json_length(results), 5);
    if (kt_isa_available() & KT_ISA_AVX2) /* else plain code is all there is, and nobody lost */
        cr_expect_gt(kt_json_length(results), 6, "losers as well");
    for (size_t i = 0; i < kt_json_length(results); i++) {
        const kt_json *r = kt_json_at(results, i);
        cr_expect_str_eq(kt_json_string(kt_json_get(r, "invalidity"), NULL), "correct");
        with_samples += kt_json_length(kt_json_get(kt_json_get(r, "times"), "runtimes")) > 0;
    }
    cr_expect_eq(with_samples, kt_json_length(results));
    kt_json_destroy(doc);
    free(text);

    text = exported("html");
    cr_expect_eq(count_of(text, "<svg"), 3 + 1 + 6, "roofline, two maps, regret, six races");
    cr_expect_eq(count_of(text, "<svg"), count_of(text, "</svg>"));
    cr_expect_eq(count_of(text, "<rect "), 10 + 2 * 6, "each row in both maps, and their scales");
    cr_expect_eq(count_of(text, "<circle "), 6 + count_of(text, "after "), "each in the roofline");
    cr_expect(!strstr(text, "http") && !strstr(text, "src="), "nothing from elsewhere");
    cr_expect(strstr(text, "Rejected before any timing") && strstr(text, "</html>"));
    free(text);

    expect(KTTUNE "export --model mini", 2, "--to (or --results) is missing");
    expect(KTTUNE "export --model mini --to parquet", 2,
           "expected html, markdown, csv, sql, t4, t1 or c-header");
    expect(KTTUNE "export --model none --to csv", 3, "no table of 'none'");
    kt_tune_home_remove(&h);
}

/* Text from a table is data, also where a browser or a compiler reads it. */
Test(kttune_tables, exports_escape_what_tables_say, .timeout = 180) {
    kt_tune_home h;
    char path[512], command[1024], *text;
    kt_table *t;
    kt_table_row row = {
        .problem =
            {.op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .m = 1, .n = 64, .k = 64},
        .threads = 1,
        .variant = "a\"b<script>?"
                   "?/",
        .version = 1,
        .time_ns = 10,
        .ci_low = 1,
        .ci_high = 1,
        .default_variant = "x",
        .default_ns = 10,
        .status = "default"};

    kt_tune_home_make(&h);
    in(&h, "evil.kttable.json", path);
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint = h.machine;
    snprintf(t->workload, sizeof t->workload, "<img src=x>&\"");
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    cr_assert_eq(kt_table_save(t, path, NULL), KT_OK);
    kt_table_destroy(t);
    snprintf(command, sizeof command, KTTUNE "export %s --to html", path);
    cr_assert_eq(kt_tune_home_run(command, &text), 0, "%s", text);
    cr_expect(!strstr(text, "<img"));
    cr_expect_eq(count_of(text, "<script"), 1, "its own, which sorts tables");
    cr_expect(strstr(text, "&lt;img src=x&gt;&amp;&quot;"), "%s", text);
    free(text);
    snprintf(command, sizeof command, KTTUNE "export %s --to csv", path);
    expect(command, 0,
           "\"a\"\"b<script>?"
           "?/\"");
    snprintf(command, sizeof command, KTTUNE "export %s --to c-header", path);
    expect(command, 0, "\"a\\042b<script>\\077\\077/\"");
    snprintf(command, sizeof command, KTTUNE "export %s --to t4", path);
    expect(command, 3, "evil.journal.jsonl");
    kt_tune_home_remove(&h);
}

/* A run writes the shape of its model; a run of another model does not join its rows to them. */
Test(kttune_tables, of_another_model_are_left_alone) {
    kt_tune_home h;
    char path[512], command[2048];
    kt_table *t;

    kt_tune_home_make(&h);
    in(&h, "t.kttable.json", path);
    snprintf(command, sizeof command,
             KTTUNE "run --model %s --cells m=1,threads=1 --noisy-ok --out %s", h.model, path);
    expect(command, 0, "wrote");
    cr_assert_eq(kt_table_load(path, &t, NULL), KT_OK);
    cr_expect_neq(t->shape_id, 0);
    kt_table_destroy(t);
    snprintf(command, sizeof command,
             KTTUNE "run --model tiny-moe --cells m=1,threads=1 --noisy-ok --out %s", path);
    expect(command, 3, "holds the rows of another model ('mini')");
    snprintf(command, sizeof command,
             KTTUNE "run --model %s --cells m=2,threads=1 --noisy-ok --out %s", h.model, path);
    expect(command, 0, "rows of other cells kept");
    kt_tune_home_remove(&h);
}
