/* Lanes: choices with their sequences. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/sched/sched_impl.h"

static int64_t n_made(const kt_lane *l) {
    size_t n;
    kt_request_tokens(l->request, l->index, &n);
    return (int64_t)n;
}

int64_t kt_lane_known(const kt_lane *l) {
    return (int64_t)l->prompt->n_ids + n_made(l);
}

int64_t kt_lane_left(const kt_lane *l) {
    return kt_lane_known(l) - l->length;
}

int32_t kt_lane_token(const kt_lane *l, int64_t at) {
    size_t n;
    const int32_t *made = kt_request_tokens(l->request, l->index, &n);
    const int64_t n_prompt = (int64_t)l->prompt->n_ids;

    return at < n_prompt ? l->prompt->ids[at] : made[at - n_prompt];
}

bool kt_lane_rests(const kt_lane *l) {
    const kt_request_client *c = &l->request->client;
    return c->is_behind && c->is_behind(c->arg);
}

bool kt_lane_note_rest(kt_lane *l) {
    if (!kt_lane_rests(l))
        l->rests_since_ns = 0;
    else if (!l->rests_since_ns)
        l->rests_since_ns = kt_clock_ns();
    return l->rests_since_ns > 0;
}

kt_status kt_lanes_create(kt_request *r, kt_err *err) {
    const size_t n = kt_request_choices(r);

    r->lanes = calloc(n, sizeof *r->lanes);
    if (!r->lanes) return kt_fail(err, KT_E_NOMEM, "no memory for %zu choices", n);
    for (size_t i = 0; i < n; i++)
        r->lanes[i] = (kt_lane){.request = r,
                                .index = i,
                                .prompt = &r->prompts[i / (size_t)r->n],
                                .state = i % (size_t)r->n ? KT_LANE_SIBLING : KT_LANE_WAITING};
    return KT_OK;
}

/* ---- starting ---- */

/* Tokens that a lane may come to have in all. */
static int64_t most_tokens(const kt_lane *l) {
    return (int64_t)l->prompt->n_ids + kt_request_limit(l->request, l->prompt);
}

static int64_t at_most(int64_t a, int64_t b) {
    return a < b ? a : b;
}

void kt_lane_report(const kt_lane *l) {
    const kt_request *r = l->request;
    kt_event e = {.kind = KT_EVENT_PROGRESS, .choice = (int)l->index, .tool = -1};

    if (!r->progress) return;
    e.as.progress = (kt_event_progress){(int64_t)l->prompt->n_ids, r->cached_tokens, l->length};
    r->client.event(r->client.arg, &e);
}

/* What the cache has of the prompt, and of one that was preempted of what it made, too. Where
 * memory is short for the tokens in one piece, of the prompt alone. */
static int64_t reuse(const kt_backend *b, const kt_lane *l) {
    const int64_t known = kt_lane_known(l), n_prompt = (int64_t)l->prompt->n_ids;
    int32_t *all = known > n_prompt ? malloc((size_t)known * sizeof *all) : NULL;
    int64_t reused;

    if (!all) return b->reuse(b->self, l->seq, l->prompt->ids, n_prompt);
    for (int64_t i = 0; i < known; i++) all[i] = kt_lane_token(l, i);
    reused = b->reuse(b->self, l->seq, all, known);
    free(all);
    return reused;
}

