/* Packing threads can fail by single numbers only: everything else that can be wrong with a
 * checkpoint is found by kt_packer_check.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/packer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/p64.h"
#include "runtime/loader/finite.h"
#include "runtime/model/bytes.h"

#define ROWS_PER_TASK 128 /* a block of rows that share scales is not cut */
#define VALUES_PER_TASK (1 << 20)

/* A lane's slice of the staging. */
static uint8_t *lane_packed(const kt_packer *l, int64_t lane) {
    return (uint8_t *)l->staging.data + (size_t)lane * l->plain.slice;
}

static float *lane_scratch(const kt_packer *l, int64_t lane) {
    return (float *)(void *)(lane_packed(l, lane) + l->plain.packed);
}

static uint8_t *lane_plain(const kt_packer *l, int64_t lane) {
    return lane_packed(l, lane) + l->plain.packed + l->plain.scratch;
}

/* Items [0, n), each by a lane that is free. */
typedef struct shared_work {
    int64_t n;
    void (*run)(void *task, int64_t item, int64_t lane);
    void *task;
    atomic_llong next; /* item that no lane has taken */
} shared_work;

static void run_lane(void *arg, int64_t begin, int64_t end, int tid) {
    shared_work *w = arg;
    (void)tid;

    for (int64_t lane = begin; lane < end; lane++)
        for (int64_t i = atomic_fetch_add(&w->next, 1); i < w->n; i = atomic_fetch_add(&w->next, 1))
            w->run(w->task, i, lane);
}

static void share_out(kt_packer *l, int64_t n, void (*run)(void *, int64_t, int64_t), void *task) {
    shared_work work = {.n = n, .run = run, .task = task};
    kt_phase phase = {.run = run_lane, .arg = &work, .n_tasks = l->plain.n_slices};

    kt_pool_run(l->request.pool, &phase, 1);
}

/* The first failure of any thread is the one that is told. */
static void note_failure(kt_packer *l, const kt_err *why) {
    if (!atomic_exchange(&l->bad, 1)) l->why = *why;
}

/* ---- numbers that are not finite ---- */

/* Returns 0, and notes why, when rows [begin, end) of a matrix must not be loaded. They are
 * about to be packed, so looking at them costs a second pass over what is in a cache. */
static int rows_are_finite(kt_packer *l, const kt_matrix_source *s, int64_t begin, int64_t end) {
    kt_err why;

    kt_matrix_source_fetch(s, begin, end);
    if (l->request.allow_nonfinite ||
        kt_matrix_source_check_finite(l->request.checkpoint, s, begin, end, &why) == KT_OK)
        return 1;
    note_failure(l, &why);
    return 0;
}

typedef struct tensor_check {
    kt_packer *loader;
    const kt_tensor *tensor;
    int64_t count;
} tensor_check;

static void check_part(void *arg, int64_t begin, int64_t end, int tid) {
    const tensor_check *t = arg;
    int64_t first = begin * VALUES_PER_TASK, last = end * VALUES_PER_TASK;
    kt_err why;
    (void)tid;

    if (last > t->count) last = t->count;
    if (kt_tensor_check_finite(t->loader->request.checkpoint, t->tensor, first, last - first,
                               &why) != KT_OK)
        note_failure(t->loader, &why);
}

/* A tensor that is no matrix of a plan: norm, bias, router, embedding. */
static void check_tensor(kt_packer *l, const kt_tensor *t) {
    tensor_check check = {l, t, (int64_t)(t->bytes / kt_dtype_bytes(t->dtype))};
    kt_phase phase = {.run = check_part,
                      .arg = &check,
                      .n_tasks = (check.count + VALUES_PER_TASK - 1) / VALUES_PER_TASK};

    if (l->request.allow_nonfinite) return;
    if (phase.n_tasks > 1)
        kt_pool_run(l->request.pool, &phase, 1);
    else
        check_part(&check, 0, 1, 0);
}

/* A block's bytes are read and written next: their pages all at once, not one fault after another.
 * Returns 0, and notes why, when there is no memory. */
