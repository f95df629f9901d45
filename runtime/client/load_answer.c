/* What is measured of one answer. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "runtime/client/load_run.h"

void kt_load_answer_deinit(kt_load_answer *a) {
    free(a->gap_ms);
    a->gap_ms = NULL;
}

void kt_load_answer_begin(kt_load_answer *a) {
    *a = (kt_load_answer){
        .start_ns = kt_clock_ns(), .prompt_tokens = -1, .cached_tokens = -1, .output_tokens = -1};
}

static void note_piece(kt_load_answer *a, int64_t now) {
    if (a->n_pieces++ == 0)
        a->first_ns = now;
    else {
        size_t i = (size_t)a->n_pieces - 2;
        if (i == a->gap_capacity) {
            size_t capacity = a->gap_capacity ? 2 * a->gap_capacity : 64;
            float *grown = realloc(a->gap_ms, capacity * sizeof *grown);
            if (!grown) {
                snprintf(a->error, sizeof a->error, "no memory for the times of the answer");
                return;
            }
            a->gap_ms = grown;
            a->gap_capacity = capacity;
        }
        a->gap_ms[i] = (float)((double)(now - a->last_ns) * 1e-6);
    }
    a->last_ns = now;
}

static bool has_text(const kt_json *object, const char *key) {
    return *kt_json_text(object, key) != 0;
}

/* Does a choice bring something that a reader sees? */
static bool brings_text(const kt_json *choice) {
    const kt_json *delta = kt_json_get(choice, "delta");

    return has_text(choice, "text") || has_text(delta, "content") ||
           has_text(delta, "reasoning_content") || has_text(delta, "reasoning") ||
           kt_json_length(kt_json_get(delta, "tool_calls")) > 0;
}

void kt_load_answer_take(void *answer, const kt_json *event, int64_t now_ns) {
    const kt_json *usage = kt_json_get(event, "usage");
    kt_load_answer *a = answer;

    if (brings_text(kt_json_at(kt_json_get(event, "choices"), 0))) note_piece(a, now_ns);
    if (kt_json_type_of(usage) != KT_JSON_OBJECT) return;
    a->prompt_tokens = kt_json_int(kt_json_get(usage, "prompt_tokens"), -1);
    a->output_tokens = kt_json_int(kt_json_get(usage, "completion_tokens"), -1);
    a->cached_tokens =
        kt_json_int(kt_json_get(kt_json_get(usage, "prompt_tokens_details"), "cached_tokens"), -1);
}

void kt_load_answer_end(kt_load_answer *a, const kt_sse_stream *s) {
    a->end_ns = kt_clock_ns();
    a->status = s->status;
    if (*s->error)
        snprintf(a->error, sizeof a->error, "%.199s", s->error);
    else if (!*a->error && a->n_pieces == 0)
        snprintf(a->error, sizeof a->error, "the answer holds no text");
    if (a->output_tokens < 0) a->output_tokens = a->n_pieces;
}
