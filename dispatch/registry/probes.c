/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/registry/probes.h"

#include <string.h>

const kt_variant *kt_probe_find(const kt_registry *registry, const char *prefix, kt_isa isa) {
    const kt_variant *best = NULL;

    for (size_t i = 0; i < kt_registry_count(registry); i++) {
        const kt_variant *v = kt_registry_at(registry, i);
        if (v->op != KT_OP_PROBE || strncmp(v->name, prefix, strlen(prefix)) != 0 || v->isa & ~isa)
            continue;
        if (!best || v->isa > best->isa) best = v;
    }
    return best;
}

kt_config kt_probe_best_config(const kt_variant *v,
                               double (*rate)(void *arg, const kt_config *config), void *arg) {
    enum { TURNS = 2 };
    kt_config best = kt_config_initial(v);
    double most = 0;

    for (int turn = 0; turn < TURNS; turn++)
        for (int64_t i = 0; i < kt_config_count(v); i++) {
            const kt_config c = kt_config_at(v, i);
            const double r = rate(arg, &c);
            if (r <= most) continue;
            most = r;
            best = c;
        }
    return best;
}
