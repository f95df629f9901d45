/* The HTML report: whole, self-contained, escaped, and without errors in a browser when there is one.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <ctype.h>
#include <glob.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/browser.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/report/export.h"
#include "tuner/report/plan_words.h"

#define TABLE KT_SOURCE_DIR "/results/zen4-2c-24g/tiny-moe.kttable.json"

static char *export_of(const kt_table *table, const kt_journal *journal, const char *to) {
    const kt_exporter *exporter = kt_exporter_find(to);
    kt_export_input in = {.table = table, .journal = journal};
    kt_registry *registry;
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    kt_err err;

    cr_assert(exporter && f, "%s", to);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, 0, &registry, &err),
        KT_OK, "%s", err.message);
    in.registry = registry;
    cr_assert_eq(exporter->write(&in, f, &err), KT_OK, "%s", err.message);
    fclose(f);
    kt_registry_destroy(registry);
    return text;
}

static char *shipped_page(const char *path) {
    char journal_path[1024], *page;
    kt_journal *j;
    kt_table *t;
    kt_err err;

    cr_assert_eq(kt_table_load(path, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_path_of(path, journal_path, sizeof journal_path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(journal_path, &j, &err), KT_OK, "%s", err.message);
    page = export_of(t, j, "html");
    kt_journal_close(j);
    kt_table_destroy(t);
    return page;
}

/* Every element is closed, in order; p, li, td and the like included, since we close them all. */
static void check_nesting(const char *page) {
    static const char *const empty[] = {"meta",   "link", "line",    "rect",
                                        "circle", "path", "!DOCTYPE"};
    char stack[64][16];
    int depth = 0;

    for (const char *p = page; (p = strchr(p, '<')); p++) {
        bool is_end = p[1] == '/', is_empty = false;
        char name[16] = "";
        const char *close = strchr(p, '>');
        sscanf(p + 1 + is_end, "%15[A-Za-z0-9!]", name);
        cr_assert(close && *name, "a tag that is none: %.60s", p);
        if (strcmp(name, "script") == 0 && !is_end) { /* holds < and > of its own */
            p = strstr(p, "</script>");
            cr_assert(p);
            continue;
        }
        for (size_t i = 0; i < sizeof empty / sizeof *empty; i++)
            is_empty |= strcmp(name, empty[i]) == 0 && (close[-1] == '/' || i < 2 || i == 6);
        if (is_empty) continue;
        if (!is_end) {
            cr_assert_lt(depth, 64);
            strcpy(stack[depth++], name);
            continue;
        }
        cr_assert(depth > 0 && strcmp(stack[depth - 1], name) == 0, "</%s> closes <%s>: %.60s",
                  name, depth ? stack[depth - 1] : "", p - 40);
        depth--;
    }
    cr_expect_eq(depth, 0, "<%s> is left open", depth ? stack[depth - 1] : "");
}

Test(report, the_page_has_every_section_and_needs_nothing_from_elsewhere, .timeout = 180) {
    static const char *const wanted[] = {">Roofline<",
                                         ">Gain over the default<",
                                         ">Nearness to the roofline<",
                                         ">Regret against time<",
                                         ">Decisions<",
                                         ">Races<",
                                         ">Rejected before any timing<",
                                         ">Machine and run<",
                                         "noise self-test",
                                         "aria-label=\"Roofline",
                                         "<title>moe_ffn",
                                         "prefers-color-scheme:dark"};
    static const char *const unwanted[] = {"http:", "https:", "src=", "@import",
                                           "nan",   "inf\"",  "-nan", KT_SOURCE_DIR};
    glob_t files;

    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.kttable.json", 0, NULL, &files), 0);
    for (size_t f = 0; f < files.gl_pathc; f++) {
        char *page = shipped_page(files.gl_pathv[f]);
        for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++)
            cr_expect(strstr(page, wanted[i]), "%s: lacks %s", files.gl_pathv[f], wanted[i]);
        for (size_t i = 0; i < sizeof unwanted / sizeof *unwanted; i++) {
            const char *at = strstr(page, unwanted[i]);
            cr_expect(!at, "%s: has %s in %.80s", files.gl_pathv[f], unwanted[i],
                      at && at - page > 40 ? at - 40 : "");
        }
        check_nesting(page);
        free(page);
    }
    globfree(&files);
}

