/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/expand.h"

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "runtime/model/bytes.h"

#define AT_ONCE 128 /* keys of a product: their rows stay in L2 beside the half's weights */

/* Sizes of a head. */
typedef struct sizes {
    int64_t heads, latent, nope, rope, v;
} sizes;

static sizes sizes_of(const kt_graph *g, const kt_node *n) {
    const kt_weight *keys = &g->weights[n->weight], *values = &g->weights[n->weight2];

    return (sizes){.heads = n->attention.heads,
                   .latent = n->attention.v,
                   .nope = keys->k,
                   .rope = n->attention.k - n->attention.v,
                   .v = values->n};
}

/* ---- what is planned ---- */

bool kt_expand_is_planned(const kt_model_plan *plan, const kt_node *n) {
    return plan->expand_rows > 0 && n->kind == KT_NODE_ATTEND && n->in2.width > 0;
}

kt_absorbed kt_expand_rest(const kt_step *s, const kt_node *attend) {
    const bool is_planned = kt_expand_is_planned(s->plan, attend) && s->rows > KT_STEP_FEW_ROWS;
    kt_absorbed a = {0};
    int last = -1;

    for (int i = 0; i < s->n_spans; i++) {
        if (is_planned && s->spans[i].rows >= s->plan->expand_rows) continue;
        if (last < 0) a.first_span = i;
        last = i;
    }
    if (last < 0) return a;
    a.n_spans = last + 1 - a.first_span;
    a.first_row = s->spans[a.first_span].first_row;
    a.rows = s->spans[last].first_row + s->spans[last].rows - a.first_row;
    return a;
}

/* Places in a thread's scratch. */
typedef struct room {
    uint8_t *half, *acts, *attn; /* turned half of kv_b; encoded latents; of the variant */
    float *c, *latent;           /* [AT_ONCE, nope or v]; a row of the cache */
    uint16_t *k, *v;             /* [KT_ATTN_CHUNK, nope + rope], [KT_ATTN_CHUNK, v] */
    float *part, *stats, *later; /* [rows, v], [rows, 2], [rows, 2] */
    int32_t *position;           /* [rows] */
} room;

static size_t lay_out(const kt_model_plan *plan, const kt_node *n, const kt_choice *attn,
                      uint8_t *base, room *r) {
    const sizes z = sizes_of(plan->graph, n);
    const kt_problem p = kt_expand_attn_problem(plan, n), one = kt_expand_head_problem(&p);
    const kt_problem keys = kt_expand_keys_problem(plan->graph, n);
    const size_t rows = (size_t)plan->max_rows, chunk = KT_ATTN_CHUNK;
    const int64_t widest = z.nope > z.v ? z.nope : z.v;
    const struct {
        void *target;
        size_t bytes;
    } arrays[] = {
        {&r->half, kt_p64_gemm_bytes(&keys)},
        {&r->acts, AT_ONCE * kt_act_row_bytes(KT_A_F32, z.latent)}, /* the longest encoding */
        {&r->c, AT_ONCE * sizeof(float) * (size_t)widest},
        {&r->latent, sizeof(float) * (size_t)(z.latent + z.rope)},
        {&r->k, chunk * sizeof(uint16_t) * (size_t)(z.nope + z.rope)},
        {&r->v, chunk * sizeof(uint16_t) * (size_t)z.v},
        {&r->part, rows * sizeof(float) * (size_t)z.v},
        {&r->stats, rows * 2 * sizeof(float)},
        {&r->later, rows * 2 * sizeof(float)},
        {&r->position, rows * sizeof(int32_t)},
        {&r->attn,
         attn->variant->workspace_bytes ? attn->variant->workspace_bytes(&one, &attn->config) : 0}};
    size_t used = 0;

    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        void *at = base ? base + used : NULL;
        memcpy(arrays[i].target, &at, sizeof at);
        used = kt_bytes_add(used, kt_bytes_round(arrays[i].bytes));
    }
    return used;
}

static const kt_choice *attn_choice(const kt_model_plan *plan, const kt_node *n) {
    const kt_problem p = kt_expand_attn_problem(plan, n);

    return kt_model_plan_simple(plan, &p);
}

size_t kt_expand_bytes(const kt_model_plan *plan, const kt_node *n, int n_threads) {
    room r;

    if (!kt_expand_is_planned(plan, n)) return 0;
    return kt_bytes_times(lay_out(plan, n, attn_choice(plan, n), NULL, &r), n_threads);
}

