/* One step: start what can start, compute, choose tokens, hand them out.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "runtime/sched/sched_impl.h"

/* ---- the end of a request ---- */

static void end(kt_scheduler *s, kt_request *r, kt_status status, const kt_err *why) {
    kt_request **at = &s->active;

    while (*at && *at != r) at = &(*at)->next;
    if (*at) *at = r->next;
    for (size_t i = 0; i < kt_request_choices(r); i++) kt_lane_stop(s, &r->lanes[i], KT_LANE_OVER);
    r->end_ns = kt_clock_ns();
    pthread_mutex_lock(&s->lock);
    *(status == KT_E_CANCELLED ? &s->counts.cancelled : &s->counts.finished) += 1;
    if (s->counts.running > 0) s->counts.running--;
    pthread_mutex_unlock(&s->lock);
    r->client.done(r->client.arg, status, why);
}

/* The same after a step that it is part of: its lanes stop now, sweep does the rest. */
static void fail(kt_scheduler *s, kt_request *r, kt_status status, const kt_err *why) {
    if (r->failed != KT_OK) return;
    for (size_t i = 0; i < kt_request_choices(r); i++) kt_lane_stop(s, &r->lanes[i], KT_LANE_OVER);
    r->failed = status;
    r->why = *why;
}

static void end_gone(kt_scheduler *s, kt_request *r) {
    kt_err why;

    kt_fail(&why, KT_E_CANCELLED, "the client left");
    end(s, r, KT_E_CANCELLED, &why);
}

/* Finish those that are over or that nobody waits for. */
static void sweep(kt_scheduler *s) {
    for (kt_request *r = s->active, *next; r; r = next) {
        next = r->next;
        if (r->failed != KT_OK) {
            kt_err why = r->why;
            end(s, r, r->failed, &why);
        } else if (r->n_open == 0)
            end(s, r, KT_OK, NULL);
        else if (kt_request_gone(r))
            end_gone(s, r);
    }
}

/* ---- starting ---- */

/* Waiting choices of a request, but for those that nobody would read. KT_E_NOMEM when there are no
 * pages for the next one. */
static kt_status start_lanes(kt_scheduler *s, kt_request *r, kt_err *err) {
    for (size_t i = 0; i < kt_request_choices(r); i++) {
        kt_lane *l = &r->lanes[i];
        kt_status st;
        if (l->state != KT_LANE_WAITING || kt_lane_rests(l)) continue;
        if (s->n_running >= s->options.max_running && !kt_lanes_displace(s, r)) return KT_OK;
        while ((st = kt_lane_start(s, l, err)) == KT_E_NOMEM && kt_lanes_displace(s, r)) {
        }
        if (st != KT_OK) return st;
    }
    return KT_OK;
}

/* May the first of the queue start? Where all places are taken, one that nobody reads is its. */
static bool has_place(kt_scheduler *s) {
    bool is_wanted;

    if (s->n_running < s->options.max_running) return true;
    pthread_mutex_lock(&s->lock);
    is_wanted = s->first != NULL;
    pthread_mutex_unlock(&s->lock);
    return is_wanted && kt_lanes_displace(s, NULL);
}

/* The first of the queue becomes active; NULL when there is none that somebody waits for. */
static kt_request *take_first(kt_scheduler *s) {
    kt_request *r, **end = &s->active;

    pthread_mutex_lock(&s->lock);
    r = s->first;
    if (r) {
        s->first = r->next;
        s->n_waiting--;
        s->counts.running++;
    }
    pthread_mutex_unlock(&s->lock);
    if (!r) return NULL;
    r->next = NULL;
    while (*end) end = &(*end)->next;
    *end = r;
    return r;
}

static void put_back(kt_scheduler *s, kt_request *r) {
    kt_request **at = &s->active;

    while (*at != r) at = &(*at)->next;
    *at = NULL; /* it was the last */
    pthread_mutex_lock(&s->lock);
    r->next = s->first;
    s->first = r;
    s->n_waiting++;
    s->counts.running--;
    pthread_mutex_unlock(&s->lock);
}

/* Nothing to compute: no token is wanted, nor the prompt's log probabilities. */
static bool finish_empty(kt_scheduler *s, kt_request *r) {
    kt_err why;

    if (r->max_tokens > 0 || r->prompt_logprobs) return false;
    r->start_ns = r->prompt_ns = kt_clock_ns();
    for (size_t i = 0; i < kt_request_choices(r); i++) {
        const kt_status st = kt_request_finish(r, i, KT_FINISH_LENGTH, &why);
        if (st == KT_OK) continue;
        end(s, r, st, &why);
        return true;
    }
    end(s, r, KT_OK, NULL);
    return true;
}