static int open_pages(kt_packer *l, const kt_matrix_source *s, int64_t begin, int64_t end,
                      const uint8_t *packed, size_t bytes) {
    kt_err why;

    kt_matrix_source_populate(s, l->request.checkpoint, begin, end);
    if (kt_fresh_pages_give(&l->fresh, packed, bytes, &why) == KT_OK) return 1;
    note_failure(l, &why);
    return 0;
}

/* ---- dense matrices: blocks of rows shared out; some layouts are packed as a whole ---- */

/* Rows [begin, end) in plain form: where they lie, or converted at *staging, which moves on. */
static kt_matrix plain_rows(kt_packer *l, const kt_matrix_source *source, kt_weight_format id,
                            int64_t begin, int64_t end, uint8_t **staging, float *scratch) {
    const kt_format *format = kt_format_find(id);
    kt_matrix w;
    size_t data, scales;
    kt_err why;

    if (kt_matrix_source_borrow_rows(source, id, begin, end, &w)) return w;
    format->plain_bytes(end - begin, source->k, &data, &scales);
    w = (kt_matrix){.format = id, .n = end - begin, .k = source->k, .data = *staging};
    w.scales = scales ? *staging + kt_bytes_round(data) : NULL;
    if (kt_matrix_source_encode_rows(source, format, begin, end, *staging,
                                     scales ? *staging + kt_bytes_round(data) : NULL, scratch,
                                     &why) != KT_OK)
        note_failure(l, &why);
    *staging += kt_bytes_round(data) + kt_bytes_round(scales);
    return w;
}

/* ---- what encoding loses ---- */

/* Widest rows are those of k inputs of any problem, or of n of an expert's down. */
static void count_desk(const kt_packer_request *r, kt_packer_losses *out) {
    size_t widest = 0;
    int64_t rows = KT_SOURCE_FEW;

    for (int i = 0; i < r->plan->n_problems; i++) {
        const kt_problem *p = &r->plan->problems[i].problem;
        const int64_t wide = p->op == KT_OP_MOE_FFN && p->n > p->k ? p->n : p->k;
        const kt_weight_format down = p->down != KT_W_NONE ? p->down : p->weights;
        const int64_t first = kt_matrix_source_rows(kt_format_find(p->weights));
        const int64_t second = kt_matrix_source_rows(kt_format_find(down));
        if ((size_t)wide > widest) widest = (size_t)wide;
        if (first > rows) rows = first;
        if (second > rows) rows = second;
    }
    out->floats_bytes =
        kt_bytes_round(kt_bytes_times(sizeof(float) * (size_t)rows, (int64_t)widest));
    out->desk_bytes = kt_bytes_add(out->floats_bytes,
                                   kt_bytes_round(kt_bytes_times(sizeof(double), (int64_t)widest)));
}

/* Rows [begin, end) that became w: each part of the run apart. */
static void measure(kt_packer *l, const kt_matrix_source *s, const kt_matrix *w, int64_t begin,
                    int64_t end, int64_t lane, kt_format_loss *loss) {
    uint8_t *desk = (uint8_t *)l->losses.desks.data + (size_t)lane * l->losses.desk_bytes;
    double *row = (double *)(void *)(desk + l->losses.floats_bytes);
    int64_t base = 0;
    kt_err why;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const int64_t first = begin > base ? begin : base;
        const int64_t last = end < base + s->piece[i].rows ? end : base + s->piece[i].rows;
        if (first >= last || kt_matrix_source_is_exact(s, i, w->format)) continue;
        if (kt_matrix_source_compare(s, w, begin, first, last, (float *)(void *)desk, row, &loss[i],
                                     &why) != KT_OK)
            note_failure(l, &why);
    }
}

typedef struct dense_task {
    kt_packer *loader;
    const kt_matrix_source *source;
    const kt_problem_plan *plan;
    uint8_t *packed;
    int64_t rows; /* of a block */
} dense_task;

