/* Drafts of lanes: what may come next is looked up for every token, so that how often it comes true
 * is measured also while drafts are not computed. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/clock.h"
#include "runtime/sched/sched_impl.h"

/* Steps after which the draft head drafts though it did not pay, to be measured again. */
enum { HEAD_LOOKS_AFTER = 16 };

/* Share of the newest time of the head. */
static const double newest = 0.2;

/* Steps after which drafts that did not pay are tried again, doubled with each trial in vain. */
enum { FIRST_PAUSE = 16, LONGEST_PAUSE = 1024 };

/* ---- what may come next ---- */

void kt_draft_release(kt_lane *l) {
    if (!l->draft) return;
    kt_ngram_deinit(&l->draft->text);
    free(l->draft);
    l->draft = NULL;
}

/* The lane's text up to its last token is known to its n-grams; false = no memory, no drafts. */
static bool read_text(kt_lane *l) {
    const int64_t known = kt_lane_known(l);

    if (!l->draft) l->draft = calloc(1, sizeof *l->draft);
    if (!l->draft) return false;
    while (l->draft->text.n < known)
        if (!kt_ngram_push(&l->draft->text, kt_lane_token(l, l->draft->text.n))) return false;
    return true;
}

/* Tokens that a lane can still use beside the next one. */
static int64_t most_of(const kt_scheduler *s, const kt_lane *l) {
    const int64_t made = kt_lane_known(l) - (int64_t)l->prompt->n_ids;
    const int64_t left = kt_request_limit(l->request, l->prompt) - made - 1;

    return left < s->options.draft ? left : s->options.draft;
}

/* What the rate of token i goes by: the length of its match, or of the head's how deep it is, a
 * class of rates each. */
static int64_t sureness(const kt_lane_draft *d, int64_t i) {
    const int64_t depth = i < KT_DRAFT_CLASSES ? i : KT_DRAFT_CLASSES - 1;

    return d->is_of_head ? (int64_t)KT_NGRAM_LEAST << depth : d->matched + i;
}

/* What may come next, by the text; the head has said it behind the last step. */
static bool look_up(kt_scheduler *s, kt_lane *l) {
    kt_lane_draft *d = l->draft;

    if (s->head_spans) return d && d->n > 0;
    if (d) d->n = 0;
    if (!read_text(l)) return false;
    d = l->draft;
    d->seen = 0;
    d->n = kt_ngram_draft(&d->text, s->options.draft, d->token, &d->matched);
    return d->n > 0;
}

/* And how likely each token of it is to be reached and true. */
static bool propose(kt_scheduler *s, kt_lane *l, kt_draft_offer *o) {
    double p = 1;

    if (!look_up(s, l)) return false;
    *o = (kt_draft_offer){.n = l->draft->n};
    if (o->n > most_of(s, l)) o->n = most_of(s, l);
    for (int64_t i = 0; i < o->n; i++)
        o->p[i] = p *= kt_draft_rate_of(&l->draft->rate, &s->draft_rate, sureness(l->draft, i));
    return o->n > 0;
}

/* ---- how many are computed ---- */

/* Pages for a draft, as far as there are any without taking them from others. */
static int64_t reserve(kt_scheduler *s, kt_lane *l, int64_t n) {
    const kt_backend *b = s->backend;
    const int64_t want = kt_lane_known(l) + n;

    if (want > l->reserved && b->reserve(b->self, l->seq, want, NULL) == KT_OK) l->reserved = want;
    return want > l->reserved ? l->reserved - kt_lane_known(l) : n;
}

static double cost_ns(void *arg, int64_t rows) {
    return kt_step_cost_ns(arg, rows);
}

/* Lanes of the step that generate, their drafts in s->offers; returns how many there are. */
static int gather(kt_scheduler *s, kt_lane **lanes, int64_t *rows) {
    int n = 0;

    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++) {
            kt_lane *l = &r->lanes[i];
            *rows += l->rows;
            if (l->rows == 0 || l->length < (int64_t)l->prompt->n_ids) continue;
            if (l->n_out == 1 && propose(s, l, &s->offers[n])) lanes[n++] = l;
        }
    return n;
}

/* Add what was taken of the offers to the lanes' rows. */
static void add(kt_scheduler *s, kt_lane **lanes, int n) {
    const kt_backend *b = s->backend;

    for (int i = 0; i < n; i++) {
        kt_lane *l = lanes[i];
        const int64_t n_draft = reserve(s, l, s->offers[i].taken);
        l->n_draft = b->guess(b->self, l->seq, n_draft, s->n_running);
        l->rows += l->n_draft;
        l->n_out += l->n_draft;
    }
}

/* As if a row took a tenth of the step without drafts, whose rows are *arg. */
static double hoped_ns(void *arg, int64_t rows) {
    return 10 + (double)(rows - *(const int64_t *)arg);
}

/* Drafts that would pay if rows were cheap are computed at times though by the cost of steps they
 * do not: a step that was slow for another reason is measured anew. */
