/* A device's memory and its steps. All work of a step goes to one stream, so that the order in
 * which it is put is all there is to know; the host waits only for what it reads.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_run.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/row_calls.h"
#include "runtime/device/device_heads.h"
#include "runtime/device/device_impl.h"
#include "runtime/model/bytes.h"

#define ROOM_BYTES ((size_t)256 << 10)
#define ROOM_ALIGN 256

enum { ROWS_COPY_ADD = 1 }; /* entries of rows_copy.cu */

const kt_device_op *kt_device_op_find(kt_node_kind kind) {
    for (size_t i = 0; i < kt_builtin_device_op_count; i++)
        if (kt_builtin_device_ops[i]->kind == kind) return kt_builtin_device_ops[i];
    return NULL;
}

/* ---- memory ---- */

kt_status kt_device_home_take(kt_device_step *d, size_t bytes, void **out, kt_err *err) {
    KT_TRY(kt_device_alloc(d->device, bytes, out, err));
    *d->home->counted += bytes;
    return KT_OK;
}

void *kt_device_step_alloc(kt_device_step *d, size_t bytes) {
    return kt_arena_alloc(&d->home->arena, bytes, 64);
}

kt_status kt_device_step_take(kt_device_step *d, size_t bytes, void **out, kt_err *err) {
    d->home->counted = &d->home->bytes.working;
    return kt_device_home_take(d, bytes, out, err);
}

void kt_device_step_need(kt_device_step *d, size_t bytes) {
    if (bytes > d->home->scratch_bytes) d->home->scratch_bytes = bytes;
}

kt_status kt_device_step_code(kt_device_step *d, const char *name, const kt_config *config,
                              const kt_device_code **out, kt_err *err) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        const kt_config initial = kt_cuda_initial(k);
        if (strcmp(k->name, name) == 0)
            return kt_device_code_of(d->device, k, config ? config : &initial, out, err);
    }
    return kt_fail(err, KT_E_INTERNAL, "this build has no device kernel '%s'", name);
}

kt_status kt_device_put(kt_device_step *d, const kt_device_code *code, int entry, int grid_x,
                        int grid_y, size_t shared_bytes, const void *parameters,
                        size_t parameter_bytes, kt_err *err) {
    const kt_device_launch launch = {.code = code,
                                     .entry = entry,
                                     .grid_x = grid_x,
                                     .grid_y = grid_y,
                                     .shared_bytes = shared_bytes,
                                     .parameters = parameters,
                                     .parameter_bytes = parameter_bytes};
    return kt_device_run(d->device, KT_STREAM_MAIN, &launch, err);
}

/* ---- what the host makes for a step ---- */

static kt_status add_room(kt_device_step *d, kt_device_room *r, size_t bytes, kt_err *err) {
    void *host, *device;

    if (bytes < ROOM_BYTES) bytes = ROOM_BYTES;
    KT_TRY(kt_device_host_alloc(d->device, bytes, &host, err));
    KT_TRY(kt_device_step_take(d, bytes, &device, err));
    *r = (kt_device_room){.host = host, .device = device, .bytes = bytes};
    return KT_OK;
}

/* Room on both sides, of this step alone. */
static kt_status room_for(kt_device_step *d, size_t bytes, uint8_t **host, uint8_t **device,
                          kt_err *err) {
    const size_t round = (bytes + ROOM_ALIGN - 1) / ROOM_ALIGN * ROOM_ALIGN;
    kt_device_room *r = &d->home->room;

    while (r->bytes - r->used < round && r->next) r = r->next;
    if (r->bytes - r->used < round) {
        kt_device_room *more = kt_device_step_alloc(d, sizeof *more);
        if (!more) return kt_fail(err, KT_E_NOMEM, "no memory for the lists of a step");
        KT_TRY(add_room(d, more, round, err));
        r->next = more;
        r = more;
    }
    *host = r->host + r->used;
    *device = r->device + r->used;
    r->used += round;
    return KT_OK;
}

kt_status kt_device_stage(kt_device_step *d, const void *list, size_t bytes, const void **out,
                          kt_err *err) {
    uint8_t *host, *device;

    KT_TRY(room_for(d, bytes, &host, &device, err));
    *out = device;
    if (bytes == 0) return KT_OK;
    memcpy(host, list, bytes);
    return kt_device_upload(d->device, KT_STREAM_MAIN, device, host, bytes, err);
}