static void pack_dense_block(void *task, int64_t block_id, int64_t lane) {
    const dense_task *t = task;
    const int64_t begin = block_id * t->rows;
    const kt_matrix_source *s = t->source;
    const int64_t end = begin + t->rows < s->rows ? begin + t->rows : s->rows;
    const size_t panel = kt_p64_panel_bytes(t->plan->problem.weights, s->k);
    uint8_t *staging = lane_plain(t->loader, lane);
    uint8_t *packed = t->packed + (size_t)(begin / KT_P64_ROWS) * panel;
    kt_problem block = t->plan->problem;
    kt_matrix w;

    if (!open_pages(t->loader, s, begin, end, packed, (size_t)kt_p64_panels(end - begin) * panel) ||
        !rows_are_finite(t->loader, s, begin, end))
        return;
    w = plain_rows(t->loader, s, block.weights, begin, end, &staging,
                   lane_scratch(t->loader, lane));
    if (t->loader->losses.block)
        measure(t->loader, s, &w, begin, end, lane, t->loader->losses.block[block_id]);
    block.n = end - begin;
    t->plan->choices.choice[0].variant->pack_gemm(&block, &w, packed);
}

typedef struct whole_task {
    kt_packer *loader;
    const kt_matrix_source *source;
    const kt_format *format; /* NULL: the rows are borrowed, look at them only */
    void *data, *scales;
} whole_task;

static void encode_rows(void *task, int64_t block_id, int64_t lane) {
    const whole_task *t = task;
    const int64_t begin = block_id * ROWS_PER_TASK;
    const kt_matrix_source *s = t->source;
    const int64_t end = begin + ROWS_PER_TASK < s->rows ? begin + ROWS_PER_TASK : s->rows;
    kt_err why;

    if (!rows_are_finite(t->loader, s, begin, end)) return;
    if (t->format && kt_matrix_source_encode(s, t->format, begin, end, t->data, t->scales,
                                             lane_scratch(t->loader, lane), &why) != KT_OK)
        note_failure(t->loader, &why);
}

static void pack_whole(kt_packer *l, const kt_problem_plan *p, const kt_matrix_source *source,
                       uint8_t *packed) {
    const kt_format *format = kt_format_find(p->problem.weights);
    whole_task task = {.loader = l, .source = source};
    uint8_t *plain = lane_packed(l, l->plain.n_slices); /* behind the slices */
    kt_matrix w;

    if (!kt_matrix_source_borrow(source, p->problem.weights, &w)) {
        size_t data, scales;
        format->plain_bytes(source->rows, source->k, &data, &scales);
        task.format = format;
        task.data = plain;
        task.scales = scales ? plain + kt_bytes_round(data) : NULL;
        w = (kt_matrix){.format = p->problem.weights,
                        .n = source->rows,
                        .k = source->k,
                        .data = task.data,
                        .scales = task.scales};
    }
    share_out(l, (source->rows + ROWS_PER_TASK - 1) / ROWS_PER_TASK, encode_rows, &task);
    p->choices.choice[0].variant->pack_gemm(&p->problem, &w, packed);
}

void kt_packer_dense(kt_packer *l, const kt_problem_plan *p, const kt_matrix_source *source,
                     uint8_t *packed) {
    dense_task task = {.loader = l,
                       .source = source,
                       .plan = p,
                       .packed = packed,
                       .rows = kt_staging_rows(p->problem.weights)};

    if (kt_staging_has_blocks(p))
        share_out(l, (source->rows + task.rows - 1) / task.rows, pack_dense_block, &task);
    else
        pack_whole(l, p, source, packed);
    kt_matrix_source_release(source, l->request.checkpoint);
}

/* ---- heads ---- */

typedef struct head_task {
    kt_packer *loader;
    const kt_weight *w;
    const kt_problem_plan *plan;
    uint8_t *packed;
    kt_matrix_source *source; /* [heads] */
} head_task;

