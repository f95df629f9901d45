/* Cells of a model, weighted by what a server does. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "dispatch/table/table.h"
#include "kernels/formats/format.h"
#include "tuner/space/roles.h"

static const char *const format_names[] = {"native", "bf16", "int8", "int4"};

int kt_serving_format_parse(const char *name) {
    for (int i = 0; i < 4; i++)
        if (strcmp(format_names[i], name) == 0) return i;
    return -1;
}

const char *kt_serving_format_name(kt_serving_format format) {
    return format_names[format];
}

/* Time share of rows per call in a mix of one user chatting (half of the time in decode), a few
 * users at once, and prompts. Buckets of one band share its time evenly. `quick` tells which
 * buckets a minute has time for. */
static const struct {
    int32_t last_m;
    double share;
    int32_t quick_last; /* in the quick profile the band's buckets up to this one */
} bands[] = {{1, 0.40, 1}, {8, 0.20, 8}, {64, 0.15, 64}, {512, 0.20, 512}, {4096, 0.05, 0}};

enum { N_BANDS = sizeof bands / sizeof *bands };

/* Above 64 rows quick takes powers of two: kernels are bound by compute there and interpolate well.
 */
static int is_wanted(int32_t m, kt_profile profile, int band) {
    if (profile == KT_PROFILE_FULL) return 1;
    if (m > bands[band].quick_last) return 0;
    return m <= 64 || (m & (m - 1)) == 0;
}

static int band_of(int32_t m) {
    int b = 0;
    while (b + 1 < N_BANDS && m > bands[b].last_m) b++;
    return b;
}

static double bits_of(kt_weight_format weights) {
    const kt_format *f = kt_format_find(weights);
    return f ? f->bits : 16;
}

static void add_role(kt_serving_role *roles, int *n, const char *name, const kt_problem *problem,
                     double weights_read, int64_t times) {
    kt_serving_role *r = &roles[*n];
    const kt_format *format = kt_format_find(problem->weights);
    if (weights_read <= 0 || !format) return;
    memset(r, 0, sizeof *r);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->problem = *problem;
    r->problem.acts = format->acts;
    r->bytes = weights_read * bits_of(problem->weights) / 8;
    r->times = times;
    r->most_rows = strcmp(name, "lm_head") == 0 ? KT_SERVED_LOGIT_ROWS : INT32_MAX;
    ++*n;
}

static void add_gemm(kt_serving_role *roles, int *n, const char *name, kt_weight_format weights,
                     int64_t n_out, int64_t k, int64_t times) {
    kt_problem p = {.op = KT_OP_GEMM, .weights = weights, .n = n_out, .k = k};
    add_role(roles, n, name, &p, (double)n_out * (double)k * (double)times, times);
}

/* A dense layer's feed-forward runs as a layer of one expert. `matrices`: over all layers. */
static void add_ffn(kt_serving_role *roles, int *n, const kt_ffn_shape *f, int64_t shared) {
    const kt_problem p = {.op = KT_OP_MOE_FFN,
                          .weights = f->weights,
                          .n = f->n,
                          .k = f->k,
                          .experts = f->experts,
                          .topk = f->topk};
    const int64_t met = (f->topk + shared) * f->matrices;
    const int before = *n;

    add_role(roles, n, f->name, &p, (double)f->n * (double)f->k * (double)met,
             (f->matrices + 2) / 3);
    if (*n > before) roles[before].shared = shared;
}

/* The format that a matrix has when one is asked for (dispatch/model/needs.h). */
static kt_weight_format asked(kt_serving_format format, bool is_routed) {
    if (format == KT_SERVE_BF16) return KT_W_BF16;
    return format == KT_SERVE_INT4 && is_routed ? KT_W_INT4_G32 : KT_W_INT8_CHANNEL;
}

static kt_weight_format dense_format(const kt_shapes *s, int i, kt_serving_format format) {
    const kt_weight_format native = s->dense[i].native;

    if (s->dense[i].is_bf16) return KT_W_BF16;
    if (format != KT_SERVE_NATIVE) return asked(format, false);
    return native == KT_W_NONE ? KT_W_BF16 : native;
}

static bool is_asked_for(const kt_shapes *s, int i, kt_serving_format format) {
    return s->dense[i].form == KT_DENSE_ALWAYS ||
           (s->dense[i].form == KT_DENSE_NATIVE) == (format == KT_SERVE_NATIVE);
}

