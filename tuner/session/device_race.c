/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/device_race.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/measure/stats.h"
#include "tuner/space/device_prior.h"
#include "tuner/verify/device_gate.h"

enum {
    MOST_SAMPLES = 64,
    DUEL = 15,
    LEAST_DUEL = 5, /* when time has run out */
    MOST_CHOICES = 4096,
    MOST_CALLS = 50,
    MOST_VOIDED = 20
};
/* More time than all of them take to compile: nobody has to look at the clock meanwhile. */
static const int64_t plenty_ns = 30 * INT64_C(1000000000);
static const double most_drift = 0.02, call_target_ns = 200e3, quick_call_ns = 2e6;

typedef struct entrant {
    kt_device_choice choice;
    double prior, error, sample[MOST_SAMPLES], median, deviation;
    int n;
    bool is_out;
} entrant;

typedef struct contest {
    const kt_device_race *r;
    kt_device_job job;
    kt_device_bench bench;
    entrant *e; /* e[0] is the default */
    int n, n_dropped, n_voided;
    int64_t compile_until_ns, admit_until_ns; /* so that some of the time is left for samples */
} contest;

/* ---- who takes part ---- */

static int by_prior(const void *a, const void *b) {
    const entrant *left = a, *right = b;
    return left->prior < right->prior ? -1 : left->prior > right->prior;
}

static kt_status gather(contest *c, kt_err *err) {
    const kt_device_facts *f = kt_device_about(c->r->seat->d);
    const int64_t rows = c->r->problem.m;
    kt_device_choice *all = malloc(MOST_CHOICES * sizeof *all);
    kt_device_ladder standard;
    int n;

    kt_device_ladder_default(&c->job, f->target, &standard);
    n = all ? kt_device_choices_of(&c->job, rows, f->target, all, MOST_CHOICES) : 0;
    if (n > MOST_CHOICES) n = MOST_CHOICES;
    c->e = calloc((size_t)n + 1, sizeof *c->e);
    if (!all || !c->e) {
        free(all);
        return kt_fail(err, KT_E_NOMEM, "no memory for the contenders of a device");
    }
    c->e[c->n++].choice = standard.choice[kt_device_ladder_rung(&standard, rows)];
    for (int i = 0; i < n; i++)
        if (!kt_device_choice_equal(&all[i], &c->e[0].choice)) c->e[c->n++].choice = all[i];
    free(all);
    for (int i = 0; i < c->n; i++)
        c->e[i].prior = kt_device_prior_ns(&c->e[i].choice, &c->job, rows, f->multiprocessors);
    qsort(c->e + 1, (size_t)c->n - 1, sizeof *c->e, by_prior);
    if (c->r->most && c->n > c->r->most) c->n = c->r->most;
    return n ? KT_OK
             : kt_fail(err, KT_E_UNSUPPORTED, "%s: no kernel does %s of %s", f->name,
                       kt_op_name(c->job.op), kt_weight_format_name(c->job.weights));
}

static void prepare_slice(const contest *c, int from, int to) {
    kt_code_request *request = malloc(2 * (size_t)(to - from) * sizeof *request);
    int n = 0;

    if (!request) return; /* each is compiled when its turn comes */
    for (int i = from; i < to; i++) {
        const kt_device_choice *up = &c->e[i].choice;
        const kt_device_choice down = kt_device_choice_for(up, c->job.down);
        request[n++] = (kt_code_request){up->kernel, up->config};
        if (!kt_device_choice_equal(up, &down))
            request[n++] = (kt_code_request){down.kernel, down.config};
    }
    kt_device_prepare(c->r->seat->d, request, n, c->r->threads);
    free(request);
}

/* Code of all, by several threads: one after the other would take most of a race's time. Who comes
 * too late is no contender. */
static void prepare(contest *c) {
    const bool is_short = c->compile_until_ns - kt_clock_ns() < plenty_ns;
    const int slice = !is_short ? c->n : c->r->threads > 1 ? c->r->threads : 1;

    for (int i = 0; i < c->n; i += slice) {
        if (i && kt_clock_ns() > c->compile_until_ns) {
            c->n = i;
            return;
        }
        prepare_slice(c, i, i + slice < c->n ? i + slice : c->n);
    }
}

static void drop(contest *c, entrant *e, const char *why) {
    char config[96], line[KT_ERR_SIZE + 256];

    e->is_out = true;
    c->n_dropped++;
    snprintf(line, sizeof line, "%s %s: %s", e->choice.kernel->name,
             kt_device_config_format(&e->choice, config, sizeof config), why);
    if (c->r->dropped) c->r->dropped(c->r->arg, line);
}