/* ---- creating ---- */

static kt_device_view view_of(const kt_device_step *d, const kt_view *v) {
    return (kt_device_view){d->home->values + d->home->host->value_at[v->value] * d->max_rows +
                                v->at,
                            d->graph->width[v->value], v->width};
}

static kt_status take_values(kt_device_step *d, kt_err *err) {
    const kt_graph *g = d->graph;
    const kt_step *s = d->home->host;
    int64_t floats = 0;
    void *at;

    for (int v = 0; v < g->n_values; v++)
        if (s->value_at[v] + g->width[v] > floats) floats = s->value_at[v] + g->width[v];
    KT_TRY(kt_device_step_take(d, kt_bytes_times(sizeof(float) * (size_t)d->max_rows, floats + 16),
                               &at, err));
    d->home->values = at;
    return KT_OK;
}

/* Tables of angles as the host has made them. */
static kt_status take_angles(kt_device_step *d, kt_err *err) {
    const kt_graph *g = d->graph;
    float **table = kt_device_step_alloc(d, sizeof *table * (size_t)(g->n_rotations + 1));

    if (!table) return kt_fail(err, KT_E_NOMEM, "no memory for tables of angles");
    d->cos_sin = table;
    for (int i = 0; i < g->n_rotations; i++) {
        const size_t bytes = sizeof(float) * (size_t)(d->max_context * g->rotations[i].rotary_dim);
        void *at;
        KT_TRY(kt_device_step_take(d, bytes, &at, err));
        KT_TRY(
            kt_device_upload(d->device, KT_STREAM_MAIN, at, d->home->host->cos_sin[i], bytes, err));
        table[i] = at;
    }
    return KT_OK;
}

static kt_status take_routing(kt_device_step *d, kt_err *err) {
    struct kt_device_home *h = d->home;
    const size_t rows = (size_t)d->max_rows;
    void *at[7];

    for (int i = 0; i < d->graph->n_nodes; i++)
        if (d->graph->nodes[i].kind == KT_NODE_ROUTE &&
            d->graph->nodes[i].routing.topk > h->most_slots)
            h->most_slots = d->graph->nodes[i].routing.topk;
    if (!h->most_slots) return KT_OK;
    for (int i = 0; i < 3; i++)
        KT_TRY(kt_device_step_take(d, rows * (size_t)h->most_slots * 4, &at[i], err));
    for (int i = 3; i < 6; i++)
        KT_TRY(kt_device_host_alloc(d->device, rows * (size_t)h->most_slots * 4, &at[i], err));
    d->expert_id = at[0], d->device_id = at[1], d->route_weight = at[2];
    h->host_id = at[3], h->host_device_id = at[4], h->host_weight = at[5];
    return KT_OK;
}

static bool has_side(const kt_placement *p, const kt_graph *g, kt_side side) {
    for (int i = 0; i < g->n_nodes; i++)
        if (p->side[i] == side) return true;
    return false;
}

/* Of nodes on both sides. */
static kt_status take_sums(kt_device_step *d, kt_err *err) {
    const size_t bytes = sizeof(float) * (size_t)(d->max_rows * d->graph->numbers.hidden);
    void *at;

    if (!has_side(d->home->placement, d->graph, KT_SIDE_BOTH)) return KT_OK;
    KT_TRY(kt_device_step_take(d, bytes, &at, err));
    d->home->device_sum = at;
    KT_TRY(kt_device_host_alloc(d->device, bytes, &at, err));
    d->home->host_sum = at;
    return kt_device_step_code(d, "rows_copy", NULL, &d->home->rows_copy, err);
}

/* Also where an earlier step got no memory for its logits. */
static bool has_head(const kt_device_step *d) {
    return d->home->placement->side[d->graph->n_nodes - 1] == KT_SIDE_DEVICE;
}

