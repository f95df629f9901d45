/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/stream_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/device_weights.h"
#include "runtime/exec/place.h"
#include "runtime/model/bytes.h"
#include "runtime/model/staging.h"

/* Copies of this size run at the link's rate, and four buffers of a layer are enough to hide what
 * the device does meanwhile. */
#define BUFFER_BYTES ((size_t)32 << 20)
enum { GROUPS = 4, MOST_EXPERTS = 32 };

/* Panels of these become no records: the device rounds F16 and F32 to bfloat16. A NaN code of FP8,
 * which only allow_nonfinite lets in, would need its group's scale. */
static bool is_turned(kt_weight_format f, bool allow_nonfinite) {
    if (f == KT_W_F16 || f == KT_W_F32) return false;
    if (allow_nonfinite && (f == KT_W_FP8_B128 || f == KT_W_FP8_CHANNEL || f == KT_W_MXFP8))
        return false;
    return kt_device_weight_format(f) == f;
}

static size_t record_bytes_of(const kt_problem *q) {
    size_t up, down;

    if (kt_device_weights_bytes(q->weights, q->n, q->k, &up, NULL) != KT_OK ||
        kt_device_weights_bytes(kt_problem_down(q), q->k, q->n, &down, NULL) != KT_OK)
        return 0;
    return kt_bytes_add(kt_bytes_times(up, 2), down);
}

static bool can_cross(const kt_stream_request *r, const kt_node *n, kt_stream_plan *out) {
    const kt_device_op *op = kt_device_op_find(KT_NODE_EXPERTS);
    const kt_problem_plan *p;
    size_t records;

    if (r->is_cut || !op || op->refuse(r->ask, n)) return false;
    if (n->weight2 >= 0 || n->weight3 >= 0 || n->weight4 >= 0) return false; /* biases stay */
    p = kt_model_plan_run(r->ask->plan, n->weight, 0);
    records = record_bytes_of(&p->problem);
    if (!records || !kt_staging_has_blocks(p)) return false;
    if (p->down_choices && strcmp(p->down_choices->choice[0].variant->layout, "p64") != 0)
        return false;
    if (!is_turned(p->problem.weights, r->allow_nonfinite) ||
        !is_turned(kt_problem_down(&p->problem), r->allow_nonfinite))
        return false;
    if (p->bytes > out->panel_bytes) out->panel_bytes = p->bytes;
    if (records > out->record_bytes) out->record_bytes = records;
    return true;
}

/* Panels of the ring, records of one group, and the numbers of a step's experts twice. */
static void count(kt_stream_plan *p, const kt_device_ask *ask) {
    int64_t topk = 0;

    for (int i = 0; i < ask->graph->n_nodes; i++)
        if (ask->graph->nodes[i].kind == KT_NODE_ROUTE && ask->graph->nodes[i].routing.topk > topk)
            topk = ask->graph->nodes[i].routing.topk;
    p->bytes = kt_bytes_add(kt_bytes_times(p->panel_bytes, KT_STREAM_RING * p->group),
                            kt_bytes_times(p->record_bytes, p->group));
    p->bytes = kt_bytes_add(p->bytes, kt_bytes_times(2 * sizeof(int32_t), ask->max_rows * topk));
}

void kt_stream_plan_drop(kt_stream_plan *p, const char *why) {
    p->from_rows = INT64_MAX;
    snprintf(p->note, sizeof p->note, "%s", why);
    if (p->learns) return; /* the buffers are there for moves, too */
    p->group = 0;
    p->bytes = 0;
}

bool kt_stream_plan_is_for(const kt_stream_plan *p, const kt_graph *g,
                           const struct kt_placement *part) {
    for (int i = 0; p->group && i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_EXPERTS && g->nodes[i].is_routed &&
            p->weight[g->nodes[i].weight] && part->side[i] == KT_SIDE_BOTH)
            return true;
    return false;
}

bool kt_stream_plan_shrink(kt_stream_plan *p, const kt_device_ask *ask) {
    if (p->group < 2) return false;
    p->group /= 2;
    count(p, ask);
    return true;
}

static kt_status size_buffers(const kt_stream_request *r, int64_t experts, kt_stream_plan *p,
                              kt_err *err) {
    if (p->from_rows == INT64_MAX && !r->learns) return KT_OK;
    if (experts == 0 && r->learns)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "learned placement moves experts, but those of this model %s, expected "
                       "another --expert-placement",
                       r->is_cut
                           ? "are cut over memory nodes (--numa off)"
                           : "have biases, or are not packed as panels that a device can read");
    if (experts == 0) {
        kt_stream_plan_drop(p, r->is_cut ? "experts are cut over memory nodes"
                                         : "a device cannot read the CPU's experts");
        return KT_OK;
    }
    p->group = (experts + GROUPS - 1) / GROUPS;
    if (p->group > MOST_EXPERTS) p->group = MOST_EXPERTS;
    if ((size_t)p->group > BUFFER_BYTES / p->panel_bytes)
        p->group = BUFFER_BYTES / p->panel_bytes ? (int64_t)(BUFFER_BYTES / p->panel_bytes) : 1;
    count(p, r->ask);
    return KT_OK;
}

kt_status kt_stream_plan_make(const kt_stream_request *r, kt_stream_plan *out, kt_err *err) {
    const kt_graph *g = r->ask->graph;
    int64_t most = 0;
    kt_status st;

    *out = (kt_stream_plan){.from_rows = r->word->is_auto ? r->rows : r->word->rows,
                            .percent = r->word->percent,
                            .learns = r->learns};
    if (out->from_rows < 0) out->from_rows = INT64_MAX;
    out->crossover = out->from_rows;
    out->weight = calloc((size_t)g->n_weights + 1, sizeof *out->weight);
    if (!out->weight) {
        kt_stream_plan_deinit(out);
        return kt_fail(err, KT_E_NOMEM, "no memory to plan streamed experts");
    }
    for (int i = 0; i < g->n_nodes; i++) {
        const kt_node *n = &g->nodes[i];
        if (n->kind != KT_NODE_EXPERTS || !n->is_routed || !can_cross(r, n, out)) continue;
        out->weight[n->weight] = true;
        if (g->weights[n->weight].count > most) most = g->weights[n->weight].count;
    }
    st = size_buffers(r, most, out, err);
    if (st != KT_OK) kt_stream_plan_deinit(out);
    return st;
}

char *kt_stream_plan_line(const kt_stream_plan *p, char *out, size_t out_bytes) {
    *out = '\0';
    if (p->from_rows < INT64_MAX && p->group)
        snprintf(out, out_bytes,
                 "steps of %lld rows and more: experts of the CPU cross, up to %lld at once",
                 (long long)p->from_rows, (long long)p->group);
    else if (*p->note)
        snprintf(out, out_bytes, "no experts cross for long steps: %s", p->note);
    return out;
}

void kt_stream_plan_deinit(kt_stream_plan *p) {
    free(p->weight);
    memset(p, 0, sizeof *p);
}