/* As stored and, behind that, turned. */
static void pack_head(void *task, int64_t e, int64_t lane) {
    const head_task *t = task;
    const int64_t n = t->w->n, k = t->w->k;
    const kt_matrix_source *s = &t->source[e];
    uint16_t *stored = (uint16_t *)(void *)lane_plain(t->loader, lane), *turned = stored + n * k;
    kt_matrix w = {.format = KT_W_BF16, .n = n, .k = k, .data = stored};
    kt_err why;

    if (!rows_are_finite(t->loader, s, 0, s->rows)) return;
    if (kt_matrix_source_encode(s, kt_format_find(KT_W_BF16), 0, s->rows, stored, NULL,
                                lane_scratch(t->loader, lane), &why) != KT_OK) {
        note_failure(t->loader, &why);
        return;
    }
    for (int64_t r = 0; t->w->is_transposed && r < n; r++)
        for (int64_t i = 0; i < k; i++) turned[r * k + i] = stored[i * n + r];
    if (t->w->is_transposed) w.data = turned;
    t->plan->choices.choice[0].variant->pack_gemm(&t->plan->problem, &w,
                                                  t->packed + (size_t)e * t->plan->bytes);
}

kt_status kt_packer_heads(kt_packer *l, int weight, uint8_t *packed, kt_err *err) {
    const kt_weight *w = &l->request.graph->weights[weight];
    const size_t count = (size_t)w->count;
    head_task task = {.loader = l,
                      .w = w,
                      .plan = kt_model_plan_run(l->request.plan, weight, 0),
                      .packed = packed};
    kt_status st = KT_OK;

    task.source = calloc(count, sizeof *task.source);
    if (!task.source)
        st = kt_fail(err, KT_E_NOMEM, "no memory for the heads of layer %d", w->layer);
    for (int64_t e = 0; e < w->count && st == KT_OK; e++)
        st = kt_weight_head_source(&l->finder, w, e, &task.source[e], err);
    if (st == KT_OK) share_out(l, w->count, pack_head, &task);
    free(task.source);
    return st;
}

/* ---- experts: blocks of rows, too ---- */

typedef struct expert_task {
    kt_packer *loader;
    const kt_problem_plan *part;
    const kt_placing *place;
    int64_t first; /* expert of source[0] */
    kt_matrix_source (*source)[3];
    uint8_t *const *
        *twin; /* [experts] place.at of the same expert, packed before or by the first pass; NULL */
    int64_t blocks;   /* of an expert that are shared out one by one */
    atomic_int *left; /* [experts] blocks to do */
} expert_task;

/* An expert of the same stored bytes, if there is one; else this one is remembered. */
static uint8_t *const *find_twin(kt_packer *l, const kt_problem_plan *part,
                                 const kt_matrix_source s[3], uint8_t *const *placed) {
    kt_packer_twin me = {.part = part, .placed = placed};

    for (int i = 0; i < 3; i++) me.stored[i] = kt_matrix_source_stored(&s[i]);
    for (int i = 0; i < l->n_twins; i++)
        if (l->twins[i].part == part &&
            memcmp(l->twins[i].stored, me.stored, sizeof me.stored) == 0)
            return l->twins[i].placed;
    if (l->n_twins < KT_PACKER_TWINS) l->twins[l->n_twins++] = me;
    return NULL;
}

/* Blocks of rows of gate and up together; rows of those of down; both of an expert. */
static int64_t gate_blocks(const kt_problem *p) {
    return (p->n + kt_staging_rows(p->weights) - 1) / kt_staging_rows(p->weights);
}

static int64_t down_rows(const kt_problem *p) {
    return kt_staging_rows(p->down != KT_W_NONE ? p->down : p->weights);
}

static int64_t expert_blocks(const kt_problem *p) {
    return gate_blocks(p) + (p->k + down_rows(p) - 1) / down_rows(p);
}

