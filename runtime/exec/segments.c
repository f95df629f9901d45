/* Running a step that several sides take part in: segments in order, with the copies between them.
 * The host waits only before it reads what the device has made. SPDX-License-Identifier: Apache-2.0
 */
#include "runtime/exec/segments.h"

#include <string.h>

#include "base/err.h"
#include "runtime/exec/segments_impl.h"

#define ROWS_PER_TASK 8 /* of adding a sum */

/* ---- what others ask ---- */

bool kt_step_is_away(const kt_step *s, int node) {
    return s->place && s->place->side[node] == KT_SIDE_DEVICE;
}

bool kt_step_is_shared(const kt_step *s, const kt_node *n, bool *is_summed_there) {
    const int node = (int)(n - s->graph->nodes);

    *is_summed_there = false;
    if (!s->place || s->place->side[node] != KT_SIDE_BOTH) return false;
    for (int i = 0; i < s->place->n_segments; i++)
        if (s->place->segment[i].first == node)
            *is_summed_there = s->place->segment[i].is_summed_on_device;
    return true;
}

/* Of one letter or answer: values, and a routing. */
static int most_spans(const kt_placement *p) {
    int most = 0;

    for (int i = 0; i < p->n_segments; i++) {
        const kt_segment *g = &p->segment[i];
        if (g->n_up > most) most = g->n_up;
        if (g->n_down > most) most = g->n_down;
    }
    return most + KT_ROUTE_SPANS;
}

kt_status kt_segments_init(kt_step *s, kt_err *err) {
    int64_t topk = 1, experts = 1;

    for (int i = 0; i < s->graph->n_nodes; i++) {
        const kt_routing_rule *r = &s->graph->nodes[i].routing;
        if (s->graph->nodes[i].kind != KT_NODE_ROUTE) continue;
        if (r->topk > topk) topk = r->topk;
        if (r->experts > experts) experts = r->experts;
    }
    s->cold_id = kt_step_alloc(s, (size_t)(s->max_rows * topk) * sizeof *s->cold_id);
    s->noted = kt_step_alloc(s, (size_t)experts * sizeof *s->noted);
    s->letters = kt_step_alloc(s, (size_t)s->place->n_segments * sizeof *s->letters);
    s->devices = kt_step_alloc(s, (size_t)s->place->n_devices * sizeof *s->devices);
    s->most_mail_spans = most_spans(s->place);
    s->mail_spans = kt_step_alloc(s, (size_t)(s->place->n_devices * s->most_mail_spans) *
                                         sizeof *s->mail_spans);
    if (s->cold_id && s->noted && s->letters && s->devices && s->mail_spans) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory for the segments of a step");
}

int64_t kt_segments_slots(const kt_step *s, const kt_node *experts) {
    for (const kt_node *n = experts; n-- > s->graph->nodes;)
        if (n->kind == KT_NODE_ROUTE) return n->routing.topk;
    return 0;
}

void kt_step_note_routing(const kt_step *s, const kt_node *experts) {
    const int64_t count = s->graph->weights[experts->weight].count;
    const int64_t ids = s->rows * kt_segments_slots(s, experts);

    memset(s->noted, 0, (size_t)count * sizeof *s->noted);
    for (int64_t i = 0; i < ids; i++)
        if (s->expert_id[i] >= 0) s->noted[s->expert_id[i]]++;
    if (s->recorder) kt_recorder_layer(s->recorder);
    if (s->is_mapped) kt_expert_map_layer(s->expert_map);
    for (int64_t e = 0; e < count; e++) {
        if (s->noted[e] == 0) continue;
        if (s->recorder) kt_recorder_expert(s->recorder, e, s->noted[e]);
        if (s->is_mapped) kt_expert_map_add(s->expert_map, e, s->noted[e]);
    }
}

/* ---- running ---- */

typedef kt_segments_runner runner;

/* The last one is first waited for: what it needs of the others it must wait for itself. */
kt_status kt_segments_wait(const kt_step *s, kt_err *err) {
    kt_status st = KT_OK;

    for (int i = s->place->n_devices - 1; i >= 0; i--) {
        kt_err why = {KT_OK, ""};
        const kt_status of = kt_device_step_wait(s->devices[i], &why);
        if (of != KT_OK && st == KT_OK) st = kt_fail(err, of, "%s", why.message);
    }
    return st;
}

/* Wait for all that was put: the host is about to read it, or to write over what it reads. */
static kt_status catch_up(runner *r, kt_err *err) {
    if (!r->is_pending) return KT_OK;
    r->is_pending = false;
    return kt_segments_wait(r->s, err);
}

int kt_segments_routed(const kt_step *s, const kt_segment *g) {
    for (int i = g->first; i < g->end; i++)
        if (s->graph->nodes[i].kind == KT_NODE_EXPERTS && s->graph->nodes[i].is_routed) return i;
    return -1;
}

