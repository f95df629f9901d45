/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/device_session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/device/cuda_driver.h"
#include "dispatch/device/nvml.h"
#include "kernels/cuda/device_weights.h"

enum { MOST_PROBLEMS = 64 };

typedef struct runner {
    const kt_device_session *s;
    kt_device_seat seat;
    kt_table *table;
    kt_device_outcome *out;
    kt_problem problem[MOST_PROBLEMS]; /* distinct, m = 0 */
    int n_problems;
    int driver, mhz; /* of a GPU: CUDA's version, its highest clock */
} runner;

/* ---- what is decided ---- */

static bool is_known(const runner *r, const kt_problem *p) {
    for (int i = 0; i < r->n_problems; i++)
        if (kt_same_weights(&r->problem[i], p)) return true;
    return false;
}

static void gather(runner *r) {
    for (size_t i = 0; i < r->s->cells->n && r->n_problems < MOST_PROBLEMS; i++) {
        kt_problem p = r->s->cells->cells[i].problem;
        if ((p.op != KT_OP_GEMM && p.op != KT_OP_MOE_FFN) || is_known(r, &p)) continue;
        if (kt_device_weight_format(p.weights) == KT_W_NONE || p.n % 8 || p.k % 8) continue;
        p.m = 0;
        r->problem[r->n_problems++] = p;
    }
}

static void say_skipped(const runner *r, const char *what) {
    if (r->s->listener.skipped) r->s->listener.skipped(r->s->listener.arg, what);
}

static void dropped(void *arg, const char *what) {
    say_skipped(arg, what);
}

static bool stop(void *arg) {
    const runner *r = arg;
    return r->s->listener.stop && r->s->listener.stop(r->s->listener.arg);
}

static kt_table_device_row row_of(const runner *r, const char *cell, const kt_table_row *row) {
    const kt_device_facts *f = kt_device_about(r->seat.d);
    kt_table_device_row d = {.driver = r->driver, .mhz = r->mhz, .row = *row};

    snprintf(d.device, sizeof d.device, "%s", f->name);
    snprintf(d.target, sizeof d.target, "%s", f->target->name);
    snprintf(d.cell, sizeof d.cell, "%s", cell);
    return d;
}

/* What a row says of the conditions that it was measured under. */
static void look(runner *r) {
    const kt_device_facts *f = kt_device_about(r->seat.d);
    char why[256];
    kt_gpus gpus;
    kt_nvml *n;

    if (strcmp(f->class, "cuda") != 0) return;
    kt_gpus_probe(&gpus);
    r->driver = gpus.driver;
    n = f->ordinal < gpus.n ? kt_nvml_start(why, sizeof why) : NULL;
    if (!n) return;
    r->mhz = kt_nvml_look(n, gpus.gpu[f->ordinal].bus).most_sm_mhz;
    if (r->mhz < 0) r->mhz = 0;
    kt_nvml_stop(n);
}

/* A seat whose device is lost takes another one. */
static kt_status sit(runner *r, kt_err *err) {
    if (r->seat.d && kt_device_sync(r->seat.d, NULL, NULL) == KT_OK) return KT_OK;
    if (r->seat.d) r->seat.n_lost++;
    kt_device_close(r->seat.d);
    r->seat.d = NULL;
    return kt_device_open(r->s->device, &r->seat.d, err);
}

static const kt_table_device_row *find_row(const runner *r, const kt_problem *p) {
    const kt_table_row key = {.problem = *p, .threads = 1};
    const kt_table_device_row d = row_of(r, "kernel", &key);

    return kt_table_find_device_row(r->table, &d);
}

/* By an earlier run, with this driver and the kernel as it is now. */
static bool is_decided(const runner *r, const kt_problem *p) {
    const kt_table_device_row *found = r->s->is_fresh ? NULL : find_row(r, p);

    if (!found || found->driver != r->driver) return false;
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, found->row.variant) == 0)
            return kt_builtin_cuda_kernels[i]->version == found->row.version;
    return false;
}

