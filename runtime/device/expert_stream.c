/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/expert_stream.h"

#include <string.h>

#include "base/err.h"
#include "dispatch/device/device_experts.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/panel_calls.h"
#include "kernels/formats/p64.h"
#include "runtime/device/device_impl.h"
#include "runtime/device/device_product.h"
#include "runtime/model/bytes.h"

enum { TURN = 0, PICK = 1 };         /* entries of panel_rows */
enum { GATE = 0, UP = 1, DOWN = 2 }; /* of three matrices */
enum { UNITS = 4, PICKED = 256 };    /* of a block: 32 inputs each; numbers */

/* Layers whose experts have one problem. */
typedef struct stream_kind {
    const kt_problem_plan *plan;
    kt_device_experts experts; /* of a group; without addresses */
    kt_device_kernel turn_up, turn_down;
    size_t panel_bytes, down_at; /* of an expert; where its down half begins */
} stream_kind;

/* The first group of a layer's last long step, which is brought before the routing of the next long
 * step is known: the link is busy while the device attends and routes. */
typedef struct stream_guess {
    int32_t *list; /* [group] */
    int64_t count;
    int32_t *newer; /* [group] of the step that runs, for the next one */
    int64_t n_newer;
    int next; /* weight of the next layer whose experts can cross; -1 = the last layer */
} stream_guess;

struct kt_expert_stream {
    kt_device_step *d;
    const kt_stream_plan *plan;
    const kt_weights *weights;
    stream_kind *kind; /* [n_kinds] */
    int n_kinds;
    uint8_t *panels[KT_STREAM_RING], *records;
    kt_device_event *there[KT_STREAM_RING], *is_free[KT_STREAM_RING];
    int next;            /* buffer to fill */
    stream_guess *guess; /* [weights] */
    int ahead;           /* weight whose guess is in buffer ahead_in; -1 = none */
    int ahead_in;
    kt_device_kernel pick;
    int32_t *host_number, *number, *picked; /* [rows, slots]: of the chosen experts; of a group's */
    int32_t *order;                         /* [experts] number of a chosen one, or -1 */
    int32_t *list;
    int64_t *rows; /* [experts] */
    bool *is_lent;
};

/* ---- creating ---- */

static kt_device_matrices matrices(kt_weight_format format, int64_t n, int64_t k, int64_t count) {
    return (kt_device_matrices){.bytes = (size_t)n * kt_device_row_bytes(format, k),
                                .format = kt_device_weight_format(format),
                                .n = n,
                                .k = k,
                                .count = count};
}

static kt_status find_turn(kt_device_step *d, kt_weight_format format, kt_device_kernel *out,
                           kt_err *err) {
    const int32_t value = (int32_t)format;

    return kt_device_kernel_find(d, "panel_rows", &value, 1, out, err);
}

static kt_status make_kind(kt_expert_stream *s, int weight, stream_kind *k, kt_err *err) {
    kt_device_step *d = s->d;
    const kt_problem_plan *p = kt_model_plan_run(d->plan, weight, 0);
    const kt_problem *q = &p->problem;
    const kt_moe_layer layer = kt_problem_plan_layer(p);
    kt_device_experts *e = &k->experts;
    kt_device_ladder ladder;
    kt_device_job job;

    k->plan = p;
    k->panel_bytes = kt_moe_expert_bytes(&layer);
    k->down_at = kt_moe_down_offset(&layer);
    e->gate = e->up = matrices(q->weights, q->n, q->k, s->plan->group);
    e->down = matrices(kt_problem_down(q), q->k, q->n, s->plan->group);
    e->slots = d->graph->weights[weight].topk;
    job =
        kt_device_experts_job(&e->gate, &e->down, e->slots, kt_device_step_encodings(d, weight, 0));
    kt_device_step_ladder(d, &job, &ladder);
    KT_TRY(kt_device_experts_make(d->device, &ladder, d->max_rows, e, err));
    kt_device_step_need(d, kt_device_experts_scratch(e));
    KT_TRY(find_turn(d, q->weights, &k->turn_up, err));
    return find_turn(d, kt_problem_down(q), &k->turn_down, err);
}

static stream_kind *kind_of(const kt_expert_stream *s, int weight) {
    const kt_problem_plan *p = kt_model_plan_run(s->d->plan, weight, 0);

    for (int i = 0; i < s->n_kinds; i++)
        if (s->kind[i].plan == p) return &s->kind[i];
    return NULL;
}

