/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "tuner/session/session_parts.h"
#include "tuner/session/slice.h"

/* A class of bits is measured although it cannot win, up to this bound over the best one's: a
 * deterministic plan may keep it for other m. Tiles have 11 times the peak of FMA. */
static const double class_ratio = 16;
enum { USUAL_ROUNDS = 17 + KT_HOLDOUT_ROUNDS };
/* A machine that disturbs the same cell so often in one run will not do better in this one. */
enum { MOST_RACES = 4 };

static bool is_wide(const kt_session *s, const kt_table_row *row) {
    return kt_row_half_interval(row) > (s->setup.widest > 0 ? s->setup.widest : KT_ROW_WIDE);
}

/* What the journal says of the cell is no decision: the machine was busy then. */
static bool was_undecided(const kt_session *s, const kt_tune_cell *cell) {
    kt_table_row row;
    return s->setup.ledger && kt_ledger_newest(s->setup.ledger, cell, &row) && is_wide(s, &row);
}

/* --- parts that are kept from cell to cell --- */

static kt_status get_default(kt_session *s, const kt_tune_cell *cell, kt_choice *out, kt_err *err) {
    kt_shape_default *d = s->shapes;
    kt_plan_source source;
    kt_status st;

    if (!kt_problem_is_packed(&cell->problem))
        return kt_plan_resolve_simple(s->planner, &cell->problem, cell->threads, out, err);
    for (int i = 0; i < s->n_shapes; i++, d++)
        if (d->threads == cell->threads && kt_same_weights(&d->problem, &cell->problem)) {
            *out = *kt_choice_for(d->map, cell->problem.m);
            return KT_OK;
        }
    if (s->n_shapes == KT_SESSION_SHAPES)
        return kt_fail(err, KT_E_INVALID, "run: more than %d weight shapes", KT_SESSION_SHAPES);
    *d = (kt_shape_default){.problem = cell->problem, .threads = cell->threads};
    d->map = calloc(1, sizeof *d->map);
    if (!d->map) return kt_fail(err, KT_E_NOMEM, "run: no memory");
    st = kt_plan_resolve(s->planner, &cell->problem, cell->threads, KT_M_DENSE, KT_DECODE_SHARE,
                         d->map, &source, err);
    if (st != KT_OK) {
        free(d->map);
        return st;
    }
    s->n_shapes++;
    *out = *kt_choice_for(d->map, cell->problem.m);
    return KT_OK;
}

/* --- order --- */

/* Predicted time of one sample, from the roofline of the default. Real kernels are slower than the
 * roofline, contenders slower than the default. */
static double predict_sample_ns(const kt_session *s, const kt_tune_cell *cell,
                                const kt_choice *standard) {
    double bound =
        kt_cost_ns(&cell->problem, standard->variant, &s->setup.machine->ceilings, cell->threads);
    double sample = 2 * bound;
    if (cell->problem.op == KT_OP_MOE_FFN)
        sample *= cell->problem.m >= 64 && cell->problem.topk > 2 ? 2 : (double)cell->problem.topk;
    return sample < 2e5 ? 2e5 : sample;
}

/* Long samples average over what disturbs short ones: from 10 ms on a half, from 20 ms on a
 * third of the rounds decide as well. */
static int shorten_for(double sample_ns) {
    return sample_ns < 1e7 ? 1 : sample_ns < 2e7 ? 2 : 3;
}

/* Predicted seconds of a cell: its rounds over the few contenders that stay. */
static double predict_seconds(const kt_session *s, const kt_tune_cell *cell,
                              const kt_choice *standard) {
    double sample = predict_sample_ns(s, cell, standard);
    return sample * 1e-9 * 4 * USUAL_ROUNDS / shorten_for(sample);
}

/* Weight per second; before all others those that the journal holds undecided. No cell takes a
 * microsecond. */
static double worth(const kt_session *s, size_t i) {
    return s->setup.cells->cells[i].weight / s->seconds[i] + (s->is_first[i] ? 1e6 : 0);
}

