/* Running a step that was put whole: the device is given all of its segments at once, with letters
 * where the host's parts begin and waits for answers where it needs what they make. The host then
 * goes from letter to letter, so that neither side starts the other, and a step that comes again is
 * one graph.
 *
 * Both sides use one memory of values. What keeps them apart:
 * - The host begins a part when the letter before it has come, that is after all copies out of and
 *   into its memory that were put before the letter.
 * - The device copies into the host's memory only when the host's parts so far are answered, but
 *   for the sum of a node on both sides, which has a place of its own that the host reads behind a
 *   letter of its own.
 * - The host begins a part without a letter only where no copy out of its memory is under way but
 *   those of the part's own node on both sides, whose inputs it reads, too.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "runtime/exec/segments_impl.h"

enum {
    MOST_ROWS = 64, /* more take longer than what is saved */
    MOST_OF_SPAN =
        4, /* steps of decoding and of drafts come again, pieces of prompts hardly ever */
};

typedef struct mail {
    kt_segments_runner *r;
    kt_mailbox *box;
    int parts;      /* of the host, put so far */
    int taken;      /* the last answer that the device waits for */
    bool is_unread; /* copies out of the host's memory, and no letter behind them */
} mail;

bool kt_segments_can_mail(const kt_step *s) {
    return kt_device_step_mailbox(s->device) && s->rows <= MOST_ROWS && !s->hidden &&
           s->rows <= MOST_OF_SPAN * s->n_spans && !s->recorder && !s->is_mapped &&
           !kt_device_step_lends_any(s->device, s->rows);
}

/* ---- what the device is given ---- */

static kt_status take(mail *m, kt_err *err) {
    if (m->parts == m->taken) return KT_OK;
    m->taken = m->parts;
    return kt_mailbox_take(m->box, KT_STREAM_MAIN, m->taken, err);
}

static kt_status post(mail *m, int *letter, kt_err *err) {
    m->is_unread = false;
    return kt_mailbox_post(m->box, KT_STREAM_MAIN, letter, err);
}

/* What the host needs for its part, and the letter before it. */
static kt_status put_down(mail *m, const kt_segment *g, int *letter, kt_err *err) {
    const kt_step *s = m->r->s;
    const int node = kt_segments_routed(s, g);

    *letter = 0;
    if (g->n_down || g->routing_down) KT_TRY(take(m, err));
    for (int i = 0; i < g->n_down; i++) KT_TRY(kt_device_step_down(m->r->d, g->down[i], err));
    if (g->routing_down)
        KT_TRY(
            kt_device_step_route_down(m->r->d, kt_segments_slots(s, &s->graph->nodes[node]), err));
    if (g->side == KT_SIDE_DEVICE) return KT_OK;
    if (!g->n_down && !g->routing_down && !m->is_unread) return KT_OK;
    return post(m, letter, err);
}

static kt_status put_up(mail *m, const kt_segment *g, kt_err *err) {
    const kt_step *s = m->r->s;

    if (!g->n_up && !g->routing_up) return KT_OK;
    KT_TRY(take(m, err));
    m->is_unread = true;
    for (int i = 0; i < g->n_up; i++) KT_TRY(kt_device_step_up(m->r->d, g->up[i], err));
    if (!g->routing_up) return KT_OK;
    return kt_device_step_route_put(
        m->r->d, kt_segments_slots(s, &s->graph->nodes[kt_segments_routed(s, g)]), err);
}

/* The letter comes before the device's experts, the answer behind them. */
static kt_status put_both(mail *m, const kt_segment *g, int *letter, kt_err *err) {
    KT_TRY(kt_device_step_run(m->r->d, g->first, err));
    m->parts++;
    if (!g->is_summed_on_device) {
        KT_TRY(kt_device_step_sum_down(m->r->d, err));
        return post(m, letter, err);
    }
    KT_TRY(take(m, err));
    m->is_unread = true;
    return kt_device_step_sum_up(m->r->d, g->first, err);
}

/* A node on both sides whose experts are all here in a step of so few rows: the sum alone
 * crosses. */