/* All feed-forward kinds in a serving format, experts first; returns how many. */
static int list_ffn(const kt_shapes *s, kt_serving_format format, kt_ffn_shape out[KT_MAX_FFN]) {
    const kt_ffn_shape kinds[] = {{"experts", asked(format, true), s->intermediate, s->hidden,
                                   s->experts, s->topk, 3 * s->moe_layers},
                                  {"dense_ffn", asked(format, false), s->dense_intermediate,
                                   s->hidden, 1, 1, 3 * s->dense_layers},
                                  {"shared", asked(format, false), s->shared_intermediate,
                                   s->hidden, 1, 1, 3 * s->shared_layers}};
    int n = 0;

    if (format == KT_SERVE_NATIVE && s->n_ffn) {
        memcpy(out, s->ffn, (size_t)s->n_ffn * sizeof *out);
        return s->n_ffn;
    }
    for (int i = 0; i < 3; i++)
        if (kinds[i].n > 0 && kinds[i].matrices > 0) out[n++] = kinds[i];
    for (int i = 0; format == KT_SERVE_NATIVE && i < n; i++)
        out[i].weights = out[i].experts > 1 ? s->native : KT_W_BF16;
    return n;
}

/* Does the shared expert run as one of the routed ones (runtime/exec/joined.h)? */
static bool joins(const kt_ffn_shape *experts, const kt_ffn_shape *f) {
    return strcmp(f->name, "shared") == 0 && experts->experts > 1 &&
           f->weights == experts->weights && f->n == experts->n && f->k == experts->k &&
           f->matrices == experts->matrices;
}

int kt_roles_list(const kt_shapes *s, kt_serving_format format,
                  kt_serving_role roles[KT_MAX_ROLES]) {
    kt_ffn_shape ffn[KT_MAX_FFN];
    const int n_ffn = list_ffn(s, format, ffn);
    int64_t shared = 0;
    int n = 0;

    for (int i = 1; i < n_ffn; i++) shared += joins(&ffn[0], &ffn[i]);
    for (int i = 0; i < n_ffn; i++)
        if (i == 0 || !joins(&ffn[0], &ffn[i])) add_ffn(roles, &n, &ffn[i], i == 0 ? shared : 0);
    for (int i = 0; i < s->n_dense; i++)
        if (is_asked_for(s, i, format))
            add_gemm(roles, &n, s->dense[i].name, dense_format(s, i, format), s->dense[i].n,
                     s->dense[i].k, s->dense[i].layers);
    return n;
}

kt_serving_format kt_serving_format_of(kt_weight_format weights) {
    if (weights == KT_W_BF16) return KT_SERVE_BF16;
    if (weights == KT_W_INT8_CHANNEL) return KT_SERVE_INT8;
    return weights == KT_W_INT4_G32 ? KT_SERVE_INT4 : KT_SERVE_NATIVE;
}

double kt_shapes_weight_bytes(const kt_shapes *s, kt_serving_format format) {
    kt_ffn_shape ffn[KT_MAX_FFN];
    const int n = list_ffn(s, format, ffn);
    double bytes = 0;

    for (int i = 0; i < n; i++)
        bytes += (double)ffn[i].n * (double)ffn[i].k * (double)(ffn[i].experts * ffn[i].matrices) *
                 bits_of(ffn[i].weights) / 8;
    for (int i = 0; i < s->n_dense; i++)
        if (is_asked_for(s, i, format))
            bytes += (double)s->dense[i].n * (double)s->dense[i].k * (double)s->dense[i].layers *
                     bits_of(dense_format(s, i, format)) / 8;
    return bytes;
}

kt_status kt_cells_add_or_join(kt_cell_list *list, const kt_tune_cell *cell, kt_err *err) {
    for (size_t i = 0; i < list->n; i++) {
        kt_tune_cell *have = &list->cells[i];
        if (have->threads != cell->threads || have->problem.m != cell->problem.m ||
            !kt_same_weights(&have->problem, &cell->problem))
            continue;
        have->weight += cell->weight;
        have->mix_weight += cell->mix_weight;
        return KT_OK;
    }
    return kt_cell_list_add(list, cell, err);
}

