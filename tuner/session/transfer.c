/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/session/transfer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/plan.h"
#include "tuner/space/candidates.h"
#include "tuner/store/ledger.h"
#include "tuner/store/replay.h"

enum { MAX_VARIANTS = 512 };

/* One decided cell with the time of every contender relative to the winner's. */
typedef struct decided {
    kt_table_row row;
    int n;
    char (*names)[KT_CONTENDER_NAME_BYTES]; /* owned */
    double *ratio;                          /* owned; NAN = never timed beside the winner */
} decided;

/* What one machine decided: no cell of it answers for another machine. */
typedef struct history {
    decided *cells; /* owned */
    size_t n, capacity;
    kt_registry *registry; /* those variants that took part */
    kt_fingerprint machine;
    kt_replay replay; /* large */
} history;

typedef struct histories {
    history **list; /* owned, room for one per journal */
    int n;
    size_t n_cells;
} histories;

static void history_destroy(history *h) {
    if (!h) return;
    for (size_t i = 0; i < h->n; i++) {
        free(h->cells[i].names);
        free(h->cells[i].ratio);
    }
    free(h->cells);
    kt_registry_destroy(h->registry);
    free(h);
}

/* --- reading --- */

static bool is_known(const history *h, const kt_table_row *row) {
    for (size_t i = 0; i < h->n; i++)
        if (kt_table_key_order(&h->cells[i].row.problem, h->cells[i].row.threads, &row->problem,
                               row->threads) == 0)
            return true;
    return false;
}

/* Ratios from rounds that both took part in: drift of the machine between rungs stays out. */
static kt_status fill(history *h, decided *d, kt_err *err) {
    const kt_replay *r = &h->replay;
    kt_samples s = {0};
    kt_status st;

    d->row = r->row;
    d->n = r->n;
    d->names = calloc((size_t)r->n, sizeof *d->names);
    d->ratio = calloc((size_t)r->n, sizeof *d->ratio);
    if (!d->names || !d->ratio) return kt_fail(err, KT_E_NOMEM, "transfer: no memory");
    st = kt_replay_samples(&h->replay, &s, err);
    for (int i = 0; st == KT_OK && i < r->n; i++) {
        double a[KT_MAX_SAMPLES], b[KT_MAX_SAMPLES];
        int n = kt_samples_pairs(&s, i, r->winner, a, b);
        snprintf(d->names[i], sizeof d->names[i], "%s", r->names[i]);
        for (int k = 0; k < n; k++) a[k] = log(a[k] / b[k]);
        d->ratio[i] = n > 0 ? exp(kt_quantile(a, n, 0.5)) : NAN;
    }
    kt_samples_destroy(&s);
    return st;
}

static kt_status add(history *h, kt_err *err) {
    decided *d;

    if (h->n == h->capacity) {
        size_t capacity = h->capacity ? 2 * h->capacity : 128;
        decided *cells = realloc(h->cells, capacity * sizeof *cells);
        if (!cells) return kt_fail(err, KT_E_NOMEM, "transfer: no memory");
        h->cells = cells;
        h->capacity = capacity;
    }
    d = &h->cells[h->n++];
    memset(d, 0, sizeof *d);
    return fill(h, d, err);
}

static kt_status read_journal(history *h, const kt_registry *registry, const kt_journal *j,
                              kt_err *err) {
    for (size_t i = kt_journal_count(j); i-- > 0;) {
        kt_status st = kt_replay_open(j, i, &h->replay, err);
        if (st == KT_E_NOT_FOUND) continue;
        KT_TRY(st);
        if (is_known(h, &h->replay.row) || !kt_registry_find(registry, h->replay.row.variant) ||
            !kt_registry_find(registry, h->replay.row.default_variant))
            continue;
        KT_TRY(add(h, err));
    }
    return KT_OK;
}

/* As a table keeps its rows, so that each that is put there goes to the end. */
static int by_key(const void *a, const void *b) {
    const kt_table_row *x = &((const decided *)a)->row, *y = &((const decided *)b)->row;
    return kt_table_key_order(&x->problem, x->threads, &y->problem, y->threads);
}

/* Does the contender "stem@version{config}" run this variant? */
static bool is_of(const char *name, const char *stem) {
    size_t size = strlen(stem);
    return strncmp(name, stem, size) == 0 && name[size] == '@';
}

/* Variants that were written since have no samples: the plan must not see them. */
static kt_status make_registry(history *h, const kt_registry *all, kt_err *err) {
    const kt_variant *list[MAX_VARIANTS];
    kt_isa isa = 0;
    size_t n = 0;

    for (size_t v = 0; v < kt_registry_count(all) && n < MAX_VARIANTS; v++) {
        const kt_variant *variant = kt_registry_at(all, v);
        bool took_part = false;
        for (size_t i = 0; i < h->n && !took_part; i++)
            for (int c = 0; c < h->cells[i].n && !took_part; c++)
                took_part = is_of(h->cells[i].names[c], variant->name);
        if (!took_part) continue;
        list[n++] = variant;
        isa |= variant->isa;
    }
    return kt_registry_create(list, n, isa, &h->registry, err);
}

