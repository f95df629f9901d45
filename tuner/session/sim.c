/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "tuner/space/candidates.h"
#include "tuner/space/cell.h"

const double kt_sim_seconds[KT_SIM_POINTS] = {0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 1, 2, 5};

/* A sample lasts so long at least, and the tuner takes this between two. */
static const double shortest_sample_ns = 1e5, between_samples_ns = 5e3;
enum { EXHAUSTIVE_ROUNDS = KT_SIM_EXHAUSTIVE_ROUNDS };

/* --- loading --- */

static const char *kind_of(const kt_json *r) {
    const char *t = kt_json_string(kt_json_get(r, "t"), NULL);
    return t ? t : "";
}

static kt_choice find_choice(const kt_registry *registry, const char *name) {
    char stem[64], config[96];
    const char *at = strchr(name, '@'), *brace = strchr(name, '{');
    size_t size = strlen(name);
    kt_choice c = {0};

    if (!at || !brace || name[size - 1] != '}' || (size_t)(at - name) >= sizeof stem ||
        size - (size_t)(brace - name) - 2 >= sizeof config)
        return c;
    snprintf(stem, sizeof stem, "%.*s", (int)(at - name), name);
    snprintf(config, sizeof config, "%.*s", (int)(size - (size_t)(brace - name) - 2), brace + 1);
    c.variant = kt_registry_find(registry, stem);
    if (c.variant && kt_config_parse(c.variant, config, &c.config, NULL) != KT_OK) c.variant = NULL;
    return c;
}

/* Rounds of a contender that count. */
static kt_status list_rounds(const kt_samples *s, int i, kt_sim_contender *c, kt_err *err) {
    c->round = calloc((size_t)s->n_rounds + 1, sizeof *c->round);
    if (!c->round) return kt_fail(err, KT_E_NOMEM, "sim: no memory");
    for (int r = 0; r < s->n_rounds; r++)
        if (!s->voided[r] && s->ns[(size_t)i * KT_MAX_SAMPLES + (size_t)r] > 0)
            c->round[c->n_rounds++] = r;
    return KT_OK;
}

static double sample_at(const kt_sim_cell *c, int i, int round) {
    return c->samples.ns[(size_t)i * KT_MAX_SAMPLES + (size_t)round];
}

static double p25_of(const kt_sim_cell *c, int i) {
    double x[KT_MAX_SAMPLES];
    const kt_sim_contender *k = &c->contender[i];
    for (int r = 0; r < k->n_rounds; r++) x[r] = sample_at(c, i, k->round[r]);
    return k->n_rounds > 0 ? kt_quantile(x, k->n_rounds, 0.25) : INFINITY;
}

/* Median of the paired ratios to the best one; a contender that never met it keeps its own p25. */
static double true_ns(const kt_sim_cell *c, int i, double best_ns) {
    double x[KT_MAX_SAMPLES];
    const kt_sim_contender *k = &c->contender[i];
    int n = 0;
    for (int r = 0; r < k->n_rounds; r++) {
        double other = sample_at(c, c->best, k->round[r]);
        if (other > 0) x[n++] = log(sample_at(c, i, k->round[r]) / other);
    }
    return n > 0 ? best_ns * exp(kt_quantile(x, n, 0.5)) : p25_of(c, i);
}

/* The best: among those that stayed longest, since the others were dropped for being slower. */
static void find_truth(kt_sim_cell *c) {
    int most = 0;
    double best_ns = INFINITY;

    for (int i = 0; i < c->n; i++)
        if (c->contender[i].n_rounds > most) most = c->contender[i].n_rounds;
    for (int i = 0; i < c->n; i++) {
        if (2 * c->contender[i].n_rounds < most || p25_of(c, i) >= best_ns) continue;
        c->best = i;
        best_ns = p25_of(c, i);
    }
    for (int i = 0; i < c->n; i++) {
        double ns = true_ns(c, i, best_ns);
        bool is_finalist = 2 * c->contender[i].n_rounds >= most;
        c->contender[i].true_ns =
            is_finalist ? ns : fmax(ns, best_ns); /* two rounds prove nothing */
    }
    for (int i = 0; i < c->n; i++)
        if (c->contender[i].true_ns < c->contender[c->best].true_ns) c->best = i;
}

