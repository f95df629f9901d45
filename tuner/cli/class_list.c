/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/class_list.h"

#include <stdio.h>
#include <string.h>

#include "dispatch/plan/plan.h"
#include "tuner/space/cell.h"

/* One matrix of the table and its classes, the kept one first. */
typedef struct matrix {
    char key[KT_CELL_KEY_BYTES];
    kt_class_cost cost[KT_MAX_CLASSES];
    int n;
} matrix;

typedef void show_fn(void *to, const matrix *m);

/* "gemm w8c/a8p n=5120 k=2048": the key without rows and threads. */
static void name_matrix(const kt_problem *p, char *out, size_t bytes) {
    kt_problem one = *p;
    char *m, *t;

    one.m = 1;
    kt_cell_key(&one, 1, out, bytes);
    m = strstr(out, " m=1");
    if (m) memmove(m, m + 4, strlen(m + 4) + 1);
    t = strstr(out, " t=1");
    if (t) *t = '\0';
}

/* Rows of one matrix follow each other in a table. */
static kt_status each_matrix(const kt_workbench *b, const kt_table *t, show_fn *show, void *to,
                             kt_err *err) {
    kt_planner *planner = NULL;
    kt_status st = kt_planner_create(b->registry, t, &b->machine, NULL, &planner, err);

    for (size_t i = 0; st == KT_OK && i < t->n_rows; i++) {
        const kt_problem *p = &t->rows[i].problem;
        matrix m = {"", {{0}}, 0};
        if ((p->op != KT_OP_GEMM && p->op != KT_OP_MOE_FFN) ||
            (i > 0 && kt_same_weights(p, &t->rows[i - 1].problem)))
            continue;
        name_matrix(p, m.key, sizeof m.key);
        st = kt_plan_classes(planner, p, KT_DECODE_SHARE, m.cost, &m.n, err);
        if (st == KT_OK) show(to, &m);
    }
    kt_planner_destroy(planner);
    return st;
}

static void print_matrix(void *to, const matrix *m) {
    (void)to;
    printf("%s\n", m->key);
    for (int i = 0; i < m->n; i++)
        printf("  %-8s %-20s decode %+6.1f %%  prefill %+6.1f %%  %d buckets measured\n",
               i == 0 ? "keeps" : "not", m->cost[i].bits, 100 * m->cost[i].decode,
               100 * m->cost[i].prefill, m->cost[i].n_measured);
}

kt_status kt_print_classes(const kt_workbench *b, const kt_table *t, kt_err *err) {
    printf("--deterministic keeps one class of bits for every m; longer than the fastest of any "
           "class by\n");
    return each_matrix(b, t, print_matrix, NULL, err);
}

static void write_matrix(void *to, const matrix *m) {
    kt_json_writer *w = to;

    kt_json_begin_object(w);
    kt_json_add_string(w, "matrix", m->key);
    kt_json_add_string(w, "keeps", m->n > 0 ? m->cost[0].bits : "");
    kt_json_key(w, "classes");
    kt_json_begin_array(w);
    for (int i = 0; i < m->n; i++) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "bits", m->cost[i].bits);
        kt_json_add_string(w, "layout", m->cost[i].layout);
        kt_json_add_fixed(w, "decode", m->cost[i].decode, 4);
        kt_json_add_fixed(w, "prefill", m->cost[i].prefill, 4);
        kt_json_add_int(w, "measured", m->cost[i].n_measured);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
}

kt_status kt_write_classes(const kt_workbench *b, const kt_table *t, kt_json_writer *w,
                           kt_err *err) {
    kt_status st;

    kt_json_key(w, "deterministic");
    kt_json_begin_array(w);
    st = each_matrix(b, t, write_matrix, w, err);
    kt_json_end_array(w);
    return st;
}