static kt_table_row row_of(int64_t m, const char *variant) {
    kt_table_row r = {.problem = {.op = KT_OP_GEMM,
                                  .weights = KT_W_INT8_CHANNEL,
                                  .acts = KT_A_INT8_G32,
                                  .m = m,
                                  .n = 64,
                                  .k = 64},
                      .threads = 1,
                      .version = 1,
                      .time_ns = 1000,
                      .ci_low = 0.99,
                      .ci_high = 1.01,
                      .rounds = 30,
                      .default_ns = 1100};
    snprintf(r.variant, sizeof r.variant, "%s", variant);
    snprintf(r.default_variant, sizeof r.default_variant, "any_any_p64__scalar");
    snprintf(r.status, sizeof r.status, "tuned");
    return r;
}

Test(report, text_from_files_is_escaped) {
    kt_table_row row = row_of(1, "<script>alert(1)</script>");
    kt_table *t;
    char *page;

    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    snprintf(t->workload, sizeof t->workload, "a & \"b\" <i>");
    snprintf(t->created, sizeof t->created, "<u>");
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    page = export_of(t, NULL, "html");
    cr_expect(!strstr(page, "<script>alert"));
    cr_expect(!strstr(page, "<i>") && !strstr(page, "<u>"));
    cr_expect(strstr(page, "&lt;script&gt;alert"));
    cr_expect(strstr(page, "a &amp; &quot;b&quot; &lt;i&gt;"));
    check_nesting(page);
    free(page);
    kt_table_destroy(t);
}

Test(report, tables_without_rows_or_measured_machine_still_give_a_page) {
    kt_table_row row = row_of(8192 / 2, "any_any_p64__scalar");
    kt_table *t;
    char *page;

    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    page = export_of(t, NULL, "html");
    check_nesting(page);
    cr_expect(strstr(page, ">Decisions<"));
    free(page);
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    page = export_of(t, NULL, "html"); /* no ceilings: no roofline */
    check_nesting(page);
    cr_expect(!strstr(page, "nan"));
    cr_expect(!strstr(page, ">Roofline<"));
    free(page);
    kt_table_destroy(t);
}

/* The least distance of a cell's centre in the roofline from the box of the bandwidth's label: 8 to 20 pixels above the
 * line through its middle, as wide as its letters, of 6 pixels each in the mean. */
static double room_of_label(const char *page) {
    const char *svg = strstr(page, "<svg"), *end = strstr(svg, "</svg>");
    const char *text = strstr(svg, " GB/s, "), *at = text, *circle = svg;
    double x, y, degrees, cx, cy, least = 1e9;

    cr_assert(text && text < end);
    while (strncmp(at, "translate(", 10) != 0) at--;
    cr_assert_eq(sscanf(at, "translate(%lf %lf) rotate(%lf)", &x, &y, &degrees), 3);
    const double angle = degrees * 3.14159265358979 / 180;
    const double width = 6 * (double)(strchr(text, '<') - strchr(at, '>') - 1);
    while ((circle = strstr(circle, "<circle cx=\"")) && circle < end) {
        cr_assert_eq(sscanf(circle++, "<circle cx=\"%lf\" cy=\"%lf\"", &cx, &cy), 2);
        const double along = (cx - x) * cos(angle) + (cy - y) * sin(angle);
        const double above = (cx - x) * sin(angle) - (cy - y) * cos(angle);
        least = fmin(least, hypot(fmax(fabs(along) - width / 2, 0), fmax(fabs(above - 14) - 6, 0)));
    }
    return least;
}

/* A mark's radius and half its border must fit between: of the filed tables, and of one whose cells lie where the label
 * would be. */