static kt_status load_cell(const kt_replay *r, const kt_registry *registry,
                           const kt_ceilings *ceilings, kt_sim_cell *c, kt_err *err) {
    memset(c, 0, sizeof *c);
    c->problem = r->row.problem;
    c->threads = r->row.threads;
    c->key = r->cell;
    c->weight = r->weight > 0 ? r->weight : 1;
    c->units = r->units;
    c->n = r->n;
    c->default_index = r->default_index;
    c->winner = r->winner;
    c->is_oracle = strcmp(kind_of(kt_journal_at(r->journal, r->at)), "oracle") == 0;
    c->contender = calloc((size_t)r->n, sizeof *c->contender);
    if (!c->contender) return kt_fail(err, KT_E_NOMEM, "sim: no memory");
    KT_TRY(kt_replay_samples(r, &c->samples, err));
    for (int i = 0; i < c->n; i++) {
        kt_sim_contender *k = &c->contender[i];
        k->name = r->names[i];
        k->choice = find_choice(registry, k->name);
        if (k->choice.variant)
            k->bound_ns = kt_cost_ns(&c->problem, k->choice.variant, ceilings, c->threads);
        KT_TRY(list_rounds(&c->samples, i, k, err));
    }
    if (c->contender[c->default_index].n_rounds == 0)
        return kt_fail(err, KT_E_FORMAT, "%s: no samples of its default", c->key);
    find_truth(c);
    return KT_OK;
}

static void drop_cell(kt_sim_cell *c) {
    for (int i = 0; c->contender && i < c->n; i++) free(c->contender[i].round);
    free(c->contender);
    kt_samples_destroy(&c->samples);
    memset(c, 0, sizeof *c);
}

static kt_sim_cell *find_cell(kt_sim *s, const char *key) {
    for (size_t i = 0; i < s->n; i++)
        if (strcmp(s->cells[i].key, key) == 0) return &s->cells[i];
    return NULL;
}

/* One record; newest come first. An oracle's contest replaces the one it judges. */
static kt_status load_record(kt_sim *s, const kt_journal *journal, size_t at,
                             const kt_registry *registry, kt_replay *r, kt_err *err) {
    const char *kind = kind_of(kt_journal_at(journal, at));
    bool is_oracle = strcmp(kind, "oracle") == 0;
    const char *key = kt_json_string(kt_json_get(kt_journal_at(journal, at), "cell"), NULL);
    kt_sim_cell *have, cell;
    kt_fingerprint f;
    kt_status st;

    if ((!is_oracle && strcmp(kind, "decision") != 0) || !key) return KT_OK;
    have = find_cell(s, key);
    if (have && (have->is_oracle || !is_oracle)) {
        if (!is_oracle && have->race_sec == 0 && kt_replay_open(journal, at, r, NULL) == KT_OK) {
            have->race_sec = r->race_sec; /* the decision that the oracle was asked about */
            have->gate_sec = r->gate_sec;
        }
        return KT_OK;
    }
    KT_TRY(kt_replay_open(journal, at, r, err));
    KT_TRY(kt_fingerprint_read(kt_json_get(kt_journal_at(journal, r->session), "fingerprint"),
                               "journal", &f, err));
    st = load_cell(r, registry, &f.ceilings, &cell, err);
    if (st != KT_OK) {
        drop_cell(&cell);
        return st;
    }
    if (!is_oracle) {
        cell.race_sec = r->race_sec;
        cell.gate_sec = r->gate_sec;
    }
    s->n_oracle += is_oracle;
    if (have) {
        drop_cell(have);
        *have = cell;
    } else {
        s->cells[s->n++] = cell;
    }
    return KT_OK;
}

kt_status kt_sim_load(const kt_journal *journal, const kt_registry *registry, kt_sim *out,
                      kt_err *err) {
    size_t n = kt_journal_count(journal);
    kt_replay *r = malloc(sizeof *r);
    kt_status st = KT_OK;

    memset(out, 0, sizeof *out);
    out->cells = calloc(n + 1, sizeof *out->cells);
    if (!out->cells || !r) st = kt_fail(err, KT_E_NOMEM, "sim: no memory");
    for (size_t i = n; i-- > 0 && st == KT_OK;) st = load_record(out, journal, i, registry, r, err);
    free(r);
    if (st != KT_OK) kt_sim_deinit(out);
    return st;
}

