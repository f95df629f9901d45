/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/layer_cells.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/layer_trial.h"
#include "tuner/search/strategy.h"
#include "tuner/space/roles.h"
#include "tuner/space/routing.h"
#include "tuner/store/crc32.h"
#include "tuner/store/plan_records.h"

/* A server's own work between two decode steps: choosing a token, text, a write to the network. */
static const int64_t step_gap_ns = 100000;
enum { NAME_BYTES = KT_CONTENDER_NAME_BYTES, SKEW_ROUNDS = 12 };

struct kt_layer_session {
    kt_layer_session_setup setup;
    kt_planner *with_table, *without;
    kt_pool *pool;
    kt_banks banks;
    kt_problem problem; /* of the maps below */
    kt_choice_map *tuned, *standard;
    kt_choice encoder;
    kt_layer_plan plan; /* what the table says so far; the defaults of later cells */
    int32_t *expert_id;
    kt_layer_spent spent;
};

/* Who takes part in a contest. */
typedef struct field {
    int n, default_index;
    kt_layer_way way[KT_LAYER_WAYS];
    char name[KT_LAYER_WAYS][NAME_BYTES];
    const char *names[KT_LAYER_WAYS];
    kt_choice_map *maps; /* owned, for ways of one choice */
} field;

/* --- life --- */

kt_status kt_layer_session_create(const kt_layer_session_setup *setup, kt_layer_session **out,
                                  kt_err *err) {
    kt_layer_session *s = calloc(1, sizeof *s);
    kt_pool_options pool = {.n_threads = setup->threads};
    kt_status st;

    *out = NULL;
    if (!s) return kt_fail(err, KT_E_NOMEM, "layer: no memory");
    s->setup = *setup;
    s->banks.rotation_bytes = setup->rotation_bytes;
    s->tuned = calloc(1, sizeof *s->tuned);
    s->standard = calloc(1, sizeof *s->standard);
    st = s->tuned && s->standard ? KT_OK : kt_fail(err, KT_E_NOMEM, "layer: no memory");
    if (st == KT_OK)
        st = kt_planner_create(setup->registry, setup->table, setup->machine, NULL, &s->with_table,
                               err);
    if (st == KT_OK) kt_planner_trust_rows(s->with_table); /* else the tuned ones would not run */
    if (st == KT_OK)
        st = kt_planner_create(setup->registry, NULL, setup->machine, NULL, &s->without, err);
    if (st == KT_OK) st = kt_pool_create(&pool, &s->pool, err);
    if (st != KT_OK) {
        kt_layer_session_destroy(s);
        return st;
    }
    *out = s;
    return KT_OK;
}

void kt_layer_session_destroy(kt_layer_session *s) {
    if (!s) return;
    kt_planner_destroy(s->with_table);
    kt_planner_destroy(s->without);
    kt_banks_deinit(&s->banks);
    kt_pool_destroy(s->pool);
    free(s->tuned);
    free(s->standard);
    free(s->expert_id);
    free(s);
}

kt_layer_spent kt_layer_session_spent(const kt_layer_session *s) {
    return s->spent;
}

/* --- the layer --- */

static kt_status resolve(kt_layer_session *s, const kt_problem *experts, kt_err *err) {
    int threads = s->setup.threads;
    kt_problem encode = {
        .op = KT_OP_ENCODE, .acts = experts->acts, .m = experts->m, .n = 1, .k = experts->k};

    KT_TRY(kt_plan_resolve(s->with_table, experts, threads, KT_M_DENSE, KT_DECODE_SHARE, s->tuned,
                           NULL, err));
    KT_TRY(kt_plan_resolve(s->without, experts, threads, KT_M_DENSE, KT_DECODE_SHARE, s->standard,
                           NULL, err));
    s->problem = *experts;
    kt_plan_layer(s->with_table, experts, threads, &s->plan);
    return kt_plan_resolve_simple(s->with_table, &encode, threads, &s->encoder, err);
}

/* Small steps take several layers, so that few tokens do not decide by chance; not more, because
 * long samples of a busy machine are all disturbed. */
static int layers_for(int64_t tokens) {
    return tokens <= 4 ? 4 : tokens <= 16 ? 2 : 1;
}

