/* kttune show: what a table says. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/shell_word.h"
#include "tuner/cli/class_list.h"
#include "tuner/cli/run_plans.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/report/plot_text.h"
#include "tuner/report/refusals.h"
#include "tuner/report/token_time.h"
#include "tuner/space/cell.h"
#include "tuner/space/cell_filter.h"
#include "tuner/space/shapes.h"
#include "tuner/store/journal.h"
#include "tuner/store/row_json.h"
#include "tuner/store/table_union.h"

static const char *const match_names[] = {"same", "stale", "another machine's"};

/* A row counts only while its variant is here in the version that was tuned. */
static const char *status_of(const kt_table_row *r, const kt_workbench *b) {
    return kt_row_is_current(r, b->registry) ? kt_row_status(r) : "outdated";
}

static int widest_key(const kt_table *t) {
    int widest = (int)strlen("cell");
    for (size_t i = 0; i < t->n_rows; i++) {
        char key[KT_CELL_KEY_BYTES];
        int width =
            (int)strlen(kt_cell_key(&t->rows[i].problem, t->rows[i].threads, key, sizeof key));
        if (width > widest) widest = width;
    }
    return widest;
}

/* The mark stands between its neighbours, so that columns hold whatever the character set. */
static void print_row(const kt_table *t, const kt_table_row *r, const char *status, int width) {
    char key[KT_CELL_KEY_BYTES];
    double gain = r->time_ns > 0 ? 100 * (r->default_ns / r->time_ns - 1) : 0;
    printf("%-*s  %-9s %10.1f us ±%5.1f %% %s %+7.1f %%  %s%s%s%s\n", width,
           kt_cell_key(&r->problem, r->threads, key, sizeof key), status, r->time_ns / 1e3,
           100 * kt_row_half_interval(r), kt_row_wants_fewer_threads(t, r) ? "▲" : " ", gain,
           r->variant, *r->config ? " {" : "", r->config, *r->config ? "}" : "");
}

static void print_rows(const kt_table *t, const kt_workbench *b) {
    const int width = widest_key(t);
    bool has_mark = false;

    printf("\n%-*s  %-9s %13s  %7s   %9s  %s\n", width, "cell", "status", "time", "half", "gain",
           "winner");
    for (size_t i = 0; i < t->n_rows; i++) {
        print_row(t, &t->rows[i], status_of(&t->rows[i], b), width);
        has_mark |= kt_row_wants_fewer_threads(t, &t->rows[i]);
    }
    if (has_mark) printf("▲ fewer threads take less time here\n");
    for (size_t i = 0; i < t->n_plans; i++)
        kt_print_table_plan(&t->plans[i], t->fingerprint.ceilings.aa_noise_p95);
}

/* Which file it is, whose, and whether this machine uses it. */
static void print_origin(const kt_table *t, const char *path, const kt_workbench *b) {
    const bool is_filed =
        strncmp(path, KT_SOURCE_DIR "/results/", sizeof KT_SOURCE_DIR "/results/" - 1) == 0;
    kt_err why = {0};
    kt_match match = kt_fingerprint_compare(&t->fingerprint, &b->machine, &why);

    printf("%s\nmade %s by %s, A/A noise p95 %.1f %%\n", path, t->created, t->build,
           100 * t->fingerprint.ceilings.aa_noise_p95);
    if (match != KT_MATCH_SAME) printf("%s: %s\n", match_names[match], why.message);
    if (match == KT_MATCH_OTHER)
        printf("this machine does not use it\n");
    else if (is_filed)
        printf("filed in results/: used here as long as this machine has no table of its own\n");
}

/* The table in one line. */
static void print_head(const kt_table *t, const kt_workbench *b) {
    const bool is_known = kt_shapes_find(t->workload, &(kt_shapes){0}, NULL, 0, NULL) == KT_OK;
    char class_name[64], word[KT_SHELL_WORD_BYTES];
    size_t tuned = 0, undecided = 0, outdated = 0;
    double sum = 0;

    kt_machine_class(&t->fingerprint, class_name, sizeof class_name);
    for (size_t i = 0; i < t->n_rows; i++) {
        const char *status = status_of(&t->rows[i], b);
        outdated += strcmp(status, "outdated") == 0;
        undecided += strcmp(status, "undecided") == 0;
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") != 0) continue;
        sum += log(t->rows[i].default_ns / t->rows[i].time_ns);
        tuned++;
    }
    printf("%s on %s: %zu cells, %zu tuned (%+.1f %% geomean), %zu undecided, the others kept the "
           "default\n",
           t->workload, class_name, t->n_rows, tuned, tuned ? 100 * expm1(sum / (double)tuned) : 0,
           undecided);
    if (!outdated) return;
    printf("%zu outdated: their variant has changed or cannot run here; they are not used%s%s\n",
           outdated, is_known ? "; to tune again: kttune run --model " : "",
           is_known ? kt_shell_word(t->workload, word, sizeof word) : "");
}

