/* Exports as SQL and Markdown, and pictures for the terminal.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"
#include "tests/support/tune_home.h"
#include "tuner/report/export.h"
#include "tuner/report/plot_text.h"

#define TABLE KT_SOURCE_DIR "/results/zen4-2c-24g/Qwen3-30B-A3B.kttable.json"
#define KTTUNE KT_BUILD_DIR "/kttune "

typedef struct shipped {
    kt_table *table;
    kt_journal *journal;
    kt_registry *registry;
    kt_export_input in;
} shipped;

static void open_shipped(shipped *s) {
    char path[1024];
    kt_err err;

    cr_assert_eq(kt_table_load(TABLE, &s->table, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_path_of(TABLE, path, sizeof path, &err), KT_OK);
    cr_assert_eq(kt_journal_read(path, &s->journal, &err), KT_OK, "%s", err.message);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, 0, &s->registry, &err),
        KT_OK);
    s->in = (kt_export_input){.table = s->table, .journal = s->journal, .registry = s->registry};
}

static void close_shipped(shipped *s) {
    kt_registry_destroy(s->registry);
    kt_journal_close(s->journal);
    kt_table_destroy(s->table);
}

/* --- SQL --- */

enum { N_KINDS = 3 };
static const char *const kinds[N_KINDS] = {"rung", "slice", "plan_rung"};

/* All samples of one kind of record, read without what exports read them with; valid: without
 * those of voided rounds. */
typedef struct tally {
    int64_t n, n_valid;
    double sum, valid_sum;
} tally;

static tally tally_of(const kt_journal *j, const char *kind) {
    tally t = {0};
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *record = kt_journal_at(j, i), *ns = kt_json_get(record, "ns");
        const kt_json *voided = kt_json_get(record, "void");
        if (strcmp(kt_json_string(kt_json_get(record, "t"), NULL), kind) != 0) continue;
        for (size_t c = 0; c < kt_json_length(ns); c++)
            for (size_t k = 0; k < kt_json_length(kt_json_at(ns, c)); k++) {
                double v = kt_json_double(kt_json_at(kt_json_at(ns, c), k), 0);
                bool is_valid = true;
                for (size_t r = 0; r < kt_json_length(voided); r++)
                    is_valid &= kt_json_int(kt_json_at(voided, r), -1) != (int64_t)k;
                t.n++;
                t.sum += v;
                t.n_valid += is_valid;
                t.valid_sum += is_valid ? v : 0;
            }
    }
    return t;
}

static int64_t count_of(const kt_journal *j, const char *kind) {
    int64_t n = 0;
    for (size_t i = 0; i < kt_journal_count(j); i++)
        n += strcmp(kt_json_string(kt_json_get(kt_journal_at(j, i), "t"), NULL), kind) == 0;
    return n;
}

/* Numbers that the database answers, in order. */
static int ask(const char *folder, const char *sql, double *out, int most) {
    char command[2048], *text, *at, *end;
    int n = 0;

    snprintf(command, sizeof command, "sqlite3 -separator ' ' %s/t.db \"%s\"", folder, sql);
    cr_assert_eq(kt_tune_home_run(command, &text), 0, "%s", text);
    for (at = text; n < most; at = end, n++) {
        out[n] = strtod(at, &end);
        if (end == at) break;
    }
    free(text);
    return n;
}

