/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/outcome.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tuner/store/row_json.h"

/* Times are kept to 0.1 ns. */
static const double same_ns = 0.11;

static bool is_kind(const kt_json *record, const char *kind) {
    return strcmp(kt_json_text(record, "t"), kind) == 0;
}

/* Did this record decide a row of the table? */
static bool decides(const kt_json *record, const kt_table *t) {
    const kt_table_row *row;
    kt_table_row decided;

    if (!is_kind(record, "decision") ||
        kt_row_read(kt_json_get(record, "row"), "journal", &decided, NULL) != KT_OK)
        return false;
    row = kt_table_find(t, &decided.problem, decided.threads);
    return row && strcmp(row->variant, decided.variant) == 0 &&
           strcmp(row->config, decided.config) == 0 &&
           fabs(row->time_ns - decided.time_ns) < same_ns;
}

void kt_outcome_of_table(const kt_table *t, const kt_journal *journal, kt_outcome *out) {
    *out = (kt_outcome){.n_cells = t->n_rows};
    for (size_t i = 0; i < t->n_rows; i++) out->n_undecided += kt_row_is_undecided(&t->rows[i]);
    for (size_t i = 0; journal && i < kt_journal_count(journal); i++) {
        const kt_json *r = kt_journal_at(journal, i);
        if (is_kind(r, "end")) out->n_open = (size_t)kt_json_int(kt_json_get(r, "open"), 0);
        if (!decides(r, t)) continue;
        out->rounds += kt_json_int(kt_json_get(r, "rounds"), 0);
        out->voided += kt_json_int(kt_json_get(r, "voided"), 0);
    }
}

double kt_outcome_voided(const kt_outcome *o) {
    return o->rounds > 0 ? (double)o->voided / (double)o->rounds : 0;
}

bool kt_outcome_is_noisy(const kt_outcome *o) {
    return kt_outcome_voided(o) > KT_NOISY_SHARE;
}

static const char *plural(size_t n) {
    return n == 1 ? "" : "s";
}

int kt_outcome_words(const kt_outcome *o, char words[KT_OUTCOME_WORDS][KT_OUTCOME_BYTES]) {
    int n = 0;

    if (kt_outcome_is_noisy(o))
        snprintf(
            words[n++], KT_OUTCOME_BYTES,
            "The machine was busy: other work disturbed %.0f %% of the rounds, and above %.0f %% "
            "times are rough. Run the same command again when it is quiet (--fresh to measure "
            "everything anew).",
            100 * kt_outcome_voided(o), 100 * KT_NOISY_SHARE);
    if (o->n_undecided)
        snprintf(
            words[n++], KT_OUTCOME_BYTES,
            "%zu of %zu cells %s undecided: the time is not known to within ±%.0f %%. The same "
            "command races %s first.",
            o->n_undecided, o->n_cells, o->n_undecided == 1 ? "is" : "are", 100 * KT_ROW_WIDE,
            o->n_undecided == 1 ? "it" : "them");
    if (o->n_open && o->needed_seconds > 0)
        snprintf(
            words[n++], KT_OUTCOME_BYTES,
            "%zu cell%s %s not reached in the budget of %.0f s: about %.0f s would reach all. The "
            "same command goes on where this one ended.",
            o->n_open, plural(o->n_open), o->n_open == 1 ? "was" : "were", o->budget_seconds,
            o->needed_seconds);
    else if (o->n_open)
        snprintf(words[n++], KT_OUTCOME_BYTES,
                 "%zu cell%s %s not reached. The same command goes on where the run ended.",
                 o->n_open, plural(o->n_open), o->n_open == 1 ? "was" : "were");
    return n;
}