void kt_sim_deinit(kt_sim *s) {
    for (size_t i = 0; i < s->n; i++) drop_cell(&s->cells[i]);
    free(s->cells);
    memset(s, 0, sizeof *s);
}

kt_status kt_sim_join(kt_sim *to, kt_sim *from, kt_err *err) {
    kt_sim_cell *all = realloc(to->cells, (to->n + from->n + 1) * sizeof *all);
    if (!all) return kt_fail(err, KT_E_NOMEM, "sim: no memory");
    to->cells = all;
    if (from->n > 0) memcpy(all + to->n, from->cells, from->n * sizeof *all);
    to->n += from->n;
    to->n_oracle += from->n_oracle;
    free(from->cells);
    memset(from, 0, sizeof *from);
    return KT_OK;
}

/* --- one simulated contest --- */

typedef struct world {
    const kt_sim_cell *cell;
    const int *map;   /* contender of the contest -> of the cell */
    int round;        /* in hand, of the recorded ones */
    uint8_t *has_run; /* [contenders of the cell] in this round */
    double now_ns;
    kt_rng rng;
} world;

/* How long a sample keeps the machine: whole calls until it is long enough. */
static double wall_ns(const kt_sim_cell *c, double ns) {
    double call = ns * c->units;
    return ceil(shortest_sample_ns / call) * call + between_samples_ns;
}

static double world_sample(void *arg, int i) {
    world *w = arg;
    const kt_sim_cell *c = w->cell;
    const kt_sim_contender *best = &c->contender[c->best], *k = &c->contender[w->map[i]];
    double ns;

    if (w->has_run[w->map[i]] || w->round < 0) {
        memset(w->has_run, 0, (size_t)c->n);
        w->round = best->round[kt_rng_below(&w->rng, (uint64_t)best->n_rounds)];
    }
    w->has_run[w->map[i]] = 1;
    ns = sample_at(c, w->map[i], w->round);
    if (!(ns > 0)) {
        int other = k->round[kt_rng_below(&w->rng, (uint64_t)k->n_rounds)];
        double here = sample_at(c, c->best, w->round), there = sample_at(c, c->best, other);
        ns = sample_at(c, w->map[i], other) * (there > 0 ? here / there : 1);
    }
    w->now_ns += wall_ns(c, ns);
    return ns;
}

static int64_t world_now(void *arg) {
    return (int64_t)((world *)arg)->now_ns;
}

static bool is_library(const kt_sim_contender *k) {
    return k->choice.variant && strstr(k->choice.variant->name, "__lib") != NULL;
}

/* Those that the strategy lets in: all that were measured, less what the roofline prunes. */
static int admit(const kt_sim_cell *c, double prune_ratio, int *map) {
    double best = INFINITY;
    int n = 0;

    for (int i = 0; i < c->n; i++)
        if (c->contender[i].bound_ns > 0) best = fmin(best, c->contender[i].bound_ns);
    for (int i = 0; i < c->n; i++) {
        const kt_sim_contender *k = &c->contender[i];
        bool is_far = prune_ratio > 0 && k->bound_ns > prune_ratio * best;
        if (k->n_rounds > 0 && (i == c->default_index || is_library(k) || !is_far)) map[n++] = i;
    }
    return n;
}

typedef struct outcome {
    double seconds, log_regret;
    int winner;
} outcome;