static kt_status decide(runner *r, const kt_problem *problem, int64_t rows, kt_err *err) {
    const kt_device_session *s = r->s;
    kt_device_race race = {.seat = &r->seat,
                           .problem = *problem,
                           .is_exact = s->is_exact,
                           .is_pretended = s->is_pretended,
                           .most = s->most,
                           .threads = s->threads,
                           .rotation = s->rotation,
                           .seed = s->seed,
                           .deadline_ns = s->deadline_ns,
                           .stop = stop,
                           .dropped = dropped,
                           .arg = r};
    kt_device_verdict verdict;
    kt_table_device_row row;
    char key[KT_CELL_KEY_BYTES], line[KT_CELL_KEY_BYTES + KT_ERR_SIZE];
    kt_err why = {KT_OK, ""};
    kt_status st;

    race.problem.m = rows;
    KT_TRY(sit(r, err));
    r->out->n_cells++;
    if (is_decided(r, &race.problem)) {
        r->out->n_decided++;
        r->out->n_reused++;
        return KT_OK;
    }
    st = kt_device_race_run(&race, &verdict, &why);
    r->out->n_dropped += verdict.n_dropped;
    r->out->n_voided += verdict.n_voided;
    if (st == KT_E_CANCELLED) return kt_fail(err, st, "%s", why.message);
    if (st != KT_OK) {
        snprintf(line, sizeof line, "%s: %s", kt_cell_key(&race.problem, 1, key, sizeof key),
                 why.message);
        say_skipped(r, line);
        return KT_OK;
    }
    row = row_of(r, "kernel", &verdict.row);
    KT_TRY(kt_table_put_device_row(r->table, &row, err));
    r->out->n_decided++;
    r->out->n_tuned += strcmp(verdict.row.status, "tuned") == 0;
    if (s->listener.decided) s->listener.decided(s->listener.arg, &verdict);
    return KT_OK;
}

/* ---- what both sides share ---- */

/* Nanoseconds of the CPU for one expert's m rows: the row of the nearest m, in proportion to what a
 * call of it moves (few rows) or computes (many). 0 = no row. */
static double cpu_ns(const runner *r, const kt_problem *p, double m) {
    const kt_table_row *best = NULL;
    double nearest = INFINITY;

    for (size_t i = 0; i < r->table->n_rows; i++) {
        const kt_table_row *row = &r->table->rows[i];
        const double far = fabs(log((double)row->problem.m / m));
        if (row->threads != r->s->threads || !kt_same_weights(&row->problem, p) || far >= nearest)
            continue;
        nearest = far;
        best = row;
    }
    if (!best) return 0;
    return best->problem.m > KT_DEVICE_FEW ? best->time_ns * m / (double)best->problem.m
                                           : best->time_ns;
}

/* Of a whole layer of `tokens`. */
static double cpu_layer_ns(const runner *r, const kt_problem *p, int64_t tokens) {
    const double slots = (double)(tokens * p->topk), experts = (double)p->experts;
    const double used = slots < experts ? slots : experts;

    return used * cpu_ns(r, p, slots / used);
}

static const kt_table_row *device_row(const runner *r, const kt_problem *p, int64_t tokens) {
    const kt_table_device_row *found;
    kt_problem of_tokens = *p;

    of_tokens.m = tokens;
    found = find_row(r, &of_tokens);
    return found ? &found->row : NULL;
}

static kt_status put_cell(runner *r, const char *cell, const kt_table_row *by, const char *config,
                          double ns, double default_ns, kt_err *err) {
    kt_table_row row = *by;
    kt_table_device_row d;

    row.threads = r->s->threads;
    row.version = 0;
    row.n_runners = row.n_others = 0;
    row.time_ns = ns;
    row.default_ns = default_ns;
    snprintf(row.variant, sizeof row.variant, "%s", cell);
    snprintf(row.default_variant, sizeof row.default_variant, "%s", cell);
    snprintf(row.config, sizeof row.config, "%s", config);
    snprintf(row.default_config, sizeof row.default_config, "%s", "");
    snprintf(row.status, sizeof row.status, "%s", "tuned");
    d = row_of(r, cell, &row);
    r->out->n_shares++;
    return kt_table_put_device_row(r->table, &d, err);
}

/* Both end at once when the device has c / (c + g) of the experts, c and g being what either takes
 * for all of them. */
static kt_status put_share(runner *r, const kt_problem *p, kt_err *err) {
    for (int i = 0; i < r->s->n_rows; i++) {
        const kt_table_row *row = device_row(r, p, r->s->rows[i]);
        const double cpu = cpu_layer_ns(r, p, r->s->rows[i]);
        char config[32];
        double share;
        if (!row || cpu <= 0) continue;
        share = cpu / (cpu + row->time_ns);
        snprintf(config, sizeof config, "share=%d", (int)floor(100 * share));
        KT_TRY(put_cell(r, "cpu_gpu_split", row, config, share * row->time_ns, cpu, err));
    }
    return KT_OK;
}