/* A node of this device whose experts on the CPU can cross. */
static bool is_crossing(const kt_expert_stream *s, int node) {
    const kt_node *n = &s->d->graph->nodes[node];

    return n->kind == KT_NODE_EXPERTS && n->is_routed && s->plan->weight[n->weight] &&
           s->d->home->placement->side[node] == KT_SIDE_BOTH;
}

static kt_status make_kinds(kt_expert_stream *s, kt_err *err) {
    const kt_graph *g = s->d->graph;

    s->kind = kt_device_step_alloc(s->d, sizeof *s->kind * (size_t)s->d->plan->n_problems);
    if (!s->kind) return kt_fail(err, KT_E_NOMEM, "no memory for streamed experts");
    for (int i = 0; i < g->n_nodes; i++)
        if (is_crossing(s, i) && !kind_of(s, g->nodes[i].weight))
            KT_TRY(make_kind(s, g->nodes[i].weight, &s->kind[s->n_kinds++], err));
    return kt_device_kernel_find(s->d, "panel_rows", NULL, 0, &s->pick, err);
}

/* What fills a record up is written by nobody: zeros, as the packer leaves them. */
static kt_status take_buffers(kt_expert_stream *s, kt_err *err) {
    kt_device_step *d = s->d;
    const size_t records = kt_bytes_times(s->plan->record_bytes, s->plan->group);
    void *at;

    d->home->counted = &d->home->bytes.staging;
    for (int i = 0; i < KT_STREAM_RING; i++) {
        KT_TRY(
            kt_device_home_take(d, kt_bytes_times(s->plan->panel_bytes, s->plan->group), &at, err));
        s->panels[i] = at;
        KT_TRY(kt_device_event_make(d->device, &s->there[i], err));
        KT_TRY(kt_device_event_make(d->device, &s->is_free[i], err));
    }
    KT_TRY(kt_device_home_take(d, records, &at, err));
    s->records = at;
    return kt_device_clear(d->device, KT_STREAM_MAIN, at, records, err);
}

static kt_status take_lists(kt_expert_stream *s, kt_err *err) {
    kt_device_step *d = s->d;
    const size_t bytes = kt_bytes_times(sizeof(int32_t) * (size_t)d->max_rows, d->home->most_slots);
    size_t experts = 1;
    void *at[3];

    for (int i = 0; i < d->graph->n_weights; i++)
        if (s->plan->weight[i] && (size_t)d->graph->weights[i].count > experts)
            experts = (size_t)d->graph->weights[i].count;
    KT_TRY(kt_device_host_alloc(d->device, bytes, &at[0], err));
    d->home->counted = &d->home->bytes.staging;
    KT_TRY(kt_device_home_take(d, bytes, &at[1], err));
    KT_TRY(kt_device_home_take(d, bytes, &at[2], err));
    s->host_number = at[0], s->number = at[1], s->picked = at[2];
    s->order = kt_device_step_alloc(d, experts * sizeof *s->order);
    s->list = kt_device_step_alloc(d, experts * sizeof *s->list);
    s->rows = kt_device_step_alloc(d, experts * sizeof *s->rows);
    s->is_lent = kt_device_step_alloc(d, experts * sizeof *s->is_lent);
    if (s->order && s->list && s->rows && s->is_lent) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no memory for streamed experts");
}

/* Layers in the order of the nodes. */
static kt_status make_guesses(kt_expert_stream *s, kt_err *err) {
    const kt_graph *g = s->d->graph;
    int before = -1;

    s->ahead = -1;
    s->guess = kt_device_step_alloc(s->d, sizeof *s->guess * (size_t)g->n_weights);
    for (int i = 0; s->guess && i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        stream_guess *to;
        if (!is_crossing(s, i)) continue;
        to = &s->guess[n->weight];
        to->next = -1;
        to->list = kt_device_step_alloc(s->d, 2 * sizeof *to->list * (size_t)s->plan->group);
        to->newer = to->list + s->plan->group;
        if (!to->list) return kt_fail(err, KT_E_NOMEM, "no memory for streamed experts");
        if (before >= 0) s->guess[before].next = n->weight;
        before = n->weight;
    }
    return s->guess ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for streamed experts");
}

