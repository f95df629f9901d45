/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/ledger.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "kt/version.h"
#include "tuner/store/crc32.h"
#include "tuner/store/row_json.h"
#include "tuner/store/rung_json.h"

static void begin(kt_json_writer *w, const char *kind) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "t", kind);
}

static kt_status finish(kt_ledger *l, kt_json_writer *w, kt_err *err) {
    kt_status st;
    kt_json_end_object(w);
    st = kt_journal_append(l->journal, w, err);
    kt_json_writer_deinit(w);
    return st;
}

static bool is_kind(const kt_json *record, const char *kind) {
    const char *t = kt_json_string(kt_json_get(record, "t"), NULL);
    return t && strcmp(t, kind) == 0;
}

static bool has_text(const kt_json *record, const char *key, const char *want) {
    const char *text = kt_json_string(kt_json_get(record, key), NULL);
    return text && strcmp(text, want) == 0;
}

bool kt_same_tuning_machine(const kt_fingerprint *a, const kt_fingerprint *b) {
    kt_fingerprint x = *a, y = *b;
    memset(&x.ceilings, 0, sizeof x.ceilings);
    memset(&y.ceilings, 0, sizeof y.ceilings);
    x.memory_bytes = y.memory_bytes;
    return x.isa == y.isa && kt_fingerprint_compare(&x, &y, NULL) == KT_MATCH_SAME;
}

static bool is_our_session(const kt_json *session, const kt_fingerprint *machine) {
    kt_fingerprint f;
    return kt_json_int(kt_json_get(session, "protocol"), 0) == KT_PROTOCOL &&
           has_text(session, "version", KT_VERSION) && has_text(session, "compiler", __VERSION__) &&
           kt_fingerprint_read(kt_json_get(session, "fingerprint"), "journal", &f, NULL) == KT_OK &&
           kt_same_tuning_machine(&f, machine);
}

static kt_status mark_usable(kt_ledger *l, const kt_fingerprint *machine, kt_err *err) {
    size_t n = kt_journal_count(l->journal);
    bool ours = false;

    l->usable = calloc(n + 1, 1);
    if (!l->usable) return kt_fail(err, KT_E_NOMEM, "journal: no memory for %zu records", n);
    for (size_t i = 0; i < n; i++) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (is_kind(r, "session")) ours = is_our_session(r, machine);
        l->usable[i] = ours;
    }
    return KT_OK;
}

static kt_status start_session(kt_ledger *l, const kt_ledger_session *s, kt_err *err) {
    kt_json_writer w = {0};
    begin(&w, "session");
    kt_json_add_int(&w, "protocol", KT_PROTOCOL);
    kt_json_add_string(&w, "version", KT_VERSION);
    kt_json_add_string(&w, "compiler", __VERSION__);
    kt_json_add_string(&w, "workload", s->workload);
    kt_json_add_string(&w, "strategy", s->strategy);
    kt_json_add_string(&w, "command", s->command);
    kt_json_add_int(&w, "seed", (int64_t)s->seed);
    kt_json_add_int(&w, "unix_ms", kt_clock_unix_ms());
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(s->machine, &w);
    return finish(l, &w, err);
}

kt_status kt_ledger_open(const char *path, const kt_ledger_session *session, kt_ledger *out,
                         kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_journal_open(path, false, &out->journal, err));
    out->seed = session->seed;
    st = mark_usable(out, session->machine, err);
    if (st == KT_OK) st = start_session(out, session, err);
    if (st != KT_OK) kt_ledger_close(out);
    return st;
}

void kt_ledger_close(kt_ledger *l) {
    if (!l) return;
    kt_journal_close(l->journal);
    free(l->usable);
    free(l->names);
    memset(l, 0, sizeof *l);
}

kt_status kt_ledger_forget(kt_ledger *l, const kt_tune_cell *cell, kt_err *err) {
    kt_json_writer w = {0};
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (size_t i = 0; i < kt_journal_count(l->journal); i++)
        if (has_text(kt_journal_at(l->journal, i), "cell", key)) l->usable[i] = 0;
    begin(&w, "forget");
    kt_json_add_string(&w, "cell", key);
    return finish(l, &w, err);
}

kt_status kt_ledger_gate(kt_ledger *l, const kt_gate_result *g, kt_err *err) {
    kt_json_writer w = {0};
    char key[KT_CELL_KEY_BYTES], name[KT_CONTENDER_NAME_BYTES];
    begin(&w, "gate");
    kt_json_add_string(&w, "shape", kt_cell_key(&g->problem, 0, key, sizeof key));
    kt_json_add_string(&w, "contender", kt_contender_name(&g->choice, name, sizeof name));
    kt_json_add_string(&w, "outcome", g->outcome);
    kt_json_add_double(&w, "rel_rms", g->rel_rms);
    if (!g->passed) kt_json_add_string(&w, "message", g->message);
    return finish(l, &w, err);
}