static kt_status make_order(kt_session *s, kt_err *err) {
    const kt_cell_list *cells = s->setup.cells;

    for (size_t i = 0; i < cells->n; i++) {
        kt_choice standard;
        size_t at = i;
        KT_TRY(get_default(s, &cells->cells[i], &standard, err));
        s->seconds[i] = predict_seconds(s, &cells->cells[i], &standard);
        s->progress.seconds_total += s->seconds[i];
        s->is_first[i] = was_undecided(s, &cells->cells[i]);
        for (; at > 0 && worth(s, s->order[at - 1]) < worth(s, i); at--)
            s->order[at] = s->order[at - 1];
        s->order[at] = i;
    }
    s->progress.seconds_left = s->progress.seconds_total;
    return KT_OK;
}

/* --- life --- */

static kt_status allocate(kt_session *s, kt_err *err) {
    size_t n = s->setup.cells->n + 1;
    s->state = calloc(n, sizeof *s->state);
    s->is_measured = calloc(n, sizeof *s->is_measured);
    s->n_races = calloc(n, sizeof *s->n_races);
    s->is_first = calloc(n, sizeof *s->is_first);
    s->rows = calloc(n, sizeof *s->rows);
    s->oracle = calloc(n, sizeof *s->oracle);
    s->order = calloc(n, sizeof *s->order);
    s->seconds = calloc(n, sizeof *s->seconds);
    if (!s->state || !s->is_measured || !s->n_races || !s->is_first || !s->rows || !s->oracle ||
        !s->order || !s->seconds)
        return kt_fail(err, KT_E_NOMEM, "run: no memory for %zu cells", n);
    return KT_OK;
}

kt_status kt_session_create(const kt_session_setup *setup, kt_session **out, kt_err *err) {
    kt_session *s = calloc(1, sizeof *s);
    kt_status st;

    *out = NULL;
    if (!s) return kt_fail(err, KT_E_NOMEM, "run: no memory");
    s->setup = *setup;
    s->start_ns = kt_clock_ns();
    s->banks.rotation_bytes = setup->rotation_bytes;
    s->banks.deadline_ns = setup->deadline_ns;
    s->progress.n_cells = setup->cells->n;
    st = allocate(s, err);
    if (st == KT_OK)
        st = kt_planner_create(setup->registry, NULL, setup->machine, NULL, &s->planner, err);
    if (st == KT_OK) st = make_order(s, err);
    if (st != KT_OK) {
        kt_session_destroy(s);
        return st;
    }
    *out = s;
    return KT_OK;
}

void kt_session_destroy(kt_session *s) {
    if (!s) return;
    kt_planner_destroy(s->planner);
    kt_banks_deinit(&s->banks);
    for (int i = 0; i < KT_SESSION_POOLS; i++) kt_pool_destroy(s->pools[i]);
    for (int i = 0; i < s->n_shapes; i++) free(s->shapes[i].map);
    kt_verdicts_deinit(&s->verdicts);
    free(s->state);
    free(s->is_measured);
    free(s->n_races);
    free(s->is_first);
    free(s->rows);
    free(s->oracle);
    free(s->hopeless);
    free(s->order);
    free(s->seconds);
    free(s);
}

/* --- one cell --- */

/* The winner of the nearest decided bucket of the same weights, or NULL. */
static const kt_table_row *neighbour(const kt_session *s, const kt_tune_cell *cell) {
    const kt_cell_list *cells = s->setup.cells;
    const kt_table_row *best = NULL;
    double distance = INFINITY;
    for (size_t i = 0; i < cells->n; i++) {
        const kt_tune_cell *other = &cells->cells[i];
        double d = fabs(log((double)other->problem.m / (double)cell->problem.m)) +
                   (other->threads != cell->threads);
        if (s->state[i] != KT_CELL_DECIDED || d >= distance ||
            !kt_same_weights(&other->problem, &cell->problem))
            continue;
        best = &s->rows[i];
        distance = d;
    }
    return best;
}

static bool neighbour_choice(const kt_session *s, const kt_tune_cell *cell, kt_choice *out) {
    const kt_table_row *row = neighbour(s, cell);
    memset(out, 0, sizeof *out);
    if (!row) return false;
    out->variant = kt_registry_find(s->setup.registry, row->variant);
    return out->variant && kt_config_parse(out->variant, row->config, &out->config, NULL) == KT_OK;
}