static kt_status take_logits(kt_device_step *d, int64_t rows, kt_err *err) {
    void *at;

    if (rows <= d->home->logit_rows) return KT_OK;
    kt_device_free(d->device, d->logits);
    d->logits = NULL;
    d->home->logit_rows = 0;
    KT_TRY(kt_device_step_take(
        d, kt_bytes_times(sizeof(float) * (size_t)rows, d->graph->numbers.vocab), &at, err));
    d->logits = at;
    d->home->logit_rows = rows;
    return KT_OK;
}

/* The experts of a node on the device, and a table of the places that they have there. */
static kt_status set_experts(kt_device_step *d, kt_device_node *n, int weight, kt_err *err) {
    const kt_placement *p = d->home->placement;
    const size_t bytes = sizeof(int32_t) * (size_t)d->graph->weights[weight].count;
    void *at;

    n->experts = p->hot[weight].id;
    n->n_experts = p->hot[weight].n;
    if (!p->place[weight]) return KT_OK;
    KT_TRY(kt_device_step_take(d, bytes, &at, err));
    n->place_of = at;
    return kt_device_upload(d->device, KT_STREAM_MAIN, at, p->place[weight], bytes, err);
}

static kt_status set_node(kt_device_step *d, int i, int last_route, kt_err *err) {
    const kt_node *n = &d->graph->nodes[i];
    const bool is_both = d->home->placement->side[i] == KT_SIDE_BOTH;
    kt_device_node *to = &d->home->node[i];

    *to = (kt_device_node){.node = n, .op = kt_device_op_find(n->kind), .step = d};
    to->in = view_of(d, &n->in), to->in2 = view_of(d, &n->in2);
    to->in3 = view_of(d, &n->in3), to->out = view_of(d, &n->out);
    to->accumulate = n->kind == KT_NODE_EXPERTS || n->accumulate;
    if (n->kind == KT_NODE_EXPERTS && n->is_routed) {
        KT_TRY(set_experts(d, to, n->weight, err));
        if (last_route >= 0 && d->home->node[last_route].op) {
            to->routing = &d->home->node[last_route];
            d->home->node[last_route].experts = to->experts;
            d->home->node[last_route].n_experts = to->n_experts;
            d->home->node[last_route].place_of = to->place_of;
        }
    }
    for (int s = 0; is_both && s < d->home->placement->n_segments; s++) {
        const kt_segment *segment = &d->home->placement->segment[s];
        if (segment->first != i || segment->is_summed_on_device) continue;
        to->out = (kt_device_view){d->home->device_sum, n->out.width, n->out.width};
        to->accumulate = false;
    }
    return KT_OK;
}

static kt_status set_nodes(kt_device_step *d, kt_err *err) {
    const kt_graph *g = d->graph;
    int route = -1;

    for (int i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].kind == KT_NODE_ROUTE) route = i;
        if (d->home->placement->side[i] != KT_SIDE_CPU) KT_TRY(set_node(d, i, route, err));
    }
    return KT_OK;
}

/* Every op of the device gets ready, which loads its weights. */
static kt_status init_nodes(kt_device_step *d, kt_err *err) {
    const kt_device_setup *setup = d->home->setup;
    const kt_graph *g = d->graph;

    for (int i = 0; i < g->n_nodes; i++) {
        kt_device_node *n = &d->home->node[i];
        if (setup->cancel && setup->cancel(setup->cancel_arg))
            return kt_fail(err, KT_E_CANCELLED, "loading was interrupted");
        if (!n->op || !n->op->init) continue;
        if (n->op->init(n, err) != KT_OK)
            return kt_fail_prefix(err, err ? err->status : KT_E_INTERNAL, "%s of layer %d on %s",
                                  kt_node_kind_name(g->nodes[i].kind), g->nodes[i].layer,
                                  kt_device_about(d->device)->name);
    }
    return KT_OK;
}