/* --- rungs --- */

static kt_status record_rung(void *arg, int rung, const int *live, int n_live, int rounds,
                             int first, const kt_samples *s, kt_err *err) {
    kt_ledger *l = arg;
    kt_json_writer w = {0};
    int64_t now = kt_clock_ns();
    begin(&w, "rung");
    kt_json_add_string(&w, "cell", l->cell_key);
    kt_json_add_int(&w, "contest", l->contest_id);
    kt_json_add_int(&w, "rung", rung);
    kt_json_add_int(&w, "rounds", rounds);
    kt_json_add_fixed(&w, "ms", (double)(now - l->rung_start_ns) * 1e-6, 3);
    l->rung_start_ns = now;
    kt_rung_write(&w, l->names, live, n_live, first, s);
    return finish(l, &w, err);
}

/* Rungs of other contests of the cell are not these samples, even where the same contenders met: a
 * holdout has to be of fresh rounds. */
static bool replay_rung(void *arg, int rung, const int *live, int n_live, int rounds,
                        kt_samples *s) {
    kt_ledger *l = arg;
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (!l->usable[i] || !has_text(r, "cell", l->cell_key)) continue;
        if (is_kind(r, "forget")) return false;
        if (!is_kind(r, "rung") ||
            kt_json_int(kt_json_get(r, "contest"), -1) != (int64_t)l->contest_id ||
            !kt_rung_is(r, rung, l->names, live, n_live, rounds) ||
            !kt_rung_take(r, live, n_live, s))
            continue;
        l->rung_start_ns = kt_clock_ns();
        l->n_replayed++;
        return true;
    }
    return false;
}

static kt_status name_contenders(kt_ledger *l, const kt_contenders *contenders, kt_err *err) {
    const char **names = realloc(l->names, ((size_t)contenders->n + 1) * sizeof *names);
    if (!names) return kt_fail(err, KT_E_NOMEM, "journal: no memory for %d names", contenders->n);
    for (int i = 0; i < contenders->n; i++) names[i] = contenders->list[i].name;
    l->names = names;
    return KT_OK;
}

kt_status kt_ledger_contest(kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *contenders,
                            const kt_contest_terms *terms, kt_rung_store *store, kt_err *err) {
    kt_json_writer w = {0};

    KT_TRY(name_contenders(l, contenders, err));
    kt_cell_key(&cell->problem, cell->threads, l->cell_key, sizeof l->cell_key);
    l->contest_id = terms->id;
    l->rung_start_ns = kt_clock_ns();
    *store = (kt_rung_store){.arg = l, .replay = replay_rung, .record = record_rung};
    begin(&w, "contest");
    kt_json_add_string(&w, "cell", l->cell_key);
    kt_json_add_int(&w, "contest", l->contest_id);
    kt_json_add_string(&w, "strategy", terms->strategy);
    kt_json_add_string(&w, "role", cell->role);
    kt_json_add_int(&w, "seed", (int64_t)l->seed);
    kt_json_add_int(&w, "shorten", terms->shorten);
    kt_json_add_int(&w, "default", contenders->default_index);
    kt_json_add_int(&w, "warm", terms->warm_index);
    kt_json_add_fixed(&w, "weight", cell->weight, 8);
    kt_json_add_double(&w, "units", terms->units);
    kt_json_key(&w, "contenders");
    kt_json_begin_array(&w);
    for (int i = 0; i < contenders->n; i++) kt_json_put_string(&w, l->names[i]);
    kt_json_end_array(&w);
    if (terms->known) {
        kt_json_key(&w, "known");
        kt_json_begin_array(&w);
        for (int i = 0; i < terms->known->n; i++)
            kt_json_put_string(&w, terms->known->list[i].name);
        kt_json_end_array(&w);
    }
    return finish(l, &w, err);
}

/* --- decisions --- */

uint32_t kt_contest_id(const kt_contenders *c, const char *strategy) {
    uint32_t id = kt_crc32(strategy, strlen(strategy));
    for (int i = 0; i < c->n; i++) {
        char text[KT_CONTENDER_NAME_BYTES + 16];
        int size =
            snprintf(text, sizeof text, "%08x %d %s", id, i == c->default_index, c->list[i].name);
        id = kt_crc32(text, (size_t)size);
    }
    return id;
}

