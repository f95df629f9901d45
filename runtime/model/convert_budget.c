/* A format for each weight, for least error within a number of bytes. What counts is the relative
 * error of each product: the mean over a weight's matrices of squared error over squared weights,
 * each input weighed by its importance and each expert by its load. What is outside of layers, the
 * head, makes the logits alone; each half of a layer adds one of 2 L parts to what the head reads,
 * which are taken to be of one size, so that their errors count 1 / (2 L). Experts of a layer share
 * one format for gate and up and one for down, as kernels read them (kt_moe_layer): so a load says
 * which experts count in their layer, and layers differ. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/needs.h"
#include "kernels/formats/format.h"
#include "runtime/model/bytes.h"
#include "runtime/model/convert_impl.h"
#include "runtime/model/format_budget.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

/* What a weight may become, besides what it is: formats multiplied in integers, so that gate, up
 * and down of any two meet in one encoding of the rows. KT_W_NONE = as it is stored. */
static const kt_weight_format candidates[] = {KT_W_NONE,      KT_W_INT4_G128,  KT_W_INT4_G64,
                                              KT_W_INT4_G32,  KT_W_INT4Z_G128, KT_W_INT4Z_G64,
                                              KT_W_INT4Z_G32, KT_W_INT8_G128,  KT_W_INT8_CHANNEL};

enum {
    FORMATS = sizeof candidates / sizeof *candidates,
    PAIRS = 1 + (FORMATS - 1) * (FORMATS - 1)
};

/* One weight's choices: formats of gate and up (or of all parts), and of down. */
typedef struct weight_options {
    int weight, first_side;
    kt_budget_option option[PAIRS];
    kt_weight_format format[PAIRS][2];
    int n;
} weight_options;

typedef struct budget_work {
    kt_convert_work *w;
    weight_options *all;
    kt_budget_item *items;
    kt_budget_side *sides;
    int n, n_sides;
    size_t fixed; /* bytes of what is not chosen, and around the pieces */
} budget_work;

/* ---- what may be chosen ---- */

static bool may_be_chosen(const kt_weight *w) {
    return (w->kind == KT_WEIGHT_MATRIX || w->kind == KT_WEIGHT_EXPERTS) &&
           !kt_weight_is_quantised(w);
}

static bool is_shape(kt_weight_format format, int64_t n, int64_t k) {
    size_t data, scales;

    return kt_format_sizes(kt_format_find(format), n, k, &data, &scales, NULL) == KT_OK;
}

static void set_chosen(kt_weight *w, const kt_weight_format format[2]) {
    for (int part = 0; part < w->n_parts; part++)
        w->part[part].chosen = format[w->kind == KT_WEIGHT_EXPERTS && part == 2];
}

/* Of all pieces of a weight as it is chosen now. */
static size_t bytes_of(const kt_graph *g, int weight) {
    const int n = kt_packed_count(g, weight, KT_QUANT_NATIVE);
    size_t bytes = 0;

    for (int r = 0; r < n; r++) {
        kt_packed_piece piece;
        kt_packed_piece_of(g, weight, r, KT_QUANT_NATIVE, &piece);
        bytes = kt_bytes_add(bytes, kt_bytes_times(piece.bytes, piece.count));
    }
    return bytes;
}

static void add_option(budget_work *b, weight_options *o, kt_weight_format first,
                       kt_weight_format down) {
    kt_graph *g = &b->w->model.graph;
    const kt_weight_format format[2] = {first, down}, none[2] = {KT_W_NONE, KT_W_NONE};

    set_chosen(&g->weights[o->weight], format);
    memcpy(o->format[o->n], format, sizeof format);
    o->option[o->n++].bytes = bytes_of(g, o->weight);
    set_chosen(&g->weights[o->weight], none);
}

static kt_budget_side *add_side(budget_work *b, int weight, int first, int n, int64_t rows,
                                int64_t k) {
    kt_budget_side *s = &b->sides[b->n_sides++];

    *s = (kt_budget_side){.weight = weight, .first = first, .n = n};
    for (int i = 1; i < FORMATS; i++)
        s->is_possible[candidates[i]] = is_shape(candidates[i], rows, k);
    return s;
}