static bool has_started(const kt_request *r) {
    for (size_t i = 0; i < kt_request_choices(r); i++)
        if (r->lanes[i].state == KT_LANE_RUNNING) return true;
    return false;
}

/* Older ones first: those that gave up their pages before those that have not begun. One that finds
 * no room though nothing else runs never will. */
static void admit(kt_scheduler *s) {
    kt_err why;
    kt_request *r;
    kt_status st;

    for (kt_request *next, *at = s->active; at; at = next) {
        next = at->next;
        st = start_lanes(s, at, &why);
        if (st == KT_OK) continue;
        if (s->n_running > 0 && st == KT_E_NOMEM) return;
        end(s, at, st, &why);
    }
    while (has_place(s) && (r = take_first(s))) {
        if (kt_request_gone(r)) {
            end_gone(s, r);
            continue;
        }
        if (finish_empty(s, r)) continue;
        st = start_lanes(s, r, &why);
        if (st == KT_OK || has_started(r)) continue;
        if (s->n_running > 0 && st == KT_E_NOMEM) {
            put_back(s, r);
            return;
        }
        end(s, r, st, &why);
    }
}

/* ---- the batch ---- */

static void add_lane(kt_scheduler *s, kt_batch *b, kt_lane *l) {
    const int64_t known = l->rows - l->n_draft;

    l->first_out = b->n_out;
    l->from = l->length;
    for (int64_t i = 0; i < known; i++) s->token[b->rows + i] = kt_lane_token(l, l->length + i);
    for (int64_t i = 0; i < l->n_draft; i++) s->token[b->rows + known + i] = l->draft->token[i];
    for (int64_t i = l->rows - l->n_out; i < l->rows; i++)
        s->out_row[b->n_out++] = (int32_t)(b->rows + i);
    s->spans[b->n_spans] = (kt_span){l->seq, b->rows, l->rows, l->is_mark};
    s->in_step[b->n_spans++] = l;
    b->rows += l->rows;
}

static kt_batch make_batch(kt_scheduler *s) {
    kt_batch b = {.token = s->token, .spans = s->spans, .out_row = s->out_row};

    kt_batch_plan(s);
    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++)
            if (r->lanes[i].state == KT_LANE_RUNNING && r->lanes[i].rows > 0)
                add_lane(s, &b, &r->lanes[i]);
    return b;
}

/* ---- what came of it ---- */

/* Log probabilities of the prompt's tokens, for all choices that share it. */
static kt_status report_prompt(kt_scheduler *s, kt_lane *l, int64_t first, kt_err *err) {
    kt_request *r = l->request;
    const size_t end = (l->index / (size_t)r->n + 1) * (size_t)r->n;

    if (!r->prompt_logprobs) return KT_OK;
    for (int64_t i = 0; i < l->n_out; i++) {
        const int64_t at = first + l->rows - l->n_out + i + 1; /* the token they are about */
        const float *logits = s->logits + (l->first_out + i) * s->model.vocab;
        if (at >= (int64_t)l->prompt->n_ids) break;
        for (size_t k = l->index; k < end; k++) {
            kt_lane *each = &r->lanes[k];
            if (at <= each->n_reported || (k > l->index && each->state != KT_LANE_SIBLING))
                continue;
            KT_TRY(kt_request_prompt_logprob(r, k, (size_t)at, logits, &s->scratch[0], err));
            each->n_reported = at;
        }
    }
    return KT_OK;
}

