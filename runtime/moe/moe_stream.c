/* Calls in the order of a CUDA stream: the stream's driver calls a function that puts the call into
 * the team's queue, and later one that waits for it. A record keeps the call in between; those of
 * captured streams are kept for every replay, the others used again.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "dispatch/device/stream_call.h"
#include "runtime/moe/moe_impl.h"

#define STREAM_TICKETS ((uint64_t)1 << 63) /* 2 of a record: the call's, and of what it defers */

/* A record that nobody uses, or a new one. */
static kt_moe_record *take_record(kt_moe *m) {
    kt_moe_record **at = &m->records, *r;
    uint64_t number = 0;

    pthread_mutex_lock(&m->team->lock);
    for (; (r = *at); at = &r->next, number++)
        if (!atomic_load(&r->is_used)) break;
    if (!r && (r = calloc(1, sizeof *r))) {
        r->moe = m;
        r->number = number;
        *at = r;
    }
    if (r) atomic_store(&r->is_used, true);
    pthread_mutex_unlock(&m->team->lock);
    return r;
}

static kt_moe_record *find_record(kt_moe *m, uint64_t ticket) {
    const uint64_t number = (ticket & ~STREAM_TICKETS) / 2;
    kt_moe_record *r;

    pthread_mutex_lock(&m->team->lock);
    for (r = m->records; r && r->number != number;) r = r->next;
    pthread_mutex_unlock(&m->team->lock);
    return (ticket & STREAM_TICKETS) && r && atomic_load(&r->is_used) ? r : NULL;
}

/* ---- what the driver's thread does ---- */

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

/* ---- */

kt_status kt_moe_stream_submit(kt_moe *m, const kt_moe_item *now, const kt_moe_item *later,
                               uint64_t *ticket, kt_err *err) {
    bool is_captured;
    kt_moe_record *r;
    kt_status st;

    KT_TRY(kt_stream_is_captured(now->rows.stream, &is_captured, err));
    r = take_record(m);
    if (!r) return kt_fail(err, KT_E_NOMEM, "no memory for a call of a stream");
    r->now = *now;
    r->later = *later;
    r->is_captured = is_captured;
    st = kt_stream_call(now->rows.stream, put, r, err);
    if (st != KT_OK) atomic_store(&r->is_used, false);
    *ticket = STREAM_TICKETS | r->number * 2;
    return st;
}

kt_status kt_moe_sync_stream(kt_moe *m, uint64_t ticket, void *stream, kt_err *err) {
    kt_moe_record *r = find_record(m, ticket);
    const bool is_deferred = ticket & 1;

    if (!r || (is_deferred && r->now.part == KT_MOE_ALL))
        return kt_fail(err, KT_E_INVALID,
                       "ticket %llu is of no call of this layer that was submitted with a stream "
                       "and not waited for yet",
                       (unsigned long long)ticket);
    return kt_stream_call(stream, is_deferred ? wait_for_deferred : wait_for_call, r, err);
}

void kt_moe_records_free(kt_moe *m) {
    while (m->records) {
        kt_moe_record *next = m->records->next;
        free(m->records);
        m->records = next;
    }
}