/* The experts of a layer that the host has lie one behind the other. Without it copies are slower,
 * which is no reason to fail. */
static void pin_layer(kt_expert_stream *s, int weight, kt_err *note) {
    const kt_moe_layer *layer = &kt_weights_at(s->weights, weight)->experts;
    const size_t bytes = kt_model_plan_bytes(s->d->plan, weight);
    const void *first = NULL;

    for (int64_t e = 0; e < layer->problem.experts && !first; e++) first = layer->experts[e];
    if (first) kt_device_pin(s->d->device, (void *)(uintptr_t)first, bytes, note);
}

kt_status kt_expert_stream_create(kt_device_step *d, const kt_stream_plan *plan,
                                  const kt_weights *weights, kt_expert_stream **out, kt_err *note,
                                  kt_err *err) {
    kt_expert_stream *s;

    *out = NULL;
    *note = (kt_err){KT_OK, ""};
    if (!plan || !kt_stream_plan_is_for(plan, d->graph, d->home->placement)) return KT_OK;
    s = kt_device_step_alloc(d, sizeof *s);
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for streamed experts");
    s->d = d, s->plan = plan, s->weights = weights;
    KT_TRY(make_kinds(s, err));
    KT_TRY(take_buffers(s, err));
    KT_TRY(take_lists(s, err));
    KT_TRY(make_guesses(s, err));
    for (int i = 0; i < d->graph->n_weights; i++)
        if (plan->weight[i] && d->home->placement->place[i] && note->status == KT_OK)
            pin_layer(s, i, note);
    *out = s;
    return KT_OK;
}

/* ---- one group ---- */

static kt_status launch(const kt_expert_stream *s, kt_stream stream, const kt_device_kernel *k,
                        int entry, int64_t x, int64_t y, const void *call, size_t bytes,
                        kt_err *err) {
    const kt_device_launch l = {.code = k->code,
                                .entry = entry,
                                .grid_x = (int)x,
                                .grid_y = (int)y,
                                .parameters = call,
                                .parameter_bytes = bytes};

    return kt_device_run(s->d->device, stream, &l, err);
}

/* Experts of the list into a buffer, when what was in it has been turned. */
static kt_status bring(kt_expert_stream *s, int buffer, const kt_moe_layer *layer, size_t bytes,
                       const int32_t *list, int64_t count, kt_err *err) {
    kt_device *d = s->d->device;

    KT_TRY(kt_device_wait(d, KT_STREAM_UPLOAD, s->is_free[buffer], err));
    for (int64_t i = 0; i < count; i++)
        KT_TRY(kt_device_upload(d, KT_STREAM_UPLOAD, s->panels[buffer] + (size_t)i * bytes,
                                layer->experts[list[i]], bytes, err));
    return kt_device_record(d, KT_STREAM_UPLOAD, s->there[buffer], err);
}

/* `count` experts of a buffer to records at to[GATE], to[UP] and to[DOWN]. */
static kt_status turn(const kt_expert_stream *s, const stream_kind *k, kt_stream stream, int buffer,
                      int64_t count, uint8_t *const to[3], kt_err *err) {
    const kt_problem *q = &k->plan->problem;
    const kt_panel_rows up = {.panel = s->panels[buffer],
                              .to = to[GATE],
                              .to_odd = to[UP],
                              .matrix_bytes = (int64_t)k->panel_bytes,
                              .panel_bytes = (int64_t)kt_p64_panel_bytes(q->weights, q->k),
                              .record_bytes = (int64_t)k->experts.gate.bytes,
                              .n = (int32_t)q->n,
                              .k = (int32_t)q->k,
                              .panels = (int32_t)(q->n / 32)};
    const kt_panel_rows down = {.panel = s->panels[buffer] + k->down_at,
                                .to = to[DOWN],
                                .matrix_bytes = (int64_t)k->panel_bytes,
                                .panel_bytes =
                                    (int64_t)kt_p64_panel_bytes(kt_problem_down(q), q->n),
                                .record_bytes = (int64_t)k->experts.down.bytes,
                                .n = (int32_t)q->k,
                                .k = (int32_t)q->n,
                                .panels = (int32_t)kt_p64_panels(q->k)};
    const int64_t each = 32 * UNITS;

    KT_TRY(launch(s, stream, &k->turn_up, TURN, (up.k + each - 1) / each, count * up.panels, &up,
                  sizeof up, err));
    return launch(s, stream, &k->turn_down, TURN, (down.k + each - 1) / each, count * down.panels,
                  &down, sizeof down, err);
}

