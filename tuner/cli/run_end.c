/* What a run says at its end: three sentences for everybody, figures for those who ask.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/shell_word.h"
#include "tuner/cli/class_list.h"
#include "tuner/cli/run_plans.h"
#include "tuner/cli/run_report.h"
#include "tuner/report/progress.h"
#include "tuner/report/token_time.h"
#include "tuner/search/regret.h"

static double gain_of(const kt_session_progress *p) {
    return p->n_tuned ? expm1(p->log_gain_sum / (double)p->n_tuned) : 0;
}

/* --- how sure --- */

/* The run so far, and the cells that are left at its pace. */
static double needed_seconds(const kt_run_report *r, const kt_session_progress *p) {
    return ceil((r->seconds + p->seconds_left * kt_progress_pace(p)) / 5) * 5;
}

kt_outcome kt_run_outcome(const kt_run_report *r) {
    kt_session_progress p;
    kt_outcome o;

    kt_session_progress_get(r->session, &p);
    o = (kt_outcome){.n_cells = p.n_cells,
                     .n_undecided = p.n_undecided,
                     .n_open = p.n_cells - p.n_decided - p.n_undecided - p.n_skipped,
                     .rounds = p.rounds,
                     .voided = p.voided,
                     .budget_seconds = r->options->budget_seconds};
    if (o.budget_seconds > 0) o.needed_seconds = needed_seconds(r, &p);
    return o;
}

/* --- JSON --- */

/* What the oracle says about the decisions, and the time both took. */
typedef struct oracle_sums {
    kt_regret_summary regret;
    size_t n_missed; /* another choice is faster beyond doubt */
} oracle_sums;

static oracle_sums sum_oracle(const kt_run_report *r, size_t n_cells) {
    oracle_sums sums = {0};
    kt_cell_regret *list = calloc(n_cells + 1, sizeof *list);
    size_t n = 0;

    for (size_t i = 0; list && i < n_cells; i++) {
        const kt_oracle_result *o = kt_session_oracle(r->session, i);
        if (!o) continue;
        list[n++] = (kt_cell_regret){o->regret.point, kt_session_cell(r->session, i)->weight};
        sums.n_missed += o->regret.low > 0;
    }
    if (list) sums.regret = kt_regret_summarise(list, n);
    free(list);
    return sums;
}

static void put_warnings(const kt_run_report *r, kt_json_writer *w) {
    char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES];
    const kt_outcome o = kt_run_outcome(r);
    int n = kt_outcome_words(&o, words);

    kt_json_add_int(w, "undecided", (int64_t)o.n_undecided);
    kt_json_add_int(w, "open", (int64_t)o.n_open);
    kt_json_key(w, "warnings");
    kt_json_begin_array(w);
    for (int i = 0; i < n; i++) kt_json_put_string(w, words[i]);
    kt_json_end_array(w);
}