static void name_choice(const kt_choice *c, char *variant, size_t variant_bytes, char *config,
                        size_t config_bytes) {
    snprintf(variant, variant_bytes, "%s", c->variant->name);
    kt_config_format(c->variant, &c->config, config, config_bytes);
}

static void fill_row(const kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                     const kt_verdict *v, kt_table_row *row) {
    const kt_choice *winner = &c->list[v->winner].choice;
    const kt_gate_result *g = kt_verdicts_find(&s->verdicts, &cell->problem, winner);

    memset(row, 0, sizeof *row);
    row->problem = cell->problem;
    row->threads = cell->threads;
    name_choice(winner, row->variant, sizeof row->variant, row->config, sizeof row->config);
    row->version = winner->variant->version;
    row->time_ns = v->winner_ns;
    row->ci_low = v->spread.low;
    row->ci_high = v->spread.high;
    row->rounds = v->rounds;
    name_choice(&c->list[c->default_index].choice, row->default_variant,
                sizeof row->default_variant, row->default_config, sizeof row->default_config);
    row->default_ns = v->default_ns;
    snprintf(row->status, sizeof row->status, "%s", v->is_tuned ? "tuned" : "default");
    for (int i = 0; i < v->n_runners && i < KT_TABLE_RUNNERS; i++) {
        name_choice(&c->list[v->runner[i]].choice, row->runner[i].variant,
                    sizeof row->runner[i].variant, row->runner[i].config,
                    sizeof row->runner[i].config);
        row->runner[i].time_ns = v->runner_ns[i];
        row->n_runners++;
    }
    row->error = g ? g->rel_rms : 0;
}

/* Count cell i in (sign 1) or out again (-1), by its state and row. */
static void count(kt_session *s, size_t i, int sign) {
    kt_session_progress *p = &s->progress;

    p->seconds_left -= sign * s->seconds[i];
    if (s->state[i] == KT_CELL_UNDECIDED) {
        p->n_undecided += (size_t)sign;
        return;
    }
    p->n_decided += (size_t)sign;
    p->weight_done += sign * s->setup.cells->cells[i].weight;
    if (strcmp(s->rows[i].status, "tuned") != 0) return;
    p->n_tuned += (size_t)sign;
    p->log_gain_sum += sign * log(s->rows[i].default_ns / s->rows[i].time_ns);
}

static void settle(kt_session *s, size_t i) {
    s->state[i] = is_wide(s, &s->rows[i]) ? KT_CELL_UNDECIDED : KT_CELL_DECIDED;
    count(s, i, 1);
}

/* A cell that cannot be decided here does not end the run. */
static kt_status skip(kt_session *s, size_t i, const char *why, kt_err *err) {
    if (s->progress.n_skipped++ == 0)
        snprintf(s->progress.skipped_why, sizeof s->progress.skipped_why, "%s", why);
    s->state[i] = KT_CELL_SKIPPED;
    s->progress.seconds_left -= s->seconds[i];
    return s->setup.ledger ? kt_ledger_skip(s->setup.ledger, &s->setup.cells->cells[i], why, err)
                           : KT_OK;
}

static bool stop_asked(void *arg) {
    const kt_session *s = arg;
    return s->setup.stop && s->setup.stop(s->setup.stop_arg);
}

/* Who takes part, and on what grounds. */
typedef struct line_up {
    kt_contenders all; /* everything considered; owned */
    kt_contenders in;  /* who is gated and raced; owned */
    uint32_t id;       /* of the contest */
    kt_choice near;    /* the neighbour's winner */
    bool has_near;
    bool has_row;    /* an earlier decision stands, unless somebody new is faster */
    bool is_resumed; /* the contest was begun before and goes on with those who took part */
    int n_new;
    kt_table_row row; /* that decision */
} line_up;

