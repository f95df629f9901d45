/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_memory.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/device_weights.h"
#include "runtime/device/device_plan.h"
#include "runtime/exec/step_bytes.h"
#include "runtime/model/bytes.h"
#include "runtime/model/model_dir.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define LEAST_ROOM ((size_t)8 << 20) /* for what kernels need beside values */

/* ---- weights ---- */

/* One matrix of parts [first, first + n); SIZE_MAX where devices have no such. */
static size_t matrix_bytes(const kt_weight *w, kt_quant quant, int first, int64_t n, int64_t k) {
    const kt_weight_format format =
        w->kind == KT_WEIGHT_HEADS ? KT_W_BF16 : kt_weight_becomes(w, first, quant);
    size_t bytes;

    return kt_device_weights_bytes(format, n, k, &bytes, NULL) == KT_OK ? bytes : SIZE_MAX;
}

size_t kt_device_expert_bytes(const kt_model_plan *plan, int weight) {
    const kt_weight *w = &plan->graph->weights[weight];
    size_t total = 0;

    if (w->kind != KT_WEIGHT_EXPERTS) return 0;
    for (int part = 0; part < 3; part++)
        total = kt_bytes_add(total, matrix_bytes(w, plan->quant, part, part < 2 ? w->n : w->k,
                                                 part < 2 ? w->k : w->n));
    return total == SIZE_MAX ? 0 : total;
}

size_t kt_device_weight_bytes(const kt_model_plan *plan, int weight) {
    const kt_weight *w = &plan->graph->weights[weight];
    kt_run runs[KT_WEIGHT_PARTS];
    const int n = kt_weight_runs(w, plan->quant, runs);
    size_t total = 0;

    if (w->kind == KT_WEIGHT_EXPERTS)
        return kt_bytes_times(kt_device_expert_bytes(plan, weight), w->count);
    if (n == 0) return kt_bytes_times(sizeof(float), w->n * (w->k > 0 ? w->k : 1));
    for (int r = 0; r < n; r++)
        total = kt_bytes_add(total,
                             kt_bytes_times(matrix_bytes(w, plan->quant, runs[r].first,
                                                         runs[r].n ? runs[r].problem.n : 0, w->k),
                                            w->kind == KT_WEIGHT_HEADS ? w->count : 1));
    return total;
}

/* Biases of the experts that lie there; a whole vector is counted as one. */
static void count_biases(const kt_device_memory_request *r, const kt_node *n,
                         kt_device_memory_plan *out) {
    const int weight[] = {n->weight2, n->weight3, n->weight4};
    const kt_weight *experts = &r->ask->graph->weights[n->weight];

    for (int i = 0; i < 3; i++)
        if (weight[i] >= 0 && !r->placement->away[weight[i]].is_whole)
            out->dense = kt_bytes_add(
                out->dense, kt_bytes_times(sizeof(float) * (size_t)r->placement->hot[n->weight].n,
                                           i < 2 ? experts->n : experts->k));
}

static void count_weights(const kt_device_memory_request *r, kt_device_memory_plan *out) {
    const kt_graph *g = r->ask->graph;

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_EXPERTS && r->placement->place[g->nodes[i].weight])
            count_biases(r, &g->nodes[i], out);

    for (int i = 0; i < g->n_weights; i++) {
        const kt_hot_experts *hot = &r->placement->hot[i];
        if (r->placement->place[i]) {
            out->experts = kt_bytes_add(
                out->experts, kt_bytes_times(kt_device_expert_bytes(r->ask->plan, i), hot->n));
            out->n_experts += hot->n;
        } else if (r->placement->away[i].is_whole) {
            out->dense = kt_bytes_add(out->dense, kt_device_weight_bytes(r->ask->plan, i));
        }
    }
}

/* ---- the rest ---- */

static kt_status count_working(const kt_device_memory_request *r, kt_device_memory_plan *out,
                               kt_err *err) {
    const kt_device_ask *ask = r->ask;
    const kt_graph *g = ask->graph;
    const int64_t logits = r->logit_rows > 0 ? r->logit_rows : 1;
    int64_t floats = 0, angles = 0, topk = 0;
    size_t room;

    KT_TRY(kt_step_value_floats(g, &floats, err));
    for (int i = 0; i < g->n_rotations; i++) angles += g->rotations[i].rotary_dim;
    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_ROUTE && g->nodes[i].routing.topk > topk)
            topk = g->nodes[i].routing.topk;
    floats += g->numbers.hidden + 3 * topk;
    out->working = kt_bytes_times(sizeof(float) * (size_t)ask->max_rows, floats);
    out->working = kt_bytes_add(out->working,
                                kt_bytes_times(sizeof(float) * (size_t)ask->max_context, angles));
    if (r->placement->side[g->n_nodes - 1] == KT_SIDE_DEVICE)
        out->working = kt_bytes_add(
            out->working, kt_bytes_times(sizeof(float) * (size_t)logits, g->numbers.vocab));
    room = out->working / 2 > LEAST_ROOM ? out->working / 2 : LEAST_ROOM;
    out->working = kt_bytes_add(out->working, room);
    return KT_OK;
}

