/* Running a step that was put whole: each device is given all of its segments at once, with letters
 * where the host's parts begin and waits for answers where it needs what they make. The host then
 * goes from letter to letter, so that neither side starts the other, and a step that comes again is
 * one graph of each device, in two pieces where values cross from one to the next. Values, a
 * routing and a sum cross as the spans of a letter or of an answer.
 *
 * Where nothing in a stream may wait for the host (kt_mailbox_is_led), its parts so far are run
 * when a device is to be given the first thing behind an answer: the same pieces in the same order,
 * put one after the other.
 *
 * All sides use one memory of values. What keeps them apart:
 * - The host begins a part when the letters before it have come, that is after all copies out of
 *   and into its memory that were put before, by any device.
 * - A device copies into the host's memory only when the host's parts so far are answered, and
 *   behind what other devices copy out of it without a letter yet, but for the sum of a node on
 *   both sides, which has a place of its own that the host reads behind a letter of its own. What
 *   several devices have for one part lies apart.
 * - The host begins a part without a letter only where no copy out of its memory is under way but
 *   those of the part's own node on both sides, whose inputs it reads, too.
 * The host answers every device, so that the n-th answer means the same part to all.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "runtime/exec/segments_impl.h"

enum {
    MOST_ROWS = 64, /* more take longer than what is saved */
    MOST_OF_SPAN =
        4, /* steps of decoding and of drafts come again, pieces of prompts hardly ever */
};

/* What is known of one device. */
typedef struct mail_side {
    kt_device_step *d;
    kt_mailbox *box;
    int taken;          /* the last answer that it waits for */
    bool is_unread;     /* copies out of the host's memory, and no letter behind them */
    kt_mail_span *span; /* room for those of one letter or answer */
} mail_side;

typedef struct mail {
    kt_segments_runner *r;
    mail_side side[KT_DEVICES_MOST];
    int n;
    int parts; /* of the host, put so far */
    bool is_led;
    int put, run; /* segments: the end of those of `parts`, and of those that the host has run */
} mail;

bool kt_segments_can_mail(const kt_step *s) {
    for (int i = 0; i < s->place->n_devices; i++)
        if (!kt_device_step_mailbox(s->devices[i]) ||
            kt_device_step_lends_any(s->devices[i], s->rows))
            return false;
    return s->rows <= MOST_ROWS && !s->hidden && s->rows <= MOST_OF_SPAN * s->n_spans &&
           !s->recorder && !s->is_mapped;
}

/* ---- what the host does ---- */

/* The routing that the devices' parts up to the host's next one read, as each numbers experts. */
static void ready_routing(const mail *m, int segment) {
    const kt_step *s = m->r->s;
    const kt_placement *p = s->place;

    for (int i = segment + 1; i < m->r->program->end; i++) {
        const kt_segment *g = &p->segment[i];
        const int node = kt_segments_routed(s, g);
        if (g->routing_up && !g->is_for_long_steps)
            kt_device_step_route_ready(m->side[g->device].d, node,
                                       kt_segments_slots(s, &s->graph->nodes[node]));
        if (g->side != KT_SIDE_DEVICE) return;
    }
}

static kt_status run_part(mail *m, int i, const kt_segment_letters *l, kt_err *err) {
    const kt_segment *g = &m->r->s->place->segment[i];
    const mail_side *own = &m->side[g->device];

    if (g->side == KT_SIDE_DEVICE) return KT_OK;
    for (int d = 0; d < m->n; d++)
        if (l->begin[d]) KT_TRY(kt_mailbox_await(m->side[d].box, l->begin[d], err));
    m->r->d = own->d;
    if (g->side == KT_SIDE_BOTH) {
        m->r->s->cold_sum = kt_device_step_sum(own->d);
        kt_segments_keep_cold(m->r, g->first, NULL);
        if (!g->is_for_long_steps) kt_device_step_note(own->d, g->first);
    }
    KT_TRY(kt_segments_run_host(m->r, i, err));
    if (l->sum) {
        KT_TRY(kt_mailbox_await(own->box, l->sum, err));
        kt_segments_add_sum(m->r, g->first);
    }
    ready_routing(m, i);
    for (int d = 0; d < m->n; d++) kt_mailbox_answer(m->side[d].box);
    return KT_OK;
}

/* ---- what the devices are given ---- */

static void add_part(mail *m, const kt_segment *g) {
    m->parts++;
    m->put = (int)(g - m->r->s->place->segment) + 1;
}

/* The host does all parts that were put. What the devices have by then is put first, so that they
 * work meanwhile. */