/* As it is, or each of two in any of the formats that their shapes can have. */
static void add_weight(budget_work *b, int weight) {
    const kt_weight *w = &b->w->model.graph.weights[weight];
    const bool is_experts = w->kind == KT_WEIGHT_EXPERTS;
    weight_options *o = &b->all[b->n];
    const kt_budget_side *first, *down;

    *o = (weight_options){.weight = weight, .first_side = b->n_sides};
    first = down = add_side(b, weight, 0, is_experts ? 2 : w->n_parts, w->n, w->k);
    if (is_experts) down = add_side(b, weight, 2, 1, w->k, w->n);
    add_option(b, o, KT_W_NONE, KT_W_NONE);
    for (int i = 1; i < FORMATS; i++)
        for (int j = 1; j < FORMATS; j++)
            if (first->is_possible[candidates[i]] && down->is_possible[candidates[j]] &&
                (is_experts || i == j))
                add_option(b, o, candidates[i], candidates[j]);
    b->items[b->n++] = (kt_budget_item){.options = o->option, .n_options = o->n};
}

static kt_status list_all(budget_work *b, kt_err *err) {
    const kt_graph *g = &b->w->model.graph;
    const size_t n = (size_t)g->n_weights + 1;

    b->all = calloc(n, sizeof *b->all);
    b->items = calloc(n, sizeof *b->items);
    b->sides = calloc(2 * n, sizeof *b->sides);
    if (!b->all || !b->items || !b->sides)
        return kt_fail(err, KT_E_NOMEM, "no memory for the formats of %d weights", g->n_weights);
    b->fixed = kt_bytes_times(KT_CONVERT_SHARD_BYTES, kt_convert_shards(g));
    for (int i = 0; i < g->n_weights; i++) {
        const int pieces = g->weights[i].kind == KT_WEIGHT_MATRIX ? g->weights[i].n_parts : 1;
        b->fixed = kt_bytes_add(b->fixed, kt_bytes_times(KT_CONVERT_PIECE_BYTES, pieces));
        if (may_be_chosen(&g->weights[i]))
            add_weight(b, i);
        else
            b->fixed = kt_bytes_add(b->fixed, bytes_of(g, i));
    }
    return KT_OK;
}

/* ---- choosing ---- */

/* The errors of the sides that an option encodes, together; a weight that stays has none. */
static double error_of(const budget_work *b, const weight_options *o, int i) {
    const kt_budget_side *s = &b->sides[o->first_side];
    const bool has_down = b->w->model.graph.weights[o->weight].kind == KT_WEIGHT_EXPERTS;
    double error;

    if (o->format[i][0] == KT_W_NONE) return 0;
    error = s->error[o->format[i][0]];
    return has_down ? error + s[1].error[o->format[i][1]] : error;
}

/* How much a weight's error counts. */
static double share_of(const kt_graph *g, int weight) {
    return g->weights[weight].layer < 0 ? 1 : 0.5 / (double)g->numbers.layers;
}

static int smallest(const weight_options *o) {
    int best = 0;

    for (int i = 1; i < o->n; i++)
        if (o->option[i].bytes < o->option[best].bytes) best = i;
    return best;
}

/* "experts 95.10, qkv 2.31, ...": the roles that take most in their smallest formats. */
static void name_largest(const budget_work *b, char *out, size_t out_bytes) {
    const kt_graph *g = &b->w->model.graph;
    const char *done[3] = {"", "", ""};
    size_t used = 0;

    *out = '\0';
    for (int k = 0; k < 3; k++) {
        const char *role = NULL;
        size_t most = 0;
        for (int i = 0; i < b->n; i++) {
            const char *of = g->weights[b->all[i].weight].role;
            size_t sum = 0;
            if (!strcmp(of, done[0]) || !strcmp(of, done[1]) || !strcmp(of, done[2])) continue;
            for (int j = 0; j < b->n; j++)
                if (strcmp(g->weights[b->all[j].weight].role, of) == 0)
                    sum = kt_bytes_add(sum, b->all[j].option[smallest(&b->all[j])].bytes);
            if (sum <= most) continue;
            most = sum;
            role = of;
        }
        if (!role || used >= out_bytes) return;
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s %.4f", k ? ", " : "", role,
                                 (double)most / GIB);
        done[k] = role;
    }
}

static kt_status check_least(const budget_work *b, kt_err *err) {
    const size_t least = kt_bytes_add(b->fixed, kt_format_budget_least(b->items, b->n));
    char roles[160];

    if (least <= b->w->request->budget) return KT_OK;
    name_largest(b, roles, sizeof roles);
    return kt_fail(err, KT_E_INVALID,
                   "%.100s: a budget of %.4f GiB, but the smallest formats take %.4f GiB (%s, and "
                   "what is not encoded %.4f)",
                   b->w->model.name, (double)b->w->request->budget / GIB, (double)least / GIB,
                   roles, (double)b->fixed / GIB);
}