/* What a page and a slot take of the planes and states that are there. */
static kt_kv_sizes sizes_of(const kt_device_memory_request *r) {
    const kt_placement *p = r->placement;
    const kt_graph *g = r->ask->graph;
    kt_kv_shape s = r->ask->kv;
    size_t entries = 0;
    int64_t floats = 0;

    s.layers = 0;
    s.entry_bytes = 0;
    memset(s.bare, 0, sizeof s.bare);
    for (int i = 0; i < g->n_planes; i++) {
        if (!p->is_plane_away[i]) continue;
        if (g->planes[i].ratio) {
            entries += kt_model_entry_layout(g, s.format, i).bytes;
            continue;
        }
        if (!g->planes[i].index) s.bare[s.layers / 64] |= (uint64_t)1 << (s.layers % 64);
        s.layers++;
    }
    for (int i = 0; i < g->n_slots; i++)
        if (p->is_slot_away[i]) floats += kt_model_slot_floats(g, i);
    return (kt_kv_sizes){.page = (s.layers ? kt_kv_page_bytes(&s) : 0) + entries,
                         .slot = (size_t)floats * sizeof(float)};
}

void kt_device_memory_set_pool(const kt_device_memory_request *r, int64_t pages, int64_t slots,
                               kt_device_memory_plan *p) {
    const kt_kv_sizes own = sizes_of(r);

    p->pool = (kt_kv_plan){.pages = pages, .slots = slots};
    p->pool.bytes = kt_bytes_add(kt_bytes_times(own.page, pages), kt_bytes_times(own.slot, slots));
    p->cache = p->pool.bytes;
    p->needed =
        kt_bytes_add(kt_bytes_add(p->dense, p->cache), kt_bytes_add(p->working, p->experts));
    p->needed = kt_bytes_add(p->needed, p->staging);
}

/* A context, and an eighth of what is left behind dense weights and working memory for more of them:
 * experts come behind it. Only the context where that is too much. */
static kt_status find_pool(const kt_device_memory_request *r, kt_device_memory_plan *out,
                           kt_err *err) {
    const kt_graph *g = r->ask->graph;
    const size_t before = kt_bytes_add(out->dense, out->working);
    const int64_t context = r->ask->max_context;
    const kt_kv_sizes own = sizes_of(r);
    kt_kv_plan least, more;

    if (!kt_device_keeps_any(r->placement, g)) return KT_OK;
    if (!kt_kv_plan_least(own, context, &least))
        return kt_fail(err, KT_E_UNSUPPORTED, "a context of %lld tokens is too large to count",
                       (long long)context);
    out->pool = least;
    if (r->kv_memory) {
        kt_kv_plan_within(kt_kv_sizes_of(&r->ask->kv, kt_model_state_floats(g)), r->kv_memory,
                          &out->pool);
    } else if (kt_bytes_add(before, least.bytes) < r->available) {
        const uint64_t rest = r->available - before - least.bytes;
        if (kt_kv_plan_pool(own, context, 0, least.bytes + rest / 4, &more) &&
            kt_bytes_add(kt_bytes_add(before, more.bytes),
                         kt_bytes_add(out->experts, out->staging)) <= r->available)
            out->pool = more;
    }
    if (!own.page) out->pool.pages = INT32_MAX; /* what takes nothing there is no bound */
    if (!own.slot && kt_model_state_floats(g)) out->pool.slots = KT_MOST_SLOTS;
    return KT_OK;
}

kt_status kt_device_memory_count(const kt_device_memory_request *r, kt_device_memory_plan *out,
                                 kt_err *err) {
    *out = (kt_device_memory_plan){.available = r->available, .staging = r->staging};
    count_weights(r, out);
    KT_TRY(count_working(r, out, err));
    KT_TRY(find_pool(r, out, err));
    kt_device_memory_set_pool(r, out->pool.pages, out->pool.slots, out);
    return KT_OK;
}

/* ---- words ---- */

static double gib(uint64_t bytes) {
    return (double)bytes / GIB;
}

/* ", prefill staging 0.10"; nothing where there is none. */
static const char *staging_words(const kt_device_memory_plan *p, char out[48]) {
    *out = '\0';
    if (p->staging) snprintf(out, 48, ", prefill staging %.3f", gib(p->staging));
    return out;
}

kt_status kt_device_memory_check(const kt_device_memory_plan *p, const char *name, kt_err *err) {
    const uint64_t before = (uint64_t)p->dense + p->cache + p->working + p->staging;
    char advice[160] = "", staging[48];

    if (p->needed <= p->available) return KT_OK;
    if (before <= p->available && p->n_experts)
        snprintf(advice, sizeof advice, "; %lld experts fit, or --gpu-experts auto",
                 (long long)((double)(p->available - before) / (double)p->experts *
                             (double)p->n_experts));
    else
        snprintf(advice, sizeof advice,
                 "; try a smaller --context or --kv-memory, %sor --device cpu",
                 p->staging ? "--prefill-offload off, " : "");
    return kt_fail(err, KT_E_NOMEM,
                   "%.100s: needs %.3f GiB (dense weights %.3f, cache %.3f, working memory %.3f, "
                   "%lld experts %.3f%s), %.3f GiB are free%s",
                   name, gib(p->needed), gib(p->dense), gib(p->cache), gib(p->working),
                   (long long)p->n_experts, gib(p->experts), staging_words(p, staging),
                   gib(p->available), advice);
}

char *kt_device_memory_line(const kt_device_memory_plan *p, const char *name, char *out,
                            size_t out_bytes) {
    char staging[48];

    snprintf(out, out_bytes,
             "%.100s: %.2f of %.2f GiB (dense %.2f, cache %.2f, working memory %.2f, %lld experts "
             "%.2f%s)",
             name, gib(p->needed), gib(p->available), gib(p->dense), gib(p->cache), gib(p->working),
             (long long)p->n_experts, gib(p->experts), staging_words(p, staging));
    return out;
}
