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

static void put_string(kt_json_writer *w, const char *key, const char *v) {
    kt_json_key(w, key);
    kt_json_put_string(w, v);
}

static void put_int(kt_json_writer *w, const char *key, int64_t v) {
    kt_json_key(w, key);
    kt_json_put_int(w, v);
}

static void begin(kt_json_writer *w, const char *kind) {
    kt_json_begin_object(w);
    put_string(w, "t", kind);
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
    put_int(&w, "protocol", KT_PROTOCOL);
    put_string(&w, "version", KT_VERSION);
    put_string(&w, "compiler", __VERSION__);
    put_string(&w, "workload", s->workload);
    put_string(&w, "strategy", s->strategy);
    put_string(&w, "command", s->command);
    put_int(&w, "seed", (int64_t)s->seed);
    put_int(&w, "unix_ms", kt_clock_unix_ms());
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(s->machine, &w);
    return finish(l, &w, err);
}

kt_status kt_ledger_open(const char *path, bool fresh, const kt_ledger_session *session,
                         kt_ledger *out, kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_journal_open(path, fresh, &out->journal, err));
    st = mark_usable(out, session->machine, err);
    if (st == KT_OK) st = start_session(out, session, err);
    if (st != KT_OK) kt_ledger_close(out);
    return st;
}

void kt_ledger_close(kt_ledger *l) {
    if (!l) return;
    kt_journal_close(l->journal);
    free(l->usable);
    memset(l, 0, sizeof *l);
}

kt_status kt_ledger_gate(kt_ledger *l, const kt_gate_result *g, kt_err *err) {
    kt_json_writer w = {0};
    char key[KT_CELL_KEY_BYTES], name[KT_CONTENDER_NAME_BYTES];
    begin(&w, "gate");
    put_string(&w, "shape", kt_cell_key(&g->problem, 0, key, sizeof key));
    put_string(&w, "contender", kt_contender_name(&g->choice, name, sizeof name));
    put_string(&w, "outcome", g->outcome);
    kt_json_key(&w, "rel_rms");
    kt_json_put_double(&w, g->rel_rms);
    if (!g->passed) put_string(&w, "message", g->message);
    return finish(l, &w, err);
}

/* --- rungs --- */

static void put_rung(kt_json_writer *w, const kt_ledger *l, int rung, const int *live, int n_live,
                     int first, const kt_samples *s) {
    kt_json_key(w, "live");
    kt_json_begin_array(w);
    for (int i = 0; i < n_live; i++) kt_json_put_string(w, l->contenders->list[live[i]].name);
    kt_json_end_array(w);
    put_int(w, "rung", rung);
    kt_json_key(w, "void");
    kt_json_begin_array(w);
    for (int r = first; r < s->n_rounds; r++)
        if (s->voided[r]) kt_json_put_int(w, r - first);
    kt_json_end_array(w);
    kt_json_key(w, "ns");
    kt_json_begin_array(w);
    for (int i = 0; i < n_live; i++) {
        kt_json_begin_array(w);
        for (int r = first; r < s->n_rounds; r++)
            kt_json_put_fixed(w, s->ns[(size_t)live[i] * KT_MAX_SAMPLES + (size_t)r], 1);
        kt_json_end_array(w);
    }
    kt_json_end_array(w);
}

static kt_status record_rung(void *arg, int rung, const int *live, int n_live, int rounds,
                             int first, const kt_samples *s, kt_err *err) {
    kt_ledger *l = arg;
    kt_json_writer w = {0};
    begin(&w, "rung");
    put_string(&w, "cell", l->cell_key);
    put_int(&w, "rounds", rounds);
    put_rung(&w, l, rung, live, n_live, first, s);
    return finish(l, &w, err);
}

static bool is_rung(const kt_ledger *l, const kt_json *r, int rung, const int *live, int n_live,
                    int rounds) {
    const kt_json *names = kt_json_get(r, "live");
    if (!is_kind(r, "rung") || kt_json_int(kt_json_get(r, "rung"), -1) != rung ||
        kt_json_int(kt_json_get(r, "rounds"), -1) != rounds ||
        kt_json_length(names) != (size_t)n_live || !has_text(r, "cell", l->cell_key))
        return false;
    for (int i = 0; i < n_live; i++) {
        const char *name = kt_json_string(kt_json_at(names, (size_t)i), NULL);
        if (!name || strcmp(name, l->contenders->list[live[i]].name) != 0) return false;
    }
    return true;
}

