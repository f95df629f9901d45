/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/plan_families.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "dispatch/model/resolve.h"
#include "runtime/cli/command.h"

#define GIB (1024.0 * 1024.0 * 1024.0)

enum { MOST_SHAPES = 64, CELL = 40 };

typedef struct family_row {
    char name[64];
    kt_shape_fit fit;
} family_row;

static kt_status count(kt_planner *planner, const kt_shape_fit_request *asked, family_row *rows,
                       int *n_rows, kt_err *err) {
    char(*names)[64] = calloc(MOST_SHAPES, sizeof *names);
    kt_shape_fit_request request = *asked;
    kt_status st = names ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for the names of models");
    const int n = names ? kt_model_list_shapes(names, MOST_SHAPES) : 0;

    for (int i = 0; i < n && st == KT_OK; i++) {
        family_row *row = &rows[*n_rows];
        request.shape = names[i];
        memcpy(row->name, names[i], sizeof row->name);
        st = kt_shape_fit_count(planner, &request, &row->fit, err);
        if (st == KT_OK) ++*n_rows;
        if (st == KT_E_NOT_FOUND) st = KT_OK; /* no config: not a published model */
    }
    free(names);
    return st;
}

static int by_family(const void *a, const void *b) {
    const family_row *p = a, *q = b;
    const int family = strcmp(p->fit.family, q->fit.family);

    return family ? family : strcmp(p->name, q->name);
}

/* "int4 374.1, 32768 tokens", or "no: q2_k 281.3 is too much". */
static char *cell_of(const kt_machine_fit *m, char out[CELL]) {
    if (!m->weights)
        snprintf(out, CELL, "no");
    else if (m->fits)
        snprintf(out, CELL, "%s%s %.1f, %lld tokens", m->is_gguf ? "GGUF " : "", m->weights,
                 (double)m->weight_bytes / GIB, (long long)m->longest);
    else
        snprintf(out, CELL, "no: %s%s %.1f", m->is_gguf ? "GGUF " : "", m->weights,
                 (double)m->weight_bytes / GIB);
    return out;
}

static void print_text(const kt_shape_fit_request *asked, const family_row *rows, int n) {
    char cell[CELL];

    printf("%-14s %-20s %9s", "family", "model", "published");
    for (int m = 0; m < asked->n_machines; m++)
        printf("  %.0f GiB%*s", (double)asked->machines[m] / GIB,
               m + 1 < asked->n_machines ? 29 : 0, "");
    printf("\n");
    for (int i = 0; i < n; i++) {
        printf("%-14s %-20s %9.1f", rows[i].fit.family, rows[i].name,
               (double)rows[i].fit.published_bytes / GIB);
        for (int m = 0; m < asked->n_machines; m++)
            printf("  %-*s", m + 1 < asked->n_machines ? 36 : 0,
                   cell_of(&rows[i].fit.machine[m], cell));
        printf("\n");
    }
    printf(
        "GiB of weights, as published and as they would run: native, by kt convert or --weights, "
        "or as a GGUF file with such\nblocks in all feed-forwards; then the longest context. Of "
        "each machine %.0f GiB are the system's, and %lld tokens\nor the model's most have to "
        "fit. What is stored in few bits is not quantised again.\n",
        (double)KT_FIT_RESERVE / GIB, (long long)asked->context);
}

static void put_machine(kt_json_writer *w, const kt_machine_fit *m, uint64_t bytes) {
    kt_json_begin_object(w);
    kt_json_add_int(w, "memory_bytes", (int64_t)bytes);
    kt_json_add_bool(w, "fits", m->fits);
    kt_json_add_string(w, "weights", m->weights);
    kt_json_add_bool(w, "is_gguf", m->is_gguf);
    kt_json_add_int(w, "weight_bytes", (int64_t)m->weight_bytes);
    kt_json_add_int(w, "needed_bytes", (int64_t)m->needed);
    kt_json_add_int(w, "longest_context", m->longest);
    kt_json_end_object(w);
}

static void print_json(const kt_shape_fit_request *asked, const family_row *rows, int n) {
    kt_json_writer w = {0};

    kt_json_begin_array(&w);
    for (int i = 0; i < n; i++) {
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "family", rows[i].fit.family);
        kt_json_add_string(&w, "model", rows[i].name);
        kt_json_add_int(&w, "published_bytes", (int64_t)rows[i].fit.published_bytes);
        kt_json_add_int(&w, "context", rows[i].fit.context);
        kt_json_key(&w, "machines");
        kt_json_begin_array(&w);
        for (int m = 0; m < asked->n_machines; m++)
            put_machine(&w, &rows[i].fit.machine[m], asked->machines[m]);
        kt_json_end_array(&w);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_writer_print(&w, stdout);
}

int kt_plan_families(const kt_shape_fit_request *asked, bool json) {
    const kt_fingerprint unknown = {0};
    family_row *rows = calloc(MOST_SHAPES, sizeof *rows);
    kt_registry *registry = NULL;
    kt_planner *planner = NULL;
    kt_err err = {KT_OK, ""};
    int n = 0;
    kt_status st = rows ? kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                             kt_isa_available(), &registry, &err)
                        : kt_fail(&err, KT_E_NOMEM, "no memory for a table of models");

    if (st == KT_OK) st = kt_planner_create(registry, NULL, &unknown, NULL, &planner, &err);
    if (st == KT_OK) st = count(planner, asked, rows, &n, &err);
    if (st == KT_OK) {
        qsort(rows, (size_t)n, sizeof *rows, by_family);
        if (json)
            print_json(asked, rows, n);
        else
            print_text(asked, rows, n);
    }
    kt_planner_destroy(planner);
    kt_registry_destroy(registry);
    free(rows);
    return st == KT_OK ? KT_EXIT_OK : kt_command_fail(&err);
}