static kt_status decide(const kt_sim_cell *c, const kt_strategy *strategy,
                        const kt_race_rules *rules, uint64_t seed, outcome *out, kt_err *err) {
    int map[KT_REPLAY_CONTENDERS];
    world w = {.cell = c, .map = map, .round = -1, .has_run = calloc((size_t)c->n, 1)};
    kt_stopwatch watch = {.arg = &w, .sample = world_sample, .now_ns = world_now};
    kt_contest contest = {
        .watch = &watch, .rules = rules, .warm_index = -1, .deadline_ns = INT64_MAX, .seed = seed};
    kt_verdict v;
    kt_status st;

    if (!w.has_run) return kt_fail(err, KT_E_NOMEM, "sim: no memory");
    kt_rng_seed(&w.rng, seed ^ 0x51d0u);
    contest.n = admit(c, strategy->prune_ratio, map);
    while (map[contest.default_index] != c->default_index) contest.default_index++;
    st = kt_contest_decide(&contest, strategy, &v, err);
    if (st == KT_OK) {
        out->seconds = w.now_ns * 1e-9;
        out->winner = map[v.winner];
        out->log_regret = log(c->contender[map[v.winner]].true_ns / c->contender[c->best].true_ns);
    }
    free(w.has_run);
    return st;
}

kt_status kt_sim_decide(const kt_sim_cell *cell, const kt_strategy *strategy, uint64_t seed,
                        int *winner, kt_err *err) {
    outcome o;
    KT_TRY(decide(cell, strategy, NULL, seed, &o, err));
    *winner = o.winner;
    return KT_OK;
}

/* --- many --- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double kt_sim_exhaustive_sec(const kt_sim_cell *c) {
    double ns = 0;
    for (int i = 0; i < c->n; i++)
        if (c->contender[i].n_rounds > 0)
            ns += EXHAUSTIVE_ROUNDS * wall_ns(c, c->contender[i].true_ns);
    return ns * 1e-9;
}

static void summarise(const kt_sim *s, const outcome *all, int trials, double *seconds,
                      kt_cell_regret *regrets, kt_sim_result *out) {
    size_t n = s->n * (size_t)trials;
    double spent = 0, exhaustive = 0;

    for (size_t i = 0; i < n; i++) {
        const kt_sim_cell *c = &s->cells[i / (size_t)trials];
        spent += seconds[i] = all[i].seconds;
        exhaustive += kt_sim_exhaustive_sec(c);
        regrets[i] = (kt_cell_regret){all[i].log_regret, c->weight};
    }
    out->regret = kt_regret_summarise(regrets, n);
    out->exhaustive_share = exhaustive > 0 ? spent / exhaustive : 0;
    qsort(seconds, n, sizeof *seconds, by_value);
    out->median_sec = seconds[n / 2];
    out->p90_sec = seconds[n * 9 / 10];
    out->mean_sec = spent / (double)n;
    for (int p = 0; p < KT_SIM_POINTS; p++) {
        size_t decided = 0;
        for (size_t i = 0; i < n; i++) {
            const kt_sim_cell *c = &s->cells[i / (size_t)trials];
            bool is_done = all[i].seconds <= kt_sim_seconds[p];
            double none =
                log(c->contender[c->default_index].true_ns / c->contender[c->best].true_ns);
            decided += is_done;
            regrets[i] = (kt_cell_regret){is_done ? all[i].log_regret : none, c->weight};
        }
        out->at[p].decided = (double)decided / (double)n;
        out->at[p].regret = kt_regret_summarise(regrets, n).geomean;
    }
}

kt_status kt_sim_run(const kt_sim *s, const kt_strategy *strategy, const kt_race_rules *rules,
                     int trials, uint64_t seed, kt_sim_result *out, kt_err *err) {
    size_t n = s->n * (size_t)trials;
    outcome *all = calloc(n + 1, sizeof *all);
    double *seconds = calloc(n + 1, sizeof *seconds);
    kt_cell_regret *regrets = calloc(n + 1, sizeof *regrets);
    kt_status st = all && seconds && regrets ? KT_OK : kt_fail(err, KT_E_NOMEM, "sim: no memory");

    memset(out, 0, sizeof *out);
    out->strategy = strategy->name;
    for (size_t i = 0; i < n && st == KT_OK; i++)
        st = decide(&s->cells[i / (size_t)trials], strategy, rules, seed + 7919 * (uint64_t)i,
                    &all[i], err);
    if (st == KT_OK && n > 0) summarise(s, all, trials, seconds, regrets, out);
    free(all);
    free(seconds);
    free(regrets);
    return st;
}