static kt_status copy_some(const kt_contenders *all, const bool *is_wanted, kt_contenders *out,
                           kt_err *err) {
    kt_choice standard = all->list[all->default_index].choice;

    memset(out, 0, sizeof *out);
    out->list = calloc((size_t)all->n, sizeof *out->list);
    if (!out->list) return kt_fail(err, KT_E_NOMEM, "contenders: no memory for %d", all->n);
    out->capacity = all->n;
    for (int i = 0; i < all->n; i++)
        if (!is_wanted || is_wanted[i]) out->list[out->n++] = all->list[i];
    out->default_index = kt_contenders_find(out, &standard);
    return KT_OK;
}

static int find_winner(const kt_session *s, const kt_table_row *row, const kt_contenders *c) {
    kt_choice choice = {.variant = kt_registry_find(s->setup.registry, row->variant)};
    if (!choice.variant || choice.variant->version != row->version ||
        kt_config_parse(choice.variant, row->config, &choice.config, NULL) != KT_OK)
        return -1;
    return kt_contenders_find(c, &choice);
}

/* What the journal knows: of contenders that lost on this machine and build only the winner and
 * the default run again, beside those that are new. */
static kt_status recall(const kt_session *s, const kt_tune_cell *cell, line_up *l, kt_err *err) {
    bool *is_known = calloc((size_t)l->all.n + 1, sizeof *is_known);
    const kt_ledger *ledger = s->setup.ledger;
    int winner = -1;
    kt_status st = KT_OK;

    if (!is_known) return kt_fail(err, KT_E_NOMEM, "run: no memory");
    /* Its rungs would only say the same again. */
    if (was_undecided(s, cell)) st = kt_ledger_forget(s->setup.ledger, cell, err);
    if (st != KT_OK) {
        free(is_known);
        return st;
    }
    if (ledger && kt_ledger_decided(ledger, cell, l->id, &l->row)) {
        for (int i = 0; i < l->all.n; i++) is_known[i] = true;
        winner = find_winner(s, &l->row, &l->all);
    } else if (ledger &&
               kt_ledger_base(ledger, cell, &l->all, s->setup.strategy->name, &l->row, is_known)) {
        winner = find_winner(s, &l->row, &l->all);
    }
    l->has_row = winner >= 0;
    for (int i = 0; i < l->all.n; i++) {
        bool stays = i == winner || i == l->all.default_index;
        bool is_new = !(l->has_row && is_known[i]) && !stays &&
                      !kt_session_is_hopeless(s, cell, &l->all.list[i].choice);
        l->n_new += is_new;
        is_known[i] = stays || is_new;
    }
    if (ledger && !(l->has_row && l->n_new == 0))
        l->is_resumed = kt_ledger_begun(ledger, cell, &l->all, l->id, is_known);
    if (winner >= 0) is_known[winner] = true;
    is_known[l->all.default_index] = true;
    st = copy_some(&l->all, is_known, &l->in, err);
    free(is_known);
    return st;
}

static kt_status line_up_make(kt_session *s, const kt_tune_cell *cell, const kt_choice *standard,
                              line_up *l, kt_err *err) {
    const kt_prune rule = {s->setup.strategy->prune_ratio,
                           s->setup.keeps_classes ? class_ratio : 0};
    kt_status st;

    memset(l, 0, sizeof *l);
    l->has_near = neighbour_choice(s, cell, &l->near);
    KT_TRY(kt_contenders_make(s->setup.registry, cell, &s->setup.machine->ceilings, standard,
                              l->has_near ? &l->near : NULL, rule, &l->all, err));
    l->id = kt_contest_id(&l->all, s->setup.strategy->name);
    KT_TRY(recall(s, cell, l, err));
    if (!l->has_row && !l->is_resumed) {
        const kt_choice *near = l->has_near ? &l->near : NULL;
        KT_TRY(kt_session_gate(s, cell, near, kt_session_gate_end(s), &l->in, err));
        KT_TRY(kt_session_afford(s, cell, near, &l->all, &l->in, err));
        l->id = kt_contest_id(&l->all, s->setup.strategy->name);
        return KT_OK;
    }
    st = kt_session_gate(s, cell, NULL, 0, &l->in, err);
    if (st != KT_OK || !l->has_row || find_winner(s, &l->row, &l->in) >= 0) return st;
    kt_contenders_deinit(&l->in); /* what won then is wrong now: everybody races */
    l->has_row = l->is_resumed = false;
    KT_TRY(copy_some(&l->all, NULL, &l->in, err));
    return kt_session_gate(s, cell, NULL, 0, &l->in, err);
}

