/* Steps of many sequences, and forward calls of one. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/batch.h"

#include <math.h>
#include <string.h>

#include "base/err.h"
#include "runtime/exec/engine_impl.h"
#include "runtime/loader/finite.h"
#include "runtime/model/step_estimate.h"

/* ---- what is asked ---- */

static kt_status check_tokens(const kt_engine *e, const int32_t *tokens, int64_t n, kt_err *err) {
    const int64_t vocab = e->model.graph.numbers.vocab;

    for (int64_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= vocab)
            return kt_fail(err, KT_E_INVALID, "token %lld is %d, expected 0 to %lld", (long long)i,
                           tokens[i], (long long)vocab - 1);
    return KT_OK;
}

static kt_status check_room(const kt_sequence *s, int64_t n, kt_err *err) {
    if (n <= s->capacity - s->length) return KT_OK;
    return kt_fail(err, KT_E_INVALID,
                   "%lld tokens after %lld do not fit the sequence's %lld tokens", (long long)n,
                   (long long)s->length, (long long)s->capacity);
}

static kt_status check_spans(kt_engine *e, const kt_batch *b, kt_err *err) {
    int64_t row = 0;

    e->batches++;
    for (int i = 0; i < b->n_spans; i++) {
        const kt_span *p = &b->spans[i];
        if (p->rows < 1 || p->first_row != row || p->rows > b->rows - row)
            return kt_fail(
                err, KT_E_INVALID,
                "span %d has %lld rows from row %lld on, expected row %lld and 1 to %lld rows", i,
                (long long)p->rows, (long long)p->first_row, (long long)row,
                (long long)(b->rows - row));
        if (!p->seq || p->seq->engine != e)
            return kt_fail(err, KT_E_INVALID, "span %d: its sequence is not this engine's", i);
        if (p->seq->batch == e->batches)
            return kt_fail(err, KT_E_INVALID, "span %d: its sequence has another span before", i);
        p->seq->batch = e->batches;
        KT_TRY(check_room(p->seq, p->rows, err));
        row += p->rows;
    }
    if (row == b->rows) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "spans have %lld rows, expected the batch's %lld",
                   (long long)row, (long long)b->rows);
}

static kt_status check_batch(kt_engine *e, const kt_batch *b, const float *logits, kt_err *err) {
    if (b->rows < 1 || b->rows > e->max_chunk)
        return kt_fail(err, KT_E_INVALID, "batch of %lld rows, expected 1 to %lld",
                       (long long)b->rows, (long long)e->max_chunk);
    if (b->n_out < 0 || b->n_out > b->rows || (b->n_out && (!logits || !b->out_row)))
        return kt_fail(err, KT_E_INVALID, "batch of %lld rows with logits of %lld",
                       (long long)b->rows, (long long)b->n_out);
    for (int64_t i = 0, last = -1; i < b->n_out; last = b->out_row[i++])
        if (b->out_row[i] <= last || b->out_row[i] >= b->rows)
            return kt_fail(
                err, KT_E_INVALID, "logits %lld are of row %d, expected one from %lld to %lld",
                (long long)i, b->out_row[i], (long long)last + 1, (long long)b->rows - 1);
    KT_TRY(check_spans(e, b, err));
    return check_tokens(e, b->token, b->rows, err);
}

/* Finite weights can still make numbers too large for f32. No text that follows would mean
 * anything. position: of the token whose logits come first. */
static kt_status check_logits(const kt_engine *e, int64_t n, const float *logits, int64_t *bad) {
    const int64_t vocab = e->model.graph.numbers.vocab;
    const kt_tensor t = {.dtype = KT_DTYPE_F32, .data = (const uint8_t *)logits};

    *bad = n ? kt_tensor_find_nonfinite(&t, 0, n * vocab) : -1;
    return *bad < 0 ? KT_OK : KT_E_FORMAT;
}

static kt_status fail_logits(const kt_engine *e, const float *logits, int64_t bad, int64_t token,
                             kt_err *err) {
    const int64_t vocab = e->model.graph.numbers.vocab;

    return kt_fail(err, KT_E_FORMAT,
                   "%.200s: the logits after token %lld of the sequence are not finite (%s for "
                   "token id %lld): weights or what they were multiplied by overflowed",
                   e->model.name, (long long)token, isnan(logits[bad]) ? "NaN" : "infinity",
                   (long long)(bad % vocab));
}

/* ---- one step ---- */

/* Slots for the states after the step, so that those before it survive a stop. false = there are
 * too few: the step writes over them and cannot be stopped. */
static bool take_states(kt_engine *e, const kt_batch *b) {
    if (!e->state_floats) return true;
    if (kt_states_room(&e->states) < b->n_spans) return false;
    for (int i = 0; i < b->n_spans; i++) e->next_state[i] = kt_states_take(&e->states);
    return true;
}

static void fill_spans(kt_engine *e, const kt_batch *b, bool has_next) {
    for (int i = 0; i < b->n_spans; i++) {
        const kt_sequence *s = b->spans[i].seq;
        kt_step_span *p = &e->step.spans[i];
        *p = (kt_step_span){.page = s->page,
                            .first_row = b->spans[i].first_row,
                            .rows = b->spans[i].rows,
                            .position = s->length};
        if (!e->state_floats) continue;
        p->from = kt_states_at(&e->states, s->state);
        p->to = kt_states_at(&e->states, has_next ? e->next_state[i] : s->state);
    }
    e->step.n_spans = b->n_spans;
}

/* The state after the step takes the place of the one before it, which becomes the one to go back
 * to where tokens of the step are guesses. */
