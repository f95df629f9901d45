/* Cells of a model, weighted by what a server does. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table.h"
#include "kernels/formats/format.h"
#include "tuner/space/shapes.h"

int kt_serving_format_parse(const char *name) {
    static const char *const names[] = {"native", "bf16", "int8", "int4"};
    for (int i = 0; i < 4; i++)
        if (strcmp(names[i], name) == 0) return i;
    return -1;
}

/* Time share of rows per call in a mix of one user chatting (half of the time in decode), a few users
 * at once, and prompts. Buckets of one band share its time evenly. `quick` tells which buckets a
 * minute has time for. */
static const struct {
    int32_t last_m;
    double share;
    int32_t quick_last; /* in the quick profile the band's buckets up to this one */
} bands[] = {{1, 0.40, 1}, {8, 0.20, 8}, {64, 0.15, 64}, {512, 0.20, 512}, {4096, 0.05, 0}};

enum { N_BANDS = sizeof bands / sizeof *bands };

/* Above 64 rows quick takes powers of two: kernels are bound by compute there and interpolate well. */
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

typedef struct role {
    char name[16];
    kt_problem problem;
    double bytes;      /* read per token and model pass: its share of the decode time */
    int32_t most_rows; /* larger buckets do not occur */
} role;

/* Logits are wanted of one row per sequence, of a prompt only the last: never of hundreds of rows. */
enum { MAX_ROLES = KT_MAX_DENSE + 2, LOGIT_ROWS = 64 };

static double bits_of(kt_weight_format weights) {
    const kt_format *f = kt_format_find(weights);
    return f ? f->bits : 16;
}

static void add_role(role *roles, int *n, const char *name, const kt_problem *problem,
                     double weights_read) {
    role *r = &roles[*n];
    const kt_format *format = kt_format_find(problem->weights);
    if (weights_read <= 0 || !format) return;
    memset(r, 0, sizeof *r);
    snprintf(r->name, sizeof r->name, "%s", name);
    r->problem = *problem;
    r->problem.acts = format->acts;
    r->bytes = weights_read * bits_of(problem->weights) / 8;
    r->most_rows = strcmp(name, "lm_head") == 0 ? LOGIT_ROWS : INT32_MAX;
    ++*n;
}

static void add_gemm(role *roles, int *n, const char *name, kt_weight_format weights, int64_t n_out,
                     int64_t k, int64_t times) {
    kt_problem p = {.op = KT_OP_GEMM, .weights = weights, .n = n_out, .k = k};
    add_role(roles, n, name, &p, (double)n_out * (double)k * (double)times);
}

/* A dense layer's feed-forward runs as a layer of one expert. */
static void add_ffn(role *roles, int *n, const char *name, kt_weight_format weights,
                    const kt_shapes *s, int64_t size, int64_t experts, int64_t topk,
                    int64_t times) {
    kt_problem p = {.op = KT_OP_MOE_FFN,
                    .weights = weights,
                    .n = size,
                    .k = s->hidden,
                    .experts = experts,
                    .topk = topk};
    add_role(roles, n, name, &p, 3.0 * (double)size * (double)s->hidden * (double)(topk * times));
}

/* The matrices of a decoder as the runtime asks for them. */
static int list_roles(const kt_shapes *s, kt_weight_format experts, kt_weight_format dense,
                      role roles[MAX_ROLES]) {
    int n = 0;
    add_ffn(roles, &n, "experts", experts, s, s->intermediate, s->experts, s->topk, s->moe_layers);
    add_ffn(roles, &n, "dense_ffn", dense, s, s->dense_intermediate, 1, 1, s->dense_layers);
    for (int i = 0; i < s->n_dense; i++)
        add_gemm(roles, &n, s->dense[i].name, dense, s->dense[i].n, s->dense[i].k,
                 s->dense[i].layers);
    return n;
}

static void formats_of(const kt_shapes *s, kt_serving_format format, kt_weight_format *experts,
                       kt_weight_format *dense) {
    *experts = s->native;
    *dense = KT_W_BF16;
    if (format == KT_SERVE_BF16) *experts = KT_W_BF16;
    if (format == KT_SERVE_INT8) *experts = *dense = KT_W_INT8_CHANNEL;
    if (format == KT_SERVE_INT4) {
        *experts = KT_W_INT4_G32;
        *dense = KT_W_INT8_CHANNEL;
    }
}

kt_serving_format kt_serving_format_of(kt_weight_format weights) {
    if (weights == KT_W_BF16) return KT_SERVE_BF16;
    if (weights == KT_W_INT8_CHANNEL) return KT_SERVE_INT8;
    return weights == KT_W_INT4_G32 ? KT_SERVE_INT4 : KT_SERVE_NATIVE;
}

double kt_shapes_weight_bytes(const kt_shapes *s, kt_serving_format format) {
    kt_weight_format experts, dense;
    double expert = 3.0 * (double)s->intermediate * (double)s->hidden;
    double ffn = 3.0 * (double)s->dense_intermediate * (double)s->hidden, bytes;

    formats_of(s, format, &experts, &dense);
    bytes = expert * (double)s->experts * (double)s->moe_layers * bits_of(experts) / 8;
    bytes += ffn * (double)s->dense_layers * bits_of(dense) / 8;
    for (int i = 0; i < s->n_dense; i++)
        bytes += (double)s->dense[i].n * (double)s->dense[i].k * (double)s->dense[i].layers *
                 bits_of(dense) / 8;
    return bytes;
}

/* Add a cell, or its weight to the one that is the same decision. */
static kt_status add_or_join(kt_cell_list *list, const kt_tune_cell *cell, kt_err *err) {
    for (size_t i = 0; i < list->n; i++) {
        kt_tune_cell *have = &list->cells[i];
        if (have->threads != cell->threads || have->problem.m != cell->problem.m ||
            !kt_same_weights(&have->problem, &cell->problem))
            continue;
        have->weight += cell->weight;
        return KT_OK;
    }
    return kt_cell_list_add(list, cell, err);
}

/* The cells of one role on one thread count. share: of the whole serving time. */
static kt_status add_cells(const role *r, int threads, double share, kt_profile profile,
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
        KT_TRY(add_or_join(out, &cell, err));
    }
    return KT_OK;
}

kt_status kt_cells_of_shapes(const kt_shapes *s, kt_serving_format format, kt_profile profile,
                             const int *threads, int n_threads, kt_cell_list *out, kt_err *err) {
    kt_weight_format experts, dense;
    role roles[MAX_ROLES];
    double bytes = 0, sum = 0;
    int n;

    formats_of(s, format, &experts, &dense);
    snprintf(out->workload, sizeof out->workload, "%s", s->name);
    n = list_roles(s, experts, dense, roles);
    for (int i = 0; i < n; i++) bytes += roles[i].bytes;
    for (int t = 0; t < n_threads; t++) {
        /* A server runs on all cores; fewer threads are for those who share the machine. */
        double of_threads = n_threads == 1 ? 1 : t + 1 == n_threads ? 0.8 : 0.2 / (n_threads - 1);
        for (int i = 0; i < n; i++)
            KT_TRY(add_cells(&roles[i], threads[t], of_threads * roles[i].bytes / bytes, profile,
                             out, err));
    }
    for (size_t i = 0; i < out->n; i++) sum += out->cells[i].weight;
    for (size_t i = 0; i < out->n; i++) out->cells[i].weight /= sum;
    return KT_OK;
}