/* A segment of both sides in a step that is too short for the device to take part. */
static bool is_idle_there(const runner *r, const kt_segment *s) {
    return s->is_for_long_steps && !kt_device_step_lends(r->d, s->first);
}

/* What comes to the host, which waits for what is not of the segment's own device: the copies of
 * several devices know no order. */
static kt_status copy_down(runner *r, const kt_segment *s, kt_err *err) {
    bool is_foreign = s->routing_down && s->routing_from != s->device;

    for (int i = 0; i < s->n_down; i++) {
        KT_TRY(kt_device_step_down(r->s->devices[s->down_from[i]], s->down[i], err));
        is_foreign = is_foreign || s->down_from[i] != s->device;
    }
    if (s->routing_down)
        KT_TRY(kt_device_step_route_down(
            r->s->devices[s->routing_from],
            kt_segments_slots(r->s, &r->s->graph->nodes[kt_segments_routed(r->s, s)]), err));
    if (s->n_down || s->routing_down) r->is_pending = true;
    return is_foreign ? catch_up(r, err) : KT_OK;
}

static kt_status copy_in(runner *r, const kt_segment *s, kt_err *err) {
    KT_TRY(copy_down(r, s, err));
    for (int i = 0; i < s->n_across; i++)
        KT_TRY(
            kt_device_step_across(r->d, r->s->devices[s->across[i].from], s->across[i].value, err));
    if ((!s->n_up && !s->routing_up) || is_idle_there(r, s)) return KT_OK;
    for (int i = 0; i < s->n_up; i++) KT_TRY(kt_device_step_up(r->d, s->up[i], err));
    if (s->routing_up) {
        const int node = kt_segments_routed(r->s, s);
        KT_TRY(kt_device_step_route_up(r->d, node,
                                       kt_segments_slots(r->s, &r->s->graph->nodes[node]), err));
    }
    r->is_pending = true;
    return KT_OK;
}

kt_status kt_segments_run_host(const runner *r, int segment, kt_err *err) {
    const int first = r->program->begin[segment], end = r->program->begin[segment + 1];

    if (kt_pool_run_until(r->pool, r->program->phases + first, end - first, r->stop)) return KT_OK;
    return kt_fail(err, KT_E_CANCELLED, "stopped within a step");
}

/* ---- nodes on both sides ---- */

void kt_segments_keep_cold(const runner *r, int node, const bool *lent) {
    const kt_step *s = r->s;
    const int32_t *place = s->place->place[s->graph->nodes[node].weight];
    const int64_t n = s->rows * kt_segments_slots(s, &s->graph->nodes[node]);

    for (int64_t i = 0; i < n; i++) {
        const int32_t id = s->expert_id[i];
        s->cold_id[i] = id >= 0 && place[id] < 0 && !(lent && lent[id]) ? id : -1;
    }
    if (s->left_out == KT_LEFT_CPU) memset(s->cold_id, 0xff, (size_t)n * sizeof *s->cold_id);
}

typedef struct sum_task {
    const runner *r;
    const kt_rows *out;
    const float *sum;
} sum_task;

static void add_rows(void *arg, int64_t begin, int64_t end, int tid) {
    const sum_task *t = arg;
    const int64_t rows = t->r->s->rows;
    int64_t last = end * ROWS_PER_TASK;
    (void)tid;

    if (last > rows) last = rows;
    for (int64_t row = begin * ROWS_PER_TASK; row < last; row++) {
        float *out = t->out->x + row * t->out->ld;
        const float *sum = t->sum + row * t->out->width;
        for (int64_t i = 0; i < t->out->width; i++) out[i] += sum[i];
    }
}