Test(report, no_cell_hides_the_label_of_the_slope) {
    enum { N = 3 };
    static const double stream = 20, peak = 640, above = 1.15; /* on the label, not the slope */
    static const double mark = 4.5 + 1.5 / 2;
    kt_table *t;
    char *page = shipped_page(TABLE);

    cr_expect_gt(room_of_label(page), mark, "%g", room_of_label(page));
    free(page);
    page = shipped_page(KT_SOURCE_DIR "/results/zen4-2c-24g/Qwen3-30B-A3B.kttable.json");
    cr_expect_gt(room_of_label(page), mark, "%g", room_of_label(page));
    free(page);
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    t->fingerprint.ceilings.stream_gbs_1t = t->fingerprint.ceilings.stream_gbs_all = stream;
    t->fingerprint.ceilings.peak_scalar_gops = peak;
    for (int i = 0; i < N; i++) { /* 2, 4 and 8 operations a byte of up to 32 */
        kt_table_row row = row_of(1 << i, "any_any_p64__scalar");
        const double operations = 2.0 * (1 << i) * 64 * 64;
        row.time_ns = operations / ((2 << i) * stream * above);
        cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    }
    page = export_of(t, NULL, "html");
    cr_expect_gt(room_of_label(page), mark, "%g", room_of_label(page));
    free(page);
    kt_table_destroy(t);
}

Test(report, plans_are_listed) {
    kt_table_plan plan = {
        .cell = "spin", .tokens = 4, .routing = "zipf:0.6", .row = row_of(4, "spin")};
    kt_table *t;
    char *page, *sql;
    kt_err err = {0};

    plan.row.problem.op = KT_OP_MOE_FFN;
    plan.row.problem.experts = 8;
    plan.row.problem.topk = 2;
    plan.row.version = 0;
    snprintf(plan.row.default_variant, sizeof plan.row.default_variant, "spin");
    snprintf(plan.row.config, sizeof plan.row.config, "spin_us=50");
    snprintf(plan.row.default_config, sizeof plan.row.default_config, "spin_us=20");
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    cr_assert_eq(kt_table_put_plan(t, &plan, &err), KT_OK, "%s", err.message);
    page = export_of(t, NULL, "html");
    check_nesting(page);
    cr_expect(strstr(page, ">Plans<") && strstr(page, "<td>spin_us=50</td>") &&
                  strstr(page, "instead of the default spin_us=20"),
              "%s", page);
    sql = export_of(t, NULL, "sql");
    cr_expect(strstr(sql,
                     "INSERT INTO plan VALUES ('spin w8c/a8 n=64 k=64 E=8/2 t=1 T=4 zipf:0.6', "
                     "'spin', 'w8c', 'a8', 64, 64, 8, 2, 4, 'zipf:0.6', 0, 1, 'spin_us=50', "
                     "'spin_us=20', 1000, 0.99, 1.01, 30, 0.1, 1100, 0, 'tuned');"),
              "%s", sql);
    free(sql);
    free(page);
    kt_table_destroy(t);
}

