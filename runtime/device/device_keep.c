/* What a device keeps between steps: keys and values by page, states by slot, with the numbers that
 * the host gives them. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/err.h"
#include "kernels/attn/attn_common.h"
#include "runtime/device/device_impl.h"
#include "runtime/model/bytes.h"
#include "runtime/model/model_dir.h"

static size_t item_bytes(const kt_kv_shape *s) {
    return kt_attn_item_bytes(s->format);
}

static int64_t heads_of(const kt_kv_shape *s) {
    return (s->has_shared_rows ? 1 : 2) * s->kv_heads;
}

/* Rows of all planes that are here, one plane behind the other. */
static kt_status number_planes(kt_device_step *d, const kt_page_pool *p, int64_t *rows,
                               int64_t *index, kt_err *err) {
    const size_t n = (size_t)d->graph->n_planes + 1;
    int64_t *row = kt_device_step_alloc(d, n * sizeof *row);
    int64_t *key = kt_device_step_alloc(d, n * sizeof *key);

    if (!row || !key) return kt_fail(err, KT_E_NOMEM, "no memory for the planes of a device");
    for (int i = 0; i < d->graph->n_planes; i++) {
        const bool is_here = d->home->placement->is_plane_away[i] && d->graph->planes[i].ratio == 0;
        const bool has_index = is_here && p->index && d->graph->planes[i].index > 0;
        row[i] = is_here ? *rows : -1;
        key[i] = has_index ? *index : -1;
        if (is_here) *rows += heads_of(&p->shape) * p->n * KT_PAGE_TOKENS;
        if (has_index) *index += p->n * KT_PAGE_TOKENS;
    }
    d->pages.plane_row = row;
    d->pages.index_row = key;
    return KT_OK;
}

/* Zeros, so that what is behind the last token of a page is a number. */
static kt_status take_clear(kt_device_step *d, size_t bytes, void *out, kt_err *err) {
    void *at;

    d->home->counted = &d->home->bytes.cache;
    KT_TRY(kt_device_home_take(d, bytes, &at, err));
    memcpy(out, &at, sizeof at);
    return kt_device_clear(d->device, KT_STREAM_MAIN, at, bytes, err);
}

kt_entry_layout kt_device_entry_layout(const kt_device_step *d, int plane) {
    kt_entry_layout l = {0};
    size_t at = 0;

    for (int i = 0; i <= plane; i++) {
        if (!d->home->placement->is_plane_away[i] || !d->graph->planes[i].ratio) continue;
        at += l.bytes;
        l = kt_model_entry_layout(d->graph, d->plan->kv, i);
    }
    l.at = at;
    return l;
}

/* Of a page, entries of all planes that are here. */
static size_t entry_bytes(const kt_device_step *d) {
    size_t bytes = 0;

    for (int i = 0; i < d->graph->n_planes; i++)
        if (d->home->placement->is_plane_away[i] && d->graph->planes[i].ratio)
            bytes += kt_model_entry_layout(d->graph, d->plan->kv, i).bytes;
    return bytes;
}

static kt_status take_pages(kt_device_step *d, const kt_page_pool *p, kt_err *err) {
    const kt_kv_shape *s = &p->shape;
    int64_t rows = 0, index = 0;

    KT_TRY(number_planes(d, p, &rows, &index, err));
    d->pages.shape = *s;
    d->pages.n = p->n;
    d->pages.shape.entry_bytes = entry_bytes(d);
    if (d->pages.shape.entry_bytes)
        KT_TRY(take_clear(d, kt_bytes_times(d->pages.shape.entry_bytes, p->n), &d->pages.entries,
                          err));
    if (rows == 0) return KT_OK;
    KT_TRY(take_clear(d, kt_bytes_times((size_t)s->head_dim * item_bytes(s), rows), &d->pages.rows,
                      err));
    if (p->scales)
        KT_TRY(take_clear(d, kt_bytes_times(sizeof(float), rows), &d->pages.scales, err));
    if (index == 0) return KT_OK;
    return take_clear(d, kt_bytes_times(2 * (size_t)s->index_dim, index), &d->pages.index, err);
}