/* The cells of one role on one thread count. share: of the whole serving time. */
static kt_status add_cells(const kt_serving_role *r, int threads, double share, kt_profile profile,
                           kt_cell_list *out, kt_err *err) {
    int in_band[N_BANDS] = {0};
    for (int i = 0; i < kt_m_bucket_count; i++) {
        int b = band_of(kt_m_buckets[i]);
        in_band[b] += is_wanted(kt_m_buckets[i], profile, b);
    }
    for (int i = 0; i < kt_m_bucket_count; i++) {
        int b = band_of(kt_m_buckets[i]);
        kt_tune_cell cell = {.problem = r->problem, .threads = threads};
        if (!is_wanted(kt_m_buckets[i], profile, b) || kt_m_buckets[i] > r->most_rows) continue;
        cell.problem.m = kt_m_buckets[i];
        cell.weight = share * bands[b].share / in_band[b];
        memcpy(cell.role, r->name, sizeof cell.role);
        KT_TRY(kt_cells_add_or_join(out, &cell, err));
    }
    return KT_OK;
}

/* Rows and keys that plans ask for: one row or as many as a step takes; of what meets all keys,
 * those of a usual and of a long conversation. The quick profile leaves out the last one of the
 * indexer and of attention, whose tiles of many rows are full with 64. */
typedef struct kept_size {
    int64_t rows, keys;
} kept_size;

static const kept_size kept_rows[] = {{1, 0}, {512, 0}}, kept_index[] = {{1, 8192}, {1, 32768}},
                       kept_attn[] = {{1, 8192}, {64, 2048}, {1, 32768}};

static const kept_size *kept_sizes(const kt_problem *p, kt_profile profile, int *n) {
    const bool is_quick = profile == KT_PROFILE_QUICK;

    *n = p->op == KT_OP_ATTN ? 3 - is_quick : p->op == KT_OP_INDEX ? 2 - is_quick : 2;
    return p->op == KT_OP_ATTN ? kept_attn : p->op == KT_OP_INDEX ? kept_index : kept_rows;
}

/* Bytes per token and model pass. */
static double kept_bytes(const kt_shapes *s, int i) {
    kt_problem p = s->kept[i].problem;
    double bytes, operations;
    int n;

    p.m = 1;
    p.context = kept_sizes(&p, KT_PROFILE_FULL, &n)->keys;
    kt_problem_work(&p, &bytes, &operations);
    return bytes * (double)s->kept[i].layers;
}

static kt_status add_kept_cells(const kt_shapes *s, int i, int threads, double share,
                                kt_profile profile, kt_cell_list *out, kt_err *err) {
    int n;
    const kept_size *size = kept_sizes(&s->kept[i].problem, profile, &n);

    for (int j = 0; j < n; j++) {
        kt_tune_cell cell = {
            .problem = s->kept[i].problem, .threads = threads, .weight = share / n};
        cell.problem.m = size[j].rows;
        cell.problem.context = size[j].keys;
        memcpy(cell.role, s->kept[i].name, sizeof cell.role);
        KT_TRY(kt_cells_add_or_join(out, &cell, err));
    }
    return KT_OK;
}

static kt_status add_all_kept(const kt_shapes *s, int threads, double share, kt_profile profile,
                              kt_cell_list *out, kt_err *err) {
    for (int i = 0; i < s->n_kept; i++)
        KT_TRY(add_kept_cells(s, i, threads, share * kept_bytes(s, i), profile, out, err));
    return KT_OK;
}

double kt_thread_share(int i, int n) {
    return n == 1 ? 1 : i + 1 == n ? 0.8 : 0.2 / (n - 1);
}

kt_status kt_cells_of_shapes(const kt_shapes *s, kt_serving_format format, kt_profile profile,
                             const int *threads, int n_threads, kt_cell_list *out, kt_err *err) {
    kt_serving_role roles[KT_MAX_ROLES];
    double bytes = 0, sum = 0;
    int n;

    snprintf(out->workload, sizeof out->workload, "%s", s->name);
    n = kt_roles_list(s, format, roles);
    for (int i = 0; i < n; i++) bytes += roles[i].bytes;
    for (int i = 0; i < s->n_kept; i++) bytes += kept_bytes(s, i);
    for (int t = 0; t < n_threads; t++) {
        const double each = kt_thread_share(t, n_threads) / bytes;
        kt_status st = KT_OK;
        for (int i = 0; i < n && st == KT_OK; i++)
            st = add_cells(&roles[i], threads[t], each * roles[i].bytes, profile, out, err);
        if (st == KT_OK) st = add_all_kept(s, threads[t], each, profile, out, err);
        if (st == KT_OK) continue;
        kt_cell_list_deinit(out);
        return st;
    }
    for (size_t i = 0; i < out->n; i++) sum += out->cells[i].weight;
    for (size_t i = 0; i < out->n; i++) out->cells[i].weight /= sum;
    return KT_OK;
}