static bool tries_again(kt_scheduler *s, const kt_draft_step *step, int n) {
    kt_draft_step hoped = *step;

    if (s->draft_pause == 0) s->draft_pause = FIRST_PAUSE;
    if (++s->draft_wait < s->draft_pause) return false;
    hoped.cost_ns = hoped_ns;
    hoped.arg = &hoped.rows;
    hoped.longest_ns = hoped.extra_ns = 0;
    if (!kt_draft_is_worth(false, kt_draft_plan(&hoped, s->offers, n))) return false;
    s->draft_wait = 0;
    if (s->draft_pause < LONGEST_PAUSE) s->draft_pause *= 2;
    return true;
}

void kt_drafts_plan(kt_scheduler *s, int64_t n_prompt) {
    kt_lane **lanes = s->picked; /* free until the step is over */
    kt_draft_step step = {.most = KT_DRAFT_ROWS,
                          .extra_ns = s->head_ns,
                          .is_indifferent = s->options.always_drafts,
                          .cost_ns = cost_ns,
                          .arg = &s->cost};
    int64_t n_again = 0;
    double gain;
    int n;

    if (!s->offers) return;
    n = gather(s, lanes, &step.rows);
    for (int i = 0; i < n; i++) n_again += lanes[i]->again;
    if (n == 0) return;
    step.tokens = (double)(step.rows - n_again);
    if (step.most > s->backend->max_rows - step.rows) step.most = s->backend->max_rows - step.rows;
    if (n_prompt > 0) step.longest_ns = (double)s->options.itl_ns;
    gain = kt_draft_plan(&step, s->offers, n);
    s->is_drafting = s->options.always_drafts || kt_draft_is_worth(s->is_drafting, gain);
    if (s->is_drafting)
        s->draft_pause = FIRST_PAUSE;
    else if (!tries_again(s, &step, n))
        for (int i = 0; i < n; i++) s->offers[i].taken = 0;
    add(s, lanes, n);
}

/* ---- what came of it ---- */

bool kt_draft_check(kt_scheduler *s, kt_lane *l) {
    kt_lane_draft *d = l->draft;
    bool is_hit;

    if (!d || d->seen >= d->n) return false;
    is_hit = kt_lane_token(l, kt_lane_known(l) - 1) == d->token[d->seen];
    kt_draft_rate_add(&d->rate, sureness(d, d->seen), is_hit);
    kt_draft_rate_add(&s->draft_rate, sureness(d, d->seen), is_hit);
    d->seen = is_hit ? d->seen + 1 : d->n;
    return is_hit;
}

void kt_drafts_settle(kt_scheduler *s, int n_spans) {
    const kt_backend *b = s->backend;

    for (int i = 0; i < n_spans; i++) {
        kt_lane *l = s->in_step[i];
        const int64_t right = l->length;
        if (l->state != KT_LANE_RUNNING || l->n_hit == l->n_draft) continue;
        l->length = b->go_back(b->self, l->seq, right);
        l->again = right - l->length;
    }
}

/* ---- the draft head ---- */

/* Tokens that the head is to draft for a lane: what it can still use. */
static int64_t wanted_of(kt_scheduler *s, kt_lane *l, bool is_drafting) {
    const int64_t most = most_of(s, l);

    if (!l->draft) l->draft = calloc(1, sizeof *l->draft);
    if (!l->draft) return 0;
    l->draft->is_of_head = true;
    l->draft->n = l->draft->seen = 0;
    return is_drafting && kt_lane_left(l) == 1 && most > 0 ? most : 0;
}

/* The rows of a lane that are kept, and the token behind each; *rows of all spans so far. */
static kt_draft_span span_of(kt_scheduler *s, kt_lane *l, int64_t first_row, int64_t n,
                             int64_t *rows) {
    const int64_t kept = l->length - l->from;
    int32_t *next = s->head_next + *rows;

    for (int64_t i = 0; i < kept; i++) next[i] = kt_lane_token(l, l->from + i + 1);
    *rows += kept;
    return (kt_draft_span){.seq = l->seq,
                           .first_row = first_row,
                           .rows = kept,
                           .position = l->from,
                           .next = next,
                           .out = l->draft ? l->draft->token : NULL,
                           .n = n};
}

void kt_drafts_ask_head(kt_scheduler *s, const kt_span *spans, int n_spans) {
    const bool is_drafting =
        s->options.always_drafts || s->is_drafting || s->head_age >= HEAD_LOOKS_AFTER;
    const int64_t since = kt_clock_ns();
    int64_t rows = 0;
    bool has_drafted = false;
    int n = 0;

    if (!s->head_spans) return;
    for (int i = 0; i < n_spans; i++) {
        kt_lane *l = s->in_step[i];
        int64_t wanted;
        if (l->state != KT_LANE_RUNNING || kt_lane_known(l) <= l->length) continue;
        wanted = wanted_of(s, l, is_drafting);
        has_drafted = has_drafted || wanted > 0;
        s->picked[n] = l;
        s->head_spans[n++] = span_of(s, l, spans[i].first_row, wanted, &rows);
    }
    if (s->backend->draft(s->backend->self, s->head_spans, n, s->logits, NULL) != KT_OK) return;
    for (int i = 0; i < n; i++)
        if (s->picked[i]->draft) s->picked[i]->draft->n = s->head_spans[i].n;
    s->head_age = has_drafted ? 0 : s->head_age + 1;
    if (!has_drafted) return;
    if (s->head_ns == 0) s->head_ns = (double)(kt_clock_ns() - since);
    s->head_ns += newest * ((double)(kt_clock_ns() - since) - s->head_ns);
}
