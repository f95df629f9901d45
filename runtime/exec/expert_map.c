/* One thread writes, so that a count is a load and a store, not a locked addition; readers see each
 * number whole, but not all of one step. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/expert_map.h"

#include <stdatomic.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"

struct kt_expert_map {
    int64_t layers, experts;
    atomic_llong until_ns; /* steps are counted up to then; 0 = nobody looks */
    atomic_llong steps;
    int64_t layer;      /* of the running step; -1 = none yet */
    atomic_llong *rows; /* owned: [layers, experts] */
};

kt_status kt_expert_map_create(int64_t layers, int64_t experts, kt_expert_map **out, kt_err *err) {
    kt_expert_map *m = calloc(1, sizeof *m);

    *out = NULL;
    if (m) m->rows = calloc((size_t)layers * (size_t)experts, sizeof *m->rows);
    if (!m || !m->rows) {
        free(m);
        return kt_fail(err, KT_E_NOMEM, "no memory to count rows of %lld x %lld experts",
                       (long long)layers, (long long)experts);
    }
    m->layers = layers;
    m->experts = experts;
    *out = m;
    return KT_OK;
}

void kt_expert_map_destroy(kt_expert_map *m) {
    if (!m) return;
    free(m->rows);
    free(m);
}

static void add(atomic_llong *n, int64_t more) {
    atomic_store_explicit(n, atomic_load_explicit(n, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

bool kt_expert_map_begin(kt_expert_map *m) {
    long long until = atomic_load_explicit(&m->until_ns, memory_order_relaxed);

    if (until == 0) return false;
    if (kt_clock_ns() > until) { /* unless somebody looks just now */
        atomic_compare_exchange_strong(&m->until_ns, &until, 0);
        return false;
    }
    m->layer = -1;
    add(&m->steps, 1);
    return true;
}

void kt_expert_map_layer(kt_expert_map *m) {
    m->layer++;
}

void kt_expert_map_add(kt_expert_map *m, int64_t expert, int64_t rows) {
    if (m->layer < 0 || m->layer >= m->layers || expert < 0 || expert >= m->experts) return;
    add(&m->rows[m->layer * m->experts + expert], rows);
}

void kt_expert_map_watch(kt_expert_map *m) {
    atomic_store(&m->until_ns, kt_clock_ns() + KT_EXPERT_MAP_WATCH_NS);
}

int64_t kt_expert_map_layers(const kt_expert_map *m) {
    return m->layers;
}

int64_t kt_expert_map_experts(const kt_expert_map *m) {
    return m->experts;
}

int64_t kt_expert_map_steps(const kt_expert_map *m) {
    return atomic_load_explicit(&m->steps, memory_order_relaxed);
}

int64_t kt_expert_map_rows(const kt_expert_map *m, int64_t layer, int64_t expert) {
    return atomic_load_explicit(&m->rows[layer * m->experts + expert], memory_order_relaxed);
}
