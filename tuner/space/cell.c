/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/cell.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

void kt_cell_list_deinit(kt_cell_list *list) {
    if (!list) return;
    free(list->cells);
    memset(list, 0, sizeof *list);
}

kt_status kt_cell_list_add(kt_cell_list *list, const kt_tune_cell *cell, kt_err *err) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 64;
        kt_tune_cell *cells = realloc(list->cells, capacity * sizeof *cells);
        if (!cells) return kt_fail(err, KT_E_NOMEM, "cells: no memory for %zu", capacity);
        list->cells = cells;
        list->capacity = capacity;
    }
    list->cells[list->n++] = *cell;
    return KT_OK;
}

/* " name=value" behind what is there; nothing for what a problem does not have. */
static void add_word(char *out, size_t out_bytes, const char *name, const char *value) {
    size_t used = strlen(out);
    snprintf(out + used, out_bytes - used, " %s=%s", name, value);
}

static void add_number(char *out, size_t out_bytes, const char *name, int64_t value) {
    char digits[24];
    snprintf(digits, sizeof digits, "%lld", (long long)value);
    if (value) add_word(out, out_bytes, name, digits);
}

char *kt_cell_more(const kt_problem *p, char *out, size_t out_bytes) {
    out[0] = '\0';
    if (kt_problem_down(p) != p->weights)
        add_word(out, out_bytes, "down", kt_weight_format_name(p->down));
    if (p->act != KT_FFN_SWIGLU) add_word(out, out_bytes, "act", kt_ffn_act_name(p->act));
    add_number(out, out_bytes, "kv", p->kv_heads);
    add_number(out, out_bytes, "context", p->context);
    if (p->v != p->k) add_number(out, out_bytes, "v", p->v);
    add_number(out, out_bytes, "window", p->window);
    return out;
}

char *kt_cell_key(const kt_problem *p, int threads, char *out, size_t out_bytes) {
    char experts[64] = "", more[KT_CELL_MORE_BYTES];
    if (p->op == KT_OP_MOE_FFN)
        snprintf(experts, sizeof experts, " E=%lld/%lld", (long long)p->experts,
                 (long long)p->topk);
    snprintf(out, out_bytes, "%s %s/%s m=%lld n=%lld k=%lld%s%s t=%d", kt_op_name(p->op),
             kt_weight_format_name(p->weights), kt_act_format_name(p->acts), (long long)p->m,
             (long long)p->n, (long long)p->k, experts, kt_cell_more(p, more, sizeof more),
             threads);
    return out;
}

uint64_t kt_cell_seed(uint64_t session_seed, const kt_tune_cell *cell) {
    char key[KT_CELL_KEY_BYTES];
    uint64_t h = session_seed + 0x9e3779b97f4a7c15u;
    kt_cell_key(&cell->problem, cell->threads, key, sizeof key);
    for (const char *p = key; *p; p++) h = (h ^ (uint64_t)(unsigned char)*p) * 0x100000001b3u;
    return h;
}