static kt_status put_decision(kt_ledger *l, const char *kind, const kt_table_row *row,
                              const kt_decision_terms *terms, kt_err *err) {
    kt_json_writer w = {0};
    begin(&w, kind);
    kt_json_add_string(&w, "cell", l->cell_key);
    kt_json_add_int(&w, "contest", l->contest_id);
    kt_json_add_int(&w, "rounds", terms->rounds);
    kt_json_add_int(&w, "voided", terms->voided);
    kt_json_add_fixed(&w, "gate_ms", terms->gate_seconds * 1e3, 3);
    kt_json_add_int(&w, "unix_ms", kt_clock_unix_ms());
    kt_json_key(&w, "row");
    kt_row_write(row, &w);
    return finish(l, &w, err);
}

kt_status kt_ledger_decide(kt_ledger *l, const kt_table_row *row, const kt_decision_terms *terms,
                           kt_err *err) {
    return put_decision(l, "decision", row, terms, err);
}

kt_status kt_ledger_keep(kt_ledger *l, const kt_table_row *row, const kt_decision_terms *terms,
                         kt_err *err) {
    return put_decision(l, "keep", row, terms, err);
}

static bool is_decision(const kt_json *r) {
    return is_kind(r, "decision") || is_kind(r, "keep");
}

static bool lists(const kt_json *names, const char *name) {
    for (size_t i = 0; i < kt_json_length(names); i++) {
        const char *listed = kt_json_string(kt_json_at(names, i), NULL);
        if (listed && strcmp(listed, name) == 0) return true;
    }
    return false;
}

/* The record that began the contest of the decision at `at`. */
static const kt_json *contest_of(const kt_ledger *l, size_t at, const char *cell) {
    int64_t id = kt_json_int(kt_json_get(kt_journal_at(l->journal, at), "contest"), -1);
    while (at-- > 0) {
        const kt_json *r = kt_journal_at(l->journal, at);
        if (l->usable[at] && is_kind(r, "contest") && has_text(r, "cell", cell) &&
            kt_json_int(kt_json_get(r, "contest"), -2) == id)
            return r;
    }
    return NULL;
}

/* Contests of more did not measure all: then nobody is known but the finalists. */
enum { ALL_RACED = 64 };

static bool is_base(const kt_json *contest, const kt_contenders *c, const char *strategy,
                    const kt_table_row *row, bool *is_known) {
    const kt_json *known = kt_json_get(contest, "known"), *names;
    char winner[KT_CONTENDER_NAME_BYTES];
    const char *standard;
    bool has_winner = false;

    names = kt_json_get(contest, "contenders");
    standard = kt_json_string(
        kt_json_at(names, (size_t)kt_json_int(kt_json_get(contest, "default"), 0)), NULL);
    if (!has_text(contest, "strategy", strategy) || kt_json_length(names) > ALL_RACED ||
        !standard || strcmp(c->list[c->default_index].name, standard) != 0)
        return false;
    snprintf(winner, sizeof winner, "%s@%d{%s}", row->variant, (int)row->version, row->config);
    for (int i = 0; i < c->n; i++) {
        is_known[i] = lists(known ? known : names, c->list[i].name);
        has_winner |= strcmp(c->list[i].name, winner) == 0;
    }
    return has_winner;
}

bool kt_ledger_base(const kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *c,
                    const char *strategy, kt_table_row *row, bool *is_known) {
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i), *contest;
        if (!l->usable[i] || !has_text(r, "cell", key)) continue;
        if (is_kind(r, "forget")) return false;
        if (!is_decision(r)) continue;
        contest = contest_of(l, i, key);
        if (contest && kt_row_read(kt_json_get(r, "row"), "journal", row, NULL) == KT_OK &&
            is_base(contest, c, strategy, row, is_known))
            return true;
    }
    return false;
}

bool kt_ledger_begun(const kt_ledger *l, const kt_tune_cell *cell, const kt_contenders *c,
                     uint32_t contest_id, bool *is_in) {
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (!l->usable[i] || !has_text(r, "cell", key)) continue;
        if (is_kind(r, "forget")) return false;
        if (!is_kind(r, "contest") ||
            kt_json_int(kt_json_get(r, "contest"), -1) != (int64_t)contest_id)
            continue;
        for (int k = 0; k < c->n; k++)
            is_in[k] = lists(kt_json_get(r, "contenders"), c->list[k].name);
        return true;
    }
    return false;
}

/* The newest decision of the cell; contest_id -1 = of any contest. */
static bool find_decision(const kt_ledger *l, const kt_tune_cell *cell, int64_t contest_id,
                          kt_table_row *out) {
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (!l->usable[i] || !has_text(r, "cell", key)) continue;
        if (is_kind(r, "forget")) return false;
        if (!is_decision(r) ||
            (contest_id >= 0 && kt_json_int(kt_json_get(r, "contest"), -1) != contest_id))
            continue;
        if (kt_row_read(kt_json_get(r, "row"), "journal", out, NULL) == KT_OK) return true;
    }
    return false;
}