/* States of the nodes that are here lie one behind the other. */
static kt_status take_states(kt_device_step *d, const kt_states *states, kt_err *err) {
    int64_t *at = kt_device_step_alloc(d, sizeof *at * (size_t)(d->graph->n_slots + 1));

    if (!at) return kt_fail(err, KT_E_NOMEM, "no memory for the states of a device");
    for (int i = 0; i < d->graph->n_slots; i++) {
        at[i] = d->state_floats;
        if (d->home->placement->is_slot_away[i])
            d->state_floats += kt_model_slot_floats(d->graph, i);
    }
    d->slot_at = at;
    return take_clear(d, kt_bytes_times((size_t)d->state_floats * sizeof(float), states->n),
                      &d->states, err);
}

static bool is_any(const bool *away, int n) {
    for (int i = 0; i < n; i++)
        if (away[i]) return true;
    return false;
}

/* ---- beside steps: an error shows at the next one ---- */

static void copy_rows(kt_device_step *d, int64_t from, int64_t to, int64_t n) {
    const size_t row = (size_t)d->pages.shape.head_dim * item_bytes(&d->pages.shape);

    kt_device_copy(d->device, KT_STREAM_MAIN, d->pages.rows + (size_t)to * row,
                   d->pages.rows + (size_t)from * row, (size_t)n * row, NULL);
    if (d->pages.scales)
        kt_device_copy(d->device, KT_STREAM_MAIN, d->pages.scales + to, d->pages.scales + from,
                       (size_t)n * sizeof(float), NULL);
}

static void copy_page(void *arg, uint32_t from, uint32_t to, int64_t n) {
    kt_device_step *d = arg;
    const kt_kept_elsewhere *before = &d->home->before_pages;
    const int64_t dim = d->pages.shape.index_dim;
    const size_t entries = d->pages.shape.entry_bytes;

    if (before->arg) before->copy_page(before->arg, from, to, n);
    if (d->pages.entries)
        kt_device_copy(d->device, KT_STREAM_MAIN, d->pages.entries + to * entries,
                       d->pages.entries + from * entries, entries, NULL);
    for (int i = 0; i < d->graph->n_planes; i++) {
        const int64_t first = d->pages.plane_row[i], key = d->pages.index_row[i];
        for (int64_t h = 0; first >= 0 && h < heads_of(&d->pages.shape); h++) {
            const int64_t head = first + h * d->pages.n * KT_PAGE_TOKENS;
            copy_rows(d, head + (int64_t)from * KT_PAGE_TOKENS, head + (int64_t)to * KT_PAGE_TOKENS,
                      n);
        }
        if (key < 0) continue;
        kt_device_copy(d->device, KT_STREAM_MAIN,
                       d->pages.index + (key + (int64_t)to * KT_PAGE_TOKENS) * dim,
                       d->pages.index + (key + (int64_t)from * KT_PAGE_TOKENS) * dim,
                       (size_t)(n * dim) * sizeof(uint16_t), NULL);
    }
}

/* A page's rows, scales and index keys, piece by piece, as they lie in `host` one behind the
 * other. */
static uint8_t *cross(kt_device_step *d, void *there, uint8_t *host, size_t bytes, bool is_up) {
    if (is_up)
        kt_device_upload(d->device, KT_STREAM_MAIN, there, host, bytes, NULL);
    else
        kt_device_download(d->device, KT_STREAM_MAIN, host, there, bytes, NULL);
    return host + bytes;
}

static void cross_page(kt_device_step *d, uint32_t page, uint8_t *host, bool is_up) {
    const kt_kv_shape *s = &d->pages.shape;
    const size_t row = (size_t)s->head_dim * item_bytes(s);
    const size_t keys = (size_t)(KT_PAGE_TOKENS * s->index_dim) * sizeof(uint16_t);

    for (int i = 0; i < d->graph->n_planes; i++) {
        const int64_t first = d->pages.plane_row[i], key = d->pages.index_row[i];
        for (int64_t h = 0; first >= 0 && h < heads_of(s); h++) {
            const int64_t at = first + (h * d->pages.n + page) * KT_PAGE_TOKENS;
            host = cross(d, d->pages.rows + (size_t)at * row, host, KT_PAGE_TOKENS * row, is_up);
            if (d->pages.scales)
                host = cross(d, d->pages.scales + at, host, KT_PAGE_TOKENS * sizeof(float), is_up);
        }
        if (key >= 0)
            host = cross(d, d->pages.index + (key + (int64_t)page * KT_PAGE_TOKENS) * s->index_dim,
                         host, keys, is_up);
    }
}