static void line_up_deinit(line_up *l) {
    kt_contenders_deinit(&l->all);
    kt_contenders_deinit(&l->in);
}

static kt_status keep_verdict(kt_session *s, size_t i, const line_up *l, const kt_verdict *v,
                              const double *ratio, const kt_decision_terms *spent, kt_err *err) {
    const kt_tune_cell *cell = &s->setup.cells->cells[i];

    if (v->is_kept)
        s->rows[i] = l->row;
    else
        fill_row(s, cell, &l->in, v, &s->rows[i]);
    if (s->rows[i].n_others == 0) /* a kept row may have been decided before there were any */
        kt_session_note_classes(&l->in, ratio, v->winner, &s->rows[i]);
    if (!s->setup.ledger) return KT_OK;
    return v->is_kept ? kt_ledger_keep(s->setup.ledger, &s->rows[i], spent, err)
                      : kt_ledger_decide(s->setup.ledger, &s->rows[i], spent, err);
}

/* Race, hold out, journal. */
static kt_status decide(kt_session *s, size_t i, const line_up *l, const kt_cell_trial *trial,
                        kt_err *err) {
    const kt_tune_cell *cell = &s->setup.cells->cells[i];
    const kt_contenders *c = &l->in;
    kt_rung_store store = {0};
    kt_contest contest = {
        .watch = &trial->watch,
        .store = &store,
        .n = c->n,
        .default_index = c->default_index,
        .warm_index = l->has_near ? kt_contenders_find(c, &l->near) : -1,
        .has_proven = l->has_row,
        .proven_index = l->has_row ? find_winner(s, &l->row, c) : -1,
        .deadline_ns = s->setup.deadline_ns,
        .shorten = shorten_for(predict_sample_ns(s, cell, &c->list[c->default_index].choice)),
        .seed = kt_cell_seed(s->setup.seed, cell)};
    kt_contest_terms terms = {.id = l->id,
                              .strategy = s->setup.strategy->name,
                              .warm_index = contest.warm_index,
                              .shorten = contest.shorten,
                              .known = c->n < l->all.n ? &l->all : NULL,
                              .units = kt_trial_units(trial->trial)};
    kt_decision_terms spent = {.gate_seconds = (double)(kt_clock_ns() - s->cell_start_ns) * 1e-9};
    double *ratio = contest.ratio = calloc((size_t)c->n, sizeof *ratio);
    kt_verdict verdict;
    kt_status st = ratio ? KT_OK : kt_fail(err, KT_E_NOMEM, "run: no memory");
    int64_t start_ns = kt_clock_ns();

    if (st == KT_OK && s->setup.ledger)
        st = kt_ledger_contest(s->setup.ledger, cell, c, &terms, &store, err);
    s->contest = &contest;
    if (st == KT_OK) st = kt_contest_decide(&contest, s->setup.strategy, &verdict, err);
    if (st == KT_OK) st = kt_session_note_hopeless(s, cell, c, ratio, err);
    s->oracle[i].auto_seconds = (double)(kt_clock_ns() - start_ns) * 1e-9;
    s->contest = NULL;
    s->progress.rounds += contest.rounds;
    s->progress.voided += contest.voided;
    spent.rounds = contest.rounds;
    spent.voided = contest.voided;
    if (st == KT_OK) st = keep_verdict(s, i, l, &verdict, ratio, &spent, err);
    free(ratio);
    if (st != KT_OK) return st;
    s->is_measured[i] = 1;
    s->progress.seconds_raced += s->seconds[i];
    s->progress.wall_raced += (double)(kt_clock_ns() - s->cell_start_ns) * 1e-9;
    s->n_races[i]++;
    settle(s, i);
    return KT_OK;
}

static kt_status set_up_and_decide(kt_session *s, size_t i, const line_up *l, kt_err *err) {
    kt_cell_trial trial;
    kt_status st;

    KT_TRY(kt_cell_trial_make(s, &s->setup.cells->cells[i], &l->in, &trial, err));
    st = decide(s, i, l, &trial, err);
    kt_cell_trial_deinit(&trial);
    return st;
}