/* Do the rung's samples make sense: n_new rounds of each contender, voided ones among them? */
static bool is_sound(const kt_json *ns, const kt_json *voided, int n_live, size_t n_new) {
    for (int i = 0; i < n_live; i++) {
        const kt_json *own = kt_json_at(ns, (size_t)i);
        if (kt_json_length(own) != n_new) return false;
        for (size_t j = 0; j < n_new; j++)
            if (!(kt_json_double(kt_json_at(own, j), 0) > 0)) return false;
    }
    for (size_t i = 0; i < kt_json_length(voided); i++) {
        int64_t at = kt_json_int(kt_json_at(voided, i), -1);
        if (at < 0 || at >= (int64_t)n_new) return false;
    }
    return true;
}

/* Copy a recorded rung behind the samples; false (and nothing copied) when the record does not fit. */
static bool take_rung(const kt_json *r, const int *live, int n_live, kt_samples *s) {
    const kt_json *ns = kt_json_get(r, "ns"), *voided = kt_json_get(r, "void");
    size_t n_new = kt_json_length(kt_json_at(ns, 0));
    int first = s->n_rounds;

    if (n_new == 0 || n_new > (size_t)(KT_MAX_SAMPLES - first) ||
        !is_sound(ns, voided, n_live, n_new))
        return false;
    for (int i = 0; i < n_live; i++)
        for (size_t j = 0; j < n_new; j++)
            s->ns[(size_t)live[i] * KT_MAX_SAMPLES + (size_t)first + j] =
                kt_json_double(kt_json_at(kt_json_at(ns, (size_t)i), j), 0);
    for (size_t i = 0; i < kt_json_length(voided); i++) {
        s->voided[first + kt_json_int(kt_json_at(voided, i), 0)] = 1;
        s->n_voided++;
    }
    s->n_rounds += (int)n_new;
    for (int i = 0; i < n_live; i++) s->rounds_of[live[i]] = s->n_rounds;
    return true;
}

static bool replay_rung(void *arg, int rung, const int *live, int n_live, int rounds,
                        kt_samples *s) {
    kt_ledger *l = arg;
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (!l->usable[i] || !is_rung(l, r, rung, live, n_live, rounds)) continue;
        if (!take_rung(r, live, n_live, s)) continue;
        l->n_replayed++;
        return true;
    }
    return false;
}

kt_rung_store kt_ledger_cell(kt_ledger *l, const kt_tune_cell *cell,
                             const kt_contenders *contenders) {
    kt_cell_key(&cell->problem, cell->threads, l->cell_key, sizeof l->cell_key);
    l->contenders = contenders;
    return (kt_rung_store){.arg = l, .replay = replay_rung, .record = record_rung};
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

kt_status kt_ledger_decide(kt_ledger *l, const kt_table_row *row, uint32_t contest_id, int rounds,
                           int voided, kt_err *err) {
    kt_json_writer w = {0};
    begin(&w, "decision");
    put_string(&w, "cell", l->cell_key);
    put_int(&w, "contest", contest_id);
    put_int(&w, "rounds", rounds);
    put_int(&w, "voided", voided);
    put_int(&w, "unix_ms", kt_clock_unix_ms());
    kt_json_key(&w, "row");
    kt_row_write(row, &w);
    return finish(l, &w, err);
}

bool kt_ledger_decided(const kt_ledger *l, const kt_tune_cell *cell, uint32_t contest_id,
                       kt_table_row *out) {
    char key[KT_CELL_KEY_BYTES];
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (size_t i = kt_journal_count(l->journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(l->journal, i);
        if (!l->usable[i] || !is_kind(r, "decision") || !has_text(r, "cell", key) ||
            kt_json_int(kt_json_get(r, "contest"), -1) != (int64_t)contest_id)
            continue;
        if (kt_row_read(kt_json_get(r, "row"), "journal", out, NULL) == KT_OK) return true;
    }
    return false;
}

kt_status kt_ledger_skip(kt_ledger *l, const kt_tune_cell *cell, const char *why, kt_err *err) {
    kt_json_writer w = {0};
    char key[KT_CELL_KEY_BYTES];
    begin(&w, "skip");
    put_string(&w, "cell", kt_cell_key(&cell->problem, cell->threads, key, sizeof key));
    put_string(&w, "message", why);
    return finish(l, &w, err);
}

kt_status kt_ledger_end(kt_ledger *l, const char *reason, kt_err *err) {
    kt_json_writer w = {0};
    begin(&w, "end");
    put_string(&w, "reason", reason);
    put_int(&w, "unix_ms", kt_clock_unix_ms());
    return finish(l, &w, err);
}