static kt_status choose(budget_work *b, kt_err *err) {
    kt_graph *g = &b->w->model.graph;
    size_t bytes;

    KT_TRY(kt_convert_measure_sides(b->w, b->sides, b->n_sides, err));
    for (int i = 0; i < b->n; i++)
        for (int j = 0; j < b->all[i].n; j++)
            b->all[i].option[j].error = share_of(g, b->all[i].weight) * error_of(b, &b->all[i], j);
    KT_TRY(kt_format_budget_choose(b->items, b->n, b->w->request->budget - b->fixed, &bytes, err));
    for (int i = 0; i < b->n; i++) {
        const weight_options *o = &b->all[i];
        const int taken = b->items[i].taken;
        set_chosen(&g->weights[o->weight], o->format[taken]);
        b->w->errors[o->weight] = error_of(b, o, taken);
    }
    return KT_OK;
}

kt_status kt_convert_choose(kt_convert_work *w, kt_err *err) {
    budget_work b = {.w = w};
    bool found = false;
    kt_status st;

    w->errors = calloc((size_t)w->model.graph.n_weights + 1, sizeof *w->errors);
    st = w->errors ? list_all(&b, err) : kt_fail(err, KT_E_NOMEM, "no memory to choose formats");
    if (st == KT_OK) st = check_least(&b, err);
    if (st == KT_OK) st = kt_convert_take_folder(w, err);
    if (st == KT_OK) st = kt_convert_read_formats(w, &found, err);
    if (st == KT_OK && !found) st = choose(&b, err);
    free(b.all);
    free(b.items);
    free(b.sides);
    return st;
}

/* ---- the table ---- */

/* A format's place in a list of what weights of one role became. */
typedef struct seen_format {
    kt_weight_format format, down;
    int count;
} seen_format;

typedef struct role_row {
    kt_convert_role *out;
    seen_format seen[12];
    int n_seen, n_weights;
    double errors;
} role_row;

static void count_format(role_row *r, const kt_packed_piece *p) {
    int i = 0;

    while (i < r->n_seen && (r->seen[i].format != p->format || r->seen[i].down != p->down)) i++;
    if (i == (int)(sizeof r->seen / sizeof *r->seen)) return;
    if (i == r->n_seen) r->seen[r->n_seen++] = (seen_format){p->format, p->down, 0};
    r->seen[i].count++;
}

static void write_formats(const role_row *r) {
    kt_convert_role *out = r->out;
    size_t used = 0;

    for (int i = 0; i < r->n_seen && used < sizeof out->formats; i++) {
        const seen_format *s = &r->seen[i];
        const bool is_pair = s->down != KT_W_NONE && s->down != s->format;
        used +=
            (size_t)snprintf(out->formats + used, sizeof out->formats - used, "%s%s%s%s x%d",
                             i ? ", " : "", kt_weight_format_name(s->format), is_pair ? "/" : "",
                             is_pair ? kt_weight_format_name(s->down) : "", s->count);
    }
    out->error = r->n_weights ? sqrt(r->errors / r->n_weights) : 0;
}

static int64_t numbers_of(const kt_packed_piece *p) {
    return p->count * p->n * p->k * (p->down ? 3 : 1);
}

static void tell_role(kt_convert_work *w, const char *role) {
    const kt_graph *g = &w->model.graph;
    role_row row = {.out = &w->result.roles[w->result.n_roles++]};
    const char *name = role ? role : "not encoded";

    *row.out = (kt_convert_role){.role = ""};
    snprintf(row.out->role, sizeof row.out->role, "%s", name);
    for (int i = 0; i < w->n_pieces; i++) {
        const kt_convert_piece *p = &w->pieces[i];
        const kt_weight *of = &g->weights[p->weight];
        if (may_be_chosen(of) != (role != NULL) || (role && strcmp(of->role, role) != 0)) continue;
        count_format(&row, &p->piece);
        row.out->numbers += numbers_of(&p->piece);
        row.out->bytes += p->piece.bytes * (size_t)p->piece.count;
        if (p->run == 0) {
            row.errors +=
                of->kind == KT_WEIGHT_EXPERTS ? w->errors[p->weight] / 2 : w->errors[p->weight];
            row.n_weights++;
        }
    }
    write_formats(&row);
}

void kt_convert_tell_roles(kt_convert_work *w) {
    const kt_graph *g = &w->model.graph;

    w->result.n_roles = 0;
    for (int i = 0; i < g->n_weights; i++) {
        int same = 0;
        while (same < i && (!may_be_chosen(&g->weights[same]) ||
                            strcmp(g->weights[same].role, g->weights[i].role) != 0))
            same++;
        if (same == i && may_be_chosen(&g->weights[i]) && w->result.n_roles < KT_CONVERT_ROLES - 1)
            tell_role(w, g->weights[i].role);
    }
    tell_role(w, NULL);
}