Test(export, sql_makes_a_database_with_every_row_record_and_sample, .timeout = 180) {
    char folder[256], command[1024], *out;
    double got[8];
    shipped s;

    if (system("sqlite3 --version >/dev/null 2>&1") != 0) cr_skip_test("sqlite3 is not installed");
    open_shipped(&s);
    kt_temp_make(folder, sizeof folder);
    snprintf(command, sizeof command, KTTUNE "export " TABLE " --to sql | sqlite3 -bail %s/t.db",
             folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    for (int k = 0; k < N_KINDS; k++) {
        tally want = tally_of(s.journal, kinds[k]);
        char sql[512];
        snprintf(sql, sizeof sql,
                 "select count(*), total(ns), sum(voided = 0), total(case voided when 0 then ns "
                 "end) from sample where kind = '%s'",
                 kinds[k]);
        cr_assert_gt(want.n, 0, "the shipped journal has no %s any more: take another", kinds[k]);
        cr_assert_eq(ask(folder, sql, got, 4), 4, "%s", kinds[k]);
        cr_expect(got[0] == (double)want.n && got[2] == (double)want.n_valid, "%s: %.0f of %lld",
                  kinds[k], got[0], (long long)want.n);
        cr_expect(fabs(got[1] / want.sum - 1) < 1e-9 && fabs(got[3] / want.valid_sum - 1) < 1e-9,
                  "%s: sum %g of %g", kinds[k], got[1], want.sum);
    }
    cr_assert_eq(ask(folder,
                     "select (select count(*) from decision), (select count(*) from plan), (select "
                     "count(*) from machine), (select count(*) from gate), (select count(*) from "
                     "session), (select count(*) from decided where kind = 'decision'), (select "
                     "count(*) from decided where kind = 'plan_decision')",
                     got, 8),
                 7);
    cr_expect(got[0] == (double)s.table->n_rows && got[1] == (double)s.table->n_plans, "%g %g",
              got[0], got[1]);
    cr_expect_eq(got[2], 1);
    cr_expect_eq((int64_t)got[3], count_of(s.journal, "gate"));
    cr_expect_eq((int64_t)got[4], count_of(s.journal, "session"));
    cr_expect_eq((int64_t)got[5], count_of(s.journal, "decision"));
    cr_expect_eq((int64_t)got[6], count_of(s.journal, "plan_decision"));
    kt_temp_remove(folder);
    close_shipped(&s);
}

/* What a reader would ask first: do the parts find each other? */
Test(export, tables_of_the_database_join, .timeout = 180) {
    static const struct {
        const char *sql, *why;
    } none[] = {
        {"select count(*) from plan where plan_key not in (select cell from sample where kind = "
         "'plan_rung')",
         "plans without samples"},
        {"select count(*) from plan p where not exists (select 1 from decided d where d.kind = "
         "'plan_decision' and d.cell = p.plan_key and abs(d.ns - p.ns) < 0.11)",
         "plans that nothing decided"},
        {"select count(*) from decision r where not exists (select 1 from decided d where d.kind = "
         "'decision' and d.cell = r.cell and abs(d.ns - r.ns) < 0.11)",
         "rows that nothing decided"},
        {"select count(*) from sample where kind = 'slice' and (outputs is null or cell not in "
         "(select cell from decided))",
         "slices of no cell"},
        {"select count(*) from sample where session not in (select session from session)",
         "samples of no session"}};
    char folder[256], command[1024], *out;
    double got[1];

    if (system("sqlite3 --version >/dev/null 2>&1") != 0) cr_skip_test("sqlite3 is not installed");
    kt_temp_make(folder, sizeof folder);
    snprintf(command, sizeof command, KTTUNE "export " TABLE " --to sql | sqlite3 -bail %s/t.db",
             folder);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s", out);
    free(out);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        cr_assert_eq(ask(folder, none[i].sql, got, 1), 1);
        cr_expect_eq(got[0], 0, "%g %s", got[0], none[i].why);
    }
    kt_temp_remove(folder);
}

static char *text_with(const kt_export_input *in, const char *to) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    cr_assert_eq(kt_exporter_find(to)->write(in, f, NULL), KT_OK);
    fclose(f);
    return text;
}

/* --- T4 --- */