/* Weights are loaded while other threads compile what was asked for. */
static kt_status build(kt_device_step *d, kt_err *err) {
    const kt_device_setup *setup = d->home->setup;
    void *scratch;
    kt_status st;

    kt_device_codes_begin(d->device, kt_pool_threads(setup->pool));
    d->home->node = kt_device_step_alloc(d, sizeof *d->home->node * (size_t)d->graph->n_nodes);
    d->home->small = kt_device_step_alloc(d, sizeof *d->home->small * (size_t)d->graph->n_weights);
    if (!d->home->node || !d->home->small)
        return kt_fail(err, KT_E_NOMEM, "no memory for the operations of a device");
    KT_TRY(kt_device_event_make(d->device, &d->home->marked, err));
    KT_TRY(add_room(d, &d->home->room, 0, err));
    KT_TRY(take_values(d, err));
    KT_TRY(take_angles(d, err));
    KT_TRY(take_routing(d, err));
    KT_TRY(take_sums(d, err));
    if (has_head(d)) KT_TRY(take_logits(d, setup->logit_rows > 0 ? setup->logit_rows : 1, err));
    KT_TRY(set_nodes(d, err));
    kt_device_heads_join(d);
    st = kt_device_load_begin(d, err);
    if (st == KT_OK) st = init_nodes(d, err);
    kt_device_load_end(d);
    if (st != KT_OK) return st;
    KT_TRY(kt_expert_stream_create(d, setup->stream, setup->weights, &d->home->stream,
                                   &d->home->unpinned, err));
    if (d->home->stream && setup->stream->learns)
        KT_TRY(kt_expert_moves_create(d, d->home->stream, &d->home->moves, err));
    KT_TRY(kt_device_step_take(d, d->home->scratch_bytes, &scratch, err));
    d->scratch = scratch;
    KT_TRY(kt_device_mail_init(d, err));
    KT_TRY(kt_device_codes_end(d->device, err));
    return kt_device_sync(d->device, NULL, err);
}

kt_status kt_device_step_create(const kt_device_setup *setup, kt_device_step **out, kt_err *err) {
    kt_device_step *d = calloc(1, sizeof *d);
    struct kt_device_home *home = calloc(1, sizeof *home);
    kt_status st;

    *out = NULL;
    if (!d || !home) {
        free(d), free(home);
        kt_device_close(setup->device);
        return kt_fail(err, KT_E_NOMEM, "no memory for a device's part of the model");
    }
    *d = (kt_device_step){.device = setup->device,
                          .graph = setup->step->graph,
                          .plan = setup->step->plan,
                          .max_rows = setup->step->max_rows,
                          .max_context = setup->step->max_context,
                          .table = setup->table,
                          .is_exact = setup->is_exact,
                          .home = home};
    home->setup = setup;
    home->host = setup->step;
    home->placement = setup->placement;
    home->hidden = d->graph->numbers.hidden;
    home->counted = &home->bytes.working;
    st = build(d, err);
    home->setup = NULL;
    d->table = NULL;
    if (st != KT_OK) {
        kt_device_step_destroy(d);
        return st;
    }
    *out = d;
    return KT_OK;
}

void kt_device_step_destroy(kt_device_step *d) {
    if (!d) return;
    kt_device_close(d->device); /* with all its memory */
    kt_mailbox_destroy(d->home->mail);
    kt_arena_deinit(&d->home->arena);
    free(d->home);
    free(d);
}

const char *kt_device_step_name(const kt_device_step *d) {
    return kt_device_about(d->device)->name;
}

const kt_device_advice *kt_device_step_advice(const kt_device_step *d) {
    return &d->advice;
}

kt_device_bytes kt_device_step_bytes(const kt_device_step *d) {
    return d->home->bytes;
}

const char *kt_device_step_unpinned(const kt_device_step *d) {
    return d->home->unpinned.message;
}

/* ---- a step ---- */

/* Tables of a step on one side. */
typedef struct tables {
    int32_t *position, *token, *span_of, *out_row, *first_page;
    kt_device_span *span;
    uint32_t *page;
} tables;

/* One behind the other from base on; NULL only counts. */
static size_t lay_tables(const kt_step *s, int64_t pages, uint8_t *base, tables *t) {
    const struct {
        void *target;
        size_t bytes;
    } arrays[] = {{&t->position, (size_t)s->rows * sizeof *t->position},
                  {&t->token, (size_t)s->rows * sizeof *t->token},
                  {&t->span_of, (size_t)s->rows * sizeof *t->span_of},
                  {&t->out_row, (size_t)s->n_out * sizeof *t->out_row},
                  {&t->first_page, (size_t)s->n_spans * sizeof *t->first_page},
                  {&t->span, (size_t)s->n_spans * sizeof *t->span},
                  {&t->page, (size_t)pages * sizeof *t->page}};
    size_t used = 0;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        uint8_t *at = base ? base + used : NULL;
        memcpy(arrays[i].target, &at, sizeof at);
        used += kt_bytes_round(arrays[i].bytes);
    }
    return used;
}

