/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/importance.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/err.h"
#include "kernels/formats/acts.h"
#include "runtime/loader/safetensors.h"

/* Sums of one matrix's inputs. */
typedef struct input_sums {
    double *square; /* [k] */
    int64_t rows;
} input_sums;

struct kt_importance {
    const kt_family *family;
    const kt_model_config *config;
    kt_arena arena;
    input_sums **layer[KT_INPUT_COUNT]; /* [layers], each [experts of the layer] or [1] */
    input_sums head;
    double *row; /* a decoded one; only what goes into down comes encoded */
};

static int64_t experts_of(const kt_importance *m, kt_input kind, int64_t layer) {
    const int is_per_expert = kind == KT_INPUT_GATE_UP || kind == KT_INPUT_DOWN;
    return is_per_expert && m->config->is_moe[layer] ? m->config->experts : 1;
}

static int64_t inputs_of(const kt_importance *m, kt_input kind, int64_t layer) {
    const kt_model_config *c = m->config;

    if (kind == KT_INPUT_O) return c->heads * c->head_dim;
    if (kind == KT_INPUT_DOWN) return c->is_moe[layer] ? c->expert_size : c->dense_size;
    return c->hidden;
}

static input_sums *sums_of(const kt_importance *m, kt_input kind, int64_t layer, int64_t expert) {
    return &m->layer[kind][layer][expert];
}

/* Zeroed; NULL when there is no memory. */
static void *take(kt_importance *m, size_t count, size_t bytes) {
    void *at = kt_arena_alloc(&m->arena, count * bytes, sizeof(double));
    return at ? memset(at, 0, count * bytes) : NULL;
}

static int make_layer(kt_importance *m, kt_input kind, int64_t layer) {
    const int64_t n = experts_of(m, kind, layer);
    input_sums *sums = take(m, (size_t)n, sizeof *sums);

    m->layer[kind][layer] = sums;
    for (int64_t e = 0; sums && e < n; e++) {
        sums[e].square = take(m, (size_t)inputs_of(m, kind, layer), sizeof(double));
        if (!sums[e].square) return 0;
    }
    return sums != NULL;
}

static int make_all(kt_importance *m) {
    int64_t longest = m->config->expert_size;

    if (longest < m->config->dense_size) longest = m->config->dense_size;
    m->row = take(m, (size_t)longest, sizeof *m->row);
    if (!m->row && longest > 0) return 0;
    m->head.square = take(m, (size_t)m->config->hidden, sizeof(double));
    if (!m->head.square) return 0;
    for (int kind = 0; kind < KT_INPUT_HEAD; kind++) {
        m->layer[kind] = take(m, (size_t)m->config->layers, sizeof *m->layer[kind]);
        if (!m->layer[kind]) return 0;
        for (int64_t l = 0; l < m->config->layers; l++)
            if (!make_layer(m, (kt_input)kind, l)) return 0;
    }
    return 1;
}

kt_status kt_importance_create(const kt_family *family, const kt_model_config *config,
                               kt_importance **out, kt_err *err) {
    kt_importance *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m) m->family = family, m->config = config;
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

void kt_importance_add(kt_importance *m, kt_input kind, int64_t layer, int64_t expert,
                       const float *row) {
    input_sums *sums = kind == KT_INPUT_HEAD ? &m->head : sums_of(m, kind, layer, expert);
    const int64_t k = inputs_of(m, kind, layer);

    for (int64_t i = 0; i < k; i++) sums->square[i] += (double)row[i] * row[i];
    sums->rows++;
}

void kt_importance_add_encoded(kt_importance *m, int64_t layer, int64_t expert,
                               kt_act_format format, const void *row) {
    input_sums *sums = sums_of(m, KT_INPUT_DOWN, layer, expert);
    const int64_t k = inputs_of(m, KT_INPUT_DOWN, layer);

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

static void put(file *f, kt_role role, int64_t layer, int64_t expert, const float *x, int64_t k) {
    char name[160];
    kt_tensor_out t = {.dtype = KT_DTYPE_F32, .rank = 1, .shape = {k}, .data = x};

    if (!f->m->family->tensor[role]) return;
    kt_family_tensor_name(f->m->family, role, layer, expert, name, sizeof name);
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

static void put_layer(file *f, int64_t l) {
    static const struct {
        kt_input input;
        kt_role role[2][3]; /* of dense and of MoE layers; 0 = no more (embeddings are not meant) */
    } matrices[] = {
        {KT_INPUT_QKV, {{KT_ROLE_Q, KT_ROLE_K, KT_ROLE_V}, {KT_ROLE_Q, KT_ROLE_K, KT_ROLE_V}}},
        {KT_INPUT_O, {{KT_ROLE_O}, {KT_ROLE_O}}},
        {KT_INPUT_GATE_UP, {{KT_ROLE_GATE, KT_ROLE_UP}, {KT_ROLE_EXPERT_GATE, KT_ROLE_EXPERT_UP}}},
        {KT_INPUT_DOWN, {{KT_ROLE_DOWN}, {KT_ROLE_EXPERT_DOWN}}}};

    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++) {
        const kt_role *role = matrices[i].role[f->m->config->is_moe[l]];
        const int64_t k = inputs_of(f->m, matrices[i].input, l);
        for (int64_t e = 0; e < experts_of(f->m, matrices[i].input, l); e++) {
            const float *x = means(f, sums_of(f->m, matrices[i].input, l, e), k);
            for (int j = 0; j < 3 && role[j]; j++) put(f, role[j], l, e, x, k);
        }
    }
}

/* A head that is tied goes by the embedding's name. */
kt_status kt_importance_write(const kt_importance *m, const char *path, kt_err *err) {
    file f = {.m = m};
    const float *head = means(&f, &m->head, m->config->hidden);
    kt_status st;

    put(&f, KT_ROLE_EMBED, 0, 0, head, m->config->hidden);
    put(&f, KT_ROLE_LM_HEAD, 0, 0, head, m->config->hidden);
    for (int64_t l = 0; l < m->config->layers; l++) put_layer(&f, l);
    st = f.is_short ? kt_fail(err, KT_E_NOMEM, "no memory for %.200s", path)
                    : kt_safetensors_write(path, f.tensors, f.count, err);
    kt_arena_deinit(&f.arena);
    free(f.tensors);
    return st;
}