static bool is_finite(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

/* A pick of a lane from a row of logits. */
static void want_pick(kt_scheduler *s, kt_lane *l, int64_t row, int *n) {
    s->picked[*n] = l;
    s->picked_row[(*n)++] = row;
}

/* A lane whose last known token was computed. The first of several choices hands its prompt on,
 * before its own token is added to it. */
static kt_status at_end(kt_scheduler *s, kt_lane *l, int *n, kt_err *err) {
    kt_request *r = l->request;
    const int64_t row = l->first_out + l->n_out - l->n_draft - 1;
    const bool is_leader = l->index % (size_t)r->n == 0;

    if (!r->prompt_ns) r->prompt_ns = kt_clock_ns();
    for (size_t k = l->index; k < l->index + (size_t)r->n && (k == l->index || is_leader); k++) {
        kt_lane *each = &r->lanes[k];
        if (k > l->index && each->state != KT_LANE_SIBLING) continue;
        if (kt_request_limit(r, l->prompt) == 0) {
            KT_TRY(kt_request_finish(r, k, KT_FINISH_LENGTH, err));
            kt_lane_stop(s, each, KT_LANE_OVER);
        } else if (k == l->index || kt_lane_fork(s, each, l)) {
            want_pick(s, each, row, n);
        }
    }
    return KT_OK;
}

/* Rows of logits up to that of a lane's last known token; those of drafts are looked at one by
 * one. */
static bool has_finite_rows(const kt_scheduler *s, const kt_lane *l) {
    const int64_t vocab = s->model.vocab;
    return is_finite(s->logits + l->first_out * vocab, (l->n_out - l->n_draft) * vocab);
}

/* An answer's end may be where the next turn begins. */
static void keep_recent(const kt_scheduler *s, const kt_lane *l) {
    const kt_backend *b = s->backend;

    if (!b->keep_recent || l->n_draft > 0 || l->length < (int64_t)l->prompt->n_ids) return;
    if (l->length % KT_PAGE_TOKENS == 0) b->keep_recent(b->self, l->seq);
}

/* The rows of a step were computed: lengths, reports, and who gets a token. */
static void settle(kt_scheduler *s, int n_spans, kt_status st, const kt_err *why, int *n_picks) {
    for (int i = 0; i < n_spans; i++) {
        kt_lane *l = s->in_step[i];
        const int64_t first = l->length;
        kt_err err = {KT_OK, ""};
        kt_status own = KT_OK;
        if (l->state != KT_LANE_RUNNING) continue; /* its request has failed above */
        l->length += l->rows - l->n_draft;
        if (kt_lane_left(l) == 0) l->again = 0;
        l->request->draft_tokens += l->n_draft;
        if (st == KT_E_FORMAT && !has_finite_rows(s, l)) {
            fail(s, l->request, st, why);
            continue;
        }
        keep_recent(s, l);
        if (l->length <= (int64_t)l->prompt->n_ids && l->rows > 0) kt_lane_report(l);
        own = report_prompt(s, l, first, &err);
        if (own == KT_OK && l->n_out > 0 && kt_lane_left(l) == 0) own = at_end(s, l, n_picks, &err);
        if (own != KT_OK) fail(s, l->request, own, &err);
    }
}

static void pick(void *arg, int64_t begin, int64_t end, int tid) {
    kt_scheduler *s = arg;

    for (int64_t i = begin; i < end; i++)
        kt_request_pick(s->picked[i]->request, s->picked[i]->index,
                        s->logits + s->picked_row[i] * s->model.vocab, &s->scratch[tid]);
}

static void pick_all(kt_scheduler *s, int n) {
    const kt_phase phase = {.run = pick, .arg = s, .n_tasks = n};

    if (n > 1 && s->backend->pool)
        kt_pool_run(s->backend->pool, &phase, 1);
    else
        pick(s, 0, n, 0);
}

/* The token that was chosen from row `row` of logits is the drafted one, whose own row is the
 * next. */
static void take_draft(kt_scheduler *s, kt_lane *l, int64_t row, int *n_next) {
    kt_err err;

    l->length++;
    l->n_hit++;
    l->request->draft_hits++;
    if (!s->has_bad_rows || is_finite(s->logits + (row + 1) * s->model.vocab, s->model.vocab)) {
        want_pick(s, l, row + 1, n_next);
        return;
    }
    kt_fail(&err, KT_E_FORMAT, "the logits after token %lld are not finite", (long long)l->length);
    fail(s, l->request, KT_E_FORMAT, &err);
}

/* Returns how many are picked next, in the places of those that were: the step has computed what
 * follows their tokens, too. */
static int hand_out(kt_scheduler *s, int n) {
    int n_next = 0;

    for (int i = 0; i < n; i++) {
        kt_lane *l = s->picked[i];
        const int64_t row = s->picked_row[i];
        kt_err err = {KT_OK, ""};
        bool is_over;
        kt_status st;
        if (l->state != KT_LANE_RUNNING) continue;
        st = kt_request_accept(l->request, l->index, &is_over, &err);
        if (st != KT_OK)
            fail(s, l->request, st, &err);
        else if (is_over)
            kt_lane_stop(s, l, KT_LANE_OVER);
        else if (kt_draft_check(s, l) && l->n_hit < l->n_draft)
            take_draft(s, l, row, &n_next);
    }
    return n_next;
}

/* Tokens for those that were picked, then for those whose drafts come true, row by row. */
static void choose(kt_scheduler *s, int n) {
    while (n > 0) {
        pick_all(s, n);
        n = hand_out(s, n);
    }
}

static int64_t n_drafted(const kt_scheduler *s, int n_spans) {
    int64_t n = 0;

    for (int i = 0; i < n_spans; i++) n += s->in_step[i]->n_draft;
    return n;
}

/* What drafts brought, by what the same tokens would have taken without them. */
static void count_drafts(kt_scheduler *s, const kt_batch *b, int64_t ns) {
    const int64_t rows = n_drafted(s, b->n_spans);
    const double plain_ns = kt_step_cost_ns(&s->cost, b->rows - rows);
    kt_scheduler_counts *c = &s->counts;
    int64_t hits = 0, lanes = 0, drafts = 0, hits_at[KT_DRAFT_MOST] = {0};

    for (int i = 0; i < b->n_spans; i++) {
        const kt_lane *l = s->in_step[i];
        hits += l->n_hit;
        for (int64_t k = 0; k < l->n_hit; k++) hits_at[k]++;
        drafts += l->n_draft > 0;
        lanes += l->n_out == l->n_draft + 1;
    }
    if (rows == 0) return;
    pthread_mutex_lock(&s->lock);
    c->drafts += drafts;
    c->draft_rows += rows;
    c->draft_hits += hits;
    for (int k = 0; k < KT_DRAFT_MOST; k++) c->draft_hits_at[k] += hits_at[k];
    c->draft_steps++;
    c->draft_ns += ns;
    if (plain_ns > 0)
        c->draft_saved_ns += (int64_t)(plain_ns * (double)(lanes + hits) / (double)lanes) - ns;
    pthread_mutex_unlock(&s->lock);
}

static void publish(kt_scheduler *s, const kt_batch *b, int64_t ns, bool was_stopped) {
    const int64_t drafted = n_drafted(s, b->n_spans);
    int64_t generating = 0;
    kt_kv_usage kv = {0};
    int resting = 0;

    for (int i = 0; i < b->n_spans; i++)
        generating += b->spans[i].rows - s->in_step[i]->n_draft == 1;
    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++)
            resting +=
                (r->lanes[i].state == KT_LANE_RUNNING || r->lanes[i].state == KT_LANE_WAITING) &&
                kt_lane_rests(&r->lanes[i]);
    s->backend->usage(s->backend->self, &kv);
    pthread_mutex_lock(&s->lock);
    s->counts.choices = s->n_running;
    s->counts.resting = resting;
    s->counts.kv = kv;
    s->counts.cached_tokens = s->n_cached;
    s->counts.preemptions = s->n_preempted;
    if (b->rows > 0) {
        s->counts.steps++;
        s->counts.step_choices += b->n_spans;
        s->counts.stopped_steps += was_stopped;
        s->counts.last_rows = b->rows;
        s->counts.last_step_ns = ns;
        s->counts.step_ns += ns;
        if (!was_stopped) s->counts.decode_rows += generating;
        if (!was_stopped) s->counts.prompt_rows += b->rows - generating - drafted;
    }
    pthread_mutex_unlock(&s->lock);
}

