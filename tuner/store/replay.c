/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/replay.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "tuner/search/strategy.h"
#include "tuner/space/candidates.h"
#include "tuner/store/ledger.h"
#include "tuner/store/row_json.h"
#include "tuner/store/rung_json.h"

/* Times are kept to 0.1 ns. */
static const double same_ns = 0.11;

static bool is_kind(const kt_json *record, const char *kind) {
    return strcmp(kt_json_text(record, "t"), kind) == 0;
}

bool kt_session_same_build(const kt_json *a, const kt_json *b) {
    static const char *const words[] = {"version", "compiler"};
    kt_fingerprint x, y;

    if (a == b) return a != NULL;
    for (int i = 0; i < 2; i++)
        if (strcmp(kt_json_text(a, words[i]), kt_json_text(b, words[i])) != 0) return false;
    return kt_json_int(kt_json_get(a, "protocol"), 0) ==
               kt_json_int(kt_json_get(b, "protocol"), -1) &&
           kt_fingerprint_read(kt_json_get(a, "fingerprint"), "journal", &x, NULL) == KT_OK &&
           kt_fingerprint_read(kt_json_get(b, "fingerprint"), "journal", &y, NULL) == KT_OK &&
           kt_same_tuning_machine(&x, &y);
}

/* --- what belongs to a decision --- */

/* Go back from record *i to the next older one of this cell and contest, of a session with the same
 * build; false when a session that measured everything again, or the beginning, comes first. */
static bool older(const kt_replay *r, size_t *i) {
    const kt_json *ours = kt_journal_at(r->journal, r->session);
    while ((*i)-- > 0) {
        const kt_json *record = kt_journal_at(r->journal, *i);
        size_t s = *i;
        if (strcmp(kt_json_text(record, "cell"), r->cell) != 0) continue;
        if (is_kind(record, "forget")) return false;
        if (r->contest >= 0 && kt_json_int(kt_json_get(record, "contest"), -1) != r->contest)
            continue;
        while (s > 0 && !is_kind(kt_journal_at(r->journal, s), "session")) s--;
        if (kt_session_same_build(kt_journal_at(r->journal, s), ours)) return true;
    }
    return false;
}

static void take_names(kt_replay *r, const kt_json *list) {
    r->n = 0;
    for (size_t i = 0; i < kt_json_length(list) && r->n < KT_REPLAY_CONTENDERS; i++) {
        const char *name = kt_json_string(kt_json_at(list, i), NULL);
        r->names[r->n++] = name ? name : "";
    }
}

/* "stem@version{config}" of a row's choice? version 0 = any. */
static bool is_named(const char *name, const char *stem, const char *config) {
    size_t size = strlen(stem), tail = strlen(config);
    const char *brace = strchr(name, '{');
    return strncmp(name, stem, size) == 0 && name[size] == '@' && brace &&
           strlen(brace) == tail + 2 && strncmp(brace + 1, config, tail) == 0;
}

static int index_of(const kt_replay *r, const char *stem, const char *config) {
    for (int i = 0; i < r->n; i++)
        if (is_named(r->names[i], stem, config)) return i;
    return -1;
}

/* The contest's own record; journals of protocol 3 have none, there the first rung lists those who ran. */
static kt_status find_contest(kt_replay *r, kt_err *err) {
    const kt_json *session = kt_journal_at(r->journal, r->session), *record;
    uint64_t seed = (uint64_t)kt_json_int(kt_json_get(session, "seed"), 0);
    kt_tune_cell cell = {.problem = r->row.problem, .threads = r->row.threads};
    size_t i = r->at;

    r->strategy = kt_json_text(session, "strategy");
    r->warm_index = -1;
    r->units = 1;
    while (older(r, &i)) {
        record = kt_journal_at(r->journal, i);
        if (is_kind(record, "contest")) {
            take_names(r, kt_json_get(record, "contenders"));
            r->strategy = kt_json_text(record, "strategy");
            r->warm_index = (int)kt_json_int(kt_json_get(record, "warm"), -1);
            r->shorten = (int)kt_json_int(kt_json_get(record, "shorten"), 0);
            r->weight = kt_json_double(kt_json_get(record, "weight"), 0);
            r->units = kt_json_double(kt_json_get(record, "units"), 1);
            seed = (uint64_t)kt_json_int(kt_json_get(record, "seed"), 0);
            break;
        }
        if (r->contest < 0 && is_kind(record, "rung") &&
            kt_json_int(kt_json_get(record, "rung"), -1) == 0) {
            take_names(r, kt_json_get(record, "live"));
            break;
        }
    }
    r->seed = kt_cell_seed(seed, &cell);
    r->default_index = index_of(r, r->row.default_variant, r->row.default_config);
    r->winner = index_of(r, r->row.variant, r->row.config);
    if (r->default_index < 0 || r->winner < 0)
        return kt_fail(err, KT_E_FORMAT, "%s: winner or default is not among its %d contenders",
                       r->cell, r->n);
    return KT_OK;
}

static void add_times(kt_replay *r) {
    const kt_json *decision = kt_journal_at(r->journal, r->at);
    size_t i = r->at;

    r->gate_sec = kt_json_double(kt_json_get(decision, "gate_ms"), 0) * 1e-3;
    while (older(r, &i)) {
        const kt_json *record = kt_journal_at(r->journal, i);
        if (is_kind(record, "rung"))
            r->race_sec += kt_json_double(kt_json_get(record, "ms"), 0) * 1e-3;
    }
}