static kt_status decide_cell(kt_session *s, size_t i, kt_err *err) {
    const kt_tune_cell *cell = &s->setup.cells->cells[i];
    kt_choice standard;
    kt_err why = {0};
    line_up l;
    kt_status st;

    s->progress.cell = cell;
    s->cell_start_ns = kt_clock_ns();
    KT_TRY(get_default(s, cell, &standard, err));
    st = line_up_make(s, cell, &standard, &l, &why);
    if (st == KT_OK && l.in.n == 0) {
        st = skip(s, i, "no variant passed the gate (`kttune show --rejected` says why)", &why);
    } else if (st == KT_OK && l.has_row && l.n_new == 0) {
        s->rows[i] = l.row;
        kt_session_name_class(s->setup.registry, &s->rows[i]);
        s->progress.n_reused++;
        settle(s, i);
    } else if (st == KT_OK) {
        /* Strategies that prune may also leave out those that lose on a slice. */
        if (!l.has_row && !l.is_resumed && s->setup.strategy->prune_ratio > 0 &&
            !s->setup.keeps_classes)
            st = kt_slice_narrow(s, cell, l.has_near ? &l.near : NULL, &l.in, &why);
        s->progress.n_contenders = l.in.n;
        if (st == KT_OK) st = set_up_and_decide(s, i, &l, &why);
        if (st == KT_E_NOMEM) st = skip(s, i, why.message, &why);
    }
    line_up_deinit(&l);
    if (st == KT_OK && s->setup.oracle && s->state[i] == KT_CELL_DECIDED)
        st = kt_session_ask_oracle(s, i, &standard, &why);
    if (st != KT_OK && err) *err = why;
    return st;
}

/* --- second thoughts --- */

/* More rows, or fewer threads, in so much less time? The machine was in a spell then, such as
 * two threads running slower than one for some seconds: nothing within a contest shows it, and
 * its winner is that of the spell. Shorter calls are mostly waking threads, where this may well
 * be so. */
static const double out_of_line = 1.25, least_ns = 5e4;

static bool bounds(const kt_tune_cell *more, const kt_tune_cell *cell) {
    const kt_problem *a = &more->problem, *b = &cell->problem;
    return kt_same_weights(a, b) && (a->m < KT_TRIAL_FEW_ROWS) == (b->m < KT_TRIAL_FEW_ROWS) &&
           ((more->threads == cell->threads && a->m > b->m) ||
            (more->threads < cell->threads && a->m >= b->m));
}

static bool is_out_of_line(const kt_session *s, size_t i) {
    const kt_cell_list *cells = s->setup.cells;
    double ns = s->rows[i].time_ns;

    if (s->state[i] != KT_CELL_DECIDED || !s->is_measured[i] || ns < least_ns) return false;
    for (size_t k = 0; k < cells->n; k++)
        if (s->state[k] == KT_CELL_DECIDED && bounds(&cells->cells[k], &cells->cells[i]) &&
            ns > out_of_line * s->rows[k].time_ns)
            return true;
    return false;
}

/* Measure it once more; what the journal says of it is superseded. A stop leaves it as it was. */
static kt_status decide_again(kt_session *s, size_t i, kt_err *err) {
    const uint8_t state = s->state[i];
    const size_t n_skipped = s->progress.n_skipped;
    kt_table_row row = s->rows[i];
    kt_status st = KT_OK;

    count(s, i, -1);
    s->state[i] = KT_CELL_OPEN;
    if (s->setup.ledger) st = kt_ledger_forget(s->setup.ledger, &s->setup.cells->cells[i], err);
    if (st == KT_OK) st = decide_cell(s, i, err);
    s->is_measured[i] = 0;
    if (s->state[i] == KT_CELL_DECIDED || s->state[i] == KT_CELL_UNDECIDED) {
        s->progress.n_repeated += state == KT_CELL_DECIDED;
        s->progress.n_again += state == KT_CELL_UNDECIDED;
        if (s->state[i] == KT_CELL_UNDECIDED && state == KT_CELL_UNDECIDED &&
            kt_row_half_interval(&row) < kt_row_half_interval(&s->rows[i]))
            s->rows[i] = row; /* of two that say little, the one that says more */
        return st;
    }
    if (s->state[i] == KT_CELL_SKIPPED) s->progress.seconds_left += s->seconds[i];
    s->progress.n_skipped = n_skipped;
    s->rows[i] = row;
    s->state[i] = state;
    count(s, i, 1);
    return st;
}