/* Most rows of an expert over the mean of those with rows. */
static double imbalance_of(const int32_t *counts, int64_t experts) {
    double sum = 0, most = 0, active = 0;
    for (int64_t e = 0; e < experts; e++) {
        sum += counts[e];
        active += counts[e] > 0;
        if (counts[e] > most) most = counts[e];
    }
    return sum > 0 ? most * active / sum : 1;
}

static double row_ns(const kt_choice_map *map, const kt_table *t, const kt_problem *experts,
                     int threads, int64_t m, bool is_default);

/* Draw the layers' experts; imbalance and predicted gain (default over tuned, by the rows) are
 * means. */
static kt_status draw(kt_layer_session *s, int64_t tokens, const char *routing, double *imbalance,
                      double *predicted, kt_err *err) {
    const kt_problem *q = &s->problem;
    int layers = layers_for(tokens);
    int32_t *counts = calloc((size_t)q->experts, sizeof *counts), *ids;
    double tuned = 0, standard = 0;
    kt_routing r;
    kt_status st =
        counts ? kt_routing_parse(routing, &r, err) : kt_fail(err, KT_E_NOMEM, "layer: no memory");

    ids = realloc(s->expert_id, (size_t)(layers * tokens * q->topk) * sizeof *ids);
    if (ids) s->expert_id = ids;
    if (st == KT_OK && !ids) st = kt_fail(err, KT_E_NOMEM, "layer: no memory");
    *imbalance = 0;
    for (int l = 0; st == KT_OK && l < layers; l++) {
        st = kt_routing_counts(&r, q->experts, q->topk, tokens, (uint64_t)l, counts, err);
        if (st != KT_OK) break;
        kt_routing_assign(counts, q->experts, q->topk, tokens, ids + l * tokens * q->topk);
        *imbalance += imbalance_of(counts, q->experts) / layers;
        for (int64_t e = 0; e < q->experts; e++) {
            if (counts[e] == 0) continue;
            tuned += row_ns(s->tuned, s->setup.table, q, s->setup.threads, counts[e], false);
            standard += row_ns(s->tuned, s->setup.table, q, s->setup.threads, counts[e], true);
        }
    }
    *predicted = tuned > 0 && standard > 0 ? standard / tuned : 0;
    free(counts);
    return st;
}

/* Time of an expert with m rows by the table's rows, linear between buckets; of the decision, or
 * of the default that it replaced. 0 where there is no row. */
static double row_ns(const kt_choice_map *map, const kt_table *t, const kt_problem *experts,
                     int threads, int64_t m, bool is_default) {
    const kt_table_row *low = NULL, *high = NULL;
    kt_problem q = *experts;
    double a, b;

    (void)map;
    for (int i = 0; i < kt_m_bucket_count && !high; i++) {
        const kt_table_row *row;
        q.m = kt_m_buckets[i];
        row = kt_table_find(t, &q, threads);
        if (row && kt_row_is_undecided(row)) row = NULL;
        if (row && q.m <= m) low = row;
        if (row && q.m >= m) high = row;
    }
    if (!low && !high) return 0;
    if (!low) low = high;
    a = is_default ? low->default_ns : low->time_ns;
    if (!high) return a * (double)m / (double)low->problem.m;
    b = is_default ? high->default_ns : high->time_ns;
    if (high->problem.m == low->problem.m) return a;
    return a + (b - a) * (double)(m - low->problem.m) / (double)(high->problem.m - low->problem.m);
}

/* --- fields --- */

static kt_layer_way *add_way(field *f, const kt_choice_map *map, const kt_moe_cut *cut,
                             const char *name) {
    kt_layer_way *w = &f->way[f->n];

    if (f->n == KT_LAYER_WAYS) return NULL;
    *w = (kt_layer_way){.choices = map, .cut = *cut};
    snprintf(f->name[f->n], NAME_BYTES, "%s", name);
    f->names[f->n] = f->name[f->n];
    f->n++;
    return w;
}

static void cut_field(const kt_layer_session *s, field *f) {
    static const kt_moe_cut cuts[] = {{768 << 10, 4, 1}, {192 << 10, 4, 0}, {192 << 10, 8, 1},
                                      {384 << 10, 4, 0}, {768 << 10, 2, 0}, {1536 << 10, 2, 0},
                                      {96 << 10, 4, 0}};
    char name[NAME_BYTES];

    add_way(f, s->tuned, &kt_moe_cut_default,
            kt_moe_cut_format(&kt_moe_cut_default, name, sizeof name));
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        add_way(f, s->tuned, &cuts[i], kt_moe_cut_format(&cuts[i], name, sizeof name));
}