/* Valid samples of all kinds, each once: T4 has no rounds, so voided ones are left out. */
Test(export, t4_holds_every_valid_sample_of_every_kind, .timeout = 180) {
    static const char *const marks[N_KINDS] = {"", "slice n=", "layer_gain "};
    double sums[N_KINDS] = {0};
    int64_t counts[N_KINDS] = {0};
    kt_json_doc *doc;
    const kt_json *results;
    shipped s;
    char *text;

    open_shipped(&s);
    text = text_with(&s.in, "t4");
    cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, NULL), KT_OK);
    results = kt_json_get(kt_json_root(doc), "results");
    for (size_t i = 0; i < kt_json_length(results); i++) {
        const kt_json *configuration = kt_json_get(kt_json_at(results, i), "configuration");
        const kt_json *times =
            kt_json_get(kt_json_get(kt_json_at(results, i), "times"), "runtimes");
        const char *cell = kt_json_string(kt_json_get(configuration, "cell"), NULL);
        int kind = strncmp(cell, marks[1], strlen(marks[1])) == 0 ? 1 : strstr(cell, " T=") ? 2 : 0;
        for (size_t k = 0; k < kt_json_length(times); k++, counts[kind]++)
            sums[kind] += 1e6 * kt_json_double(kt_json_at(times, k), 0);
        if (strncmp(cell, "layer_gain ", 11) == 0) {
            cr_expect_str_eq(kt_json_string(kt_json_get(configuration, "variant"), NULL),
                             "layer_gain");
            cr_expect(kt_json_string(kt_json_get(configuration, "kernels"), NULL));
        }
        if (strncmp(cell, "moe_layer ", 10) == 0)
            cr_expect_gt(kt_json_int(kt_json_get(configuration, "task_kib"), 0), 0);
    }
    for (int k = 0; k < N_KINDS; k++) {
        tally want = tally_of(s.journal, kinds[k]);
        cr_expect_eq(counts[k], want.n_valid, "%s: %lld of %lld", kinds[k], (long long)counts[k],
                     (long long)want.n_valid);
        cr_expect(fabs(sums[k] / want.valid_sum - 1) < 1e-6, "%s: %g of %g", kinds[k], sums[k],
                  want.valid_sum);
    }
    kt_json_destroy(doc);
    free(text);
    close_shipped(&s);
}

/* --- CSV --- */

/* The fields of a line, in place; commas inside quotes are text. Ends behind the line. */
static int split(char *line, char **field, int most, char **end) {
    int n = 0;
    bool quoted = false;

    field[n++] = line;
    for (; *line && (quoted || *line != '\r'); line++) {
        if (*line == '"') quoted = !quoted;
        if (*line != ',' || quoted) continue;
        *line = '\0';
        if (n < most) field[n++] = line + 1;
    }
    *end = *line ? line + 2 : line;
    *line = '\0';
    return n;
}

Test(export, csv_gives_back_the_rows_and_plans) {
    enum { COLUMNS = 33 };
    char *text, *at, *field[COLUMNS + 1];
    shipped s;

    open_shipped(&s);
    text = text_with(&s.in, "csv");
    cr_assert_eq(split(text, field, COLUMNS + 1, &at), COLUMNS);
    cr_expect(strcmp(field[3], "m") == 0 && strcmp(field[10], "ns") == 0 &&
              strcmp(field[22], "plan") == 0 && strcmp(field[28], "down") == 0 &&
              strcmp(field[32], "bits") == 0);
    for (size_t i = 0; i < s.table->n_rows + s.table->n_plans; i++) {
        bool is_plan = i >= s.table->n_rows;
        const kt_table_plan *p = is_plan ? &s.table->plans[i - s.table->n_rows] : NULL;
        const kt_table_row *r = p ? &p->row : &s.table->rows[i];
        char quoted[128];
        cr_assert_eq(split(at, field, COLUMNS + 1, &at), COLUMNS, "line %zu", i + 2);
        cr_expect_eq(strtoll(field[3], NULL, 10), r->problem.m);
        cr_expect_lt(fabs(strtod(field[10], NULL) - r->time_ns), 0.06);
        cr_expect_lt(fabs(strtod(field[20], NULL) - r->default_ns), 0.06);
        snprintf(quoted, sizeof quoted, "\"%s\"", r->config);
        cr_expect_str_eq(field[16], quoted);
        cr_expect_str_eq(field[22], p ? p->cell : "");
        snprintf(quoted, sizeof quoted, "\"%s\"", p ? p->routing : "");
        cr_expect_str_eq(field[23], p ? quoted : "");
        cr_expect_lt(fabs(strtod(field[25], NULL) - (p ? p->predicted : 0)), 6e-5);
        cr_expect_str_eq(field[28], kt_weight_format_name(r->problem.down));
        cr_expect_str_eq(field[29], kt_ffn_act_name(r->problem.act));
        cr_expect_eq(strtoll(field[31], NULL, 10), r->problem.window);
        snprintf(quoted, sizeof quoted, "\"%s\"", r->bits);
        cr_expect_str_eq(field[32], quoted);
    }
    cr_expect_eq(*at, '\0', "more lines than rows: %s", at);
    free(text);
    close_shipped(&s);
}