/* What a layer confirms of its cells' promise: told apart by the noise, the bar of 80 % and the interval. */
Test(report, a_layer_that_gains_less_than_promised_says_so) {
    static const struct {
        double predicted, gain;
        const char *status, *says;
        bool is_about;
    } cases[] = {{1.005, 0.2, "tuned", "within the noise", false},
                 {1.20, 0.19, "tuned", "95 % of the predicted +20.0 % is there", false},
                 {1.20, 0.08, "tuned",
                  "only 42 % of the predicted +20.0 % is there: the layer gains "
                  "for sure, but less",
                  true},
                 {1.20, 0.05, "default", "the layer's gain is not sure", true},
                 {1.20, -0.05, "default",
                  "nothing of the predicted +20.0 % is there: the layer does not gain", true},
                 {0, 0.05, "default", "rows are missing", false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_table_plan p = {
            .cell = "layer_gain", .tokens = 64, .predicted = cases[i].predicted, .imbalance = 6.9};
        char text[KT_LAYER_WORDS_BYTES];
        p.row.time_ns = 1000;
        p.row.default_ns = 1000 * (1 + cases[i].gain);
        p.row.ci_low = 0.98;
        p.row.ci_high = 1.03;
        snprintf(p.row.status, sizeof p.row.status, "%s", cases[i].status);
        kt_plan_words(&p, 0.01, text, sizeof text);
        cr_expect(strstr(text, cases[i].says), "%zu: %s", i, text);
        cr_expect_eq(kt_plan_is_about(&p, 0.01), cases[i].is_about, "%zu", i);
        cr_expect_eq(strstr(text, "6.9 times the mean") != NULL,
                     strstr(text, "only") || strstr(text, "nothing of"), "%s", text);
    }
}

/* --- in a browser, where the page is the same whatever wrote it --- */

#ifndef __SANITIZE_ADDRESS__
static void run_browser(const char *browser, const char *arguments, char **out) {
    char command[2048];
    snprintf(command, sizeof command,
             "timeout -k 5 60 %s --headless=new --no-sandbox --disable-gpu --hide-scrollbars "
             "--disable-dev-shm-usage --enable-logging=stderr %s",
             browser, arguments);
    cr_assert_eq(kt_tune_home_run(command, out), 0, "%s: %s", command, *out);
}

/* Screenshots stay in the build folder, for people to look at. */
Test(report, a_browser_shows_it_without_errors, .timeout = 240) {
    static const struct {
        const char *name;
        int width, height;
        const char *more;
    } views[] = {{"wide", 1280, 2600, ""},
                 {"narrow", 420, 2400, ""},
                 {"dark", 1280, 2600, "--blink-settings=preferredColorScheme=0"}};
    const char *browser = kt_browser_find();
    char *page, folder[256], arguments[1024], *out;

    if (!browser) cr_skip_test("no browser found (package chromium)");
    page = shipped_page(TABLE);
    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "report.html", page, strlen(page));
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        struct stat st;
        char shot[512];
        snprintf(shot, sizeof shot, KT_BUILD_DIR "/report-%s.png", views[i].name);
        remove(shot);
        snprintf(arguments, sizeof arguments, "--window-size=%d,%d %s --screenshot=%s file://%s/%s",
                 views[i].width, views[i].height, views[i].more, shot, folder, "report.html");
        run_browser(browser, arguments, &out);
        cr_expect(!strstr(out, "CONSOLE"), "%s: %s", views[i].name, out);
        cr_expect_eq(stat(shot, &st), 0, "%s: no screenshot: %s", views[i].name, out);
        cr_expect_gt(st.st_size, 30000, "%s: an empty page?", views[i].name);
        free(out);
    }
    free(page);
    kt_temp_remove(folder);
}

/* Two clicks on the heading of a column: numbers fall. */
Test(report, tables_sort_in_a_browser, .timeout = 120) {
    static const char clicks[] =
        "<script>addEventListener('load',function(){"
        "var h=document.querySelectorAll('#decisions~div th button')[4],b;h.click();h.click();"
        "b=Array.from(h.closest('table').tBodies[0].rows).map(function(r){"
        "return +r.cells[4].dataset.v});document.title='order '+(b.length>9&&b.every(function(v,i){"
        "return i===0||b[i-1]>=v}))+' '+h.parentNode.getAttribute('aria-sort')})</script>";
    const char *browser = kt_browser_find();
    char *page, folder[256], arguments[512], *out, *with;

    if (!browser) cr_skip_test("no browser found (package chromium)");
    page = shipped_page(TABLE);
    with = malloc(strlen(page) + sizeof clicks);
    cr_assert(with);
    sprintf(with, "%s%s", page, clicks);
    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "sorted.html", with, strlen(with));
    snprintf(arguments, sizeof arguments,
             "--dump-dom file://%s/sorted.html | grep '<title>kttune\\|<title>order'", folder);
    run_browser(browser, arguments, &out);
    cr_expect(strstr(out, "<title>order true descending</title>"), "%.400s", out);
    free(out);
    free(with);
    free(page);
    kt_temp_remove(folder);
}
#endif