kt_status kt_expand_init(kt_expand *x, kt_exec_node *n, kt_err *err) {
    kt_step *s = n->step;
    room r;

    x->attn = attn_choice(s->plan, n->node);
    x->keys = kt_model_plan_expand_keys(s->plan, n->node);
    x->values = kt_model_plan_run(s->plan, n->node->weight2, 0);
    if (!x->attn || !x->keys) return kt_fail(err, KT_E_INTERNAL, "no plan for wide keys");
    if (x->keys->problem.acts == KT_A_BF16) x->encode = x->keys->encode.variant;
    for (int i = 0; i < 256 && kt_attn_has_scales(s->plan->kv); i++)
        x->item[i] = kt_attn_item(s->plan->kv, &(uint8_t){(uint8_t)i}, 0);
    x->scratch_bytes = lay_out(s->plan, n->node, x->attn, NULL, &r);
    x->scratch = kt_step_alloc(s, kt_bytes_times(x->scratch_bytes, s->n_threads));
    return x->scratch ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for wide keys and values");
}

/* ---- a head's keys and values ---- */

/* One head of one span, some of its rows: [row, row + rows) of the step. */
typedef struct task {
    const kt_expand *x;
    const kt_step *s;
    const kt_step_span *span;
    int64_t head, row, rows;
    int tid;
    sizes z;
    room r;
} task;

/* The half of kv_b for keys is packed for queries, [latent, nope]: turned it takes latents to keys.
 * Panels of BF16 are [k / 2][64][2] (kernels/formats/p64.h): two rows and two columns at a time. */
static void turn_half(const task *t) {
    const kt_loaded *w = t->x->node->weight;
    const uint16_t *from = (const uint16_t *)w->data[0] + (size_t)t->head * w->head_bytes / 2;
    uint16_t *to = (uint16_t *)(void *)t->r.half;
    const int64_t latent = t->z.latent, nope = t->z.nope, rows = KT_P64_ROWS;

    if (nope % rows) memset(to, 0, kt_p64_gemm_bytes(&t->x->keys->problem));
    for (int64_t j = 0; j < nope; j += 2)
        for (int64_t c = 0; c < latent; c += 2) {
            const uint16_t *a = from + c / rows * rows * nope + (j / 2 * rows + c % rows) * 2;
            uint16_t *b = to + j / rows * rows * latent + (c / 2 * rows + j % rows) * 2;
            b[0] = a[0];
            b[1] = a[2];
            b[2] = a[1];
            b[3] = a[3];
        }
}

/* Where a key's row lies, and its scale (1 for BF16). */
static const uint8_t *row_of(const task *t, int64_t key, float *scale) {
    const kt_page_pool *p = t->s->pages;
    const int plane = t->x->node->node->plane;
    const size_t page = t->span->page[key / KT_PAGE_TOKENS], at = (size_t)(key % KT_PAGE_TOKENS);
    const float *scales = kt_pages_scales(p, plane, 0, 0);

    *scale = scales ? scales[page * KT_PAGE_TOKENS + at] : 1.0f;
    return (const uint8_t *)kt_pages_rows(p, plane, 0, 0) + page * p->page_bytes +
           at * (size_t)p->shape.head_dim * kt_attn_item_bytes(p->shape.format);
}

/* A row in floats: of 8 bits by table. */
static void read_row(const task *t, const uint8_t *row, float scale, float *out) {
    const int64_t d = t->z.latent + t->z.rope;
    const float *item = t->x->item;

    if (kt_attn_has_scales(t->s->pages->shape.format))
        for (int64_t i = 0; i < d; i++) out[i] = item[row[i]] * scale;
    else
        for (int64_t i = 0; i < d; i++)
            out[i] = kt_bf16_to_f32(((const uint16_t *)(const void *)row)[i]);
}

/* n rows of floats to BF16, ld apart. */
static void narrow(const task *t, const float *c, int64_t n, int64_t width, uint16_t *out,
                   int64_t ld) {
    const size_t stride = sizeof *out * (size_t)ld;

    if (t->x->encode && ((uintptr_t)out | stride) % 64 == 0) {
        t->x->encode->encode(&(kt_encode_call){
            .x = c, .ldx = width, .k = width, .out = out, .out_stride = stride, .row_end = n});
        return;
    }
    for (int64_t j = 0; j < n; j++)
        kt_attn_store(KT_W_BF16, c + j * width, width, out + j * ld, NULL);
}

