/* Calls in the order of a CUDA stream. A record keeps the call from its submission to the wait for
 * it; those of captured streams are kept for every replay, the others used again. Two ways:
 *
 * - Functions: the stream's driver calls a function that puts the call into the team's queue, and
 *   later one that waits for it.
 * - Words (KT_MAILBOX=mapped): the stream writes a word of mapped memory, which the team's thread
 *   watches, and later waits for a word that this thread stores behind the call. No thread of the
 *   driver is in between, and none is held while the call runs.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/mailbox.h"
#include "runtime/moe/moe_impl.h"

enum { FOR_CALL = 1, FOR_DEFERRED = 2 };

#define STREAM_TICKETS ((uint64_t)1 << 63) /* 2 of a record: the call's, and of what it defers */

/* ---- records ---- */

/* By words nobody tells when the stream has waited: the words do. */
static bool is_free(const kt_moe_record *r) {
    if (!atomic_load(&r->is_used)) return true;
    if (!r->by_words || r->is_captured || r->waits) return false;
    return kt_moe_word(&r->words->done) == KT_MOE_TAKEN &&
           (r->now.part == KT_MOE_ALL || kt_moe_word(&r->words->later) == KT_MOE_TAKEN);
}

/* A record that nobody uses, or a new one. */
static kt_moe_record *take_record(kt_moe *m) {
    kt_moe_record **at = &m->records, *r;
    uint64_t number = 0;

    pthread_mutex_lock(&m->team->lock);
    for (; (r = *at); at = &r->next, number++)
        if (is_free(r)) break;
    if (!r && (r = calloc(1, sizeof *r))) {
        r->moe = m;
        r->number = number;
        *at = r;
    }
    if (r) {
        atomic_store(&r->is_used, true);
        r->by_words = false;
        r->order = ++m->team->orders;
    }
    pthread_mutex_unlock(&m->team->lock);
    return r;
}

static kt_moe_record *find_record(kt_moe *m, uint64_t ticket) {
    const uint64_t number = (ticket & ~STREAM_TICKETS) / 2;
    kt_moe_record *r;

    pthread_mutex_lock(&m->team->lock);
    for (r = m->records; r && r->number != number;) r = r->next;
    pthread_mutex_unlock(&m->team->lock);
    return (ticket & STREAM_TICKETS) && r && !is_free(r) ? r : NULL;
}

/* ---- by functions: what the driver's thread does ---- */

static void put(void *arg) {
    kt_moe_record *r = arg;

    r->ticket =
        kt_moe_team_put(r->moe->team, &r->now, r->now.part == KT_MOE_NOW ? &r->later : NULL);
}

static void wait_for_call(void *arg) {
    kt_moe_record *r = arg;

    kt_moe_team_wait(r->moe->team, r->ticket);
    if (!r->is_captured && r->now.part == KT_MOE_ALL) atomic_store(&r->is_used, false);
}

static void wait_for_deferred(void *arg) {
    kt_moe_record *r = arg;

    kt_moe_team_wait(r->moe->team, r->ticket + 1);
    if (!r->is_captured) atomic_store(&r->is_used, false);
}

/* ---- by words ---- */

static kt_status submit_by_words(kt_moe_record *r, void *stream, kt_err *err) {
    KT_TRY(kt_moe_words_take(r->moe->team, r, err));
    kt_moe_set_word(&r->words->done, 0);
    kt_moe_set_word(&r->words->later, 0);
    r->now.done = &r->words->done;
    r->later.done = &r->words->later;
    r->waits = r->now.part == KT_MOE_NOW ? FOR_CALL | FOR_DEFERRED : FOR_CALL;
    r->by_words = true;
    return kt_stream_write(stream, &r->words->posted, 1, err);
}

static kt_status wait_by_words(kt_moe_record *r, bool is_deferred, void *stream, kt_err *err) {
    uint32_t *w = is_deferred ? &r->words->later : &r->words->done;

    KT_TRY(kt_stream_wait(stream, w, KT_MOE_DONE, err));
    KT_TRY(kt_stream_write(stream, w, KT_MOE_TAKEN, err));
    r->waits &= is_deferred ? ~FOR_DEFERRED : ~FOR_CALL;
    return KT_OK;
}

/* ---- */

