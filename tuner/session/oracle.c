/* The oracle: what would a search that leaves nothing out have chosen?
 *
 * After a cell is decided every contender that passes the gate is measured, those too that the
 * roofline pruned, until the best one is known. It is a lucky draw as well, so both meet in
 * fresh rounds: the regret of the decision is what these say, and nothing where both are the
 * same.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/session/session_parts.h"

/* Neither noise nor drift: three times as slow in the first rounds, by a quarter after some
 * more. */
static const double hopeless = 3, out_of_reach = 1.25;
static const double drop_confidence = 0.998;
static const char strategy_name[] = "oracle";

enum { N_RUNGS = 5, MOST_DUEL = 200, LEAST_DUEL = 30 };
static const int rung_rounds[N_RUNGS] = {2, 14, 16, 32, 64};
/* A duel of slow samples is cut at about this. */
static const double duel_ns = 2e9;

static int drop_far(const kt_samples *s, int *live, int n_live, double ratio) {
    double best = kt_samples_p25(s, live[0]);
    int n = 1;
    for (int i = 1; i < n_live; i++)
        if (kt_samples_p25(s, live[i]) <= ratio * best) live[n++] = live[i];
    return n;
}

static int drop_slower(const kt_samples *s, int *live, int n_live, kt_rng *rng) {
    int n = 1;
    for (int i = 1; i < n_live; i++)
        if (kt_samples_compare(s, live[i], live[0], drop_confidence, rng).low <= 0)
            live[n++] = live[i];
    return n;
}

/* Rungs until one is left or the last is run. The best one ends up in live[0]. */
static kt_status search(kt_contest *c, kt_samples *s, int *live, int n_live, kt_err *err) {
    kt_rng rng;

    kt_rng_seed(&rng, c->seed ^ 0x04ac1eu);
    for (int r = 0; r < N_RUNGS && n_live > 1; r++) {
        KT_TRY(kt_contest_rung(c, s, live, n_live, rung_rounds[r], err));
        kt_rank(s, live, n_live);
        if (r < 2)
            n_live = drop_far(s, live, n_live, r == 0 ? hopeless : out_of_reach);
        else
            n_live = drop_slower(s, live, n_live, &rng);
    }
    return KT_OK;
}

static kt_status duel(kt_contest *c, kt_samples *fresh, int choice, int best, double sample_ns,
                      kt_oracle_result *out, kt_err *err) {
    int pair[2] = {choice, best}, rounds = (int)(duel_ns / (2 * sample_ns));
    kt_rng rng;

    if (choice == best) return KT_OK;
    kt_rng_seed(&rng, c->seed ^ 0xd0e1u);
    rounds = rounds > MOST_DUEL ? MOST_DUEL : rounds < LEAST_DUEL ? LEAST_DUEL : rounds;
    KT_TRY(kt_contest_rung(c, fresh, pair, 2, rounds, err));
    out->regret = kt_samples_compare(fresh, choice, best, 0.95, &rng);
    out->rounds = fresh->n_rounds;
    return KT_OK;
}

/* Search and duel with these contenders, `choice` among them. */
static kt_status consult(kt_session *s, size_t i, const kt_contenders *all, int choice,
                         kt_oracle_result *out, kt_err *err) {
    const kt_tune_cell *cell = &s->setup.cells->cells[i];
    kt_contest_terms terms = {.id = kt_contest_id(all, strategy_name),
                              .strategy = strategy_name,
                              .warm_index = -1,
                              .shorten = 1};
    kt_rung_store store = {0};
    kt_contest c = {.store = &store,
                    .n = all->n,
                    .default_index = all->default_index,
                    .warm_index = -1,
                    .deadline_ns = s->setup.deadline_ns,
                    .shorten = 1,
                    .seed = kt_cell_seed(s->setup.seed, cell)};
    kt_samples samples = {0}, fresh = {0};
    int live[KT_ORACLE_CONTENDERS];
    kt_cell_trial trial;
    kt_status st;

    KT_TRY(kt_cell_trial_make(s, cell, all, &trial, err));
    c.watch = &trial.watch;
    terms.units = kt_trial_units(trial.trial);
    st = kt_samples_create(all->n, &samples, err);
    if (st == KT_OK) st = kt_samples_create(all->n, &fresh, err);
    if (st == KT_OK && s->setup.ledger)
        st = kt_ledger_contest(s->setup.ledger, cell, all, &terms, &store, err);
    for (int k = 0; k < all->n; k++) live[k] = k;
    s->contest = &c;
    if (st == KT_OK) st = search(&c, &samples, live, all->n, err);
    if (st == KT_OK)
        st = duel(&c, &fresh, choice, live[0], terms.units * kt_samples_p25(&samples, live[0]), out,
                  err);
    s->contest = NULL;
    s->progress.rounds += c.rounds;
    s->progress.voided += c.voided;
    if (st == KT_OK) snprintf(out->best, sizeof out->best, "%s", all->list[live[0]].name);
    out->n_contenders = all->n;
    kt_samples_destroy(&samples);
    kt_samples_destroy(&fresh);
    kt_cell_trial_deinit(&trial);
    return st;
}

/* The row's choice among the contenders, or -1. */
static int find_choice(const kt_session *s, const kt_table_row *row, const kt_contenders *all) {
    kt_choice choice = {.variant = kt_registry_find(s->setup.registry, row->variant)};
    if (!choice.variant ||
        kt_config_parse(choice.variant, row->config, &choice.config, NULL) != KT_OK)
        return -1;
    return kt_contenders_find(all, &choice);
}

kt_status kt_session_ask_oracle(kt_session *s, size_t i, const kt_choice *standard, kt_err *err) {
    const kt_tune_cell *cell = &s->setup.cells->cells[i];
    kt_oracle_result *out = &s->oracle[i], found = {0};
    kt_contenders all;
    kt_status st;
    int choice;

    KT_TRY(kt_contenders_make(s->setup.registry, cell, &s->setup.machine->ceilings, standard, NULL,
                              (kt_prune){0}, &all, err));
    st = kt_session_gate(s, cell, NULL, 0, &all, err);
    choice = st == KT_OK ? find_choice(s, &s->rows[i], &all) : -1;
    if (st == KT_OK && choice >= 0 && all.n <= KT_ORACLE_CONTENDERS) {
        uint32_t id = kt_contest_id(&all, strategy_name);
        found.auto_seconds = out->auto_seconds;
        if (s->setup.ledger && kt_ledger_oracle_known(s->setup.ledger, &s->rows[i], id, &found)) {
            *out = found;
        } else {
            st = consult(s, i, &all, choice, &found, err);
            if (st == KT_OK && s->setup.ledger)
                st = kt_ledger_oracle(s->setup.ledger, &s->rows[i], &found, err);
            if (st == KT_OK) *out = found;
        }
    }
    kt_contenders_deinit(&all);
    return st;
}