/* A head, where tuning mattered, what it gained; every row only when it is asked for. */
static void print_table(const kt_table *t, const char *path, const kt_workbench *b,
                        bool wants_rows) {
    enum { MOST_GAINS = 8 };
    kt_export_input in = {.table = t, .registry = b->registry};
    kt_plot_style style = kt_plot_style_of(stdout);
    char word[KT_SHELL_WORD_BYTES];

    print_head(t, b);
    print_origin(t, path, b);
    if (wants_rows) {
        print_rows(t, b);
        return;
    }
    putchar('\n');
    kt_plot_heat(&in, &style, stdout);
    putchar('\n');
    kt_plot_gains(&in, &style, MOST_GAINS, stdout);
    printf("\nall rows: kttune show %s --rows\n", kt_shell_word(path, word, sizeof word));
}

static kt_status print_json(const kt_table *t, const char *path, const kt_workbench *b,
                            bool deterministic, kt_err *err) {
    kt_status st = KT_OK;
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    kt_err why = {0};
    kt_match match = kt_fingerprint_compare(&t->fingerprint, &b->machine, &why);

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "table", path);
    kt_json_add_string(&w, "workload", t->workload);
    kt_json_add_string(&w, "created", t->created);
    kt_json_add_string(&w, "build", t->build);
    kt_json_add_string(&w, "match", match_names[match]);
    kt_json_add_string(&w, "why", match == KT_MATCH_SAME ? "" : why.message);
    kt_json_key(&w, "outdated");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < t->n_rows; i++)
        if (!kt_row_is_current(&t->rows[i], b->registry)) kt_json_put_int(&w, (int64_t)i);
    kt_json_end_array(&w);
    kt_json_key(&w, "undecided");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < t->n_rows; i++)
        if (kt_row_is_undecided(&t->rows[i])) kt_json_put_int(&w, (int64_t)i);
    kt_json_end_array(&w);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(&t->fingerprint, &w);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < t->n_rows; i++) kt_row_write(&t->rows[i], &w);
    kt_json_end_array(&w);
    kt_json_key(&w, "plans");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < t->n_plans; i++)
        kt_write_table_plan(&t->plans[i], t->fingerprint.ceilings.aa_noise_p95, &w);
    kt_json_end_array(&w);
    if (deterministic) st = kt_write_classes(b, t, &w, err);
    kt_json_end_object(&w);
    if (st == KT_OK)
        kt_json_writer_print(&w, stdout);
    else
        kt_json_writer_deinit(&w);
    return st;
}

/* Contenders that the gate refused, from the journal that lies beside the table. */
static kt_status print_rejected(const char *table_path, bool json, kt_err *err) {
    static const char *const keys[] = {"outcome", "contender", "shape", "message"};
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 1};
    char path[1024];
    kt_journal *j = NULL;
    size_t n = 0;

    KT_TRY(kt_journal_path_of(table_path, path, sizeof path, err));
    KT_TRY(kt_journal_read(path, &j, err));
    if (json) kt_json_begin_array(&w);
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        if (!kt_is_refusal(j, i)) continue;
        n++;
        if (json) {
            kt_json_begin_object(&w);
            for (int k = 0; k < 4; k++) kt_json_add_string(&w, keys[k], kt_json_text(r, keys[k]));
            kt_json_end_object(&w);
        } else {
            printf("%-8s %s on %s\n         %s\n", kt_json_text(r, "outcome"),
                   kt_json_text(r, "contender"), kt_json_text(r, "shape"),
                   kt_json_text(r, "message"));
        }
    }
    if (json) kt_json_end_array(&w);
    if (json)
        kt_json_writer_print(&w, stdout);
    else
        printf("%zu rejected in %s\n", n, path);
    kt_journal_close(j);
    return KT_OK;
}

/* Leave only the rows that the conditions mean. */
static kt_status choose_cells(kt_table *t, const char *conditions, kt_err *err) {
    kt_cell_list list = {0};
    size_t kept = 0;
    kt_status st = KT_OK;

    for (size_t i = 0; i < t->n_rows && st == KT_OK; i++) {
        kt_tune_cell cell = {.problem = t->rows[i].problem, .threads = t->rows[i].threads};
        st = kt_cell_list_add(&list, &cell, err);
    }
    if (st == KT_OK) st = kt_cells_filter(&list, conditions, err);
    for (size_t i = 0; i < t->n_rows && st == KT_OK && kept < list.n; i++) {
        const kt_tune_cell *next = &list.cells[kept];
        if (kt_table_key_order(&t->rows[i].problem, t->rows[i].threads, &next->problem,
                               next->threads) == 0)
            t->rows[kept++] = t->rows[i];
    }
    if (st == KT_OK) t->n_rows = kept;
    kt_cell_list_deinit(&list);
    return st;
}