kt_status kt_lane_start(kt_scheduler *s, kt_lane *l, kt_err *err) {
    const kt_backend *b = s->backend;
    const int64_t want = at_most(kt_lane_known(l) + KT_ADMITTED_TOKENS, most_tokens(l));
    int64_t reused = 0;
    kt_status st;

    KT_TRY(b->open(b->self, &l->seq, err));
    /* Logits of reused tokens are not there to be reported, but for those that were before. */
    if (!l->request->prompt_logprobs || n_made(l) > 0) reused = reuse(b, l);
    st = b->reserve(b->self, l->seq, want, err);
    if (st != KT_OK) {
        b->close(b->self, l->seq);
        l->seq = NULL;
        return st;
    }
    if (n_made(l) == 0) { /* else it is a lane that was preempted */
        l->request->cached_tokens += reused;
        s->n_cached += reused;
    }
    if (!l->request->start_ns) l->request->start_ns = kt_clock_ns();
    l->length = l->start = reused;
    l->reserved = want;
    l->state = KT_LANE_RUNNING;
    s->n_running++;
    if (n_made(l) == 0) kt_lane_report(l);
    return KT_OK;
}

void kt_lane_stop(kt_scheduler *s, kt_lane *l, kt_lane_state state) {
    if (l->state == KT_LANE_RUNNING) {
        s->backend->close(s->backend->self, l->seq);
        s->n_running--;
    }
    l->seq = NULL;
    l->length = l->start = l->reserved = l->again = l->rests_since_ns = 0;
    if (state == KT_LANE_OVER) kt_draft_release(l);
    l->state = state;
}

bool kt_lanes_displace(kt_scheduler *s, const kt_request *r) {
    const int64_t before_ns = kt_clock_ns() - KT_REST_MS * 1000000LL;
    kt_lane *latest = NULL;
    int n_displaced = 0;

    for (kt_request *at = s->active; at; at = at->next)
        for (size_t i = 0; i < kt_request_choices(at); i++) {
            kt_lane *l = &at->lanes[i];
            n_displaced += l->state == KT_LANE_WAITING && n_made(l) > 0 && kt_lane_rests(l);
            if (at != r && l->state == KT_LANE_RUNNING && l->rests_since_ns &&
                l->rests_since_ns <= before_ns && kt_lane_rests(l))
                latest = l;
        }
    if (!latest || n_displaced >= s->options.max_running) return false;
    kt_lane_stop(s, latest, KT_LANE_WAITING);
    s->n_preempted++;
    return true;
}

bool kt_lane_fork(kt_scheduler *s, kt_lane *l, const kt_lane *from) {
    if (s->n_running >= s->options.max_running ||
        s->backend->fork(s->backend->self, from->seq, &l->seq, NULL) != KT_OK) {
        l->state = KT_LANE_WAITING;
        return false;
    }
    l->length = l->start = from->length;
    l->reserved = from->reserved;
    l->state = KT_LANE_RUNNING;
    s->n_running++;
    return true;
}

/* ---- growing ---- */

/* Who gives up its pages: the latest that rests, else the latest. */
static kt_lane *find_victim(kt_scheduler *s) {
    kt_lane *latest = NULL, *resting = NULL;

    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++) {
            if (r->lanes[i].state != KT_LANE_RUNNING) continue;
            latest = &r->lanes[i];
            if (kt_lane_rests(latest)) resting = latest;
        }
    return resting ? resting : latest;
}

/* Pages for one more row. False when the lane gave up its own. */
static bool grow(kt_scheduler *s, kt_lane *l) {
    const kt_backend *b = s->backend;
    const int64_t want = at_most(l->length + KT_GROWTH_TOKENS, most_tokens(l));

    while (b->reserve(b->self, l->seq, want, NULL) != KT_OK) {
        kt_lane *victim = find_victim(s);
        if (b->reserve(b->self, l->seq, kt_lane_known(l), NULL) == KT_OK) {
            l->reserved = kt_lane_known(l);
            return true;
        }
        kt_lane_stop(s, victim, KT_LANE_WAITING);
        s->n_preempted++;
        if (victim == l) return false;
    }
    l->reserved = want;
    return true;
}

void kt_lanes_grow(kt_scheduler *s) {
    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++) {
            kt_lane *l = &r->lanes[i];
            if (l->state == KT_LANE_RUNNING && kt_lane_known(l) > l->reserved) grow(s, l);
        }
}