/* The cell that is worth another race when all had theirs: first of all those whose interval is
 * wide. */
static bool next_repeat(const kt_session *s, size_t *i) {
    const size_t n = s->setup.cells->n;

    for (size_t at = 0; at < n; at++) {
        *i = s->order[at];
        if (s->state[*i] == KT_CELL_UNDECIDED && s->n_races[*i] < MOST_RACES) return true;
    }
    for (size_t at = 0; at < n; at++) {
        *i = s->order[at];
        if (is_out_of_line(s, *i)) return true;
    }
    return false;
}

kt_status kt_session_step(kt_session *s, kt_err *err) {
    size_t i;
    if (kt_clock_ns() > s->setup.deadline_ns || stop_asked(s))
        return s->next == s->setup.cells->n
                   ? kt_fail(err, KT_E_NOT_FOUND, "run: every cell is decided")
                   : kt_fail(err, KT_E_CANCELLED, "run: stopped");
    if (s->next == s->setup.cells->n && next_repeat(s, &i)) return decide_again(s, i, err);
    if (s->next == s->setup.cells->n)
        return kt_fail(err, KT_E_NOT_FOUND, "run: every cell is decided");
    i = s->order[s->next];
    KT_TRY(decide_cell(s, i, err));
    s->next++;
    return KT_OK;
}

/* --- reports --- */

/* Of the time that a cell is predicted to take at the pace so far, at most this share counts
 * before it is over. */
static const double most_in_hand = 0.95;

static double pace_of(const kt_session_progress *p) {
    return p->seconds_raced > 0 ? p->wall_raced / p->seconds_raced : 1;
}

void kt_session_progress_get(const kt_session *s, kt_session_progress *out) {
    const double so_far = (double)(kt_clock_ns() - s->cell_start_ns) * 1e-9;

    *out = s->progress;
    out->n_rungs = s->contest ? s->contest->rungs_run : 0;
    if (s->next < s->setup.cells->n && s->progress.cell) {
        const size_t i = s->order[s->next];
        double part = so_far / (s->seconds[i] * pace_of(out));
        if (s->progress.cell == &s->setup.cells->cells[i])
            out->weight_in_hand =
                s->progress.cell->weight * (part < most_in_hand ? part : most_in_hand);
    }
}

size_t kt_session_beyond(const kt_session *s, double seconds) {
    size_t n = 0;
    for (size_t at = s->next; at < s->setup.cells->n; at++) {
        seconds -= s->seconds[s->order[at]];
        n += seconds < 0;
    }
    return n;
}

kt_status kt_session_rows(const kt_session *s, kt_table *table, kt_err *err) {
    for (size_t i = 0; i < s->setup.cells->n; i++)
        if (s->state[i] == KT_CELL_DECIDED || s->state[i] == KT_CELL_UNDECIDED)
            KT_TRY(kt_table_put(table, &s->rows[i], err));
    return KT_OK;
}

const kt_tune_cell *kt_session_cell(const kt_session *s, size_t i) {
    return &s->setup.cells->cells[i];
}

const kt_oracle_result *kt_session_oracle(const kt_session *s, size_t i) {
    return s->oracle[i].n_contenders > 0 ? &s->oracle[i] : NULL;
}

size_t kt_session_pool_bytes(const kt_session *s) {
    size_t bytes = 0;
    for (int i = 0; i < KT_MAX_BANKS; i++) bytes += s->banks.entry[i].bank.buffer.mapped_bytes;
    return bytes;
}

const kt_tune_cell *kt_session_planned(const kt_session *s, size_t at, double *seconds) {
    *seconds = s->seconds[s->order[at]];
    return &s->setup.cells->cells[s->order[at]];
}
