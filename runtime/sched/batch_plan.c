/* Which lanes take part in a step, with how many rows. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sched/sched_impl.h"

/* Rows that prompts may take beside n generating lanes. */
static int64_t prompt_rows(const kt_scheduler *s, int64_t n) {
    const int64_t most = s->backend->max_rows - n;
    int64_t rows;

    if (n == 0) return most; /* nobody waits for its next token */
    rows = kt_step_cost_rows(&s->cost, s->options.itl_ns, s->backend->max_rows) - n;
    if (rows < KT_LEAST_PROMPT_ROWS) rows = KT_LEAST_PROMPT_ROWS;
    return rows < most ? rows : most;
}

static bool is_prompt(const kt_lane *l) {
    return kt_lane_left(l) > 1 + l->again || l->length < (int64_t)l->prompt->n_ids;
}

/* Rows of a lane, at most `left`, up to where a state should be kept: a mark of the prompt that is
 * worth a step of its own, else the prompt's last page. */
static int64_t rows_to_state(const kt_scheduler *s, const kt_lane *l, int64_t left) {
    const kt_backend *b = s->backend;

    for (int i = 0; i < KT_PROMPT_MARKS; i++) {
        const int64_t mark = (int64_t)l->prompt->mark[i], ahead = mark + 1 - l->length;
        int64_t n;
        if (mark - l->start < KT_MARKED_TOKENS || ahead <= 1 || ahead >= left) continue;
        n = b->chunk(b->self, l->seq, ahead);
        if (n < ahead) return n; /* else there are no states */
    }
    return b->chunk(b->self, l->seq, left);
}

/* More rows for a lane, out of *rows; spans end where states should be kept. */
static void give(const kt_scheduler *s, kt_lane *l, int64_t most, int64_t *rows) {
    const int64_t chunk = rows_to_state(s, l, kt_lane_left(l));
    int64_t n = l->rows + (most < *rows ? most : *rows);

    if (n > chunk) n = chunk;
    *rows -= n - l->rows;
    l->rows = n;
    l->is_mark = n == chunk;
}

/* The running prompt with the fewest tokens left that has no rows yet, of `lane` [n]. */
static kt_lane *shortest(kt_lane *const *lane, int n) {
    kt_lane *best = NULL;

    for (int i = 0; i < n; i++)
        if (lane[i]->rows == 0 && (!best || kt_lane_left(lane[i]) < kt_lane_left(best)))
            best = lane[i];
    return best;
}

/* Half of the rows to the oldest, whose turn it is, the rest to the shortest: a short prompt does
 * not wait behind a long one. What is left then goes by age. */
static void share_prompt_rows(const kt_scheduler *s, kt_lane *const *lane, int n, int64_t rows) {
    kt_lane *next;

    if (n == 0) return;
    give(s, lane[0], n > 1 ? (rows + 1) / 2 : rows, &rows);
    while (rows > 0 && (next = shortest(lane, n))) give(s, next, rows, &rows);
    for (int i = 0; i < n && rows > 0; i++) give(s, lane[i], rows, &rows);
}

/* Rows with logits: the last of all that is known, or every row of a prompt that is reported. */
static void settle_outputs(kt_lane *const *lane, int n, int64_t rows_out) {
    for (int i = 0; i < n; i++) {
        kt_lane *l = lane[i];
        if (l->request->prompt_logprobs && l->length < (int64_t)l->prompt->n_ids) {
            if (l->rows > 1 + rows_out) {
                l->rows = 1 + rows_out;
                l->is_mark = false;
            }
            l->n_out = l->rows;
            if (l->rows > 0) rows_out -= l->rows - 1;
        } else {
            l->n_out = l->rows > 0 && l->rows == kt_lane_left(l);
        }
    }
}

void kt_batch_plan(kt_scheduler *s) {
    kt_lane **prompts = s->picked; /* free until the step is over */
    const int64_t more_out = s->max_out - s->options.max_running - (s->offers ? KT_DRAFT_ROWS : 0);
    int64_t n_generating = 0, n_rows = 0;
    int n_prompts = 0;

    for (kt_request *r = s->active; r; r = r->next)
        for (size_t i = 0; i < kt_request_choices(r); i++) {
            kt_lane *l = &r->lanes[i];
            l->rows = l->n_out = l->n_draft = l->n_hit = 0;
            l->is_mark = false;
            if (l->state != KT_LANE_RUNNING || kt_lane_note_rest(l)) continue;
            if (is_prompt(l)) {
                prompts[n_prompts++] = l;
                continue;
            }
            l->rows = kt_lane_left(l);
            l->n_out = 1;
            n_generating += l->rows;
        }
    share_prompt_rows(s, prompts, n_prompts, prompt_rows(s, n_generating));
    settle_outputs(prompts, n_prompts, more_out);
    for (int i = 0; i < n_prompts; i++) n_rows += prompts[i]->rows;
    kt_drafts_plan(s, n_rows);
}
