/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/engine_draft.h"

#include <string.h>

#include "base/err.h"
#include "runtime/exec/engine_impl.h"

bool kt_engine_has_draft_head(const kt_engine *e) {
    return e->model.graph.draft_hidden > 0;
}

/* Tokens that a span's drafts may stand behind: what is drafted last is not computed. */
static int64_t room_of(const kt_draft_span *p) {
    const int64_t room = p->seq->capacity - p->position - p->rows + 1;
    return room > 0 ? room : 0;
}

/* Row `row` of this pass belongs to a span of the step. */
static void put_span(kt_engine *e, const kt_draft_span *p, int64_t row, int64_t rows,
                     int64_t position, bool has_logits) {
    kt_step *s = &e->step;

    s->spans[s->n_spans++] =
        (kt_step_span){.page = p->seq->page, .first_row = row, .rows = rows, .position = position};
    if (has_logits) e->out_row[s->n_out++] = (int32_t)(row + rows - 1);
}

static void begin(kt_engine *e, float *logits) {
    kt_step *s = &e->step;

    s->n_spans = 0;
    s->n_out = 0;
    s->out_row = e->out_row;
    s->logits = logits;
}

static int32_t likeliest(const float *logits, int64_t n) {
    int32_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = (int32_t)i;
    return best;
}

/* Logits of the spans that draft token i, in their order. */
static void take(const kt_engine *e, kt_draft_span *spans, int n_spans, int64_t i) {
    const int64_t vocab = e->model.graph.numbers.vocab;
    const float *logits = e->step.logits;

    for (int k = 0; k < n_spans; k++) {
        if (spans[k].n <= i) continue;
        spans[k].out[i] = likeliest(logits, vocab);
        logits += vocab;
    }
}

/* All rows, and the first token of each span. Rows that are not kept are left out: those behind
 * them move up. */
static kt_status run_first(kt_engine *e, kt_draft_span *spans, int n_spans, float *logits,
                           kt_err *err) {
    const size_t bytes = (size_t)e->model.graph.numbers.hidden * sizeof(float);
    int64_t rows = 0;

    begin(e, logits);
    for (int k = 0; k < n_spans; k++) {
        kt_draft_span *p = &spans[k];
        if (p->n > room_of(p)) p->n = room_of(p);
        put_span(e, p, rows, p->rows, p->position, p->n > 0);
        memmove(kt_step_draft_hidden(&e->step, rows), kt_step_draft_hidden(&e->step, p->first_row),
                (size_t)p->rows * bytes);
        memcpy(e->draft_token + rows, p->next, (size_t)p->rows * sizeof *p->next);
        p->first_row = rows; /* where its rows are now */
        rows += p->rows;
    }
    KT_TRY(kt_step_run_drafts(&e->step, e->pool, e->draft_token, rows, err));
    take(e, spans, n_spans, 0);
    return KT_OK;
}

/* Token i behind the one before, from what the layer made of that one's row. */
static kt_status run_next(kt_engine *e, kt_draft_span *spans, int n_spans, int64_t i, float *logits,
                          kt_err *err) {
    const size_t bytes = (size_t)e->model.graph.numbers.hidden * sizeof(float);
    int64_t rows = 0;

    begin(e, logits);
    for (int k = 0; k < n_spans; k++) {
        kt_draft_span *p = &spans[k];
        const int64_t last = i == 1 ? p->first_row + p->rows - 1 : p->first_row;
        if (p->n <= i) continue;
        memcpy(kt_step_draft_hidden(&e->step, rows), kt_step_residual(&e->step, last), bytes);
        e->draft_token[rows] = p->out[i - 1];
        put_span(e, p, rows, 1, p->position + p->rows - 1 + i, true);
        p->first_row = rows++;
    }
    if (rows == 0) return KT_OK;
    KT_TRY(kt_step_run_drafts(&e->step, e->pool, e->draft_token, rows, err));
    take(e, spans, n_spans, i);
    return KT_OK;
}

kt_status kt_engine_draft(kt_engine *e, kt_draft_span *spans, int n_spans, float *logits,
                          kt_err *err) {
    int64_t most = 0;

    if (!kt_engine_has_draft_head(e))
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s has no draft head", e->model.name);
    if (n_spans == 0) return KT_OK;
    KT_TRY(run_first(e, spans, n_spans, logits, err));
    for (int k = 0; k < n_spans; k++)
        if (spans[k].n > most) most = spans[k].n;
    for (int64_t i = 1; i < most; i++) KT_TRY(run_next(e, spans, n_spans, i, logits, err));
    return KT_OK;
}