Test(export, names_cannot_leave_their_literals_or_cells) {
    kt_table_row row = {.problem = {.op = KT_OP_GEMM,
                                    .weights = KT_W_INT8_CHANNEL,
                                    .acts = KT_A_INT8_G32,
                                    .m = 1,
                                    .n = 64,
                                    .k = 64},
                        .threads = 1,
                        .version = 1,
                        .time_ns = 1000,
                        .ci_low = 0.99,
                        .ci_high = 1.01,
                        .rounds = 30,
                        .default_variant = "d",
                        .default_ns = 1500,
                        .status = "tuned"};
    kt_export_input in = {0};
    kt_table *t;
    char *text;

    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    snprintf(row.variant, sizeof row.variant, "x'); DROP TABLE decision; --|<b>");
    cr_assert_eq(kt_table_put(t, &row, NULL), KT_OK);
    in.table = t;
    text = text_with(&in, "sql");
    cr_expect(strstr(text, "'x''); DROP TABLE decision; --|<b>'"), "%s", text);
    free(text);
    text = text_with(&in, "markdown");
    cr_expect(strstr(text, "--\\|\\<b>"), "%s", text);
    free(text);
    kt_table_destroy(t);
}

Test(export, every_format_is_in_the_help) {
    const kt_exporter *e;
    char *help;

    cr_assert_eq(kt_tune_home_run(KTTUNE "export --help", &help), 0);
    for (size_t i = 0; (e = kt_exporter_at(i)); i++) {
        char words[32];
        snprintf(words, sizeof words, "\n  %s ", e->name);
        cr_expect(strstr(help, words), "%s is not explained", e->name);
        cr_expect_eq(kt_exporter_find(e->name), e);
    }
    free(help);
}

/* --- Markdown --- */

Test(export, markdown_has_the_machine_tables_and_tokens_per_second) {
    static const char *const formats[] = {"\nint8: one token's matrices take ",
                                          "\nint4: one token's matrices take "};
    char *text, *line;
    double before = 0, after[2] = {0}, rate = 0;
    shipped s;

    open_shipped(&s);
    text = text_with(&s.in, "markdown");
    cr_expect(strstr(text, "### Qwen3-30B-A3B on zen4-2c-24g\n"), "%s", text);
    for (int i = 0; i < 2; i++) { /* the table holds both, and each has its own speed */
        line = strstr(text, formats[i]);
        cr_assert(line, "%s: %s", formats[i], text);
        cr_expect_eq(sscanf(line + strlen(formats[i]),
                            "%lf ms with the defaults, %lf ms tuned: at most **%lf tokens/s**",
                            &before, &after[i], &rate),
                     3, "%s", line);
        cr_expect(before >= after[i] && fabs(rate * after[i] - 1000) < 5, "%s", line);
        /* 48 layers of 8 experts are the bulk of it: their rows for one token in the table */
        cr_expect(after[i] > 48 * 8 * 0.03 && after[i] < 1000, "%f", after[i]);
    }
    cr_expect_gt(after[0], after[1], "INT8 reads twice the bytes");
    cr_expect(strstr(text, "rounds were disturbed") &&
                  strstr(text, " undecided: the time is not known"),
              "%s", text);
    for (line = text; *line; line += strcspn(line, "\n") + 1) { /* cells of a table are complete */
        size_t size = strcspn(line, "\n");
        if (*line == '|') cr_expect_eq(line[size - 1], '|', "%.*s", (int)size, line);
        if (!line[size]) break;
    }
    cr_expect(strstr(text, "\nRepeat: `kttune run --model Qwen3-30B-A3B"), "%s", text);
    free(text);
    close_shipped(&s);
}

/* --- pictures --- */