/* The CPU's experts are in out already: the device's come behind them. */
void kt_segments_add_sum(const runner *r, int node) {
    sum_task task = {r, &r->s->exec[node].out, kt_device_step_sum(r->d)};
    kt_phase phase = {
        .run = add_rows, .arg = &task, .n_tasks = (r->s->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK};

    kt_pool_run(r->pool, &phase, 1);
}

static kt_status add_here(runner *r, int node, kt_err *err) {
    KT_TRY(kt_device_step_sum_down(r->d, err));
    r->is_pending = true;
    KT_TRY(catch_up(r, err));
    kt_segments_add_sum(r, node);
    return KT_OK;
}

/* The CPU alone, wherever the sum belongs. */
static kt_status run_here(runner *r, const kt_segment *g, int segment, kt_err *err) {
    KT_TRY(catch_up(r, err));
    kt_segments_keep_cold(r, g->first, NULL);
    KT_TRY(kt_segments_run_host(r, segment, err));
    if (!g->is_summed_on_device) return KT_OK;
    r->is_pending = true;
    return kt_device_step_sum_up(r->d, g->first, err);
}

/* What the host needs is asked for first and the device's experts behind it, so that both sides
 * work at the same time. Which experts of the CPU cross is known when the host has the routing:
 * those that lie there keep the device busy until then. */
static kt_status run_both(runner *r, const kt_segment *g, int segment, kt_err *err) {
    const bool *lent;

    if (is_idle_there(r, g)) return run_here(r, g, segment, err);
    KT_TRY(kt_device_step_mark(r->d, err));
    KT_TRY(kt_device_step_run(r->d, g->first, err));
    KT_TRY(kt_device_step_reach(r->d, err));
    r->is_pending = true;
    kt_device_step_note(r->d, g->first);
    KT_TRY(kt_device_step_lend(r->d, g->first, &lent, err));
    kt_segments_keep_cold(r, g->first, lent);
    KT_TRY(kt_segments_run_host(r, segment, err));
    if (!g->is_summed_on_device) return add_here(r, g->first, err);
    return kt_device_step_sum_up(r->d, g->first, err);
}

/* ---- all of it ---- */

/* What a layer begins with is what hidden states are; on the CPU its program has them. */
static kt_status tap(runner *r, int node, kt_err *err) {
    const int layer = r->s->graph->nodes[node].layer;

    if (layer <= r->layer) return KT_OK;
    r->layer = layer;
    return r->s->hidden ? kt_device_step_hidden(r->d, -1, layer, err) : KT_OK;
}

/* Only while somebody looks: the host waits for the ids. */
static kt_status note(runner *r, const kt_node *n, kt_err *err) {
    if (n->kind != KT_NODE_EXPERTS || !n->is_routed || (!r->s->recorder && !r->s->is_mapped))
        return KT_OK;
    KT_TRY(kt_device_step_route_down(r->d, kt_segments_slots(r->s, n), err));
    KT_TRY(kt_device_step_wait(r->d, err));
    kt_step_note_routing(r->s, n);
    return KT_OK;
}

static kt_status run_device(runner *r, const kt_segment *g, kt_err *err) {
    const kt_graph *graph = r->s->graph;

    r->is_pending = true;
    for (int i = g->first; i < g->end; i++) {
        KT_TRY(tap(r, i, err));
        KT_TRY(kt_device_step_run(r->d, i, err));
        KT_TRY(note(r, &graph->nodes[i], err));
        if (graph->nodes[i].kind != KT_NODE_HEAD) continue;
        KT_TRY(kt_device_step_put(r->d, err)); /* what follows goes to any memory */
        if (r->s->hidden) KT_TRY(kt_device_step_hidden(r->d, i, graph->numbers.layers, err));
        if (r->s->n_out) KT_TRY(kt_device_step_logits(r->d, err));
    }
    return KT_OK;
}

static kt_status run_segment(runner *r, int i, kt_err *err) {
    const kt_segment *g = &r->s->place->segment[i];

    r->d = r->s->devices[g->device];
    if (g->side == KT_SIDE_BOTH) r->s->cold_sum = kt_device_step_sum(r->d);
    KT_TRY(copy_in(r, g, err));
    if (g->side == KT_SIDE_DEVICE) return run_device(r, g, err);
    if (g->side == KT_SIDE_BOTH) return run_both(r, g, i, err);
    for (int n = g->first; n < g->end; n++)
        if (r->s->graph->nodes[n].layer > r->layer) r->layer = r->s->graph->nodes[n].layer;
    KT_TRY(catch_up(r, err));
    return kt_segments_run_host(r, i, err);
}

static kt_status begin_all(kt_step *s, kt_err *err) {
    for (int i = 0; i < s->place->n_devices; i++) {
        KT_TRY(kt_device_step_gather(s->devices[i], false, err));
        KT_TRY(kt_device_step_begin(s->devices[i], s, err));
    }
    return KT_OK;
}

kt_status kt_segments_run(kt_step *s, const kt_step_program *program, kt_pool *pool,
                          const atomic_bool *stop, kt_err *err) {
    runner r = {
        .s = s, .d = s->device, .program = program, .pool = pool, .stop = stop, .layer = -1};
    kt_err why = {KT_OK, ""};
    kt_status st, last;

    for (int i = 0; i < s->place->n_devices; i++) KT_TRY(kt_device_step_settle(s->devices[i], err));
    if (kt_segments_can_mail(s)) {
        st = kt_segments_run_mail(&r, err);
        if (st != KT_E_UNSUPPORTED) return st;
    }
    st = begin_all(s, err);
    for (int i = program->first; i < program->end && st == KT_OK; i++) st = run_segment(&r, i, err);
    /* Also after an error: nothing may write into the host's memory behind this call. */
    last = kt_segments_wait(s, &why);
    for (int i = 0; i < s->place->n_devices; i++) kt_device_step_put(s->devices[i], NULL);
    if (st == KT_OK && last != KT_OK) return kt_fail(err, last, "%s", why.message);
    return st;
}