static int32_t slot_of(const kt_device_step *d, const float *state) {
    const kt_states *states = d->home->states;

    if (!state || !states) return 0;
    return (int32_t)((state - (const float *)states->buffer.data) / states->floats);
}

static int64_t pages_of(const kt_step_span *p) {
    return kt_kv_pages_for(p->position + p->rows);
}

static void fill_tables(const kt_device_step *d, const kt_step *s, const tables *t) {
    int32_t first_page = 0;

    memcpy(t->position, s->positions, (size_t)s->rows * sizeof *t->position);
    memcpy(t->token, s->tokens, (size_t)s->rows * sizeof *t->token);
    memcpy(t->span_of, s->span_of, (size_t)s->rows * sizeof *t->span_of);
    if (s->n_out) memcpy(t->out_row, s->out_row, (size_t)s->n_out * sizeof *t->out_row);
    for (int i = 0; i < s->n_spans; i++) {
        const kt_step_span *p = &s->spans[i];
        t->span[i] = (kt_device_span){.first_row = (int32_t)p->first_row,
                                      .rows = (int32_t)p->rows,
                                      .position = (int32_t)p->position,
                                      .from = slot_of(d, p->from),
                                      .to = slot_of(d, p->to)};
        t->first_page[i] = first_page;
        memcpy(t->page + first_page, p->page, (size_t)pages_of(p) * sizeof *t->page);
        first_page += (int32_t)pages_of(p);
    }
}

/* Tables have room for a few more pages than there are, in four steps for each doubling, so that
 * steps of growing sequences lie at the same addresses for long: their graphs stay. */
static int64_t round_pages(int64_t pages) {
    int64_t step = 16;

    while (4 * step < pages) step *= 2;
    return (pages + step - 1) / step * step;
}

kt_status kt_device_step_begin(kt_device_step *d, const kt_step *s, kt_err *err) {
    uint8_t *host, *device;
    tables here, there;
    int64_t pages = 0;
    size_t bytes;

    for (kt_device_room *r = &d->home->room; r; r = r->next) r->used = 0;
    for (int i = 0; i < s->n_spans; i++) pages += pages_of(&s->spans[i]);
    pages = round_pages(pages);
    bytes = lay_tables(s, pages, NULL, &here);
    KT_TRY(room_for(d, bytes, &host, &device, err));
    lay_tables(s, pages, host, &here);
    lay_tables(s, pages, device, &there);
    fill_tables(d, s, &here);
    d->number++;
    d->rows = s->rows;
    d->n_out = s->n_out;
    d->n_spans = s->n_spans;
    d->wants_hidden = s->hidden != NULL;
    d->is_left_out = s->left_out == KT_LEFT_DEVICE;
    d->position = there.position, d->token = there.token, d->span_of = there.span_of,
    d->out_row = there.out_row;
    d->span = there.span, d->first_page = there.first_page, d->page = there.page;
    d->host_span = here.span, d->host_first_page = here.first_page, d->host_span_of = here.span_of;
    if (has_head(d)) KT_TRY(take_logits(d, s->n_out, err));
    return kt_device_upload(d->device, KT_STREAM_MAIN, device, host, bytes, err);
}

static size_t value_bytes(const kt_device_step *d, int value) {
    return sizeof(float) * (size_t)(d->rows * d->graph->width[value]);
}

static kt_mail_span span_of(void *there, void *here, size_t bytes, bool is_up) {
    return is_up ? (kt_mail_span){there, here, bytes} : (kt_mail_span){here, there, bytes};
}

static kt_status cross(kt_device_step *d, const kt_mail_span *span, int n, bool is_up,
                       kt_err *err) {
    kt_status (*copy)(kt_device *, kt_stream, void *, const void *, size_t, kt_err *) =
        is_up ? kt_device_upload : kt_device_download;

    for (int i = 0; i < n; i++)
        KT_TRY(copy(d->device, KT_STREAM_MAIN, span[i].to, span[i].from, span[i].bytes, err));
    return KT_OK;
}