static void pack_gate_block(const expert_task *t, int64_t e, int64_t block, uint8_t *packed,
                            int64_t lane) {
    kt_problem p = t->part->problem;
    const int64_t rows = kt_staging_rows(p.weights), begin = block * rows;
    const int64_t end = begin + rows < p.n ? begin + rows : p.n;
    const size_t panel = kt_p64_panel_bytes(p.weights, p.k);
    uint8_t *staging = lane_plain(t->loader, lane);
    kt_matrix w[2];

    packed += (size_t)(begin / (KT_P64_ROWS / 2)) * panel;
    for (int i = 0; i < 2; i++) {
        if (!open_pages(t->loader, &t->source[e][i], begin, end, packed,
                        (size_t)(end - begin) / (KT_P64_ROWS / 2) * panel))
            return;
        if (!rows_are_finite(t->loader, &t->source[e][i], begin, end)) return;
        w[i] = plain_rows(t->loader, &t->source[e][i], p.weights, begin, end, &staging,
                          lane_scratch(t->loader, lane));
    }
    for (int i = 0; t->loader->losses.block && i < 2; i++)
        measure(t->loader, &t->source[e][i], &w[i], begin, end, lane,
                &t->loader->losses.block[e * expert_blocks(&t->part->problem) + block][i]);
    p.n = end - begin;
    t->part->choices.choice[0].variant->pack_expert(&p, &w[0], &w[1], NULL, packed);
}

static void pack_down_block(const expert_task *t, int64_t e, int64_t block, uint8_t *packed,
                            int64_t lane) {
    const kt_moe_layer *layer = &t->place->whole;
    const kt_choice_map *choices = layer->down_choices ? layer->down_choices : layer->choices;
    kt_problem p = kt_moe_down_half(layer);
    const int64_t rows = down_rows(&t->part->problem), begin = block * rows;
    const int64_t end = begin + rows < p.k ? begin + rows : p.k;
    const size_t panel = kt_p64_panel_bytes(p.weights, p.n);
    uint8_t *staging = lane_plain(t->loader, lane);
    kt_matrix w;

    packed += kt_moe_down_offset(layer) + (size_t)(begin / KT_P64_ROWS) * panel;
    if (!open_pages(t->loader, &t->source[e][2], begin, end, packed,
                    (size_t)kt_p64_panels(end - begin) * panel) ||
        !rows_are_finite(t->loader, &t->source[e][2], begin, end))
        return;
    w = plain_rows(t->loader, &t->source[e][2], p.weights, begin, end, &staging,
                   lane_scratch(t->loader, lane));
    if (t->loader->losses.block)
        measure(t->loader, &t->source[e][2], &w, begin, end, lane,
                &t->loader->losses.block[e * expert_blocks(&t->part->problem) +
                                         gate_blocks(&t->part->problem) + block][2]);
    p.k = end - begin;
    choices->choice[0].variant->pack_expert(&p, NULL, NULL, &w, packed);
}

static void pack_block(const expert_task *t, int64_t e, int64_t block, uint8_t *packed,
                       int64_t lane) {
    const int64_t gates = gate_blocks(&t->part->problem);

    if (block < gates)
        pack_gate_block(t, e, block, packed, lane);
    else
        pack_down_block(t, e, block - gates, packed, lane);
    if (atomic_fetch_sub(&t->left[e], 1) > 1) return;
    for (int i = 0; i < 3; i++)
        kt_matrix_source_release(&t->source[e][i], t->loader->request.checkpoint);
}

/* A whole expert in the lane's slice, from where each node gets its part. */
static void pack_cut_expert(const expert_task *t, int64_t e, int64_t lane) {
    const kt_placing *p = t->place;
    const int64_t blocks = expert_blocks(&t->part->problem);
    uint8_t *packed = lane_packed(t->loader, lane);

    for (int64_t b = 0; b < blocks; b++) pack_block(t, e, b, packed, lane);
    for (int i = 0; i < p->n; i++)
        kt_moe_slice_pack(&p->whole, packed, p->begin[i], p->begin[i + 1], p->at[i * p->count + e]);
}