static kt_status catch_up(mail *m, kt_err *err) {
    if (m->run == m->put) return KT_OK;
    for (int i = 0; i < m->n; i++) KT_TRY(kt_device_step_put(m->side[i].d, err));
    for (int i = 0; i < m->n; i++) KT_TRY(kt_device_step_gather(m->side[i].d, false, err));
    for (; m->run < m->put; m->run++) KT_TRY(run_part(m, m->run, &m->r->s->letters[m->run], err));
    return KT_OK;
}

/* The answer to the host's last part, and n spans that go up with it. */
static kt_status take(mail *m, mail_side *to, int n, kt_err *err) {
    to->taken = m->parts;
    if (n) to->is_unread = true;
    if (m->is_led) KT_TRY(catch_up(m, err));
    return kt_mailbox_take(to->box, KT_STREAM_MAIN, to->taken, to->span, n, err);
}

/* With n spans. */
static kt_status post(mail_side *from, int n, int *letter, kt_err *err) {
    from->is_unread = false;
    return kt_mailbox_post(from->box, KT_STREAM_MAIN, from->span, n, letter, err);
}

/* A letter behind `later` stands for `earlier`, too. */
static void inherit(mail_side *later, mail_side *earlier) {
    if (earlier->is_unread) later->is_unread = true;
    earlier->is_unread = false;
}

/* The device may write into the host's memory. */
static kt_status reach_host(mail *m, mail_side *from, kt_err *err) {
    if (m->parts != from->taken) KT_TRY(take(m, from, 0, err));
    for (int i = 0; i < m->n; i++) {
        if (&m->side[i] == from || !m->side[i].is_unread) continue;
        KT_TRY(kt_device_step_after(from->d, m->side[i].d, err));
        inherit(from, &m->side[i]);
    }
    return KT_OK;
}

/* What one of the devices has for the host's part; how many spans. */
static int gather_down(const mail *m, const kt_segment *g, int device) {
    const kt_step *s = m->r->s;
    const mail_side *from = &m->side[device];
    int n = 0;

    for (int i = 0; i < g->n_down; i++)
        if (g->down_from[i] == device)
            from->span[n++] = kt_device_step_value_span(from->d, g->down[i], false);
    if (g->routing_down && g->routing_from == device)
        n += kt_device_step_route_down_spans(
            from->d, kt_segments_slots(s, &s->graph->nodes[kt_segments_routed(s, g)]),
            from->span + n);
    return n;
}

/* What the host needs for its part, and the letters before it; nothing for a part of a device. */
static kt_status put_down(mail *m, const kt_segment *g, int *letter, kt_err *err) {
    for (int i = 0; i < m->n; i++) {
        const int n = gather_down(m, g, i);
        if (n == 0) continue;
        KT_TRY(reach_host(m, &m->side[i], err));
        KT_TRY(post(&m->side[i], n, &letter[i], err));
    }
    for (int i = 0; i < m->n && g->side != KT_SIDE_DEVICE; i++)
        if (m->side[i].is_unread) KT_TRY(post(&m->side[i], 0, &letter[i], err));
    return KT_OK;
}

static kt_status put_across(mail *m, const kt_segment *g, kt_err *err) {
    mail_side *to = &m->side[g->device];

    for (int i = 0; i < g->n_across; i++) {
        mail_side *from = &m->side[g->across[i].from];
        KT_TRY(kt_device_step_across(to->d, from->d, g->across[i].value, err));
        inherit(to, from);
    }
    return KT_OK;
}

static kt_status put_up(mail *m, const kt_segment *g, kt_err *err) {
    const kt_step *s = m->r->s;
    mail_side *to = &m->side[g->device];
    int n = 0;

    for (; n < g->n_up; n++) to->span[n] = kt_device_step_value_span(to->d, g->up[n], true);
    if (g->routing_up)
        n += kt_device_step_route_up_spans(
            to->d, kt_segments_slots(s, &s->graph->nodes[kt_segments_routed(s, g)]), to->span + n);
    return n ? take(m, to, n, err) : KT_OK;
}

/* The host's sum of a node goes up, to the device's part. */
static kt_status put_sum_up(mail *m, mail_side *own, int node, kt_err *err) {
    own->span[0] = kt_device_step_sum_span(own->d, true);
    KT_TRY(take(m, own, 1, err));
    return kt_device_step_sum_add(own->d, node, err);
}

/* The letter comes before the device's experts, the answer behind them. */
static kt_status put_both(mail *m, const kt_segment *g, int *letter, kt_err *err) {
    mail_side *own = &m->side[g->device];

    KT_TRY(kt_device_step_run(own->d, g->first, err));
    add_part(m, g);
    if (g->is_summed_on_device) return put_sum_up(m, own, g->first, err);
    own->span[0] = kt_device_step_sum_span(own->d, false);
    return post(own, 1, letter, err);
}