/* --- leaving out --- */

typedef enum leave_out { LEAVE_BUCKET, LEAVE_ROWS, LEAVE_SHAPE, LEAVE_ALL } leave_out;

static bool is_left_out(const kt_table_row *row, const kt_table_row *asked, leave_out what) {
    bool same = kt_same_weights(&row->problem, &asked->problem);
    if (what == LEAVE_ALL) return true;
    if (what == LEAVE_SHAPE) return same;
    if (row->problem.m != asked->problem.m) return false;
    return what == LEAVE_ROWS || (same && row->threads == asked->threads);
}

/* Rows count whatever version their variant has today: it is the rule that is tried, not the
 * kernels. */
static kt_status put_row(const history *h, kt_table *t, const kt_table_row *row, kt_err *err) {
    kt_table_row copy = *row;
    copy.version = kt_registry_find(h->registry, row->variant)->version;
    return kt_table_put(t, &copy, err);
}

static kt_status choose(const history *h, const kt_table *t, const kt_table_row *asked,
                        kt_choice *out, kt_err *err) {
    kt_planner *planner = NULL;
    kt_choice_map *map = calloc(1, sizeof *map);
    int64_t most = asked->problem.m;
    kt_status st = map ? KT_OK : kt_fail(err, KT_E_NOMEM, "transfer: no memory");

    for (size_t i = 0; i < h->n; i++)
        if (kt_same_weights(&h->cells[i].row.problem, &asked->problem) &&
            h->cells[i].row.problem.m > most)
            most = h->cells[i].row.problem.m;
    if (st == KT_OK) st = kt_planner_create(h->registry, t, &h->machine, NULL, &planner, err);
    if (st == KT_OK)
        st = kt_plan_resolve(planner, &asked->problem, asked->threads, most, KT_DECODE_SHARE, map,
                             NULL, err);
    if (st == KT_OK) *out = *kt_choice_for(map, asked->problem.m);
    kt_planner_destroy(planner);
    free(map);
    return st;
}

/* Is "stem@version{config}" the choice? Parameters that were not there yet have their initial
 * values. */
static bool is_choice(const char *name, const kt_choice *choice) {
    const char *brace = strchr(name, '{');
    char text[KT_CONTENDER_NAME_BYTES];
    kt_config config;

    if (!brace || !is_of(name, choice->variant->name)) return false;
    snprintf(text, sizeof text, "%.*s", (int)strcspn(brace + 1, "}"), brace + 1);
    return kt_config_parse(choice->variant, text, &config, NULL) == KT_OK &&
           memcmp(&config, &choice->config, sizeof config) == 0;
}

/* Time of the choice relative to the winner; NAN when it was never timed. Versions do not
 * matter. */
static double ratio_of(const decided *d, const kt_choice *choice) {
    for (int i = 0; i < d->n; i++)
        if (is_choice(d->names[i], choice)) return d->ratio[i];
    return NAN;
}

static int by_value(const void *a, const void *b) {
    double x, y;
    memcpy(&x, a, sizeof x);
    memcpy(&y, b, sizeof y);
    return (x > y) - (x < y);
}

void kt_transfer_figures(double *ratios, int n, kt_transfer_regret *out) {
    double sum = 0;

    out->n = n;
    out->geomean = out->p95 = out->max = 0;
    if (n == 0) return;
    qsort(ratios, (size_t)n, sizeof *ratios, by_value);
    for (int i = 0; i < n; i++) sum += log(ratios[i]);
    out->geomean = expm1(sum / n);
    out->p95 = ratios[(int)ceil(0.95 * n) - 1] - 1;
    out->max = ratios[n - 1] - 1;
}

/* Is there another row that could answer? Without one it is the heuristic that is asked. */
static bool has_answer(const history *h, const kt_table_row *asked, leave_out what) {
    for (size_t i = 0; i < h->n; i++) {
        const kt_problem *q = &h->cells[i].row.problem, *p = &asked->problem;
        if (q->op == p->op && q->weights == p->weights && q->acts == p->acts &&
            !is_left_out(&h->cells[i].row, asked, what) &&
            (what == LEAVE_SHAPE ||
             (kt_same_weights(q, p) && h->cells[i].row.threads == asked->threads)))
            return true;
    }
    return what == LEAVE_ALL;
}