/* A block of an expert, or a whole one that is cut. */
static void pack_item(void *task, int64_t item, int64_t lane) {
    const expert_task *t = task;
    const int64_t e = item / t->blocks;

    if (t->twin[e] || !t->place->at[e]) return;
    if (t->place->n > 1)
        pack_cut_expert(t, e, lane);
    else
        pack_block(t, e, item % t->blocks, t->place->at[e], lane);
}

static void copy_twins(void *arg, int64_t begin, int64_t end, int tid) {
    const expert_task *t = arg;
    const int64_t n = t->place->count;
    (void)tid;

    for (int64_t e = begin; e < end; e++)
        for (int i = 0; t->twin[e] && i < t->place->n; i++)
            memcpy(t->place->at[i * n + e], t->twin[e][i * n], t->place->bytes[i]);
}

static kt_status fill_experts(kt_packer *l, const kt_weight *w, expert_task *task, kt_err *err) {
    const kt_problem_plan *part = task->part;
    kt_phase copying = {.run = copy_twins, .arg = task, .n_tasks = task->place->count};

    for (int64_t e = 0; e < task->place->count; e++) {
        atomic_init(&task->left[e], (int)expert_blocks(&part->problem));
        for (int i = 0; i < 3; i++)
            KT_TRY(
                kt_weight_source(&l->finder, w, i, 1, task->first + e, &task->source[e][i], err));
        if (l->request.has_twins && task->place->at[e])
            task->twin[e] = find_twin(l, part, task->source[e], task->place->at + e);
    }
    task->blocks = task->place->n > 1 ? 1 : expert_blocks(&part->problem);
    share_out(l, task->place->count * task->blocks, pack_item, task);
    if (l->request.has_twins) kt_pool_run(l->request.pool, &copying, 1);
    return KT_OK;
}

kt_status kt_packer_experts(kt_packer *l, int weight, int64_t first, const kt_placing *place,
                            kt_err *err) {
    const kt_weight *w = &l->request.graph->weights[weight];
    size_t n = (size_t)place->count;
    expert_task task = {.loader = l,
                        .part = kt_model_plan_run(l->request.plan, weight, 0),
                        .place = place,
                        .first = first};
    kt_status st;

    task.source = calloc(n, sizeof *task.source);
    task.twin = calloc(n, sizeof *task.twin);
    task.left = calloc(n, sizeof *task.left);
    st = task.source && task.twin && task.left
             ? fill_experts(l, w, &task, err)
             : kt_fail(err, KT_E_NOMEM, "no memory for the experts of layer %d", w->layer);
    free(task.source);
    free(task.twin);
    free(task.left);
    return st;
}

/* ---- vectors, routers, tables ---- */

/* Little-endian, and small: what is above 32 bits was checked to be zero. */
static int32_t read_id(const kt_tensor *t, int64_t i) {
    int32_t id;

    memcpy(&id, t->data + (size_t)i * kt_dtype_bytes(t->dtype), sizeof id);
    return id;
}

static void widen(const kt_tensor *t, const kt_weight *w, bool is_gguf, float *out) {
    int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));

    if (w->step && !is_gguf) {
        for (int64_t i = 0; i < w->n; i++) kt_tensor_read_f32(t, i * w->step + w->at, 1, &out[i]);
        return;
    }
    if (w->ids) {
        for (int64_t i = 0; i < count; i++) out[i] = (float)read_id(t, i);
        return;
    }
    kt_tensor_read_f32(t, 0, count, out);
    for (int64_t i = 0; w->taps && i < count; i++) /* [channels, taps] turned */
        kt_tensor_read_f32(t, i, 1, &out[i % w->taps * (count / w->taps) + i / w->taps]);
    if (is_gguf) return; /* converters have done what follows */
    for (int64_t i = 0; w->one_plus && i < count; i++) out[i] += 1;
    for (int64_t i = 0; w->negative_exp && i < count; i++) out[i] = -expf(out[i]);
}

