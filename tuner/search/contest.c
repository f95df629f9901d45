/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/search/contest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/search/strategy.h"

const kt_strategy *kt_strategy_find(const char *name) {
    for (size_t i = 0; i < kt_builtin_strategy_count; i++)
        if (strcmp(kt_builtin_strategies[i]->name, name) == 0) return kt_builtin_strategies[i];
    return NULL;
}

bool kt_challenger_wins(const double *default_ns, const double *challenger_ns, int n, kt_rng *rng,
                        kt_interval *gain) {
    *gain = kt_paired_log_ratio(default_ns, challenger_ns, n, KT_GAIN_CONFIDENCE, rng);
    return gain->low > 0 && gain->point >= log1p(KT_MIN_GAIN);
}

/* p25 and its relative interval from the valid rounds of one contender. */
static void describe(const kt_samples *s, int contender, kt_rng *rng, kt_verdict *out) {
    double x[KT_MAX_SAMPLES];
    int n = kt_samples_pairs(s, contender, contender, x, NULL);
    kt_interval i = kt_quantile_interval(x, n, 0.25, 0.95, rng);
    out->winner_ns = i.point;
    out->spread = (kt_interval){1, i.low / i.point, i.high / i.point};
    out->rounds = n;
}

/* A first look at a holdout: is it lost already? */
static kt_status look(kt_contest *c, const kt_race_rules *rules, const int pair[2],
                      kt_samples *fresh, int *rounds, kt_rng *rng, bool *is_lost, kt_err *err) {
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int before = kt_samples_pairs(fresh, pair[0], pair[1], NULL, NULL), n;

    *is_lost = false;
    if (rules->look_rounds <= 0 || rules->look_rounds >= *rounds) return KT_OK;
    KT_TRY(kt_contest_rung(c, fresh, pair, 2, rules->look_rounds, err));
    *rounds -= rules->look_rounds;
    n = kt_samples_pairs(fresh, pair[0], pair[1], a, b) - before;
    *is_lost =
        n > 0 && kt_paired_log_ratio(a + before, b + before, n, rules->stop_confidence, rng).high <
                     log1p(KT_MIN_GAIN);
    return KT_OK;
}

/* Fewer pairs may well lie on one side by chance; eight do once in 256 times. */
enum { LEAST_TO_WIN = 8 };

/* A holdout in steps, for most are settled early. The challenger has to gain KT_MIN_GAIN in each of the two
 * with each_confidence, and in the rounds of both with both_confidence. Before KT_HOLDOUT_ROUNDS only an
 * interval that lies above KT_MIN_GAIN counts as won; a holdout is lost as soon as the challenger can hardly
 * gain that much any more. */
static kt_status hold_by_steps(kt_contest *c, const kt_race_rules *rules, const int pair[2],
                               kt_samples *fresh, kt_rng *rng, kt_interval *gain, bool *wins,
                               kt_err *err) {
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int before = kt_samples_pairs(fresh, pair[0], pair[1], NULL, NULL), n, planned = 0;
    const double *x = a + before, *y = b + before;

    *wins = false;
    for (int i = 0; i < rules->n_steps && !*wins; i++) {
        double least =
            planned + rules->step_rounds[i] >= KT_HOLDOUT_ROUNDS ? 0 : log1p(KT_MIN_GAIN);
        KT_TRY(kt_contest_rung(c, fresh, pair, 2, rules->step_rounds[i], err));
        planned += rules->step_rounds[i];
        n = kt_samples_pairs(fresh, pair[0], pair[1], a, b);
        if (n <= before) return KT_OK;
        *gain = kt_paired_log_ratio(x, y, n - before, rules->each_confidence, rng);
        *wins =
            n - before >= LEAST_TO_WIN && gain->low > least && gain->point >= log1p(KT_MIN_GAIN);
        if (*wins && before > 0) {
            *gain = kt_paired_log_ratio(a, b, n, rules->both_confidence, rng);
            *wins = gain->low > 0 && gain->point >= log1p(KT_MIN_GAIN);
        }
        if (kt_paired_log_ratio(x, y, n - before, rules->stop_confidence, rng).high <
            log1p(KT_MIN_GAIN))
            return KT_OK;
    }
    return KT_OK;
}

