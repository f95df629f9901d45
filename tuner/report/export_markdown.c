/* A fragment for a README or a pull request: the machine, the gains by matrix and rows, and what
 * they mean for tokens per second. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/report/export.h"
#include "tuner/report/outcome.h"
#include "tuner/report/plan_words.h"
#include "tuner/report/token_time.h"
#include "tuner/space/cell.h"

enum { MOST_ROWS = 8, N_BANDS = 4 };

/* Rows of a call, by who makes them. */
static const struct {
    const char *title;
    int64_t last_m;
} bands[N_BANDS] = {{"1", 1}, {"2–8", 8}, {"9–64", 64}, {"over 64", INT64_MAX}};

/* Text from files must not end a cell or begin a tag. */
static void put_text(FILE *to, const char *text) {
    for (; *text; text++) {
        if (*text == '|' || *text == '\\' || *text == '<' || *text == '`' || *text == '*' ||
            *text == '[')
            fputc('\\', to);
        fputc((unsigned char)*text < 32 ? ' ' : *text, to);
    }
}

/* --- tables --- */

/* What exit codes 6 and 7 say. */
static void put_certainty(const kt_export_input *in, FILE *to) {
    char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES];
    kt_outcome o;
    int n;

    kt_outcome_of_table(in->table, in->journal, &o);
    if (o.rounds > 0)
        fprintf(to, "%.0f %% of %lld rounds were disturbed by others, and voided.\n",
                100 * kt_outcome_voided(&o), (long long)o.rounds);
    n = kt_outcome_words(&o, words);
    for (int i = 0; i < n; i++) fprintf(to, "\n> %s\n", words[i]);
}

static bool has_slow_threads(const kt_table *t) {
    for (size_t i = 0; i < t->n_rows; i++)
        if (kt_row_wants_fewer_threads(t, &t->rows[i])) return true;
    return false;
}

static void put_head(const kt_table *t, const kt_token_times *times, FILE *to) {
    const kt_fingerprint *f = &t->fingerprint;
    char class_name[64], isa[160];

    kt_machine_class(f, class_name, sizeof class_name);
    fputs("### ", to);
    put_text(to, t->workload);
    fprintf(to, " on %s\n\n", class_name);
    put_text(to, f->vendor);
    fputc(' ', to);
    put_text(to, f->microarch);
    fprintf(to,
            ", %d cores, %.0f GiB, read stream %.1f GB/s, A/A noise %.1f %%; %s. Tuned with kttune "
            "(",
            f->usable_cores, (double)f->memory_bytes / 1073741824.0, f->ceilings.stream_gbs_all,
            100 * f->ceilings.aa_noise_p95, kt_isa_format(f->isa, isa, sizeof isa));
    put_text(to, t->build);
    fputs("), ", to);
    put_text(to, t->created);
    fputs(".\n", to);
    for (int i = 0; i < times->n; i++) {
        const kt_token_time *time = &times->of[i];
        fprintf(to,
                "%s: one token's matrices take %.2f ms with the defaults, %s%.2f ms tuned: at most "
                "**%.1f tokens/s** for one user (attention and norms not counted).\n",
                kt_serving_format_name(time->format), time->before * 1e3,
                time->is_rough ? "≈ " : "", time->after * 1e3, 1 / time->after);
    }
}

static void put_band(FILE *to, const kt_table *t, const kt_table_row *first, size_t begin,
                     int band) {
    double sum = 0, noise = t->fingerprint.ceilings.aa_noise_p95, gain;
    int n = 0, tuned = 0, n_wide = 0;

    for (size_t i = begin; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        if (r->threads != first->threads || !kt_same_weights(&r->problem, &first->problem)) break;
        if (r->problem.m > bands[band].last_m || (band && r->problem.m <= bands[band - 1].last_m))
            continue;
        sum += log1p(kt_row_gain(r));
        tuned += strcmp(kt_row_status(r), "tuned") == 0;
        n_wide += kt_row_is_undecided(r);
        n++;
    }
    gain = n ? expm1(sum / n) : 0;
    if (n == 0)
        fputs(" |", to);
    else if (n_wide == n)
        fputs(" undecided |", to);
    else if (tuned == 0)
        fputs(" default kept |", to);
    else
        fprintf(to, " %s%+.1f %% (%d of %d) |", gain < 2 * noise ? "≈ " : "", 100 * gain, tuned, n);
}