kt_mail_span kt_device_step_value_span(const kt_device_step *d, int value, bool is_up) {
    const int64_t at = d->home->host->value_at[value] * d->max_rows;

    return span_of(d->home->values + at, d->home->host->values + at, value_bytes(d, value), is_up);
}

kt_status kt_device_step_up(kt_device_step *d, int value, kt_err *err) {
    const kt_mail_span s = kt_device_step_value_span(d, value, true);
    return cross(d, &s, 1, true, err);
}

kt_status kt_device_step_down(kt_device_step *d, int value, kt_err *err) {
    const kt_mail_span s = kt_device_step_value_span(d, value, false);
    return cross(d, &s, 1, false, err);
}

kt_status kt_device_step_after(kt_device_step *d, kt_device_step *from, kt_err *err) {
    const kt_stream s = KT_STREAM_MAIN;

    KT_TRY(kt_device_record(from->device, s, from->home->marked, err));
    KT_TRY(kt_device_wait_for(d->device, s, from->device, from->home->marked, err));
    return KT_OK;
}

kt_status kt_device_step_across(kt_device_step *d, kt_device_step *from, int value, kt_err *err) {
    const int64_t at = d->home->host->value_at[value] * d->max_rows;

    KT_TRY(kt_device_step_after(d, from, err));
    return kt_device_copy_from(d->device, KT_STREAM_MAIN, d->home->values + at, from->device,
                               from->home->values + at, value_bytes(d, value), err);
}

void kt_device_step_route_ready(kt_device_step *d, int node, int64_t slots) {
    const kt_step *s = d->home->host;
    const int32_t *place = d->home->placement->place[d->graph->nodes[node].weight];
    const size_t n = (size_t)(d->rows * slots);

    for (size_t i = 0; i < n; i++) {
        d->home->host_id[i] = s->expert_id[i];
        d->home->host_device_id[i] = s->expert_id[i] < 0 ? -1 : place[s->expert_id[i]];
        d->home->host_weight[i] = s->route_weight[i];
    }
}

int kt_device_step_route_up_spans(kt_device_step *d, int64_t slots, kt_mail_span *out) {
    const size_t n = (size_t)(d->rows * slots);

    d->slots = slots;
    out[0] = span_of(d->expert_id, d->home->host_id, n * sizeof *d->expert_id, true);
    out[1] = span_of(d->device_id, d->home->host_device_id, n * sizeof *d->device_id, true);
    out[2] = span_of(d->route_weight, d->home->host_weight, n * sizeof *d->route_weight, true);
    return 3;
}

int kt_device_step_route_down_spans(const kt_device_step *d, int64_t slots, kt_mail_span *out) {
    const kt_step *s = d->home->host;
    const size_t n = (size_t)(d->rows * slots);

    out[0] = span_of(d->expert_id, s->expert_id, n * sizeof *d->expert_id, false);
    out[1] = span_of(d->route_weight, s->route_weight, n * sizeof *d->route_weight, false);
    return 2;
}

kt_status kt_device_step_route_up(kt_device_step *d, int node, int64_t slots, kt_err *err) {
    kt_mail_span span[KT_ROUTE_SPANS];

    kt_device_step_route_ready(d, node, slots);
    return cross(d, span, kt_device_step_route_up_spans(d, slots, span), true, err);
}

kt_status kt_device_step_route_down(kt_device_step *d, int64_t slots, kt_err *err) {
    kt_mail_span span[KT_ROUTE_SPANS];

    return cross(d, span, kt_device_step_route_down_spans(d, slots, span), false, err);
}

kt_status kt_device_step_mark(kt_device_step *d, kt_err *err) {
    return kt_device_record(d->device, KT_STREAM_MAIN, d->home->marked, err);
}

kt_status kt_device_step_reach(kt_device_step *d, kt_err *err) {
    return kt_device_sync(d->device, d->home->marked, err);
}

kt_status kt_device_step_run(kt_device_step *d, int node, kt_err *err) {
    kt_device_node *n = &d->home->node[node];

    if (n->node->kind == KT_NODE_ROUTE) d->slots = n->node->routing.topk;
    return n->op->enqueue(n, err);
}