static void set_state(kt_engine *e, kt_sequence *s, int32_t next) {
    if (s->guesses) {
        kt_states_give(&e->states, s->marked);
        s->marked = s->state;
        s->mark = s->length;
    } else {
        kt_states_give(&e->states, s->state);
    }
    s->state = next;
}

static void commit(kt_engine *e, const kt_batch *b, bool has_next) {
    for (int i = 0; i < b->n_spans; i++) {
        const kt_span *p = &b->spans[i];
        if (e->state_floats && has_next) set_state(e, p->seq, e->next_state[i]);
        kt_sequence_append(p->seq, b->token + p->first_row, p->rows);
        if (p->is_mark) kt_sequence_keep_state(p->seq);
    }
}

static bool has_guesses(const kt_batch *b) {
    for (int i = 0; i < b->n_spans; i++)
        if (b->spans[i].seq->guesses) return true;
    return false;
}

/* A checked batch. */
static kt_status run(kt_engine *e, const kt_batch *b, float *logits, float *hidden,
                     const kt_stop *stop, kt_err *err) {
    const bool has_next = (stop || has_guesses(b)) && take_states(e, b);
    kt_status st;

    fill_spans(e, b, has_next);
    e->step.n_out = b->n_out;
    e->step.out_row = b->out_row;
    e->step.logits = logits;
    e->step.hidden = hidden;
    st = kt_step_run(&e->step, e->pool, b->token, b->rows, has_next && stop ? &stop->is_set : NULL,
                     err);
    if (st == KT_OK) {
        commit(e, b, has_next);
        return KT_OK;
    }
    for (int i = 0; i < b->n_spans; i++) b->spans[i].seq->guesses = 0;
    for (int i = 0; has_next && e->state_floats && i < b->n_spans; i++)
        kt_states_give(&e->states, e->next_state[i]);
    if (st != KT_E_CANCELLED) return st;
    return kt_fail(err, KT_E_CANCELLED, "stopped within a step of %lld rows", (long long)b->rows);
}

kt_status kt_engine_step(kt_engine *e, const kt_batch *b, float *logits, const kt_stop *stop,
                         kt_err *err) {
    const int64_t vocab = e->model.graph.numbers.vocab;
    int64_t bad, row;

    KT_TRY(check_batch(e, b, logits, err));
    KT_TRY(run(e, b, logits, NULL, stop, err));
    if (check_logits(e, b->n_out, logits, &bad) == KT_OK) return KT_OK;
    row = b->out_row[bad / vocab];
    return fail_logits(e, logits, bad, e->step.positions[row], err);
}

double kt_engine_expected_ns(const kt_engine *e, int64_t rows, int64_t logits, double *experts_ns) {
    return kt_step_estimate_ns(&e->plan, rows, logits, experts_ns);
}

int64_t kt_engine_max_rows(const kt_engine *e) {
    return e->max_chunk;
}

/* ---- one sequence ---- */

static kt_status check_forward(kt_engine *e, const kt_sequence *s, const int32_t *tokens, int64_t n,
                               int64_t n_logits, const float *logits, kt_err *err) {
    if (n < 1 || n_logits < 0 || n_logits > n || (n_logits && !logits))
        return kt_fail(err, KT_E_INVALID, "forward of %lld tokens with logits of %lld",
                       (long long)n, (long long)n_logits);
    KT_TRY(check_room(s, n, err));
    return check_tokens(e, tokens, n, err);
}

kt_status kt_engine_forward(kt_engine *e, kt_sequence *s, const int32_t *tokens, int64_t n,
                            int64_t n_logits, float *logits, float *hidden, kt_cancel_fn cancel,
                            void *cancel_arg, kt_err *err) {
    const kt_model_numbers *m = &e->model.graph.numbers;
    int64_t bad;

    KT_TRY(check_forward(e, s, tokens, n, n_logits, logits, err));
    e->step.hidden_stride = n * m->hidden;
    for (int64_t done = 0; done < n;) {
        int64_t rows = n - done < e->chunk ? n - done : e->chunk;
        int64_t first_out = n - n_logits > done ? n - n_logits : done; /* absolute row */
        const kt_span span = {s, 0, rows, false};
        kt_batch b = {.rows = rows,
                      .token = tokens + done,
                      .n_spans = 1,
                      .spans = &span,
                      .out_row = e->out_row};
        if (cancel && cancel(cancel_arg))
            return kt_fail(err, KT_E_CANCELLED, "stopped after %lld of %lld tokens",
                           (long long)done, (long long)n);
        for (int64_t r = first_out; r < done + rows; r++)
            e->out_row[b.n_out++] = (int32_t)(r - done);
        KT_TRY(run(e, &b, logits ? logits + (first_out - (n - n_logits)) * m->vocab : NULL,
                   hidden ? hidden + done * m->hidden : NULL, NULL, err));
        done += rows;
    }
    if (n > 1) kt_sequence_mark(s);
    if (check_logits(e, n_logits, logits, &bad) == KT_OK) return KT_OK;
    return fail_logits(e, logits, bad, s->length - n_logits + bad / m->vocab, err);
}

/* ---- the pools ---- */

void kt_engine_kv_usage(const kt_engine *e, kt_kv_usage *out) {
    const int64_t idle = kt_prefix_idle(e->pages.prefix);

    *out = (kt_kv_usage){.pages = e->pages.n,
                         .pages_used = e->pages.n - e->pages.n_free - idle,
                         .pages_cached = idle,
                         .pages_free = e->pages.n_free,
                         .slots = e->states.n,
                         .slots_used = e->states.n - e->states.n_free - e->states.n_kept,
                         .slots_cached = e->states.n_kept,
                         .slots_free = e->states.n_free,
                         .reused_tokens = e->reused_tokens};
}

void kt_engine_drop_cache(kt_engine *e) {
    kt_pages_drop(&e->pages);
}