static char *draw(shipped *s, const kt_plot_style *style) {
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);

    kt_plot_roofline(&s->in, style, f);
    kt_plot_heat(&s->in, style, f);
    kt_plot_gains(&s->in, style, 10, f);
    cr_expect_eq(kt_plot_races(&s->in, style, 2, f), 2);
    fclose(f);
    return text;
}

static int columns_of(const char *line, size_t size) {
    int n = 0;
    for (size_t i = 0; i < size; i++) n += ((unsigned char)line[i] & 0xc0) != 0x80;
    return n;
}

Test(plot, pictures_keep_to_the_width_and_the_character_set, .timeout = 180) {
    static const int widths[] = {60, 80, 120, 200};
    shipped s;

    open_shipped(&s);
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (int utf8 = 0; utf8 <= 1; utf8++) {
            kt_plot_style style = {.width = widths[w], .is_utf8 = utf8 == 1};
            char *text = draw(&s, &style), *line = text;
            bool has_wide = false;
            while (*line) {
                size_t size = strcspn(line, "\n");
                bool is_caption = strncmp(line, "Roofline", 8) == 0 ||
                                  strncmp(line, "Gain", 4) == 0 || strncmp(line, "Races", 5) == 0 ||
                                  strstr(line, " rounds\n") == line + size - 7;
                for (size_t i = 0; i < size; i++) has_wide |= (unsigned char)line[i] > 126;
                cr_expect(is_caption || columns_of(line, size) <= widths[w],
                          "width %d: %d columns: %.*s", widths[w], columns_of(line, size),
                          (int)size, line);
                line += size + (line[size] == '\n');
            }
            cr_expect_eq(has_wide, utf8 == 1, "width %d", widths[w]);
            cr_expect(!strchr(text, '\033'), "colours that were not wanted");
            free(text);
        }
    close_shipped(&s);
}

Test(plot, colours_come_only_when_wanted) {
    kt_plot_style style = {.width = 100, .is_utf8 = true, .colour = true};
    shipped s;
    char *text;

    open_shipped(&s);
    text = draw(&s, &style);
    cr_expect(strstr(text, "\033[32m"));
    free(text);
    close_shipped(&s);
}

Test(plot, the_program_heeds_locale_colour_and_cells, .timeout = 180) {
    static const struct {
        const char *command;
        int code;
        const char *has, *lacks;
    } cases[] = {
        {"LC_ALL=C COLUMNS=90 " KTTUNE "show " TABLE " --plot all", 0, "Roofline", "█"},
        {"LC_ALL=C.UTF-8 COLUMNS=90 " KTTUNE "show " TABLE " --plot gains", 0, "█", "\033["},
        {KTTUNE "show " TABLE " --plot race --cells m=4,threads=2,op=moe_ffn", 0, "won", "m=5 "},
        {KTTUNE "show " TABLE " --cells m=4,threads=2", 0, "m=4", "m=6 "},
        {KTTUNE "show " TABLE " --cells m=5", 2, "none of", "m=4"},
        {KTTUNE "show " TABLE " --plot pie", 2, "expected roofline", "█"},
        /* a terminal: script gives the program one; green or grey is for the filed figures to
         * say */
        {"TERM=xterm script -qc '" KTTUNE "show " TABLE " --plot gains' /dev/null", 0, "\033[",
         "no such"},
        {"NO_COLOR=1 TERM=xterm script -qc '" KTTUNE "show " TABLE " --plot gains' /dev/null", 0,
         "Largest", "\033["}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *out;
        int code;
        if (strstr(cases[i].command, "script -qc") &&
            system("command -v script >/dev/null 2>&1") != 0)
            continue;
        code = kt_tune_home_run(cases[i].command, &out);
        cr_expect_eq(code, cases[i].code, "%s: %d: %s", cases[i].command, code, out);
        cr_expect(strstr(out, cases[i].has), "%s: lacks '%s': %s", cases[i].command, cases[i].has,
                  out);
        cr_expect(!strstr(out, cases[i].lacks), "%s: has '%s'", cases[i].command, cases[i].lacks);
        free(out);
    }
}