kt_status kt_packer_find_small(kt_packer *l, int weight, const kt_tensor **out, size_t *bytes,
                               kt_err *err) {
    const kt_weight *w = &l->request.graph->weights[weight];
    const kt_tensor *t;

    KT_TRY(kt_weight_tensor(&l->finder, w, &t, err));
    *out = t;
    *bytes = 0;
    if (t)
        *bytes = kt_weight_kept_as(w) == KT_W_F32
                     ? sizeof(float) * (size_t)(w->n * (w->kind == KT_WEIGHT_VECTOR ? 1 : w->k))
                     : t->bytes;
    return KT_OK;
}

void kt_packer_small(kt_packer *l, int weight, const kt_tensor *t, uint8_t *out) {
    const kt_weight *w = &l->request.graph->weights[weight];

    check_tensor(l, t);
    if (kt_weight_kept_as(w) == KT_W_F32)
        widen(t, w, l->request.graph->is_gguf, (float *)(void *)out);
    else
        memcpy(out, t->data, t->bytes);
    if (w->kind == KT_WEIGHT_TABLE) kt_checkpoint_release(l->request.checkpoint, t, 0, t->bytes);
}

/* ---- the whole ---- */

kt_status kt_packer_check(kt_packer *l, kt_err *err) {
    const kt_graph *g = l->request.graph;

    for (int i = 0; i < g->n_weights; i++)
        KT_TRY(kt_weight_check(&l->finder, &g->weights[i], l->request.plan->quant, err));
    kt_weight_finder_report(&l->finder, l->request.log);
    kt_weights_tell_changes(g, l->request.plan->quant, l->request.log);
    return KT_OK;
}

kt_status kt_packer_init(kt_packer *l, const kt_packer_request *request, kt_err *err) {
    memset(l, 0, sizeof *l);
    l->request = *request;
    KT_TRY(kt_weight_finder_init(&l->finder, request->checkpoint, request->graph, err));
    l->finder.importance = request->importance;
    l->finder.allows_nonfinite = request->allow_nonfinite;
    return KT_OK;
}

kt_status kt_packer_start(kt_packer *l, kt_err *err) {
    kt_staging_count(l->request.plan, l->request.n_nodes, kt_pool_threads(l->request.pool),
                     &l->plain);
    return kt_buffer_create(l->plain.total, KT_PAGES_ADVISED, -1, &l->staging, err);
}

kt_status kt_packer_fresh(kt_packer *l, const kt_buffer *buffer, kt_err *err) {
    const kt_status st = kt_fresh_pages_give_rest(&l->fresh, err);

    kt_fresh_pages_deinit(&l->fresh);
    if (st != KT_OK || !buffer) return st;
    return kt_fresh_pages_init(&l->fresh, buffer, err);
}

kt_status kt_packer_measure(kt_packer *l, kt_err *err) {
    count_desk(&l->request, &l->losses);
    return kt_buffer_create(kt_bytes_times(l->losses.desk_bytes, l->plain.n_slices),
                            KT_PAGES_ADVISED, -1, &l->losses.desks, err);
}

int64_t kt_packer_blocks(const kt_problem_plan *plan, int64_t rows) {
    const int64_t at_once = kt_staging_rows(plan->problem.weights);

    return plan->problem.op == KT_OP_MOE_FFN ? expert_blocks(&plan->problem)
                                             : (rows + at_once - 1) / at_once;
}

size_t kt_packer_bytes(const kt_packer_request *request) {
    kt_packer_losses losses;
    kt_staging staging;

    kt_staging_count(request->plan, request->n_nodes, kt_pool_threads(request->pool), &staging);
    count_desk(request, &losses);
    return kt_bytes_add(staging.total, kt_bytes_times(losses.desk_bytes, staging.n_slices));
}

void kt_packer_deinit(kt_packer *l) {
    kt_weight_finder_deinit(&l->finder);
    kt_fresh_pages_deinit(&l->fresh);
    kt_buffer_destroy(&l->staging);
    kt_buffer_destroy(&l->losses.desks);
}

kt_status kt_packer_failure(const kt_packer *l, kt_err *err) {
    if (!atomic_load(&l->bad)) return KT_OK;
    if (err) *err = l->why;
    return l->why.status;
}