/* Latents of key j of those at once to the encoding of the products, and the rotated part as it is
 * behind what will be the head's own. A BF16 row is its own encoding. */
static void take_latent(const task *t, int64_t key, int64_t j, uint16_t *rotated) {
    const kt_expand *x = t->x;
    const sizes *z = &t->z;
    const kt_act_format acts = x->keys->problem.acts;
    const size_t stride = kt_act_row_bytes(acts, z->latent);
    uint8_t *to = t->r.acts + (size_t)j * stride;
    float scale;
    const uint8_t *row = row_of(t, key, &scale);

    if (acts == KT_A_BF16 && !kt_attn_has_scales(t->s->pages->shape.format)) {
        memcpy(to, row, sizeof *rotated * (size_t)z->latent);
        memcpy(rotated, row + sizeof *rotated * (size_t)z->latent,
               sizeof *rotated * (size_t)z->rope);
        return;
    }
    read_row(t, row, scale, t->r.latent);
    x->keys->encode.variant->encode(&(kt_encode_call){
        .x = t->r.latent, .k = z->latent, .out = to, .out_stride = stride, .row_end = 1});
    kt_attn_store(KT_W_BF16, t->r.latent + z->latent, z->rope, rotated, NULL);
}

/* c = what was encoded, times one half. The kernel is the one for AT_ONCE rows whatever n is: a
 * key is the same bits wherever a step ends. */
static void multiply(const task *t, const kt_problem_plan *p, const void *weights, int64_t n) {
    const kt_step *s = t->s;
    const kt_choice *choice =
        kt_choice_for(&p->choices, s->max_rows < AT_ONCE ? s->max_rows : AT_ONCE);

    choice->variant->gemm(&(kt_gemm_call){
        .problem = &p->problem,
        .config = &choice->config,
        .weights = weights,
        .a = t->r.acts,
        .a_stride = kt_act_row_bytes(p->problem.acts, p->problem.k),
        .m = n,
        .panel_end = kt_p64_panels(p->problem.n),
        .c = t->r.c,
        .ldc = p->problem.n,
        .scratch = s->gemm_stride ? s->gemm_scratch + (size_t)t->tid * s->gemm_stride : NULL});
}

/* Keys [key, key + n) to places `at` on; n <= AT_ONCE. */
static void widen(const task *t, int64_t key, int64_t n, int64_t at) {
    const kt_loaded *values = t->x->node->weight2;
    const sizes *z = &t->z;
    const int64_t wide = z->nope + z->rope;
    uint16_t *k = t->r.k + at * wide, *v = t->r.v + at * z->v;

    for (int64_t j = 0; j < n; j++) take_latent(t, key + j, j, k + j * wide + z->nope);
    multiply(t, t->x->keys, t->r.half, n);
    narrow(t, t->r.c, n, z->nope, k, wide);
    multiply(t, t->x->values,
             (const uint8_t *)values->data[0] + (size_t)t->head * values->head_bytes, n);
    narrow(t, t->r.c, n, z->v, v, z->v);
}

/* ---- rows meet them ---- */

/* Rows [first, rows) of the task over the n keys from `begin` on, which lie in scratch. */
static void meet(const task *t, int64_t begin, int64_t n, int64_t first) {
    const kt_exec_node *e = t->x->node;
    const sizes *z = &t->z;
    const kt_problem p = kt_expand_attn_problem(t->s->plan, e->node);
    const kt_problem one = kt_expand_head_problem(&p);
    float *out = e->in3.x + t->row * e->in3.ld + t->head * z->v;

    for (int64_t r = first; r < t->rows; r++) {
        const int64_t to = t->s->positions[t->row + r] - begin;
        t->r.position[r] = (int32_t)(to < n ? to : n - 1);
    }
    t->x->attn->variant->attn(
        &(kt_attn_call){.problem = &one,
                        .config = &t->x->attn->config,
                        .q = e->in2.x + t->row * e->in2.ld + t->head * (z->nope + z->rope),
                        .ldq = e->in2.ld,
                        .k = t->r.k,
                        .v = t->r.v,
                        .ldkv = z->nope + z->rope,
                        .ldv = z->v,
                        .scale = (float)e->node->attention.scale,
                        .position = t->r.position,
                        .row_begin = first,
                        .row_end = t->rows,
                        .out = begin ? t->r.part : out,
                        .ldo = begin ? z->v : e->in3.ld,
                        .scratch = t->r.attn,
                        .key_end = KT_ATTN_CHUNK,
                        .stats = begin ? t->r.later : t->r.stats,
                        .ldstats = 2});
    for (int64_t r = first; begin && r < t->rows; r++)
        kt_attn_fold(out + r * e->in3.ld, t->r.stats + 2 * r, t->r.part + r * z->v,
                     t->r.later + 2 * r, z->v);
}

