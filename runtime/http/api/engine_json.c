/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/engine_json.h"

#include <stdio.h>

enum { MOST_KERNELS = 128 };

static void put_kernels(const kt_engine *e, kt_json_writer *w) {
    kt_kernel_view views[MOST_KERNELS];
    int n = kt_engine_kernels(e, views, MOST_KERNELS);

    kt_json_key(w, "kernels");
    kt_json_begin_array(w);
    for (int i = 0; i < n && i < MOST_KERNELS; i++) {
        const kt_kernel_view *v = &views[i];
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", v->role);
        kt_json_add_string(w, "op", v->op);
        kt_json_add_string(w, "weights", v->weights);
        kt_json_add_string(w, "one_row", v->one_row);
        kt_json_add_string(w, "all_rows", v->all_rows);
        kt_json_add_bool(w, "is_tuned", v->is_tuned);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

static void put_experts(const kt_expert_map *m, kt_json_writer *w) {
    const int64_t layers = kt_expert_map_layers(m), experts = kt_expert_map_experts(m);

    kt_json_key(w, "experts");
    kt_json_begin_object(w);
    kt_json_add_int(w, "layers", layers);
    kt_json_add_int(w, "experts", experts);
    kt_json_add_int(w, "steps", kt_expert_map_steps(m));
    kt_json_key(w, "rows");
    kt_json_begin_array(w);
    for (int64_t l = 0; l < layers; l++) {
        kt_json_begin_array(w);
        for (int64_t i = 0; i < experts; i++) kt_json_put_int(w, kt_expert_map_rows(m, l, i));
        kt_json_end_array(w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
}

void kt_engine_write_json(const kt_engine *e, kt_json_writer *w) {
    kt_expert_map *m = kt_engine_expert_map(e);

    put_kernels(e, w);
    if (!m) return;
    kt_expert_map_watch(m);
    put_experts(m, w);
}

void kt_engine_put_kernels(const kt_engine *e, void (*put)(void *arg, const char *labels),
                           void *arg) {
    kt_kernel_view views[MOST_KERNELS];
    int n = kt_engine_kernels(e, views, MOST_KERNELS);
    char labels[600];

    for (int i = 0; i < n && i < MOST_KERNELS; i++) {
        const kt_kernel_view *v = &views[i];
        snprintf(labels, sizeof labels,
                 "role=\"%.80s\",op=\"%.80s\",weights=\"%.80s\",one_row=\"%.120s\","
                 "all_rows=\"%.120s\",tuned=\"%s\"",
                 v->role, v->op, v->weights, v->one_row, v->all_rows, v->is_tuned ? "yes" : "no");
        put(arg, labels);
    }
}