/* All threads are the default; half as often as many, down to one. */
static void threads_field(const kt_layer_session *s, field *f) {
    for (int n = s->setup.threads; n >= 1; n /= 2) {
        char name[NAME_BYTES];
        kt_layer_way *w;
        snprintf(name, sizeof name, "threads=%d", n);
        w = add_way(f, s->tuned, &kt_moe_cut_default, name);
        if (w) w->threads = n;
    }
}

static void spin_field(const kt_layer_session *s, field *f) {
    static const int64_t us[] = {50, 0, 10, 200, 1000};
    for (size_t i = 0; i < sizeof us / sizeof *us; i++) {
        char name[NAME_BYTES];
        kt_layer_way *w;
        snprintf(name, sizeof name, "spin_us=%lld", (long long)us[i]);
        w = add_way(f, s->tuned, &kt_moe_cut_default, name);
        if (w) w->spin_ns = us[i] > 0 ? us[i] * 1000 : -1;
    }
}

static void gain_field(const kt_layer_session *s, field *f) {
    add_way(f, s->standard, &kt_moe_cut_default, "default");
    add_way(f, s->tuned, &kt_moe_cut_default, "table");
}

static const struct {
    const char *cell;
    void (*make)(const kt_layer_session *s, field *f);
    bool has_gap;
} fields[] = {{"moe_layer", cut_field, false},
              {"threads", threads_field, false},
              {"spin", spin_field, true},
              {"layer_gain", gain_field, false}};

/* --- contests --- */

typedef struct watch_arg {
    kt_stopwatch trial;
    kt_layer_session *session;
} watch_arg;

static double watch_sample(void *arg, int i) {
    watch_arg *w = arg;
    int64_t start = kt_clock_ns();
    double ns = w->trial.sample(w->trial.arg, i);
    w->session->spent.n_samples++;
    w->session->spent.kernel_seconds += (double)(kt_clock_ns() - start) * 1e-9;
    return ns;
}
static double watch_predict(void *arg, int i) {
    watch_arg *w = arg;
    return w->trial.predict_ns(w->trial.arg, i);
}
static int64_t watch_disturbances(void *arg) {
    watch_arg *w = arg;
    return w->trial.disturbances(w->trial.arg);
}
static bool watch_stop(void *arg) {
    const watch_arg *w = arg;
    return w->session->setup.stop && w->session->setup.stop(w->session->setup.stop_arg);
}

static kt_status make_trial(kt_layer_session *s, const field *f, int64_t tokens, bool has_gap,
                            kt_layer_trial **trial, kt_err *err) {
    int64_t start = kt_clock_ns();
    kt_status st;
    kt_layer_setup setup = {.problem = s->problem,
                            .pool = s->pool,
                            .encode = s->encoder.variant,
                            .banks = &s->banks,
                            .tokens = tokens,
                            .expert_id = s->expert_id,
                            .n_layers = layers_for(tokens),
                            .gap_ns = has_gap ? step_gap_ns : 0,
                            .ways = f->way,
                            .n_ways = f->n};
    st = kt_layer_trial_create(&setup, trial, err);
    s->spent.setup_seconds += (double)(kt_clock_ns() - start) * 1e-9;
    return st;
}

/* Everything the outcome depends on: ways, their kernels with versions, and who is the default. */
static uint32_t contest_id(const field *f) {
    uint32_t id = 0;
    for (int i = 0; i < f->n; i++) {
        const kt_choice_map *map = f->way[i].choices;
        char text[256], name[KT_CONTENDER_NAME_BYTES];
        for (int c = 0; c < map->count; c++) {
            int n = snprintf(text, sizeof text, "%08x %s", id,
                             kt_contender_name(&map->choice[c], name, sizeof name));
            id = kt_crc32(text, (size_t)n);
        }
        id ^= kt_crc32((const char *)map->index, sizeof map->index);
        int n = snprintf(text, sizeof text, "%08x %d %s", id, i == f->default_index, f->name[i]);
        id = kt_crc32(text, (size_t)n);
    }
    return id;
}