kt_status kt_replay_open(const kt_journal *journal, size_t at, kt_replay *r, kt_err *err) {
    const kt_json *decision = kt_journal_at(journal, at);
    bool is_legacy;

    memset(r, 0, sizeof *r);
    if (!is_kind(decision, "decision") && !is_kind(decision, "oracle"))
        return kt_fail(err, KT_E_NOT_FOUND, "journal: record %zu decides nothing", at);
    r->journal = journal;
    r->at = r->session = at;
    r->cell = kt_json_text(decision, "cell");
    while (r->session > 0 && !is_kind(kt_journal_at(journal, r->session), "session")) r->session--;
    r->protocol = kt_json_int(kt_json_get(kt_journal_at(journal, r->session), "protocol"), 0);
    is_legacy = r->protocol < 4;
    r->contest = is_legacy ? -1 : kt_json_int(kt_json_get(decision, "contest"), -1);
    KT_TRY(kt_row_read(kt_json_get(decision, "row"), r->cell, &r->row, err));
    KT_TRY(find_contest(r, err));
    add_times(r);
    return KT_OK;
}

static bool is_same_row(const kt_table_row *a, const kt_table_row *b) {
    return strcmp(a->variant, b->variant) == 0 && strcmp(a->config, b->config) == 0 &&
           strcmp(a->status, b->status) == 0 && a->rounds == b->rounds &&
           fabs(a->time_ns - b->time_ns) < same_ns && fabs(a->default_ns - b->default_ns) < same_ns;
}

kt_status kt_replay_of_row(const kt_journal *journal, const kt_table_row *row, kt_replay *out,
                           kt_err *err) {
    char cell[KT_CELL_KEY_BYTES];

    kt_cell_key(&row->problem, row->threads, cell, sizeof cell);
    for (size_t i = kt_journal_count(journal); i-- > 0;) {
        const kt_json *r = kt_journal_at(journal, i);
        kt_table_row decided;
        if (!is_kind(r, "decision") || strcmp(kt_json_text(r, "cell"), cell) != 0 ||
            kt_row_read(kt_json_get(r, "row"), cell, &decided, NULL) != KT_OK ||
            !is_same_row(&decided, row))
            continue;
        return kt_replay_open(journal, i, out, err);
    }
    return kt_fail(err, KT_E_NOT_FOUND, "%s: no decision in the journal says %s {%s} in %.1f ns",
                   cell, row->variant, row->config, row->time_ns);
}

/* --- running it again --- */

static bool replay_rung(void *arg, int rung, const int *live, int n_live, int rounds,
                        kt_samples *s) {
    const kt_replay *r = arg;
    size_t i = r->at;
    while (older(r, &i)) {
        const kt_json *record = kt_journal_at(r->journal, i);
        if (is_kind(record, "rung") && kt_rung_is(record, rung, r->names, live, n_live, rounds) &&
            kt_rung_take(record, live, n_live, s))
            return true;
    }
    return false;
}

static double no_sample(void *arg, int contender) {
    (void)arg, (void)contender;
    return 1;
}
static bool always(void *arg) {
    (void)arg;
    return true; /* stop instead of measuring */
}

kt_status kt_replay_decide(kt_replay *r, kt_verdict *out, kt_err *err) {
    static const kt_stopwatch watch = {.sample = no_sample, .stop = always};
    const kt_strategy *strategy = kt_strategy_find(r->strategy);
    kt_rung_store store = {.arg = r, .replay = replay_rung};
    kt_status st = KT_E_CANCELLED;
    int least = r->shorten > 0 ? r->shorten : 1, most = r->shorten > 0 ? r->shorten : 3;

    if (!strategy)
        return kt_fail(err, KT_E_FORMAT, "%s: strategy '%s' is unknown", r->cell, r->strategy);
    for (int shorten = least; shorten <= most && st == KT_E_CANCELLED; shorten++) {
        kt_contest c = {.watch = &watch,
                        .rules = kt_race_rules_of(r->protocol),
                        .store = &store,
                        .n = r->n,
                        .default_index = r->default_index,
                        .warm_index = r->warm_index,
                        .deadline_ns = INT64_MAX,
                        .shorten = shorten,
                        .seed = r->seed};
        st = kt_contest_decide(&c, strategy, out, err);
    }
    return st == KT_E_CANCELLED
               ? kt_fail(err, KT_E_FORMAT, "%s: its samples are not all there", r->cell)
               : st;
}

kt_status kt_replay_samples(const kt_replay *r, kt_samples *s, kt_err *err) {
    size_t rungs[KT_MAX_SAMPLES];
    int n = 0;
    size_t i = r->at;

    KT_TRY(kt_samples_create(r->n, s, err));
    while (n < KT_MAX_SAMPLES && older(r, &i))
        if (is_kind(kt_journal_at(r->journal, i), "rung")) rungs[n++] = i;
    while (n-- > 0) {
        const kt_json *record = kt_journal_at(r->journal, rungs[n]);
        const kt_json *names = kt_json_get(record, "live");
        int live[KT_REPLAY_CONTENDERS], n_live = 0;
        for (size_t k = 0; k < kt_json_length(names) && k < KT_REPLAY_CONTENDERS; k++) {
            const char *name = kt_json_string(kt_json_at(names, k), NULL);
            int at = 0;
            while (at < r->n && strcmp(name ? name : "", r->names[at]) != 0) at++;
            if (at < r->n) live[n_live++] = at;
        }
        if (n_live == (int)kt_json_length(names)) kt_rung_take_valid(record, live, n_live, s);
    }
    return KT_OK;
}