/* A device that failed once fails for ever: another one takes its place, and the bench anew. */
static kt_status revive(contest *c, kt_err *err) {
    kt_device_seat *seat = c->r->seat;

    if (kt_device_sync(seat->d, NULL, NULL) == KT_OK) return KT_OK;
    c->bench = (kt_device_bench){.d = NULL}; /* its memory ends with the device */
    kt_device_close(seat->d);
    seat->d = NULL;
    seat->n_lost++;
    KT_TRY(kt_device_open(seat->options, &seat->d, err));
    return kt_device_bench_open(seat->d, &c->job, c->r->problem.m, c->r->rotation, c->r->seed,
                                &c->bench, err);
}

/* The choice's own failure puts it out; others end the race. */
static kt_status settle(contest *c, entrant *e, kt_status st, const kt_err *why, kt_err *err) {
    if (st == KT_OK) return KT_OK;
    drop(c, e, why->message);
    return revive(c, err);
}

static bool asks_to_stop(const contest *c) {
    return c->r->stop && c->r->stop(c->r->arg);
}

static bool is_late(const contest *c) {
    return kt_clock_ns() > c->r->deadline_ns;
}

static kt_status admit(contest *c, kt_err *err) {
    for (int i = 0; i < c->n; i++) {
        entrant *e = &c->e[i];
        kt_err why = {KT_OK, ""};
        int local = 0;
        kt_status st;
        if (asks_to_stop(c)) return kt_fail(err, KT_E_CANCELLED, "interrupted");
        if (i && kt_clock_ns() > c->admit_until_ns) {
            c->n = i;
            return KT_OK;
        }
        st = kt_device_bench_take(&c->bench, &e->choice, &local, &why);
        if (st == KT_OK && local > 0 && i > 0)
            st = kt_fail(&why, KT_E_UNSUPPORTED, "%d bytes a thread spill", local);
        if (st == KT_OK)
            st = kt_device_gate(c->r->seat->d, &c->job, &e->choice, c->r->problem.m, c->r->seed,
                                &e->error, &why);
        KT_TRY(settle(c, e, st, &why, err));
    }
    return KT_OK;
}

/* ---- times ---- */

static kt_status take_time(contest *c, entrant *e, double *ns, kt_err *err) {
    double once;
    int local, calls;

    *ns = e->prior;
    if (c->r->is_pretended && e->n > 0) return KT_OK;
    KT_TRY(kt_device_bench_take(&c->bench, &e->choice, &local, err));
    if (c->r->is_pretended) { /* once, so that what does not start is seen */
        KT_TRY(kt_device_bench_put(&c->bench, 0, err));
        return kt_device_sync(c->r->seat->d, NULL, err);
    }
    KT_TRY(kt_device_bench_time(&c->bench, 1, &once, err));
    *ns = once;
    if (once > quick_call_ns) return KT_OK;
    calls = (int)(call_target_ns / (once + 1)) + 2;
    return kt_device_bench_time(&c->bench, calls < MOST_CALLS ? calls : MOST_CALLS, ns, err);
}

static void keep(entrant *e, double ns) {
    double off[MOST_SAMPLES];

    if (e->n < MOST_SAMPLES) e->sample[e->n++] = ns;
    e->median = kt_quantile(e->sample, e->n, 0.5);
    for (int i = 0; i < e->n; i++) off[i] = fabs(e->sample[i] - e->median);
    e->deviation = kt_quantile(off, e->n, 0.5);
}

/* One sample of e between two of the default. */
static kt_status sample(contest *c, entrant *e, kt_err *err) {
    entrant *standard = &c->e[0];
    double before, own = 0, after;
    kt_err why = {KT_OK, ""};
    kt_status st;

    for (int attempt = 0; attempt <= MOST_VOIDED; attempt++) {
        if (asks_to_stop(c)) return kt_fail(err, KT_E_CANCELLED, "interrupted");
        KT_TRY(take_time(c, standard, &before, err));
        st = take_time(c, e, &own, &why);
        if (st != KT_OK) return settle(c, e, st, &why, err);
        KT_TRY(take_time(c, standard, &after, err));
        if (fabs(after / before - 1) <= most_drift || is_late(c)) break;
        c->n_voided++;
    }
    keep(standard, before);
    keep(e, own * standard->median / ((before + after) / 2));
    return KT_OK;
}

static int by_median(const void *a, const void *b) {
    const entrant *left = a, *right = b;
    if (left->is_out != right->is_out) return left->is_out - right->is_out;
    return left->median < right->median ? -1 : left->median > right->median;
}

/* All that are left are sampled until they have `samples`; the best `kept` of them go on. */
static kt_status rung(contest *c, int samples, int kept, kt_err *err) {
    int n = 1;

    for (int s = 0; s < samples; s++)
        for (int i = 1; i < c->n; i++) {
            if (c->e[i].is_out || c->e[i].n >= samples) continue;
            if (is_late(c) && c->e[i].n) continue;
            KT_TRY(sample(c, &c->e[i], err));
        }
    qsort(c->e + 1, (size_t)c->n - 1, sizeof *c->e, by_median);
    while (n < c->n && n <= kept && !c->e[n].is_out) n++;
    c->n = n;
    return KT_OK;
}