static void put_matrices(const kt_table *t, int threads, FILE *to) {
    fprintf(to,
            "\nGeometric mean gain over the defaults, %d threads, by rows of a call (cells "
            "tuned of all):\n\n| matrix |",
            threads);
    for (int b = 0; b < N_BANDS; b++) fprintf(to, " %s |", bands[b].title);
    fputs("\n|---|---|---|---|---|\n", to);
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        const kt_problem *p = &r->problem;
        char more[KT_CELL_MORE_BYTES];
        if (r->threads != threads ||
            (i > 0 && r[-1].threads == threads && kt_same_weights(&r[-1].problem, p)))
            continue;
        fprintf(to, "| %s %s/%s %lld×%lld", kt_op_name(p->op), kt_weight_format_name(p->weights),
                kt_act_format_name(p->acts), (long long)p->n, (long long)p->k);
        if (p->experts) fprintf(to, ", %lld/%lld", (long long)p->experts, (long long)p->topk);
        fprintf(to, "%s |", kt_cell_more(p, more, sizeof more));
        for (int b = 0; b < N_BANDS; b++) put_band(to, t, r, i, b);
        fputc('\n', to);
    }
}

static int by_gain(const void *a, const void *b) {
    double x = kt_row_gain(*(const kt_table_row *const *)a);
    double y = kt_row_gain(*(const kt_table_row *const *)b);
    return x < y ? 1 : x > y ? -1 : 0;
}

static kt_status put_largest(const kt_table *t, FILE *to, kt_err *err) {
    const kt_table_row **rows = calloc(t->n_rows + 1, sizeof *rows);
    size_t n = 0;

    if (!rows) return kt_fail(err, KT_E_NOMEM, "export: no memory");
    for (size_t i = 0; i < t->n_rows; i++)
        if (strcmp(kt_row_status(&t->rows[i]), "tuned") == 0) rows[n++] = &t->rows[i];
    if (n > 0) {
        qsort(rows, n, sizeof *rows, by_gain);
        fputs("\n| largest gains | µs before | µs | gain | winner |\n|---|--:|--:|--:|---|\n", to);
    }
    for (size_t i = 0; i < n && i < MOST_ROWS; i++) {
        char key[KT_CELL_KEY_BYTES];
        fprintf(to, "| %s%s | %.1f | %.1f ±%.1f %% | %s%+.1f %% | ",
                kt_cell_key(&rows[i]->problem, rows[i]->threads, key, sizeof key),
                kt_row_wants_fewer_threads(t, rows[i]) ? " ▲" : "", rows[i]->default_ns / 1e3,
                rows[i]->time_ns / 1e3, 50 * (rows[i]->ci_high - rows[i]->ci_low),
                kt_row_gain(rows[i]) < 2 * t->fingerprint.ceilings.aa_noise_p95 ? "≈ " : "",
                100 * kt_row_gain(rows[i]));
        put_text(to, rows[i]->variant);
        if (*rows[i]->config) fputc(' ', to);
        put_text(to, rows[i]->config);
        fputs(" |\n", to);
    }
    free(rows);
    return KT_OK;
}

static void put_plans(const kt_table *t, FILE *to) {
    double noise = t->fingerprint.ceilings.aa_noise_p95;

    if (t->n_plans == 0) return;
    fputs("\n| whole layer | tokens | routing | µs | gain | choice | "
          "|\n|---|--:|---|--:|--:|---|---|\n",
          to);
    for (size_t i = 0; i < t->n_plans; i++) {
        const kt_table_plan *p = &t->plans[i];
        char words[KT_LAYER_WORDS_BYTES];
        fprintf(to, "| %s %s/%s | %lld | ", p->cell, kt_weight_format_name(p->row.problem.weights),
                kt_act_format_name(p->row.problem.acts), (long long)p->tokens);
        put_text(to, p->routing);
        fprintf(to, " | %.1f | %s%+.1f %% | ", p->row.time_ns / 1e3,
                kt_plan_is_about(p, noise) ? "≈ " : "", 100 * kt_row_gain(&p->row));
        put_text(to, p->row.config);
        fputs(" | ", to);
        put_text(to, kt_plan_words(p, noise, words, sizeof words));
        fputs(" |\n", to);
    }
}

static void put_command(const kt_journal *j, FILE *to) {
    const char *command = NULL;
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const char *text = kt_json_string(kt_json_get(kt_journal_at(j, i), "command"), NULL);
        if (text) command = text;
    }
    if (command) fprintf(to, "\nRepeat: `%s`\n", command);
}

static kt_status write_markdown(const kt_export_input *in, FILE *to, kt_err *err) {
    int threads = kt_table_most_threads(in->table);
    kt_token_times times;

    KT_TRY(kt_token_times_of(in->table, threads, &times, err));
    put_head(in->table, &times, to);
    put_certainty(in, to);
    put_matrices(in->table, threads, to);
    KT_TRY(put_largest(in->table, to, err));
    put_plans(in->table, to);
    if (has_slow_threads(in->table))
        fputs("\n▲: fewer threads take less time in this cell; layers decide threads themselves.\n",
              to);
    if (in->journal) put_command(in->journal, to);
    return KT_OK;
}

const kt_exporter kt_export_markdown = {.name = "markdown",
                                        .summary = "a fragment for a README or pull request",
                                        .write = write_markdown};