static kt_status ask(const history *h, const decided *d, leave_out what, double *ratio,
                     kt_choice *choice, kt_err *err) {
    kt_table *t = NULL;
    kt_status st = kt_table_create(&t, err);

    if (st == KT_OK) t->fingerprint = h->machine;
    for (size_t i = 0; st == KT_OK && i < h->n; i++)
        if (!is_left_out(&h->cells[i].row, &d->row, what))
            st = put_row(h, t, &h->cells[i].row, err);
    if (st == KT_OK) st = choose(h, t, &d->row, choice, err);
    if (st == KT_OK) *ratio = ratio_of(d, choice);
    kt_table_destroy(t);
    return st;
}

/* Appends to ratios[*n]; the slowest choice so far is out's, at *worst. */
static kt_status ask_all(const history *h, leave_out what, double *ratios, int *n, double *worst,
                         kt_transfer_regret *out, kt_err *err) {
    for (size_t i = 0; i < h->n; i++) {
        const decided *d = &h->cells[i];
        kt_choice choice;
        double ratio;
        if (!has_answer(h, &d->row, what)) continue;
        KT_TRY(ask(h, d, what, &ratio, &choice, err));
        out->unknown += isnan(ratio);
        if (isnan(ratio)) ratio = 1 + KT_TRANSFER_UNKNOWN;
        if (ratio < 1) ratio = 1;
        ratios[(*n)++] = ratio;
        if (ratio <= *worst) continue;
        *worst = ratio;
        kt_cell_key(&d->row.problem, d->row.threads, out->worst, sizeof out->worst);
        snprintf(out->chosen, sizeof out->chosen, "%s", choice.variant->name);
    }
    return KT_OK;
}

static kt_status measure(const histories *all, leave_out what, kt_transfer_regret *out,
                         kt_err *err) {
    double *ratios = calloc(all->n_cells + 1, sizeof *ratios), worst = 1;
    kt_status st = ratios ? KT_OK : kt_fail(err, KT_E_NOMEM, "transfer: no memory");
    int n = 0;

    memset(out, 0, sizeof *out);
    for (int i = 0; st == KT_OK && i < all->n; i++)
        st = ask_all(all->list[i], what, ratios, &n, &worst, out, err);
    if (st == KT_OK) kt_transfer_figures(ratios, n, out);
    free(ratios);
    return st;
}

/* The history of the journal's machine, which may be new. */
static kt_status history_of(histories *all, const kt_journal *j, history **out, kt_err *err) {
    const kt_json *session = kt_journal_at(j, 0);
    kt_fingerprint machine = {0};
    history *h;

    if (session)
        KT_TRY(kt_fingerprint_read(kt_json_get(session, "fingerprint"), "journal", &machine, err));
    for (int i = 0; i < all->n; i++) {
        *out = all->list[i];
        if (kt_same_tuning_machine(&(*out)->machine, &machine)) return KT_OK;
    }
    h = calloc(1, sizeof *h);
    if (!h) return kt_fail(err, KT_E_NOMEM, "transfer: no memory");
    h->machine = machine;
    *out = all->list[all->n++] = h;
    return KT_OK;
}

static kt_status read_journals(histories *all, const kt_registry *registry,
                               const kt_journal *const *journals, int n_journals, kt_err *err) {
    for (int i = 0; i < n_journals; i++) {
        history *h = NULL;
        KT_TRY(history_of(all, journals[i], &h, err));
        KT_TRY(read_journal(h, registry, journals[i], err));
    }
    for (int i = 0; i < all->n; i++) {
        history *h = all->list[i];
        if (h->n > 0) qsort(h->cells, h->n, sizeof *h->cells, by_key);
        KT_TRY(make_registry(h, registry, err));
        all->n_cells += h->n;
    }
    return KT_OK;
}

kt_status kt_transfer_measure(const kt_registry *registry, const kt_journal *const *journals,
                              int n_journals, kt_transfer *out, kt_err *err) {
    histories all = {calloc((size_t)n_journals + 1, sizeof *all.list), 0, 0};
    kt_status st = all.list ? KT_OK : kt_fail(err, KT_E_NOMEM, "transfer: no memory");

    memset(out, 0, sizeof *out);
    if (st == KT_OK) st = read_journals(&all, registry, journals, n_journals, err);
    if (st == KT_OK) st = measure(&all, LEAVE_BUCKET, &out->bucket, err);
    if (st == KT_OK) st = measure(&all, LEAVE_ROWS, &out->rows, err);
    if (st == KT_OK) st = measure(&all, LEAVE_SHAPE, &out->shape, err);
    if (st == KT_OK) st = measure(&all, LEAVE_ALL, &out->heuristic, err);
    for (int i = 0; i < all.n; i++) history_destroy(all.list[i]);
    free(all.list);
    return st;
}
