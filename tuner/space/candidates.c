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

/* Of those with the bits of contender i, is its variant the one with the least bound, and
 * stable? Plain C is nobody's choice while there is anything else, and 200 times slower than its
 * bound lets hope. */
static bool leads_class(const kt_contenders *c, int i) {
    const kt_contender *k = &c->list[i];

    if (!kt_variant_is_stable(k->choice.variant) || k->choice.variant->isa == KT_ISA_SCALAR)
        return false;
    for (int j = 0; j < c->n; j++) {
        const kt_contender *o = &c->list[j];
        if (!kt_variant_same_bits(o->choice.variant, k->choice.variant)) continue;
        if (o->bound_ns < k->bound_ns) return false;
        if (o->bound_ns == k->bound_ns && j < i && o->choice.variant != k->choice.variant)
            return false;
    }
    return true;
}

static kt_status prune(kt_contenders *c, const kt_choice *standard, const kt_choice *keep,
                       kt_prune rule, kt_err *err) {
    bool *stays = calloc((size_t)c->n, sizeof *stays);
    double best = INFINITY;
    int n = 0;

    if (!stays) return kt_fail(err, KT_E_NOMEM, "contenders: no memory for %d", c->n);
    for (int i = 0; i < c->n; i++) best = fmin(best, c->list[i].bound_ns);
    for (int i = 0; i < c->n; i++) {
        const kt_contender *k = &c->list[i];
        stays[i] = k->bound_ns <= rule.ratio * best || is_library(k->choice.variant) ||
                   kt_choice_equal(&k->choice, standard) ||
                   (keep && kt_choice_equal(&k->choice, keep)) ||
                   (k->bound_ns <= rule.class_ratio * best && leads_class(c, i));
    }
    for (int i = 0; i < c->n; i++)
        if (stays[i]) c->list[n++] = c->list[i];
    c->n_pruned = c->n - n;
    c->n = n;
    free(stays);
    return KT_OK;
}

kt_status kt_contenders_make(const kt_registry *registry, const kt_tune_cell *cell,
                             const kt_ceilings *ceilings, const kt_choice *standard,
                             const kt_choice *keep, kt_prune rule, kt_contenders *out,
                             kt_err *err) {
    char key[KT_CELL_KEY_BYTES];
    kt_status st = KT_OK;

    memset(out, 0, sizeof *out);
    for (size_t i = 0; i < kt_registry_count(registry) && st == KT_OK; i++)
        st = add_configs(kt_registry_at(registry, i), cell, ceilings, out, err);
    if (st == KT_OK && rule.ratio > 0 && out->n > 0) st = prune(out, standard, keep, rule, err);
    out->default_index = kt_contenders_find(out, standard);
    if (st == KT_OK && out->default_index < 0)
        st = kt_fail(err, KT_E_UNSUPPORTED, "%s: no usable variant accepts it",
                     kt_cell_key(&cell->problem, cell->threads, key, sizeof key));
    if (st != KT_OK) kt_contenders_deinit(out);
    return st;
}