static kt_status multiply(const kt_expert_stream *s, const stream_kind *k, const kt_device_node *n,
                          int64_t first, int64_t count, uint8_t *const at[3], kt_err *err) {
    const kt_device_step *d = s->d;
    const kt_glu_rule *glu = &n->node->glu;
    kt_device_experts experts = k->experts; /* layers of other endings share it */
    const kt_pick_ids numbers = {.id = s->number,
                                 .out = s->picked,
                                 .count = (int32_t)(d->rows * k->experts.slots),
                                 .first = (int32_t)first,
                                 .end = (int32_t)(first + count)};
    const kt_device_experts_call call = {.in = n->in,
                                         .out = n->out,
                                         .id = s->picked,
                                         .route = d->route_weight,
                                         .rows = d->rows,
                                         .accumulate = true,
                                         .scratch = d->scratch};

    KT_TRY(launch(s, KT_STREAM_MAIN, &s->pick, PICK, (numbers.count + PICKED - 1) / PICKED, 1,
                  &numbers, sizeof numbers, err));
    experts.ending =
        (kt_dev_ending){.glu = (int32_t)glu->kind, .limit = glu->limit, .alpha = glu->alpha};
    return kt_device_experts_put_of(d->device, &experts, at[GATE], at[UP], at[DOWN], &call, err);
}

static int take_buffer(kt_expert_stream *s) {
    const int buffer = s->next;

    s->next = (s->next + 1) % KT_STREAM_RING;
    return buffer;
}

/* The group is in the buffer, or on its way. */
static kt_status put_group(kt_expert_stream *s, const stream_kind *k, const kt_device_node *n,
                           int buffer, int64_t first, int64_t count, kt_err *err) {
    const size_t half = (size_t)s->plan->group * k->experts.gate.bytes;
    uint8_t *const at[3] = {s->records, s->records + half, s->records + 2 * half};

    KT_TRY(kt_device_wait(s->d->device, KT_STREAM_MAIN, s->there[buffer], err));
    KT_TRY(turn(s, k, KT_STREAM_MAIN, buffer, count, at, err));
    KT_TRY(kt_device_record(s->d->device, KT_STREAM_MAIN, s->is_free[buffer], err));
    return multiply(s, k, n, first, count, at, err);
}

/* ---- one layer ---- */

bool kt_expert_stream_is_for(const kt_expert_stream *s, int64_t rows) {
    return s && rows >= s->plan->from_rows;
}

bool kt_expert_stream_wants(const kt_expert_stream *s, int weight) {
    return s && s->plan->weight[weight] && s->d->rows >= s->plan->from_rows;
}

/* Experts that are on their way come first; as many as were chosen. */
static void put_ahead(kt_expert_stream *s, const stream_guess *there, int64_t n) {
    const size_t count = (size_t)there->count;
    int64_t others = n;

    for (size_t i = 0; i < count; i++) s->is_lent[there->list[i]] = true;
    for (int64_t i = n; i-- > 0;)
        if (!s->is_lent[s->list[i]]) s->list[--others] = s->list[i];
    memmove(s->list + count, s->list + others, ((size_t)n - count) * sizeof *s->list);
    memcpy(s->list, there->list, count * sizeof *s->list);
}

/* Chosen experts get numbers in the order in which they cross. */
static int64_t choose(kt_expert_stream *s, int weight, const int32_t *place,
                      const int32_t *expert_id, int64_t ids) {
    const kt_weight *w = &s->d->graph->weights[weight];
    stream_guess *guess = &s->guess[weight];
    const kt_stream_call call = {.rows = s->rows,
                                 .place = place,
                                 .experts = w->count,
                                 .topk = w->topk,
                                 .crossover = s->plan->crossover,
                                 .percent = s->plan->percent};
    int64_t n;

    memset(s->rows, 0, (size_t)w->count * sizeof *s->rows);
    memset(s->order, 0xff, (size_t)w->count * sizeof *s->order);
    memset(s->is_lent, 0, (size_t)w->count * sizeof *s->is_lent);
    for (int64_t i = 0; i < ids; i++)
        if (expert_id[i] >= 0) s->rows[expert_id[i]]++;
    n = kt_stream_choose(&call, s->list);
    guess->n_newer = n < s->plan->group ? n : s->plan->group;
    memcpy(guess->newer, s->list, (size_t)guess->n_newer * sizeof *guess->newer);
    if (n < guess->count) s->ahead = -1;
    if (s->ahead == weight) put_ahead(s, guess, n);
    for (int64_t i = 0; i < n; i++) {
        if (place[s->list[i]] >= 0) continue; /* it has moved since */
        s->order[s->list[i]] = (int32_t)i;
        s->is_lent[s->list[i]] = true;
    }
    for (int64_t i = 0; i < ids; i++)
        s->host_number[i] = expert_id[i] >= 0 ? s->order[expert_id[i]] : -1;
    return n;
}

