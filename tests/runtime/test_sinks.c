/* Sinks of attention over picked keys and blocks, on the CPU: no published model has them, so they
 * are put into two that pick. A sink takes its share of the row's softmax and nothing else changes:
 * every number of a head shrinks by the same factor, 1 / (1 + exp(sink) / Z).
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine_impl.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

enum { TOKENS = 40 /* more than are picked */, MAX_HEADS = 64 };

typedef struct picking {
    char folder[PATH_MAX];
    kt_node_kind kind;
    int64_t heads, width; /* numbers of the matrix behind attention */
} picking;

/* The last node of the kind. */
static kt_exec_node *find_node(kt_engine *e, kt_node_kind kind) {
    const kt_graph *g = &e->model.graph;

    for (int i = g->n_nodes - 1; i >= 0; i--)
        if (g->nodes[i].kind == kind) return &e->step.exec[i];
    cr_assert_fail("no node of kind %d", (int)kind);
    return NULL;
}

/* Squares of what the last row's attention gives to the matrix behind it. */
static float *squares(picking *p, const char *temp, const float *sink) {
    const kt_engine_options o = {.model_dir = p->folder,
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .n_threads = 2,
                                 .max_context = 64};
    const kt_loaded sinks = {.data = {sink}};
    char path[PATH_MAX], name[256];
    int32_t tokens[TOKENS];
    kt_exec_node *node;
    kt_checkpoint *file;
    const kt_weight *after;
    const kt_tensor *t;
    float *out;
    kt_sequence *s;
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < TOKENS; i++) tokens[i] = (37 * i + 11) % 200;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    node = find_node(e, p->kind);
    if (sink) node->weight3 = &sinks;
    p->heads = node->node->attention.heads;
    cr_assert_leq(p->heads, MAX_HEADS);
    cr_assert_eq(kt_sequence_create(e, TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, TOKENS - 1, 0, NULL, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_observe_inputs(e, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens + TOKENS - 1, 1, 0, NULL, NULL, NULL, NULL, &err),
                 KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/squares", temp);
    cr_assert_eq(kt_engine_write_importance(e, path, &err), KT_OK, "%s", err.message);
    after = kt_graph_find(&e->model.graph, "o", node->node->layer);
    cr_assert(after, "no matrix behind attention");
    kt_weight_name(&e->model.graph, after, 0, 0, true, name, sizeof name - 8);
    strcat(name, ".weight");
    cr_assert_eq(kt_checkpoint_open_file(path, &file, &err), KT_OK, "%s", err.message);
    t = kt_checkpoint_find(file, name);
    cr_assert(t, "no squares of %s", name);
    p->width = t->shape[0];
    out = malloc((size_t)p->width * sizeof *out);
    memcpy(out, t->data, (size_t)p->width * sizeof *out);
    kt_checkpoint_close(file);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return out;
}

/* What all numbers of a head have shrunk by; the rounding of what is between attention and the
 * matrix may move each of them by some parts of 256. */
static double share_of(const float *with, const float *without, int64_t n, const char *what) {
    double a = 0, b = 0, share;

    for (int64_t i = 0; i < n; i++) a += with[i], b += without[i];
    share = sqrt(a / b);
    for (int64_t i = 0; i < n; i++)
        if (without[i] > b / (double)n / 16)
            cr_expect_float_eq(sqrt((double)with[i] / without[i]) / share, 1, 0.05, "%s", what);
    return share;
}

static void check(const char *name, kt_node_kind kind) {
    float sink[2][MAX_HEADS], *without, *with[2];
    char relative[96], temp[256];
    picking p = {.kind = kind};

    snprintf(relative, sizeof relative, "data/golden/%s/config.json", name);
    if (!kt_shared_path(relative, p.folder, sizeof p.folder))
        cr_skip_test("%s: the shared data is absent", name);
    *strrchr(p.folder, '/') = '\0';
    for (int h = 0; h < MAX_HEADS; h++) sink[0][h] = 3, sink[1][h] = 3 + 0.25f * (float)(h + 1);
    kt_temp_make(temp, sizeof temp);
    without = squares(&p, temp, NULL);
    for (int i = 0; i < 2; i++) with[i] = squares(&p, temp, sink[i]);
    for (int64_t h = 0, n = p.width / p.heads; h < p.heads; h++) {
        const double few = share_of(with[0] + h * n, without + h * n, n, name);
        const double more = share_of(with[1] + h * n, without + h * n, n, name);
        const double ratio = (1 / more - 1) / (1 / few - 1);
        const double want = exp((double)sink[1][h] - (double)sink[0][h]);
        cr_expect(few > 0 && few < 0.99, "%s, head %d: a share of %g", name, (int)h, few);
        cr_expect_float_eq(ratio / want, 1, 0.1, "%s, head %d: sinks %g, expected %g", name, (int)h,
                           ratio, want);
    }
    for (int i = 0; i < 2; i++) free(with[i]);
    free(without);
    kt_temp_remove(temp);
}

Test(sinks, take_their_share_of_picked_blocks, .timeout = 60) {
    check("minimax_m3", KT_NODE_ATTEND_BLOCKS);
}

Test(sinks, take_their_share_of_picked_keys, .timeout = 60) {
    check("deepseek_v32", KT_NODE_ATTEND_SPARSE);
}
