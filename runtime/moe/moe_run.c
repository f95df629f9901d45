/* One call on the team's thread. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "runtime/moe/moe_impl.h"

/* A piece of a call: at most max_tokens tokens. */
typedef struct piece {
    const kt_moe_rows *rows;
    int64_t first, tokens, hidden, ldx, ldo;
    float *x, *out; /* f32, dense */
} piece;

static float of_bf16(uint16_t v) {
    const uint32_t bits = (uint32_t)v << 16;
    float f;

    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Nearest, ties to even; a NaN stays one. */
static uint16_t to_bf16(float f) {
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static void widen(void *arg, int64_t begin, int64_t end, int tid) {
    const piece *p = arg;
    (void)tid;

    for (int64_t t = begin; t < end; t++) {
        const uint16_t *from = (const uint16_t *)p->rows->x + (p->first + t) * p->ldx;
        float *to = p->x + t * p->hidden;
        for (int64_t i = 0; i < p->hidden; i++) to[i] = of_bf16(from[i]);
    }
}

static void narrow(void *arg, int64_t begin, int64_t end, int tid) {
    const piece *p = arg;
    (void)tid;

    for (int64_t t = begin; t < end; t++) {
        uint16_t *to = (uint16_t *)p->rows->out + (p->first + t) * p->ldo;
        const float *from = p->out + t * p->hidden;
        for (int64_t i = 0; i < p->hidden; i++)
            to[i] = to_bf16(p->rows->accumulate ? of_bf16(to[i]) + from[i] : from[i]);
    }
}

/* ---- whose rows ---- */

static int64_t id_at(const kt_moe_rows *r, int64_t i) {
    return r->id_bytes == 8 ? ((const int64_t *)r->expert_id)[i]
                            : ((const int32_t *)r->expert_id)[i];
}

/* Is slot i of a token among its n of least weight? Of equal weights the later slots are. */
static bool is_later(const kt_moe_rows *r, int64_t topk, int64_t token, int64_t i) {
    const float *w = r->route_weight + token * topk;
    int32_t less = 0;

    for (int64_t j = 0; j < topk; j++)
        less += id_at(r, token * topk + j) >= 0 && (w[j] < w[i] || (w[j] == w[i] && j > i));
    return less < r->n_deferred;
}

/* Expert of the checkpoint for a slot, or -1. */
static int32_t expert_of(kt_moe *m, const kt_moe_item *item, int64_t token, int64_t i) {
    const kt_moe_rows *r = &item->rows;
    const int64_t id = id_at(r, token * m->topk + i);
    bool later;

    if (id < 0 || id >= m->n_ids) return -1;
    later = item->part != KT_MOE_ALL && is_later(r, m->topk, token, i);
    if (item->part != KT_MOE_ALL && later != (item->part == KT_MOE_LATER)) return -1;
    if (m->mask && m->mask[id]) {
        m->counts.rows_elsewhere++;
        return -1;
    }
    m->counts.rows_deferred += later;
    return m->map ? m->map[id] : (int32_t)id;
}

/* A token's experts; one that several slots mean runs once, with their weights together. */
static void route(kt_moe_team *t, kt_moe *m, const kt_moe_item *item, const piece *p) {
    for (int64_t token = 0; token < p->tokens; token++) {
        int32_t *id = t->id + token * m->topk;
        float *weight = t->weight + token * m->topk;
        for (int64_t i = 0; i < m->topk; i++) {
            const float w = item->rows.route_weight[(p->first + token) * m->topk + i];
            id[i] = expert_of(m, item, p->first + token, i);
            weight[i] = w;
            for (int64_t j = 0; id[i] >= 0 && j < i; j++)
                if (id[j] == id[i]) {
                    weight[j] += w;
                    id[i] = -1;
                }
        }
    }
}

/* ---- */

/* Phases of the job: experts whole, or a slice of each on every memory node. *first: whose numbers
 * of rows are those of all. false: memory is reserved for this layer, so this cannot be. */
static bool make_phases(kt_moe_team *t, const kt_moe *m, kt_moe_job *job, kt_moe_nodes *nodes,
                        const kt_moe_job **first, kt_phase *phases, int *n) {
    const kt_moe_weights *w = m->weights;

    *first = w->n_nodes == 1 ? job : &nodes->job[0];
    if (w->n_nodes == 1) {
        if (kt_moe_job_init(job, m->max_tokens, kt_pool_threads(t->pool), t->workspace_bytes[0],
                            NULL) != KT_OK)
            return false;
        kt_moe_job_phases(job, phases + *n);
        *n += KT_MOE_PHASES;
        return true;
    }
    *nodes = (kt_moe_nodes){.n_nodes = w->n_nodes,
                            .x = job->x,
                            .ldx = job->ldx,
                            .tokens = job->tokens,
                            .expert_id = job->expert_id,
                            .route_weight = job->route_weight,
                            .out = job->out,
                            .ldo = job->ldo,
                            .accumulate = job->accumulate};
    for (int i = 0; i < w->n_nodes; i++) {
        nodes->layer[i] = &w->slice[i];
        nodes->threads[i] = t->nodes.threads[i];
        nodes->workspace[i] = t->workspace[i].data;
    }
    if (kt_moe_nodes_init(nodes, m->max_tokens, NULL) != KT_OK) return false;
    kt_moe_nodes_phases(nodes, phases + *n);
    *n += KT_MOE_NODES_PHASES;
    return true;
}

static void run_piece(kt_moe_team *t, kt_moe *m, const kt_moe_item *item, piece *p) {
    const kt_moe_rows *r = &item->rows;
    const bool has_f32_in = r->x_type == KT_MOE_F32, has_f32_out = r->out_type == KT_MOE_F32;
    kt_phase phases[KT_MOE_NODES_PHASES + 2];
    const kt_moe_job *first;
    kt_moe_nodes nodes;
    int n = 0;
    kt_moe_job job = {.layer = &m->weights->layer,
                      .x = has_f32_in ? (const float *)r->x + p->first * p->ldx : p->x,
                      .ldx = has_f32_in ? p->ldx : m->hidden,
                      .tokens = p->tokens,
                      .expert_id = t->id,
                      .route_weight = t->weight,
                      .out = has_f32_out ? (float *)r->out + p->first * p->ldo : p->out,
                      .ldo = has_f32_out ? p->ldo : m->hidden,
                      .accumulate = has_f32_out && r->accumulate,
                      .workspace = t->workspace[0].data};

    route(t, m, item, p);
    if (!has_f32_in) phases[n++] = (kt_phase){.run = widen, .arg = p, .n_tasks = p->tokens};
    if (!make_phases(t, m, &job, &nodes, &first, phases, &n)) return;
    if (!has_f32_out) phases[n++] = (kt_phase){.run = narrow, .arg = p, .n_tasks = p->tokens};
    kt_pool_run(t->pool, phases, n);
    for (int64_t e = 0; e < m->experts; e++) {
        const int64_t rows = kt_moe_job_rows(first, e);
        m->rows_of[e] += rows;
        m->counts.rows_run += rows;
    }
}

void kt_moe_run_call(kt_moe_team *t, const kt_moe_item *item) {
    kt_moe *m = item->moe;
    const kt_moe_rows *r = &item->rows;
    piece p = {.rows = r,
               .hidden = m->hidden,
               .ldx = r->ldx ? r->ldx : m->hidden,
               .ldo = r->ldo ? r->ldo : m->hidden,
               .x = t->x,
               .out = t->out};

    for (p.first = 0; p.first < r->tokens; p.first += p.tokens) {
        const int64_t left = r->tokens - p.first;
        p.tokens = left < m->max_tokens ? left : m->max_tokens;
        run_piece(t, m, item, &p);
    }
    if (item->part == KT_MOE_LATER) return; /* the same tokens again */
    m->counts.calls++;
    m->counts.tokens += r->tokens;
}