/* The first group of the next layer, as it was the last time, behind this layer's. */
static kt_status bring_ahead(kt_expert_stream *s, int weight, kt_err *err) {
    stream_guess *here = &s->guess[weight];
    const int next = here->next;
    const stream_kind *k;

    here->count = here->n_newer;
    memcpy(here->list, here->newer, (size_t)here->count * sizeof *here->list);
    if (next < 0 || s->guess[next].count == 0) return KT_OK;
    k = kind_of(s, next);
    s->ahead = next;
    s->ahead_in = take_buffer(s);
    return bring(s, s->ahead_in, &kt_weights_at(s->weights, next)->experts, k->panel_bytes,
                 s->guess[next].list, s->guess[next].count, err);
}

static kt_status put_groups(kt_expert_stream *s, const kt_device_node *n, int64_t count,
                            kt_err *err) {
    const int weight = n->node->weight;
    const stream_kind *k = kind_of(s, weight);
    const kt_moe_layer *layer = &kt_weights_at(s->weights, weight)->experts;
    int64_t first = 0;

    if (s->ahead == weight) {
        first = s->guess[weight].count;
        KT_TRY(put_group(s, k, n, s->ahead_in, 0, first, err));
    }
    while (first < count) {
        const int64_t left = count - first, these = left < s->plan->group ? left : s->plan->group;
        const int buffer = take_buffer(s);
        KT_TRY(bring(s, buffer, layer, k->panel_bytes, s->list + first, these, err));
        KT_TRY(put_group(s, k, n, buffer, first, these, err));
        first += these;
    }
    s->ahead = -1;
    return bring_ahead(s, weight, err);
}

kt_status kt_expert_stream_put(kt_expert_stream *s, const kt_device_node *n, const int32_t *place,
                               const int32_t *expert_id, const bool **lent, kt_err *err) {
    const int weight = n->node->weight;
    const int64_t ids = s->d->rows * s->d->graph->weights[weight].topk;
    int64_t count;

    *lent = NULL;
    if (s->ahead != weight) s->ahead = -1;
    count = choose(s, weight, place, expert_id, ids);
    if (count == 0) return KT_OK;
    *lent = s->is_lent;
    if (s->d->is_left_out) { /* nothing crosses: the other side alone is measured */
        s->ahead = -1;
        return KT_OK;
    }
    KT_TRY(kt_device_upload(s->d->device, KT_STREAM_MAIN, s->number, s->host_number,
                            (size_t)ids * sizeof *s->number, err));
    return put_groups(s, n, count, err);
}

/* ---- one expert ---- */

kt_status kt_expert_stream_move(kt_expert_stream *s, int weight, int32_t expert, int64_t place,
                                const kt_device_matrices to[3], kt_device_event *done,
                                kt_err *err) {
    const kt_moe_layer *layer = &kt_weights_at(s->weights, weight)->experts;
    const stream_kind *k = kind_of(s, weight);
    const int buffer = take_buffer(s);
    uint8_t *at[3];

    for (int i = 0; i < 3; i++)
        at[i] = (uint8_t *)(uintptr_t)to[i].at + (size_t)place * to[i].bytes;
    s->ahead = -1;
    KT_TRY(bring(s, buffer, layer, k->panel_bytes, &expert, 1, err));
    KT_TRY(turn(s, k, KT_STREAM_UPLOAD, buffer, 1, at, err));
    KT_TRY(kt_device_record(s->d->device, KT_STREAM_UPLOAD, s->is_free[buffer], err));
    return kt_device_record(s->d->device, KT_STREAM_UPLOAD, done, err);
}