/* One holdout. Of 30 rounds a gain of 3 % often shows no more than that it may be there: then they go on. */
static kt_status hold_once(kt_contest *c, const kt_race_rules *rules, const int pair[2],
                           kt_samples *fresh, kt_rng *rng, kt_interval *gain, bool *wins,
                           kt_err *err) {
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int before = kt_samples_pairs(fresh, pair[0], pair[1], NULL, NULL), n;
    int rounds = KT_HOLDOUT_ROUNDS, extra = rules->extra_rounds;
    bool is_lost;

    if (rules->n_steps > 0) return hold_by_steps(c, rules, pair, fresh, rng, gain, wins, err);
    *wins = false;
    KT_TRY(look(c, rules, pair, fresh, &rounds, rng, &is_lost, err));
    if (is_lost) return KT_OK;
    for (; rounds > 0; rounds = extra, extra = 0) {
        KT_TRY(kt_contest_rung(c, fresh, pair, 2, rounds, err));
        n = kt_samples_pairs(fresh, pair[0], pair[1], a, b) - before;
        if (n <= 0) return KT_OK;
        *wins = kt_challenger_wins(a + before, b + before, n, rng, gain);
        if (*wins || gain->high < log1p(KT_MIN_GAIN)) return KT_OK;
    }
    return KT_OK;
}

/* Fresh rounds: the race's own samples flatter the one that was lucky in them. One holdout lets an equal
 * pass in 3 of 1000 cells (99 % interval, 1 % at least), and a table has hundreds; so who passes has
 * to pass once more. The figures are those of all its rounds. */
static kt_status hold_out(kt_contest *c, int challenger, kt_samples *fresh, kt_rng *rng,
                          kt_verdict *out, kt_err *err) {
    const kt_race_rules *rules = c->rules ? c->rules : &kt_race_rules_now;
    double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
    int pair[2] = {c->default_index, challenger}, n;
    bool wins = true;

    for (int i = 0; i < KT_HOLDOUTS && wins; i++)
        KT_TRY(hold_once(c, rules, pair, fresh, rng, &out->gain, &wins, err));
    n = kt_samples_pairs(fresh, c->default_index, challenger, a, b);
    if (wins) out->gain = kt_paired_log_ratio(a, b, n, KT_GAIN_CONFIDENCE, rng);
    out->is_tuned = wins;
    out->winner = wins ? challenger : c->default_index;
    describe(fresh, out->winner, rng, out);
    out->default_ns = kt_samples_p25(fresh, c->default_index);
    return KT_OK;
}

static kt_status judge(kt_contest *c, const kt_samples *s, const int *live, int n_live,
                       kt_samples *fresh, kt_verdict *out, kt_err *err) {
    const kt_race_rules *rules = c->rules ? c->rules : &kt_race_rules_now;
    kt_rng rng;

    kt_rng_seed(&rng, c->seed ^ 0xf1a7u);
    memset(out, 0, sizeof *out);
    out->winner = c->default_index;
    if (live[0] == c->default_index) {
        describe(s, live[0], &rng, out);
        out->default_ns = out->winner_ns;
    } else {
        KT_TRY(hold_out(c, live[0], fresh, &rng, out, err));
        /* A holdout that was lost at first sight says less about the default than the race does. */
        if ((rules->look_rounds > 0 || rules->n_steps > 0) && !out->is_tuned &&
            out->rounds < kt_samples_pairs(s, out->winner, out->winner, NULL, NULL)) {
            describe(s, out->winner, &rng, out);
            out->default_ns = out->winner_ns;
        }
    }
    for (int i = 0; i < n_live && out->n_runners < KT_RUNNERS; i++) {
        if (live[i] == out->winner) continue;
        out->runner[out->n_runners] = live[i];
        out->runner_ns[out->n_runners++] = kt_samples_p25(s, live[i]);
    }
    return KT_OK;
}

kt_status kt_contest_decide(kt_contest *c, const kt_strategy *strategy, kt_verdict *out,
                            kt_err *err) {
    kt_samples s = {0}, fresh = {0};
    int *live = calloc((size_t)c->n, sizeof *live), n_live = 0;
    kt_status st = live ? KT_OK : kt_fail(err, KT_E_NOMEM, "race: no memory");

    if (st == KT_OK) st = kt_samples_create(c->n, &s, err);
    if (st == KT_OK) st = kt_samples_create(c->n, &fresh, err);
    if (st == KT_OK) st = strategy->race(c, &s, live, &n_live, err);
    for (int i = 0; st == KT_OK && c->ratio && i < c->n; i++)
        c->ratio[i] = kt_samples_p25(&s, i) / kt_samples_p25(&s, live[0]);
    if (st == KT_OK && c->has_proven && live[0] == c->proven_index)
        *out = (kt_verdict){.winner = live[0], .is_kept = true};
    else if (st == KT_OK)
        st = judge(c, &s, live, n_live, &fresh, out, err);
    kt_samples_destroy(&s);
    kt_samples_destroy(&fresh);
    free(live);
    return st;
}