bool kt_ledger_decided(const kt_ledger *l, const kt_tune_cell *cell, uint32_t contest_id,
                       kt_table_row *out) {
    return find_decision(l, cell, contest_id, out);
}

bool kt_ledger_newest(const kt_ledger *l, const kt_tune_cell *cell, kt_table_row *out) {
    return find_decision(l, cell, -1, out);
}

/* --- the oracle --- */

kt_status kt_ledger_oracle(kt_ledger *l, const kt_table_row *row, const kt_oracle_result *o,
                           kt_err *err) {
    const double regret[3] = {o->regret.low, o->regret.point, o->regret.high};
    kt_json_writer w = {0};
    begin(&w, "oracle");
    kt_json_add_string(&w, "cell", l->cell_key);
    kt_json_add_int(&w, "contest", l->contest_id);
    kt_json_add_int(&w, "contenders", o->n_contenders);
    kt_json_add_string(&w, "best", o->best);
    kt_json_add_int(&w, "rounds", o->rounds);
    kt_json_key(&w, "log_regret"); /* low, middle, high */
    kt_json_begin_array(&w);
    for (int i = 0; i < 3; i++) kt_json_put_fixed(&w, regret[i], 5);
    kt_json_end_array(&w);
    kt_json_add_fixed(&w, "auto_ms", o->auto_seconds * 1e3, 3);
    kt_json_key(&w, "row");
    kt_row_write(row, &w);
    return finish(l, &w, err);
}

bool kt_oracle_read(const kt_json *r, kt_oracle_result *out) {
    const kt_json *regret = kt_json_get(r, "log_regret");
    const char *best = kt_json_string(kt_json_get(r, "best"), NULL);
    kt_oracle_result o = {.n_contenders = (int)kt_json_int(kt_json_get(r, "contenders"), 0),
                          .rounds = (int)kt_json_int(kt_json_get(r, "rounds"), 0),
                          .auto_seconds = kt_json_double(kt_json_get(r, "auto_ms"), 0) * 1e-3,
                          .regret = {.low = kt_json_double(kt_json_at(regret, 0), 0),
                                     .point = kt_json_double(kt_json_at(regret, 1), 0),
                                     .high = kt_json_double(kt_json_at(regret, 2), 0)}};

    if (!best || strlen(best) >= sizeof o.best || o.n_contenders < 1 || kt_json_length(regret) != 3)
        return false;
    snprintf(o.best, sizeof o.best, "%s", best);
    *out = o;
    return true;
}

bool kt_ledger_oracle_known(const kt_ledger *l, const kt_table_row *row, uint32_t contest_id,
                            kt_oracle_result *out) {
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&row->problem, row->threads, key, sizeof key);
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i), *about = kt_json_get(r, "row");
        if (!l->usable[i] || !has_text(r, "cell", key)) continue;
        if (is_kind(r, "forget")) return false;
        if (is_kind(r, "oracle") && has_text(about, "variant", row->variant) &&
            has_text(about, "config", row->config) &&
            kt_json_int(kt_json_get(r, "contest"), -1) == (int64_t)contest_id)
            return kt_oracle_read(r, out);
    }
    return false;
}

kt_status kt_ledger_skip(kt_ledger *l, const kt_tune_cell *cell, const char *why, kt_err *err) {
    kt_json_writer w = {0};
    char key[KT_CELL_KEY_BYTES];
    begin(&w, "skip");
    kt_json_add_string(&w, "cell", kt_cell_key(&cell->problem, cell->threads, key, sizeof key));
    kt_json_add_string(&w, "message", why);
    return finish(l, &w, err);
}

kt_status kt_ledger_end(kt_ledger *l, const char *reason, const kt_session_times *t, kt_err *err) {
    static const char *const names[] = {"wall_s", "kernels_s", "gates_s", "setup_s"};
    const double seconds[] = {t ? t->wall : 0, t ? t->kernels : 0, t ? t->gates : 0,
                              t ? t->setup : 0};
    kt_json_writer w = {0};
    begin(&w, "end");
    kt_json_add_string(&w, "reason", reason);
    for (int i = 0; t && i < 4; i++) kt_json_add_fixed(&w, names[i], seconds[i], 3);
    if (t) {
        kt_json_add_int(&w, "cells", (int64_t)t->n_cells);
        kt_json_add_int(&w, "open", (int64_t)t->n_open);
        kt_json_add_int(&w, "undecided", (int64_t)t->n_undecided);
    }
    kt_json_add_int(&w, "unix_ms", kt_clock_unix_ms());
    return finish(l, &w, err);
}