/* Whether calls go by words: only where that was asked for. */
static kt_status read_way(bool *by_words, kt_err *err) {
    const char *wish = getenv("KT_MAILBOX");
    kt_mailbox_way way;

    KT_TRY(kt_mailbox_way_wanted(&way, err));
    *by_words = wish && *wish && way == KT_MAILBOX_MAPPED;
    return KT_OK;
}

static kt_status check_announced(kt_moe *m, int64_t tokens, kt_err *err) {
    bool is_known;
    int n;

    pthread_mutex_lock(&m->team->lock);
    n = m->n_announced;
    is_known = n == 0;
    for (int i = 0; i < n; i++) is_known = is_known || m->announced[i] == tokens;
    pthread_mutex_unlock(&m->team->lock);
    if (is_known) return KT_OK;
    return kt_fail(err, KT_E_INVALID,
                   "a call of %lld tokens in a capture, expected one of the %d numbers that were "
                   "announced (kt_moe_announce)",
                   (long long)tokens, n);
}

kt_status kt_moe_announce(kt_moe *m, const int64_t *tokens, size_t n, kt_err *err) {
    kt_moe_record *taken[KT_MOE_ANNOUNCED] = {NULL};
    bool by_words;
    kt_status st = KT_OK;

    if (n > KT_MOE_ANNOUNCED || (n && !tokens))
        return kt_fail(err, KT_E_INVALID, "%zu numbers of tokens to announce, expected up to %d", n,
                       KT_MOE_ANNOUNCED);
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 1 || tokens[i] > 1 << 30)
            return kt_fail(err, KT_E_INVALID, "captures of %lld tokens, expected 1 to %d",
                           (long long)tokens[i], 1 << 30);
    KT_TRY(read_way(&by_words, err));
    for (size_t i = 0; st == KT_OK && i < n; i++) {
        taken[i] = take_record(m);
        if (!taken[i]) st = kt_fail(err, KT_E_NOMEM, "no memory for calls of a stream");
        if (st == KT_OK && by_words) st = kt_moe_words_take(m->team, taken[i], err);
    }
    for (size_t i = 0; i < n; i++)
        if (taken[i]) atomic_store(&taken[i]->is_used, false);
    if (st != KT_OK) return st;
    pthread_mutex_lock(&m->team->lock);
    if (n) memcpy(m->announced, tokens, n * sizeof *tokens);
    m->n_announced = (int)n;
    pthread_mutex_unlock(&m->team->lock);
    return KT_OK;
}

kt_status kt_moe_stream_submit(kt_moe *m, const kt_moe_item *now, const kt_moe_item *later,
                               uint64_t *ticket, kt_err *err) {
    bool is_captured, by_words;
    kt_moe_record *r;
    kt_status st;

    KT_TRY(kt_stream_is_captured(now->rows.stream, &is_captured, err));
    KT_TRY(read_way(&by_words, err));
    if (is_captured) KT_TRY(check_announced(m, now->rows.tokens, err));
    r = take_record(m);
    if (!r) return kt_fail(err, KT_E_NOMEM, "no memory for a call of a stream");
    r->now = *now;
    r->later = *later;
    r->is_captured = is_captured;
    st = by_words ? submit_by_words(r, now->rows.stream, err)
                  : kt_stream_call(now->rows.stream, put, r, err);
    if (st != KT_OK) r->by_words = false, atomic_store(&r->is_used, false);
    *ticket = STREAM_TICKETS | r->number * 2;
    return st;
}

kt_status kt_moe_sync_stream(kt_moe *m, uint64_t ticket, void *stream, kt_err *err) {
    kt_moe_record *r = find_record(m, ticket);
    const bool is_deferred = ticket & 1;

    if (!r || (is_deferred && r->now.part == KT_MOE_ALL) ||
        (r->by_words && !(r->waits & (is_deferred ? FOR_DEFERRED : FOR_CALL))))
        return kt_fail(err, KT_E_INVALID,
                       "ticket %llu is of no call of this layer that was submitted with a stream "
                       "and not waited for yet",
                       (unsigned long long)ticket);
    if (r->by_words) return wait_by_words(r, is_deferred, stream, err);
    return kt_stream_call(stream, is_deferred ? wait_for_deferred : wait_for_call, r, err);
}

void kt_moe_records_free(kt_moe *m) {
    while (m->records) {
        kt_moe_record *next = m->records->next;
        kt_moe_words_give(m->team, m->records);
        free(m->records);
        m->records = next;
    }
}