static kt_status link_ns_per_byte(runner *r, double *out, kt_err *err) {
    enum { BYTES = 8 << 20, COUNT = 4 };
    kt_device_event *from, *to;
    void *there = NULL, *here = NULL;
    double ms = 0;
    kt_status st;

    KT_TRY(kt_device_event_make(r->seat.d, &from, err));
    KT_TRY(kt_device_event_make(r->seat.d, &to, err));
    KT_TRY(kt_device_host_alloc(r->seat.d, BYTES, &here, err));
    st = kt_device_alloc(r->seat.d, BYTES, &there, err);
    if (st == KT_OK) memset(here, 0x5a, BYTES);
    for (int i = -1; i < COUNT && st == KT_OK; i++) { /* the first warms up */
        st = kt_device_upload(r->seat.d, KT_STREAM_UPLOAD, there, here, BYTES, err);
        if (st == KT_OK && i < 0) st = kt_device_record(r->seat.d, KT_STREAM_UPLOAD, from, err);
    }
    if (st == KT_OK) st = kt_device_record(r->seat.d, KT_STREAM_UPLOAD, to, err);
    if (st == KT_OK) st = kt_device_sync(r->seat.d, to, err);
    if (st == KT_OK) st = kt_device_elapsed(r->seat.d, from, to, &ms, err);
    kt_device_free(r->seat.d, there);
    kt_device_host_free(r->seat.d, here);
    *out = ms * 1e6 / ((double)BYTES * COUNT);
    return st;
}

static double layer_bytes(const kt_problem *p) {
    const size_t up = kt_device_row_bytes(p->weights, p->k),
                 down = kt_device_row_bytes(kt_problem_down(p), p->n);
    return (double)p->experts * (2 * (double)p->n * (double)up + (double)p->k * (double)down);
}

/* The fewest rows for which all experts over the link, and the device's work beside it, are done
 * before the CPU's; rows=0: never among those that were raced. */
static kt_status put_crossover(runner *r, const kt_problem *p, double ns_per_byte, kt_err *err) {
    const double over_link = layer_bytes(p) * ns_per_byte;
    const kt_table_row *first = NULL;
    char config[32] = "rows=0";
    double ns = over_link, cpu = 0;

    for (int i = 0; i < r->s->n_rows; i++) {
        const kt_table_row *row = device_row(r, p, r->s->rows[i]);
        const double here = cpu_layer_ns(r, p, r->s->rows[i]);
        const double there = row && row->time_ns > over_link ? row->time_ns : over_link;
        if (!row || here <= 0) continue;
        if (!first) first = row;
        cpu = here, ns = there;
        if (there >= here) continue;
        snprintf(config, sizeof config, "rows=%lld", (long long)r->s->rows[i]);
        break;
    }
    return first ? put_cell(r, "prefill_offload", first, config, ns, cpu, err) : KT_OK;
}

static kt_status put_shared_cells(runner *r, kt_err *err) {
    double ns_per_byte = 0.04; /* of a pretended link: 25 GB/s */

    KT_TRY(sit(r, err));
    if (!r->s->is_pretended) KT_TRY(link_ns_per_byte(r, &ns_per_byte, err));
    for (int i = 0; i < r->n_problems; i++) {
        if (r->problem[i].op != KT_OP_MOE_FFN || r->problem[i].experts < 1) continue;
        KT_TRY(put_share(r, &r->problem[i], err));
        KT_TRY(put_crossover(r, &r->problem[i], ns_per_byte, err));
    }
    return KT_OK;
}

static kt_status run_all(runner *r, kt_err *err) {
    KT_TRY(sit(r, err));
    snprintf(r->out->device, sizeof r->out->device, "%s", kt_device_about(r->seat.d)->name);
    look(r);
    gather(r);
    for (int m = 0; m < r->s->n_rows; m++)
        for (int i = 0; i < r->n_problems; i++) {
            if (stop(r)) return kt_fail(err, KT_E_CANCELLED, "interrupted");
            if (kt_clock_ns() > r->s->deadline_ns) return put_shared_cells(r, err);
            KT_TRY(decide(r, &r->problem[i], r->s->rows[m], err));
        }
    return put_shared_cells(r, err);
}

kt_status kt_device_session_run(const kt_device_session *session, kt_table *table,
                                kt_device_outcome *out, kt_err *err) {
    runner r = {.s = session, .seat = {.options = session->device}, .table = table, .out = out};
    kt_status st;

    *out = (kt_device_outcome){.n_cells = 0};
    st = run_all(&r, err);
    out->n_lost = r.seat.n_lost;
    kt_device_close(r.seat.d);
    return st;
}