static kt_status run_rungs(contest *c, kt_err *err) {
    entrant *standard = &c->e[0];
    double ns;

    if (standard->is_out) return KT_OK;
    KT_TRY(take_time(c, standard, &ns, err)); /* warms up */
    KT_TRY(take_time(c, standard, &ns, err));
    keep(standard, ns);
    KT_TRY(rung(c, 3, (c->n + 2) / 3 > 5 ? (c->n + 2) / 3 : 5, err));
    KT_TRY(rung(c, 10, 5, err));
    return rung(c, 30, 5, err);
}

/* ---- the verdict ---- */

/* Fresh samples, in turn; the default stays unless it is surely slower. */
static kt_status duel(contest *c, bool *wins, kt_err *err) {
    entrant *standard = &c->e[0], *best = &c->e[1];

    *wins = false;
    if (c->n < 2 || best->is_out) return KT_OK;
    standard->n = best->n = 0;
    for (int i = 0; i < DUEL && !best->is_out && (i < LEAST_DUEL || !is_late(c)); i++)
        KT_TRY(sample(c, best, err));
    if (standard->n == 0) { /* the rival fell out before the first sample was whole */
        double ns;
        KT_TRY(take_time(c, standard, &ns, err));
        keep(standard, ns);
    }
    *wins = !best->is_out &&
            standard->median - best->median >
                2 * (standard->deviation > best->deviation ? standard->deviation : best->deviation);
    return KT_OK;
}

static void write_row(const contest *c, bool wins, kt_device_verdict *out) {
    const entrant *standard = &c->e[0], *best = &c->e[wins];
    const kt_interval i = kt_median_interval(best->sample, best->n, 0.95);
    kt_table_row *row = &out->row;

    *row = (kt_table_row){.problem = c->r->problem,
                          .threads = 1,
                          .version = best->choice.kernel->version,
                          .time_ns = best->median,
                          .ci_low = i.low / best->median,
                          .ci_high = i.high / best->median,
                          .rounds = best->n,
                          .default_ns = standard->median,
                          .error = best->error};
    snprintf(row->variant, sizeof row->variant, "%s", best->choice.kernel->name);
    kt_device_config_format(&best->choice, row->config, sizeof row->config);
    snprintf(row->default_variant, sizeof row->default_variant, "%s",
             standard->choice.kernel->name);
    kt_device_config_format(&standard->choice, row->default_config, sizeof row->default_config);
    snprintf(row->status, sizeof row->status, "%s", wins ? "tuned" : "default");
    for (int k = 1 + wins; k < c->n && row->n_runners < KT_TABLE_RUNNERS; k++) {
        if (c->e[k].is_out) continue;
        snprintf(row->runner[row->n_runners].variant, sizeof row->runner->variant, "%s",
                 c->e[k].choice.kernel->name);
        kt_device_config_format(&c->e[k].choice, row->runner[row->n_runners].config,
                                sizeof row->runner->config);
        row->runner[row->n_runners++].time_ns = c->e[k].median;
    }
}

static kt_status run(contest *c, kt_device_verdict *out, kt_err *err) {
    bool wins;

    KT_TRY(gather(c, err));
    out->n_contenders = c->n;
    prepare(c);
    KT_TRY(kt_device_bench_open(c->r->seat->d, &c->job, c->r->problem.m, c->r->rotation, c->r->seed,
                                &c->bench, err));
    KT_TRY(admit(c, err));
    out->n_contenders = c->n;
    KT_TRY(run_rungs(c, err));
    if (c->e[0].is_out)
        return kt_fail(err, KT_E_UNSUPPORTED, "the default itself fell out: nothing to race");
    KT_TRY(duel(c, &wins, err));
    if (c->e[0].n == 0) return kt_fail(err, KT_E_UNSUPPORTED, "no time for a sample");
    write_row(c, wins, out);
    return KT_OK;
}

kt_status kt_device_race_run(const kt_device_race *race, kt_device_verdict *out, kt_err *err) {
    const int64_t now = kt_clock_ns(), time = race->deadline_ns - now;
    contest c = {.r = race,
                 .job = kt_device_job_of(&race->problem, race->is_exact),
                 .compile_until_ns = now + time / 2,
                 .admit_until_ns = now + time / 3 * 2};
    kt_status st;

    *out = (kt_device_verdict){.n_contenders = 0};
    if (!race->seat->d)
        return kt_fail(err, KT_E_NOT_FOUND, "the device is lost and does not open again");
    st = run(&c, out, err);
    out->n_dropped = c.n_dropped;
    out->n_voided = c.n_voided;
    if (race->seat->d) kt_device_bench_close(&c.bench);
    free(c.e);
    return st;
}