static void fail_all(kt_scheduler *s, int n_spans, kt_status st, const kt_err *why) {
    for (int i = 0; i < n_spans; i++) fail(s, s->in_step[i]->request, st, why);
}

/* A copy of a shared page found no room: the latest gives up its own, unless it is alone. */
static bool make_room(kt_scheduler *s, int n_spans) {
    if (n_spans < 2) return false;
    kt_lane_stop(s, s->in_step[n_spans - 1], KT_LANE_WAITING);
    s->n_preempted++;
    return true;
}

/* The flag is lowered before the question, and raised after the answer is settled: no end is
 * missed. */
static bool is_ending(kt_scheduler *s) {
    bool ending;

    kt_stop_set(&s->stop, false);
    pthread_mutex_lock(&s->lock);
    ending = s->is_ending;
    pthread_mutex_unlock(&s->lock);
    return ending;
}

bool kt_scheduler_run_step(kt_scheduler *s) {
    kt_err why = {KT_OK, ""};
    kt_batch b;
    int64_t since, ns;
    int n_picks = 0;
    kt_status st;

    sweep(s);
    admit(s);
    kt_lanes_grow(s);
    b = make_batch(s);
    if (b.rows == 0) {
        publish(s, &b, 0, false);
        return false;
    }
    if (is_ending(s)) return false;
    kt_watch_on(s, b.n_spans, b.rows);
    since = kt_clock_ns();
    st = s->backend->step(s->backend->self, &b, s->logits, &s->stop, &why);
    ns = kt_clock_ns() - since;
    kt_watch_off(s);
    s->was_stopped = st == KT_E_CANCELLED;
    s->has_bad_rows = st == KT_E_FORMAT;
    if (st == KT_OK || st == KT_E_FORMAT) {
        settle(s, b.n_spans, st, &why, &n_picks);
        choose(s, n_picks);
        kt_drafts_ask_head(s, b.spans, b.n_spans);
        kt_drafts_settle(s, b.n_spans);
        count_drafts(s, &b, ns);
        kt_step_cost_add(&s->cost, b.rows, ns);
    } else if (st != KT_E_CANCELLED && !(st == KT_E_NOMEM && make_room(s, b.n_spans))) {
        fail_all(s, b.n_spans, st, &why);
    }
    publish(s, &b, ns, s->was_stopped);
    sweep(s);
    return true;
}