static void save_page(void *arg, uint32_t page, uint8_t *to) {
    const kt_device_step *d = arg;
    const kt_kept_elsewhere *before = &d->home->before_pages;

    if (before->arg) before->save_page(before->arg, page, to);
    cross_page(arg, page, to + d->home->page_at, false);
}

static void load_page(void *arg, uint32_t page, uint8_t *from) {
    const kt_device_step *d = arg;
    const kt_kept_elsewhere *before = &d->home->before_pages;

    if (before->arg) before->load_page(before->arg, page, from);
    cross_page(arg, page, from + d->home->page_at, true);
}

/* Of a page, what the planes that are here keep: the bytes that cross_page moves. */
static size_t page_part(const kt_device_step *d) {
    const kt_kv_shape *s = &d->pages.shape;
    const size_t row = (size_t)s->head_dim * item_bytes(s) + (d->pages.scales ? sizeof(float) : 0);
    size_t bytes = 0;

    for (int i = 0; i < d->graph->n_planes; i++) {
        if (d->pages.plane_row[i] >= 0) bytes += (size_t)heads_of(s) * KT_PAGE_TOKENS * row;
        if (d->pages.index_row[i] >= 0)
            bytes += (size_t)(KT_PAGE_TOKENS * s->index_dim) * sizeof(uint16_t);
    }
    return bytes;
}

static void copy_state(void *arg, int32_t from, int32_t to) {
    kt_device_step *d = arg;
    const kt_kept_elsewhere *before = &d->home->before_states;

    if (before->arg) before->copy_state(before->arg, from, to);
    if (d->states)
        kt_device_copy(d->device, KT_STREAM_MAIN, d->states + to * d->state_floats,
                       d->states + from * d->state_floats, (size_t)d->state_floats * sizeof(float),
                       NULL);
}

static void clear_state(void *arg, int32_t slot) {
    kt_device_step *d = arg;
    const kt_kept_elsewhere *before = &d->home->before_states;

    if (before->arg) before->clear_state(before->arg, slot);
    if (d->states)
        kt_device_clear(d->device, KT_STREAM_MAIN, d->states + slot * d->state_floats,
                        (size_t)d->state_floats * sizeof(float), NULL);
}

void kt_device_step_pin(kt_device_step *d, void *memory, size_t bytes) {
    kt_device_pin(d->device, memory, bytes, NULL);
}

kt_status kt_device_step_keep(kt_device_step *d, kt_page_pool *pages, kt_states *states,
                              kt_err *err) {
    const kt_placement *p = d->home->placement;
    const kt_graph *g = d->graph;
    kt_kept_elsewhere here = {.arg = d,
                              .has_all = p->has_all_planes,
                              .copy_page = copy_page,
                              .copy_state = copy_state,
                              .clear_state = clear_state,
                              .save_page = save_page,
                              .load_page = load_page};

    KT_TRY(take_pages(d, pages, err));
    d->home->before_pages = pages->elsewhere;
    if (pages->elsewhere.arg) {
        const kt_device_step *before = pages->elsewhere.arg;
        d->home->page_at = before->home->page_at + page_part(before);
    }
    if (is_any(p->is_plane_away, g->n_planes)) pages->elsewhere = here;
    d->home->states = states;
    if (!states || !is_any(p->is_slot_away, g->n_slots)) return KT_OK;
    KT_TRY(take_states(d, states, err));
    d->home->before_states = states->elsewhere;
    here.has_all = p->has_all_slots;
    states->elsewhere = here;
    return KT_OK;
}