static kt_status put_host_alone(mail *m, const kt_segment *g, kt_err *err) {
    m->parts++;
    if (!g->is_summed_on_device) return KT_OK;
    KT_TRY(take(m, err));
    m->is_unread = true;
    return kt_device_step_sum_up(m->r->d, g->first, err);
}

static kt_status put_segment(mail *m, const kt_segment *g, kt_segment_letters *l, kt_err *err) {
    *l = (kt_segment_letters){0, 0};
    KT_TRY(put_down(m, g, &l->begin, err));
    if (g->is_for_long_steps) return put_host_alone(m, g, err);
    KT_TRY(put_up(m, g, err));
    if (g->side == KT_SIDE_BOTH) return put_both(m, g, &l->sum, err);
    if (g->side == KT_SIDE_CPU) {
        m->parts++;
        return KT_OK;
    }
    for (int i = g->first; i < g->end; i++) KT_TRY(kt_device_step_run(m->r->d, i, err));
    return KT_OK;
}

static kt_status put_all(mail *m, kt_segment_letters *l, kt_err *err) {
    const kt_placement *p = m->r->s->place;

    KT_TRY(kt_device_step_gather(m->r->d, true, err));
    KT_TRY(kt_device_step_begin(m->r->d, m->r->s, err));
    KT_TRY(kt_mailbox_begin(m->box, KT_STREAM_MAIN, err));
    for (int i = m->r->program->first; i < m->r->program->end; i++)
        KT_TRY(put_segment(m, &p->segment[i], &l[i], err));
    return kt_device_step_put(m->r->d, err);
}

/* ---- what the host does ---- */

/* The routing that the next part of the device reads, as the device numbers experts. */
static void ready_routing(const mail *m, int segment) {
    const kt_step *s = m->r->s;
    const kt_placement *p = s->place;

    for (int i = segment + 1; i < m->r->program->end; i++) {
        const int node = kt_segments_routed(s, &p->segment[i]);
        if (p->segment[i].routing_up && !p->segment[i].is_for_long_steps) {
            kt_device_step_route_ready(m->r->d, node, kt_segments_slots(s, &s->graph->nodes[node]));
            return;
        }
        if (p->segment[i].side != KT_SIDE_DEVICE) return;
    }
}

static kt_status run_part(mail *m, int i, const kt_segment_letters *l, kt_err *err) {
    const kt_segment *g = &m->r->s->place->segment[i];

    if (g->side == KT_SIDE_DEVICE) return KT_OK;
    if (l->begin) KT_TRY(kt_mailbox_await(m->box, l->begin, err));
    if (g->side == KT_SIDE_BOTH) {
        kt_segments_keep_cold(m->r, g->first, NULL);
        if (!g->is_for_long_steps) kt_device_step_note(m->r->d, g->first);
    }
    KT_TRY(kt_segments_run_host(m->r, i, err));
    if (l->sum) {
        KT_TRY(kt_mailbox_await(m->box, l->sum, err));
        kt_segments_add_sum(m->r, g->first);
    }
    ready_routing(m, i);
    kt_mailbox_answer(m->box);
    return KT_OK;
}

/* The heads of a model and of its drafts share their matrix, and so are on one side. */
static kt_status read_logits(mail *m, kt_err *err) {
    const kt_step *s = m->r->s;

    if (s->place->side[s->graph->n_nodes - 1] != KT_SIDE_DEVICE || !s->n_out) return KT_OK;
    return kt_device_step_logits(m->r->d, err);
}

kt_status kt_segments_run_mail(kt_segments_runner *r, kt_err *err) {
    mail m = {.r = r, .box = kt_device_step_mailbox(r->d)};
    const kt_step_program *program = r->program;
    kt_err why = {KT_OK, ""};
    kt_status st, last;

    st = put_all(&m, r->s->letters, err);
    for (int i = program->first; i < program->end && st == KT_OK; i++)
        st = run_part(&m, i, &r->s->letters[i], err);
    if (st == KT_OK) st = read_logits(&m, err);
    /* Also after an error: nothing may write into the host's memory behind this call. */
    kt_mailbox_stop(m.box);
    last = kt_device_step_wait(r->d, &why);
    if (st == KT_OK && last != KT_OK) return kt_fail(err, last, "%s", why.message);
    return st;
}