kt_status kt_device_step_settle(kt_device_step *d, kt_err *err) {
    return d->home->moves ? kt_expert_moves_advance(d->home->moves, err) : KT_OK;
}

int64_t kt_device_step_moved(const kt_device_step *d) {
    return d->home->moves ? kt_expert_moves_done(d->home->moves) : 0;
}

void kt_device_step_note(kt_device_step *d, int node) {
    const int weight = d->graph->nodes[node].weight;

    if (d->home->moves)
        kt_expert_moves_note(d->home->moves, weight, d->home->host->expert_id,
                             d->rows * d->graph->weights[weight].topk);
}

bool kt_device_step_lends(const kt_device_step *d, int node) {
    return kt_expert_stream_wants(d->home->stream, d->graph->nodes[node].weight);
}

bool kt_device_step_lends_any(const kt_device_step *d, int64_t rows) {
    return kt_expert_stream_is_for(d->home->stream, rows);
}

kt_status kt_device_step_lend(kt_device_step *d, int node, const bool **lent, kt_err *err) {
    *lent = NULL;
    if (!kt_device_step_lends(d, node)) return KT_OK;
    return kt_expert_stream_put(d->home->stream, &d->home->node[node],
                                d->home->placement->place[d->graph->nodes[node].weight],
                                d->home->host->expert_id, lent, err);
}

float *kt_device_step_sum(const kt_device_step *d) {
    return d->home->host_sum;
}

kt_mail_span kt_device_step_sum_span(const kt_device_step *d, bool is_up) {
    return span_of(d->home->device_sum, d->home->host_sum,
                   sizeof(float) * (size_t)(d->rows * d->home->hidden), is_up);
}

kt_status kt_device_step_sum_down(kt_device_step *d, kt_err *err) {
    const kt_mail_span s = kt_device_step_sum_span(d, false);
    return cross(d, &s, 1, false, err);
}

kt_status kt_device_step_sum_add(kt_device_step *d, int node, kt_err *err) {
    const kt_device_view *out = &d->home->node[node].out;
    const int threads = 32 * 8; /* rows_copy's initial config */
    const kt_rows_add call = {.x = d->home->device_sum,
                              .y = out->x,
                              .ldx = (int32_t)d->home->hidden,
                              .ldy = (int32_t)out->ld,
                              .width = (int32_t)d->home->hidden,
                              .rows = (int32_t)d->rows};

    return kt_device_put(d, d->home->rows_copy, ROWS_COPY_ADD, (call.width + threads - 1) / threads,
                         call.rows, 0, &call, sizeof call, err);
}

kt_status kt_device_step_sum_up(kt_device_step *d, int node, kt_err *err) {
    const kt_mail_span s = kt_device_step_sum_span(d, true);

    KT_TRY(cross(d, &s, 1, true, err));
    return kt_device_step_sum_add(d, node, err);
}

kt_status kt_device_step_hidden(kt_device_step *d, int node, int64_t index, kt_err *err) {
    const kt_step *s = d->home->host;
    const int64_t at = s->value_at[0] * d->max_rows;
    const float *from = node < 0 ? d->home->values + at : d->home->node[node].out.x;

    return kt_device_download(d->device, KT_STREAM_MAIN, s->hidden + index * s->hidden_stride, from,
                              sizeof(float) * (size_t)(d->rows * d->home->hidden), err);
}

kt_status kt_device_step_logits(kt_device_step *d, kt_err *err) {
    const kt_step *s = d->home->host;

    return kt_device_download(d->device, KT_STREAM_MAIN, s->logits, d->logits,
                              sizeof(float) * (size_t)(d->n_out * d->graph->numbers.vocab), err);
}

/* An expert that moves has the other stream, and may take longer than the step. */
kt_status kt_device_step_wait(kt_device_step *d, kt_err *err) {
    kt_status st;

    if (!d->home->moves) return kt_device_sync(d->device, NULL, err);
    st = kt_device_step_mark(d, err);
    if (st == KT_OK) return kt_device_step_reach(d, err);
    kt_device_sync(d->device, NULL, NULL);
    return st;
}