static void run_task(const task *t) {
    const kt_rows *out = &t->x->node->in3;
    const int64_t from = t->s->positions[t->row], keys = from + t->rows;

    turn_half(t);
    for (int64_t begin = 0; begin < keys; begin += KT_ATTN_CHUNK) {
        const int64_t n = keys - begin < KT_ATTN_CHUNK ? keys - begin : KT_ATTN_CHUNK;
        for (int64_t i = 0; i < n; i += AT_ONCE)
            widen(t, begin + i, n - i < AT_ONCE ? n - i : AT_ONCE, i);
        meet(t, begin, n, begin > from ? begin - from : 0);
    }
    for (int64_t r = 0; r < t->rows; r++)
        kt_attn_finish(out->x + (t->row + r) * out->ld + t->head * t->z.v, t->r.stats + 2 * r,
                       t->z.v, NULL);
}

/* ---- the phase ---- */

/* Tasks are [spans that are expanded][heads][parts of rows]. Rows are cut only where heads are too
 * few for the threads: each part makes the keys for itself. */
static int64_t prepare(void *arg, int n_threads) {
    kt_expand *x = arg;
    const kt_step *s = x->node->step;
    const kt_absorbed rest = kt_expand_rest(s, x->node->node);
    const int64_t tasks = (s->n_spans - rest.n_spans) * x->node->node->attention.heads;

    x->parts = 1;
    while (tasks && tasks * x->parts < n_threads &&
           s->rows / (2 * x->parts) >= s->plan->expand_rows)
        x->parts *= 2;
    return tasks * x->parts;
}

static void run(void *arg, int64_t begin, int64_t end, int tid) {
    const kt_expand *x = arg;
    const kt_exec_node *e = x->node;
    const kt_step *s = e->step;
    const kt_absorbed rest = kt_expand_rest(s, e->node);
    const int64_t heads = e->node->attention.heads;
    task t = {.x = x, .s = s, .tid = tid, .z = sizes_of(s->graph, e->node)};

    lay_out(s->plan, e->node, x->attn, x->scratch + (size_t)tid * x->scratch_bytes, &t.r);
    for (int64_t i = begin; i < end; i++) {
        const int64_t unit = i / x->parts, part = i % x->parts;
        int64_t span = unit / heads, first, last;
        if (rest.n_spans && span >= rest.first_span) span += rest.n_spans;
        t.span = &s->spans[span];
        t.head = unit % heads;
        first = t.span->rows * part / x->parts;
        last = t.span->rows * (part + 1) / x->parts;
        t.row = t.span->first_row + first;
        t.rows = last - first;
        if (t.rows) run_task(&t);
    }
}

kt_phase kt_expand_phase(kt_expand *x) {
    return (kt_phase){.prepare = prepare, .run = run, .arg = x, .grain = 1};
}

double kt_expand_ops(const kt_exec_node *n) {
    const kt_step *s = n->step;
    const kt_absorbed rest = kt_expand_rest(s, n->node);
    double ops = 0;

    for (int i = 0; i < s->n_spans; i++) {
        const kt_step_span *p = &s->spans[i];
        const double rows = (double)p->rows, last = (double)(p->position + p->rows);
        const bool is_absorbed = i >= rest.first_span && i < rest.first_span + rest.n_spans;
        sizes z;
        if (is_absorbed) continue;
        z = sizes_of(s->graph, n->node);
        ops += rows * (2 * last - rows + 1) * (double)(z.nope + z.rope + z.v);
        ops += 2 * last * (double)((z.nope + z.v) * z.latent);
    }
    return ops * (double)n->node->attention.heads;
}