static void print_json(const kt_run_report *r, const kt_session_progress *p) {
    kt_json_writer w = {.indent = 1};
    char command[KT_RUN_PATH_BYTES];

    kt_run_begin_json(r, &w);
    kt_json_add_int(&w, "cells", (int64_t)p->n_cells);
    kt_json_add_int(&w, "decided", (int64_t)p->n_decided);
    kt_json_add_int(&w, "reused", (int64_t)p->n_reused);
    kt_json_add_int(&w, "repeated", (int64_t)p->n_repeated);
    kt_json_add_int(&w, "raced_again", (int64_t)p->n_again);
    kt_json_add_int(&w, "tuned", (int64_t)p->n_tuned);
    kt_json_add_int(&w, "skipped", (int64_t)p->n_skipped);
    kt_json_add_int(&w, "kept_rows", (int64_t)r->n_kept_rows);
    kt_json_add_int(&w, "gated", p->n_gated);
    kt_json_add_int(&w, "rejected", p->n_rejected);
    kt_json_add_int(&w, "rounds", p->rounds);
    kt_json_add_int(&w, "voided", p->voided);
    kt_json_add_fixed(&w, "gain_geomean", gain_of(p), 4);
    kt_json_add_fixed(&w, "aa_noise_p95", r->aa_noise, 4);
    kt_json_add_fixed(&w, "weight_done", p->weight_done, 4);
    kt_json_add_fixed(&w, "seconds", r->seconds, 2);
    kt_json_add_fixed(&w, "seconds_kernels", p->kernel_seconds, 3);
    kt_json_add_fixed(&w, "seconds_gates", p->gate_seconds, 3);
    kt_json_add_fixed(&w, "seconds_setup", p->setup_seconds, 3);
    if (r->options->oracle) {
        oracle_sums o = sum_oracle(r, p->n_cells);
        kt_json_add_int(&w, "oracle_cells", (int64_t)o.regret.n);
        kt_json_add_int(&w, "oracle_missed", (int64_t)o.n_missed);
        kt_json_add_fixed(&w, "regret_geomean", o.regret.geomean, 5);
        kt_json_add_fixed(&w, "regret_p95", o.regret.p95, 5);
        kt_json_add_fixed(&w, "regret_max", o.regret.max, 5);
    }
    put_warnings(r, &w);
    if (r->options->deterministic) kt_write_classes(r->bench, r->table, &w, NULL);
    kt_json_add_string(&w, "repeat", kt_run_command(r->options, NULL, command, sizeof command));
    kt_run_end_json(&w);
}

/* --- the three sentences --- */

static void print_tokens(const kt_run_report *r) {
    const int threads = kt_table_most_threads(r->table);
    kt_token_times times;

    if (kt_token_times_of(r->table, threads, &times, NULL) != KT_OK) times.n = 0;
    for (int i = 0; i < times.n; i++) {
        const kt_token_time *t = &times.of[i];
        printf("%s%s on %d thread%s: %s%.1f tokens/s with the defaults, %s%.1f tuned",
               i ? "; " : "", kt_serving_format_name(t->format), threads, threads == 1 ? "" : "s",
               t->is_rough ? "≈ " : "", 1 / t->before, t->is_rough ? "≈ " : "", 1 / t->after);
    }
    printf(
        times.n
            ? " (the matrices of one token of one user, at most).\n"
            : "Tokens per second are not known: not every matrix has a row for one token yet.\n");
}

/* The role whose tuned cells stand for the most serving time. */
static void print_winners(const kt_run_report *r, const kt_session_progress *p) {
    const kt_tune_cell *best = NULL;
    const kt_table_row *row = NULL;
    double most = 0;

    for (size_t i = 0; i < p->n_cells; i++) {
        const kt_tune_cell *cell = kt_session_cell(r->session, i);
        const kt_table_row *x = kt_table_find(r->table, &cell->problem, cell->threads);
        double worth = x ? cell->weight * (x->default_ns / x->time_ns - 1) : 0;
        if (!x || strcmp(kt_row_status(x), "tuned") != 0 || worth <= most) continue;
        most = worth;
        best = cell;
        row = x;
    }
    if (!best) {
        printf("In none of %zu decided cells another kernel beats the default.\n", p->n_decided);
        return;
    }
    printf("In %zu of %zu cells another kernel won (%s%+.1f %% geomean); most is gained by %s with "
           "%lld row%s: %s, %+.1f %%.\n",
           p->n_tuned, p->n_cells, gain_of(p) < 2 * r->aa_noise ? "≈ " : "", 100 * gain_of(p),
           best->role, (long long)best->problem.m, best->problem.m == 1 ? "" : "s", row->variant,
           100 * (row->default_ns / row->time_ns - 1));
}