static kt_status plot(const kt_table *t, const char *path, const char *what, const kt_workbench *b,
                      kt_err *err) {
    enum { MOST_GAINS = 12, MOST_RACES = 3 };
    static const char *const names[] = {"roofline", "heat", "gains", "race"};
    kt_export_input in = {.table = t, .registry = b->registry};
    kt_plot_style style = kt_plot_style_of(stdout);
    kt_journal *journal = NULL;
    char journal_path[1024];
    bool all = strcmp(what, "all") == 0, wants[4], is_known = all;

    for (int i = 0; i < 4; i++) {
        wants[i] = strcmp(what, names[i]) == 0 || (all && i < 3);
        is_known |= wants[i];
    }
    if (!is_known)
        return kt_fail(err, KT_E_INVALID,
                       "--plot '%s': expected roofline, heat, gains, race or all", what);
    if (wants[3]) {
        KT_TRY(kt_journal_path_of(path, journal_path, sizeof journal_path, err));
        KT_TRY(kt_journal_read(journal_path, &journal, err));
        in.journal = journal;
    }
    if (wants[0]) kt_plot_roofline(&in, &style, stdout);
    if (wants[0] && wants[1]) putchar('\n');
    if (wants[1]) kt_plot_heat(&in, &style, stdout);
    if (wants[1] && wants[2]) putchar('\n');
    if (wants[2]) kt_plot_gains(&in, &style, MOST_GAINS, stdout);
    if (wants[3] && kt_plot_races(&in, &style, MOST_RACES, stdout) == 0)
        printf("the journal holds no race of these rows\n");
    kt_journal_close(journal);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *model = "tiny-moe", *word[1], *path = NULL, *cells = NULL, *picture = NULL;
    bool rejected = false, json = false, rows = false, deterministic = false;
    const kt_switch switches[] = {
        {"cells", KT_SWITCH_TEXT, &cells, "COND", "only these, such as 'm<=4,op=gemm,threads=2'"},
        {"rows", KT_SWITCH_FLAG, &rows, NULL,
         "every cell's winner, time, interval and gain, instead of the pictures"},
        {"plot", KT_SWITCH_TEXT, &picture, "WHAT",
         "draw it: roofline, heat, gains, race (of the first cells) or all"},
        {"model", KT_SWITCH_TEXT, &model, "NAME", "without TABLE: the one serving would use"},
        {"rejected", KT_SWITCH_FLAG, &rejected, NULL,
         "variants the gate refused, from the journal"},
        {"deterministic", KT_SWITCH_FLAG, &deterministic, NULL,
         "which class of bits each matrix keeps with kt ... --deterministic, and what that costs "
         "against the fastest, from the rows"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "show", "[TABLE] ",
        "Print a dispatch table: what it is, where tuning gained, and with --rows each cell's "
        "winner,\ntime, interval and gain over the default.",
        "  kttune show --model tiny-moe --rows\n  kttune show --model tiny-moe --plot all\n  "
        "kttune show mine.kttable.json --rejected\n"
        "  kttune show mine.kttable.json --cells m=1,op=moe_ffn --plot race\n"
        "  kttune show --model tiny-moe --deterministic\n"};
    kt_workbench b = {0};
    kt_table *t = NULL;
    char where[1024];
    kt_err err;
    kt_status st;
    int n = 0, code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc,
                                        argv, word, 1, &n);

    (void)context;
    if (code >= 0) return code;
    if (n == 1) path = word[0];
    st = kt_workbench_init(&b, false, &err);
    if (st == KT_OK) st = kt_table_choose(&b, path, model, where, sizeof where, &t, &err);
    if (st == KT_OK && cells) st = choose_cells(t, cells, &err);
    if (st == KT_OK && picture) {
        st = plot(t, where, picture, &b, &err);
    } else if (st == KT_OK && rejected)
        st = print_rejected(where, json, &err);
    else if (st == KT_OK && json)
        st = print_json(t, where, &b, deterministic, &err);
    else if (st == KT_OK && deterministic)
        st = kt_print_classes(&b, t, &err);
    else if (st == KT_OK)
        print_table(t, where, &b, rows || cells);
    kt_table_destroy(t);
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_show = {.name = "show", .summary = "print a dispatch table", .run = run};
