/* How many rows each expert of each MoE layer got, counted while somebody looks: for the page and
 * GET /machine. When nobody looks a step pays one load of an atomic number.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPERT_MAP_H
#define KT_RUNTIME_EXPERT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_expert_map kt_expert_map;

#define KT_EXPERT_MAP_WATCH_NS ((int64_t)10 * 1000 * 1000 * 1000) /* a look keeps it on so long */

/* layers MoE layers of so many routed experts each, both at least 1. */
kt_status kt_expert_map_create(int64_t layers, int64_t experts, kt_expert_map **out, kt_err *err);
void kt_expert_map_destroy(kt_expert_map *m); /* accepts NULL */

/* ---- a step, on the engine's thread; nothing allocates or locks ---- */

/* Is this step to be counted? Then kt_expert_map_layer for each MoE layer in order, each followed
 * by its experts with rows. */
bool kt_expert_map_begin(kt_expert_map *m);
void kt_expert_map_layer(kt_expert_map *m);
void kt_expert_map_add(kt_expert_map *m, int64_t expert, int64_t rows);

/* ---- who looks; any thread, also while a step runs ---- */

/* Count steps for the next ten seconds. */
void kt_expert_map_watch(kt_expert_map *m);
int64_t kt_expert_map_layers(const kt_expert_map *m);
int64_t kt_expert_map_experts(const kt_expert_map *m);
int64_t kt_expert_map_steps(const kt_expert_map *m); /* counted since it was created */
/* Rows that an expert got in them. */
int64_t kt_expert_map_rows(const kt_expert_map *m, int64_t layer, int64_t expert);

#endif