/* A node on both sides whose experts are all here in a step of so few rows: the sum alone
 * crosses. */
static kt_status put_host_alone(mail *m, const kt_segment *g, kt_err *err) {
    add_part(m, g);
    return g->is_summed_on_device ? put_sum_up(m, &m->side[g->device], g->first, err) : KT_OK;
}

static kt_status put_segment(mail *m, const kt_segment *g, kt_segment_letters *l, kt_err *err) {
    memset(l, 0, sizeof *l);
    KT_TRY(put_down(m, g, l->begin, err));
    KT_TRY(put_across(m, g, err));
    if (g->is_for_long_steps) return put_host_alone(m, g, err);
    KT_TRY(put_up(m, g, err));
    if (g->side == KT_SIDE_BOTH) return put_both(m, g, &l->sum, err);
    if (g->side == KT_SIDE_CPU) {
        add_part(m, g);
        return KT_OK;
    }
    for (int i = g->first; i < g->end; i++)
        KT_TRY(kt_device_step_run(m->side[g->device].d, i, err));
    return KT_OK;
}

static kt_status put_all(mail *m, kt_segment_letters *l, kt_err *err) {
    const kt_placement *p = m->r->s->place;

    for (int i = 0; i < m->n; i++) {
        KT_TRY(kt_device_step_gather(m->side[i].d, !m->is_led, err));
        KT_TRY(kt_device_step_begin(m->side[i].d, m->r->s, err));
        KT_TRY(kt_mailbox_begin(m->side[i].box, KT_STREAM_MAIN, err));
    }
    for (int i = m->r->program->first; i < m->r->program->end; i++)
        KT_TRY(put_segment(m, &p->segment[i], &l[i], err));
    for (int i = 0; i < m->n; i++) KT_TRY(kt_device_step_put(m->side[i].d, err));
    return KT_OK;
}

/* ---- all of it ---- */

/* The heads of a model and of its drafts share their matrix, and so are on one side. */
static kt_status read_logits(mail *m, kt_err *err) {
    const kt_step *s = m->r->s;
    const int head = s->graph->n_nodes - 1;

    if (s->place->side[head] != KT_SIDE_DEVICE || !s->n_out) return KT_OK;
    return kt_device_step_logits(m->side[s->place->device[head]].d, err);
}

static int64_t count_put(const mail *m) {
    int64_t n = 0;

    for (int i = 0; i < m->n; i++) n += kt_device_step_gathered(m->side[i].d).replayed;
    return n;
}

/* A device that has been given its part before another one refused has done it by now, with
 * whatever was there: the step cannot be begun again. Those to come go part by part. */
static kt_status refuse(mail *m, bool is_begun, kt_err *err) {
    const kt_err why = err ? *err : (kt_err){KT_OK, ""};

    for (int i = 0; i < m->n; i++) kt_device_step_no_mail(m->side[i].d);
    if (!is_begun) return KT_E_UNSUPPORTED;
    return kt_fail(err, KT_E_IO, "a step was put whole on some devices only: %.400s", why.message);
}

kt_status kt_segments_run_mail(kt_segments_runner *r, kt_err *err) {
    const kt_step_program *program = r->program;
    mail m = {.r = r,
              .n = r->s->place->n_devices,
              .is_led = kt_mailbox_is_led(kt_device_step_mailbox(r->s->device)),
              .put = program->first,
              .run = program->first};
    kt_err why = {KT_OK, ""};
    kt_status st, last;
    int64_t before;

    for (int i = 0; i < m.n; i++)
        m.side[i] = (mail_side){.d = r->s->devices[i],
                                .box = kt_device_step_mailbox(r->s->devices[i]),
                                .span = r->s->mail_spans + i * r->s->most_mail_spans};
    before = count_put(&m);
    st = put_all(&m, r->s->letters, err);
    for (; m.run < program->end && st == KT_OK; m.run++)
        st = run_part(&m, m.run, &r->s->letters[m.run], err);
    if (st == KT_OK) st = read_logits(&m, err);
    /* Also after an error: nothing may write into the host's memory behind this call, and no device
     * may wait for the host. */
    for (int i = 0; i < m.n; i++) kt_mailbox_stop(m.side[i].box);
    for (int i = 0; i < m.n && st != KT_OK; i++) kt_device_step_put(m.side[i].d, NULL);
    last = kt_segments_wait(r->s, &why);
    if (st == KT_E_UNSUPPORTED) return refuse(&m, count_put(&m) > before, err);
    if (st == KT_OK && last != KT_OK) return kt_fail(err, last, "%s", why.message);
    return st;
}