/* Long samples average over what disturbs short ones. */
static int shorten_for(int64_t tokens, const kt_problem *q) {
    double work = (double)tokens * (double)q->topk * (double)q->n * (double)q->k;
    return work < 2e9 ? 1 : work < 8e9 ? 2 : 3;
}

static void fill_plan(const kt_layer_session *s, const kt_plan_cell *cell, const field *f,
                      const kt_verdict *v, kt_table_plan *out) {
    kt_table_row *row = &out->row;

    snprintf(out->cell, sizeof out->cell, "%s", cell->cell);
    snprintf(out->routing, sizeof out->routing, "%s", cell->routing);
    out->tokens = cell->tokens;
    row->problem = s->problem;
    row->problem.m = cell->tokens;
    row->threads = cell->threads;
    snprintf(row->variant, sizeof row->variant, "%s", cell->cell);
    snprintf(row->default_variant, sizeof row->default_variant, "%s", cell->cell);
    snprintf(row->config, sizeof row->config, "%.95s", f->name[v->winner]);
    snprintf(row->default_config, sizeof row->default_config, "%.95s", f->name[f->default_index]);
    row->time_ns = v->winner_ns;
    row->default_ns = v->default_ns;
    row->ci_low = v->spread.low;
    row->ci_high = v->spread.high;
    row->rounds = v->rounds;
    snprintf(row->status, sizeof row->status, "%s", v->is_tuned ? "tuned" : "default");
    for (int i = 0; i < v->n_runners && i < KT_TABLE_RUNNERS; i++) {
        snprintf(row->runner[i].variant, sizeof row->runner[i].variant, "%s", cell->cell);
        snprintf(row->runner[i].config, sizeof row->runner[i].config, "%.95s",
                 f->name[v->runner[i]]);
        row->runner[i].time_ns = v->runner_ns[i];
        row->n_runners++;
    }
}

/* Default and table in fresh pairs, whoever is ahead: the figure itself is what is wanted. */
static kt_status measure_gain(kt_layer_session *s, const field *f, kt_contest *c, kt_verdict *v,
                              kt_err *err) {
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int pair[2] = {0, 1}, n;
    kt_samples samples;
    kt_rng rng;
    kt_status st;

    (void)s, (void)f;
    kt_rng_seed(&rng, c->seed);
    KT_TRY(kt_samples_create(2, &samples, err));
    st = kt_contest_rung(c, &samples, pair, 2, 2 * KT_HOLDOUT_ROUNDS, err);
    if (st == KT_OK) {
        n = kt_samples_pairs(&samples, 0, 1, a, b);
        v->gain = kt_paired_log_ratio(a, b, n, KT_GAIN_CONFIDENCE, &rng);
        v->winner = 1;
        v->is_tuned = v->gain.low > 0;
        v->winner_ns = kt_samples_p25(&samples, 1);
        v->default_ns =
            v->winner_ns * exp(v->gain.point); /* by the pairs, so that drift stays out */
        v->spread =
            (kt_interval){1, exp(-v->gain.high + v->gain.point), exp(-v->gain.low + v->gain.point)};
        v->rounds = n;
    }
    kt_samples_destroy(&samples);
    return st;
}

static kt_status hold(kt_layer_session *s, const kt_plan_cell *cell, const field *f, bool has_gap,
                      kt_plan_contest *records, kt_verdict *verdict, kt_err *err) {
    kt_layer_trial *trial = NULL;
    kt_rung_store store = kt_plan_contest_store(records);
    watch_arg arg = {.session = s};
    kt_stopwatch watch = {.arg = &arg,
                          .sample = watch_sample,
                          .predict_ns = watch_predict,
                          .disturbances = watch_disturbances,
                          .stop = watch_stop};
    kt_contest contest = {.watch = &watch,
                          .store = &store,
                          .n = f->n,
                          .default_index = f->default_index,
                          .warm_index = -1,
                          .deadline_ns = s->setup.deadline_ns,
                          .shorten = shorten_for(cell->tokens, &s->problem),
                          .seed = s->setup.seed + records->id};
    kt_status st = make_trial(s, f, cell->tokens, has_gap, &trial, err);

    memset(verdict, 0, sizeof *verdict);
    if (st == KT_OK) {
        arg.trial = kt_layer_trial_stopwatch(trial);
        st = strcmp(cell->cell, "layer_gain") == 0
                 ? measure_gain(s, f, &contest, verdict, err)
                 : kt_contest_decide(&contest, kt_strategy_find("auto"), verdict, err);
    }
    kt_layer_trial_destroy(trial);
    return st;
}

