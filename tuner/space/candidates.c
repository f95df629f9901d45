/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/candidates.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"

int kt_choice_equal(const kt_choice *a, const kt_choice *b) {
    return a->variant == b->variant && memcmp(&a->config, &b->config, sizeof a->config) == 0;
}

int kt_contenders_find(const kt_contenders *c, const kt_choice *choice) {
    for (int i = 0; i < c->n; i++)
        if (kt_choice_equal(&c->list[i].choice, choice)) return i;
    return -1;
}

void kt_contenders_deinit(kt_contenders *c) {
    if (!c) return;
    free(c->list);
    memset(c, 0, sizeof *c);
}

char *kt_contender_name(const kt_choice *choice, char *out, size_t out_bytes) {
    char config[96];
    kt_config_format(choice->variant, &choice->config, config, sizeof config);
    snprintf(out, out_bytes, "%s@%d{%s}", choice->variant->name, (int)choice->variant->version,
             config);
    return out;
}

static kt_status add(kt_contenders *c, const kt_contender *contender, kt_err *err) {
    if (c->n == c->capacity) {
        int capacity = c->capacity ? 2 * c->capacity : 32;
        kt_contender *list = realloc(c->list, (size_t)capacity * sizeof *list);
        if (!list) return kt_fail(err, KT_E_NOMEM, "contenders: no memory for %d", capacity);
        c->list = list;
        c->capacity = capacity;
    }
    c->list[c->n++] = *contender;
    return KT_OK;
}

static kt_status add_configs(const kt_variant *v, const kt_tune_cell *cell,
                             const kt_ceilings *ceilings, kt_contenders *out, kt_err *err) {
    kt_contender c = {.choice.variant = v};
    int64_t n = kt_config_count(v);

    c.bound_ns = kt_cost_ns(&cell->problem, v, ceilings, cell->threads);
    for (int64_t i = 0; i < n; i++) {
        c.choice.config = kt_config_at(v, i);
        if (kt_variant_accepts(v, &cell->problem, &c.choice.config, NULL) != KT_OK) continue;
        kt_contender_name(&c.choice, c.name, sizeof c.name);
        KT_TRY(add(out, &c, err));
    }
    return KT_OK;
}

static bool is_library(const kt_variant *v) {
    size_t size = strlen(v->name);
    return size > 5 && strcmp(v->name + size - 5, "__lib") == 0;
}

static void prune(kt_contenders *c, const kt_choice *standard, const kt_choice *keep,
                  double ratio) {
    double best = INFINITY;
    int n = 0;
    for (int i = 0; i < c->n; i++) best = fmin(best, c->list[i].bound_ns);
    for (int i = 0; i < c->n; i++) {
        const kt_contender *k = &c->list[i];
        if (k->bound_ns <= ratio * best || is_library(k->choice.variant) ||
            kt_choice_equal(&k->choice, standard) || (keep && kt_choice_equal(&k->choice, keep)))
            c->list[n++] = *k;
    }
    c->n_pruned = c->n - n;
    c->n = n;
}

kt_status kt_contenders_make(const kt_registry *registry, const kt_tune_cell *cell,
                             const kt_ceilings *ceilings, const kt_choice *standard,
                             const kt_choice *keep, double prune_ratio, kt_contenders *out,
                             kt_err *err) {
    char key[KT_CELL_KEY_BYTES];
    kt_status st = KT_OK;

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < kt_registry_count(registry) && st == KT_OK; i++)
        st = add_configs(kt_registry_at(registry, i), cell, ceilings, out, err);
    if (st == KT_OK && prune_ratio > 0 && out->n > 0) prune(out, standard, keep, prune_ratio);
    out->default_index = kt_contenders_find(out, standard);
    if (st == KT_OK && out->default_index < 0)
        st = kt_fail(err, KT_E_UNSUPPORTED, "%s: no usable variant accepts it",
                     kt_cell_key(&cell->problem, cell->threads, key, sizeof key));
    if (st != KT_OK) kt_contenders_deinit(out);
    return st;
}