static void print_certainty(const kt_run_report *r, const kt_session_progress *p,
                            const kt_outcome *o) {
    printf("%zu of %zu cells decided (%.0f %% of the serving time), %.0f %% of %lld rounds "
           "disturbed, A/A noise %.1f %%%s.\n",
           p->n_decided, p->n_cells, 100 * p->weight_done, 100 * kt_outcome_voided(o),
           (long long)o->rounds, 100 * r->aa_noise,
           p->n_tuned ? "; each winner won two holdouts on fresh samples" : "");
}

static void print_oracle(const kt_run_report *r, const kt_session_progress *p) {
    oracle_sums o = sum_oracle(r, p->n_cells);
    printf("oracle of %zu cells: regret %.2f %% geomean, %.2f %% p95, %.2f %% max; %.0f %% of the "
           "cells "
           "within 2 %%; in %zu another choice is faster beyond doubt\n",
           o.regret.n, 100 * o.regret.geomean, 100 * o.regret.p95, 100 * o.regret.max,
           100 * o.regret.within_2, o.n_missed);
}

static void print_profile(const kt_run_report *r, const kt_session_progress *p) {
    double kernels = p->kernel_seconds + r->plan_spent.kernel_seconds;
    double setup = p->setup_seconds + r->plan_spent.setup_seconds;
    double rest = r->seconds - kernels - p->gate_seconds - setup;
    printf(
        "time: %.1f %% in kernels, %.1f %% in gates, %.1f %% packing cold weights, %.1f %% in the "
        "tuner itself\n",
        100 * kernels / r->seconds, 100 * p->gate_seconds / r->seconds, 100 * setup / r->seconds,
        100 * rest / r->seconds);
}

static void print_details(const kt_run_report *r, const kt_session_progress *p) {
    printf("%zu cells from the journal, %zu tuned, %zu kept the default\n", p->n_reused, p->n_tuned,
           p->n_decided - p->n_tuned);
    if (p->n_again) printf("%zu races of cells that were undecided\n", p->n_again);
    if (p->n_repeated)
        printf("%zu cells measured again: they had taken longer than with more rows or fewer "
               "threads\n",
               p->n_repeated);
    printf("%d contenders gated, %d rejected; %lld rounds, %lld voided; %.1f s\n", p->n_gated,
           p->n_rejected, (long long)p->rounds, (long long)p->voided, r->seconds);
    for (size_t i = 0; i < r->table->n_plans; i++)
        kt_print_table_plan(&r->table->plans[i], r->aa_noise);
}

void kt_run_print_end(const kt_run_report *r) {
    char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES], command[2 * KT_RUN_PATH_BYTES];
    char word[KT_SHELL_WORD_BYTES];
    const kt_outcome o = kt_run_outcome(r);
    kt_session_progress p;
    int n = kt_outcome_words(&o, words);

    kt_session_progress_get(r->session, &p);
    if (r->options->json) {
        print_json(r, &p);
        return;
    }
    kt_run_print_trace(r->trace);
    print_tokens(r);
    print_winners(r, &p);
    print_certainty(r, &p, &o);
    for (int i = 0; i < n; i++) printf("%s\n", words[i]);
    if (p.n_skipped) printf("%zu cells skipped: %s\n", p.n_skipped, p.skipped_why);
    if (r->n_plans_open)
        printf("%d decisions about whole layers are open; the same command goes on with them.\n",
               r->n_plans_open);
    if (r->options->verbose) print_details(r, &p);
    printf("wrote %s", r->table_path);
    if (r->n_kept_rows) printf(" (%zu rows of other cells kept)", r->n_kept_rows);
    printf("\nto see it: kttune show %s\n", kt_shell_word(r->table_path, word, sizeof word));
    if (r->options->deterministic) kt_print_classes(r->bench, r->table, NULL);
    if (r->options->oracle) print_oracle(r, &p);
    if (r->options->profile_self) print_profile(r, &p);
    if (r->ended_early)
        printf("to go on: %s\n", kt_run_command(r->options, NULL, command, sizeof command));
}