/* --- threads of a whole step --- */

/* Nanoseconds of a step's matrices beside the experts on n threads, by the table's rows;
 * negative when one has none. */
static double matrices_ns(const kt_layer_session *s, int64_t tokens, int n) {
    kt_serving_role roles[KT_MAX_ROLES];
    int count = kt_roles_list(s->setup.shapes, s->setup.format, roles);
    double sum = 0;

    for (int i = 1; i < count; i++) {
        int64_t m = tokens <= roles[i].most_rows ? tokens : 1;
        double ns;
        if (roles[i].problem.experts > 1) continue; /* of some layers, in another format */
        ns = row_ns(NULL, s->setup.table, &roles[i].problem, n, m, false);
        if (ns <= 0) return -1;
        sum += ns * (double)roles[i].times;
    }
    return sum;
}

/* Fewer threads win a step only when they win it with all its matrices: the layer's own verdict
 * is not enough. Times become those of a step. */
static kt_status judge_step(const kt_layer_session *s, const field *f, kt_verdict *v,
                            kt_table_plan *out) {
    double layers = (double)s->setup.shapes->moe_layers;
    int fewer = f->way[v->winner].threads, all = s->setup.threads;
    double rest = matrices_ns(s, out->tokens, all), less = matrices_ns(s, out->tokens, fewer);
    double step = layers * v->winner_ns + less, standard = layers * v->default_ns + rest;

    if (v->winner == f->default_index) return KT_OK;
    if (rest < 0 || less < 0 || standard < step * (1 + KT_MIN_GAIN)) {
        out->row.time_ns = out->row.default_ns;
        snprintf(out->row.config, sizeof out->row.config, "%.95s", f->name[f->default_index]);
        snprintf(out->row.status, sizeof out->row.status, "default");
        return KT_OK;
    }
    out->row.time_ns = step;
    out->row.default_ns = standard;
    return KT_OK;
}

kt_status kt_layer_session_decide(kt_layer_session *s, const kt_plan_cell *cell, kt_table_plan *out,
                                  kt_err *err) {
    char key[KT_PLAN_KEY_BYTES];
    field f = {0};
    kt_plan_contest records = {.ledger = s->setup.ledger, .names = f.names};
    kt_verdict verdict;
    double imbalance, predicted;
    size_t kind = 0;

    memset(out, 0, sizeof *out);
    if (cell->refused) return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s", cell->cell, cell->refused);
    while (kind < sizeof fields / sizeof *fields && strcmp(fields[kind].cell, cell->cell) != 0)
        kind++;
    if (kind == sizeof fields / sizeof *fields)
        return kt_fail(err, KT_E_INVALID, "plan cell '%s' is unknown", cell->cell);
    KT_TRY(resolve(s, &cell->problem, err));
    fields[kind].make(s, &f);
    records.key = kt_plan_cell_key(cell, key, sizeof key);
    records.id = contest_id(&f);
    if (s->setup.is_fresh) KT_TRY(kt_plan_contest_forget(&records, err));
    if (kt_plan_contest_decided(&records, out)) {
        const double widest = s->setup.widest > 0 ? s->setup.widest : KT_ROW_WIDE;
        if (kt_row_half_interval(&out->row) <= widest) return KT_OK;
        memset(out, 0, sizeof *out);
        KT_TRY(kt_plan_contest_forget(&records, err));
    }
    KT_TRY(draw(s, cell->tokens, cell->routing, &imbalance, &predicted, err));
    KT_TRY(hold(s, cell, &f, fields[kind].has_gap, &records, &verdict, err));
    s->spent.n_replayed += records.n_replayed;
    fill_plan(s, cell, &f, &verdict, out);
    out->imbalance = imbalance;
    if (strcmp(cell->cell, "layer_gain") == 0) out->predicted = predicted;
    if (strcmp(cell->cell, "threads") == 0) KT_TRY(judge_step(s, &f, &verdict, out));
    return kt_plan_contest_decide(&records, out, err);
}

/* --- skew --- */

