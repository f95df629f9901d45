/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/importance.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "kernels/formats/acts.h"

/* Sums of one matrix's inputs. */
typedef struct input_sums {
    double *square; /* [k] */
    int64_t rows;
} input_sums;

struct kt_importance {
    const kt_graph *graph;
    kt_arena arena;
    input_sums **sums[2]; /* [side][weights], each [count of the weight]; NULL = no matrix */
    double *row;          /* a decoded one; only what goes into down comes encoded */
};

/* Inputs of a side of a weight; 0 = it has none. */
static int64_t inputs_of(const kt_weight *w, int side) {
    if (w->kind == KT_WEIGHT_MATRIX) return side == 0 ? w->k : 0;
    if (w->kind != KT_WEIGHT_EXPERTS) return 0;
    return side == 0 ? w->k : w->n;
}

/* Zeroed; NULL when there is no memory. */
static void *take(kt_importance *m, size_t count, size_t bytes) {
    return kt_arena_alloc(&m->arena, count * bytes, sizeof(double));
}

static int make_sums(kt_importance *m, int weight, int side) {
    const kt_weight *w = &m->graph->weights[weight];
    const int64_t k = inputs_of(w, side);
    input_sums *sums;

    if (k == 0) return 1;
    sums = take(m, (size_t)w->count, sizeof *sums);
    m->sums[side][weight] = sums;
    for (int64_t e = 0; sums && e < w->count; e++) {
        sums[e].square = take(m, (size_t)k, sizeof(double));
        if (!sums[e].square) return 0;
    }
    return sums != NULL;
}

static int make_all(kt_importance *m) {
    const size_t n = (size_t)m->graph->n_weights;
    int64_t longest = 1;

    for (size_t i = 0; i < n; i++)
        if (inputs_of(&m->graph->weights[i], 1) > longest)
            longest = inputs_of(&m->graph->weights[i], 1);
    m->row = take(m, (size_t)longest, sizeof *m->row);
    if (!m->row) return 0;
    for (int side = 0; side < 2; side++) {
        m->sums[side] = take(m, n, sizeof *m->sums[side]);
        if (!m->sums[side]) return 0;
        for (size_t i = 0; i < n; i++)
            if (!make_sums(m, (int)i, side)) return 0;
    }
    return 1;
}

kt_status kt_importance_create(const kt_graph *graph, kt_importance **out, kt_err *err) {
    kt_importance *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m) m->graph = graph;
    if (!m || !make_all(m)) {
        kt_importance_destroy(m);
        return kt_fail(err, KT_E_NOMEM, "no memory for the importance of inputs");
    }
    *out = m;
    return KT_OK;
}

void kt_importance_destroy(kt_importance *m) {
    if (m) kt_arena_deinit(&m->arena);
    free(m);
}

void kt_importance_add(kt_importance *m, int weight, int side, int64_t expert, const float *row) {
    input_sums *sums = &m->sums[side][weight][expert];
    const int64_t k = inputs_of(&m->graph->weights[weight], side);

    for (int64_t i = 0; i < k; i++) sums->square[i] += (double)row[i] * row[i];
    sums->rows++;
}

void kt_importance_add_encoded(kt_importance *m, int weight, int64_t expert, kt_act_format format,
                               const void *row) {
    input_sums *sums = &m->sums[1][weight][expert];
    const int64_t k = inputs_of(&m->graph->weights[weight], 1);

    kt_act_decode_row(format, row, k, m->row);
    for (int64_t i = 0; i < k; i++) sums->square[i] += m->row[i] * m->row[i];
    sums->rows++;
}

/* ---- the file ---- */

typedef struct file {
    const kt_importance *m;
    kt_arena arena;
    kt_tensor_out *tensors;
    size_t count, room;
    int is_short; /* of memory */
} file;

/* Several matrices may have the same inputs: then they share the numbers. */
static const float *means(file *f, const input_sums *sums, int64_t k) {
    float *out = kt_arena_alloc(&f->arena, (size_t)k * sizeof *out, sizeof *out);

    f->is_short |= !out;
    for (int64_t i = 0; out && i < k; i++)
        out[i] = sums->rows ? (float)(sums->square[i] / (double)sums->rows) : 0;
    return out;
}

static void put(file *f, const kt_weight *w, int part, int64_t expert, const float *x, int64_t k) {
    char name[240];
    kt_tensor_out t = {.dtype = KT_DTYPE_F32, .rank = 1, .shape = {k}, .data = x};

    kt_weight_name(f->m->graph, w, part, expert, true, name, sizeof name - 8);
    strcat(name, ".weight");
    t.name = kt_arena_strndup(&f->arena, name, strlen(name));
    f->is_short |= !t.name;
    if (f->count == f->room) {
        size_t room = 2 * f->room + 256;
        kt_tensor_out *more = realloc(f->tensors, room * sizeof *more);
        f->is_short |= !more;
        if (!more) return;
        f->tensors = more;
        f->room = room;
    }
    f->tensors[f->count++] = t;
}

/* The parts of a side: of a matrix all, of experts gate and up, or down. */
static void put_side(file *f, int weight, int side) {
    const kt_weight *w = &f->m->graph->weights[weight];
    const int is_experts = w->kind == KT_WEIGHT_EXPERTS;
    const int first = is_experts && side ? 2 : 0, end = is_experts && !side ? 2 : w->n_parts;
    const int64_t k = inputs_of(w, side);

    for (int64_t e = 0; k && e < w->count; e++) {
        const float *x = means(f, &f->m->sums[side][weight][e], k);
        for (int part = first; part < end; part++) put(f, w, part, e, x, k);
    }
}

/* A head that is tied goes by the embedding's name. */
kt_status kt_importance_write(const kt_importance *m, const char *path, kt_err *err) {
    file f = {.m = m};
    kt_status st;

    for (int i = 0; i < m->graph->n_weights; i++)
        for (int side = 0; side < 2; side++) put_side(&f, i, side);
    st = f.is_short ? kt_fail(err, KT_E_NOMEM, "no memory for %.200s", path)
                    : kt_safetensors_write(path, f.tensors, f.count, err);
    kt_arena_deinit(&f.arena);
    free(f.tensors);
    return st;
}