/* The table's map, and every choice of it and of the default alone. */
static kt_status skew_field(kt_layer_session *s, field *f, kt_err *err) {
    const kt_choice_map *sources[2] = {s->tuned, s->standard};

    add_way(f, s->tuned, &kt_moe_cut_default, "table");
    f->maps = calloc(KT_LAYER_WAYS, sizeof *f->maps);
    if (!f->maps) return kt_fail(err, KT_E_NOMEM, "layer: no memory");
    for (int i = 0; i < 2; i++)
        for (int c = 0; c < sources[i]->count && f->n < KT_LAYER_WAYS; c++) {
            const kt_choice *choice = &sources[i]->choice[c];
            char name[KT_CONTENDER_NAME_BYTES];
            bool known = false;
            for (int k = 1; k < f->n; k++)
                known |= kt_choice_equal(&f->way[k].choices->choice[0], choice);
            if (known) continue;
            f->maps[f->n].count = 1;
            f->maps[f->n].choice[0] = *choice;
            kt_contender_name(choice, name, sizeof name);
            add_way(f, &f->maps[f->n], &kt_moe_cut_default, name);
        }
    return KT_OK;
}

static kt_status race_skew(kt_layer_session *s, const field *f, kt_layer_trial *trial,
                           kt_skew_regret *out, kt_err *err) {
    watch_arg arg = {kt_layer_trial_stopwatch(trial), s};
    kt_stopwatch watch = {.arg = &arg,
                          .sample = watch_sample,
                          .predict_ns = watch_predict,
                          .disturbances = watch_disturbances,
                          .stop = watch_stop};
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int live[KT_LAYER_WAYS], pair[2] = {0, 0}, rounds = SKEW_ROUNDS;
    kt_samples race = {0}, fresh = {0};
    kt_rng rng;
    kt_status st;

    kt_rng_seed(&rng, s->setup.seed);
    for (int i = 0; i < f->n; i++) live[i] = i;
    rounds /= shorten_for(out->tokens, &s->problem);
    st = kt_samples_create(f->n, &race, err);
    if (st == KT_OK) st = kt_samples_create(f->n, &fresh, err);
    if (st == KT_OK)
        st = kt_rounds_run(&watch, &race, live, f->n, rounds, s->setup.deadline_ns, &rng);
    if (st == KT_OK) {
        kt_rank(&race, live, f->n);
        pair[1] = live[0] == 0 ? live[1] : live[0];
        st = kt_rounds_run(&watch, &fresh, pair, 2,
                           KT_HOLDOUTS * KT_HOLDOUT_ROUNDS / shorten_for(out->tokens, &s->problem),
                           s->setup.deadline_ns, &rng);
    }
    if (st == KT_OK) {
        int n = kt_samples_pairs(&fresh, 0, pair[1], a, b);
        kt_interval loss = {0, 0, 0};
        if (n > 0) loss = kt_paired_log_ratio(a, b, n, 0.95, &rng);
        out->regret = loss.point > 0 ? expm1(loss.point) : 0;
        out->low = expm1(loss.low);
        out->high = expm1(loss.high);
        snprintf(out->best, sizeof out->best, "%s", loss.point > 0 ? f->name[pair[1]] : "table");
    }
    kt_samples_destroy(&race);
    kt_samples_destroy(&fresh);
    return st;
}

kt_status kt_layer_session_skew(kt_layer_session *s, const kt_problem *experts, int64_t tokens,
                                const char *routing, kt_skew_regret *out, kt_err *err) {
    kt_problem q = *experts;
    kt_layer_trial *trial = NULL;
    field f = {0};
    double predicted;
    kt_status st;

    memset(out, 0, sizeof *out);
    out->tokens = tokens;
    snprintf(out->routing, sizeof out->routing, "%s", routing);
    q.m = tokens;
    KT_TRY(resolve(s, &q, err));
    KT_TRY(draw(s, tokens, routing, &out->imbalance, &predicted, err));
    st = skew_field(s, &f, err);
    if (st == KT_OK && f.n > 1) {
        st = make_trial(s, &f, tokens, false, &trial, err);
        if (st == KT_OK) st = race_skew(s, &f, trial, out, err);
        kt_layer_trial_destroy(trial);
    }
    free(f.maps);
    return st;
}

double kt_realised_gain(const kt_table_plan *g, double aa_noise_p95) {
    return kt_layer_realised(g, aa_noise_p95);
}
