/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/space/layer_list.h"

#include <stdio.h>
#include <string.h>

#include "tuner/space/roles.h"

/* Evenness decides how calls with several rows per expert are best cut; one token has one row
 * anyway. */
static const char *const skews[] = {"zipf:0", "zipf:0.6", "zipf:1"};
static const char usual_skew[] = "zipf:0.6";

/* What is declared but needs a GPU and the runtime that shares work with it. */
static const char no_gpu[] = "is about a GPU: `kttune run --device cuda` decides it";

static void add(kt_plan_cells *out, const char *name, const kt_problem *problem, int threads,
                int64_t tokens, const char *routing, const char *refused) {
    kt_plan_cell *c = &out->list[out->n];

    if (out->n == KT_MAX_PLAN_CELLS) return;
    *c = (kt_plan_cell){
        .problem = *problem, .threads = threads, .tokens = tokens, .refused = refused};
    c->problem.m = tokens;
    snprintf(c->cell, sizeof c->cell, "%s", name);
    snprintf(c->routing, sizeof c->routing, "%s", routing);
    out->n++;
}

/* One cell per skew, or a single one where rows cannot differ. */
static void add_skewed(kt_plan_cells *out, const char *name, const kt_problem *problem, int threads,
                       int64_t tokens) {
    for (size_t i = 0; i < sizeof skews / sizeof *skews; i++)
        if (tokens > 1 || strcmp(skews[i], usual_skew) == 0)
            add(out, name, problem, threads, tokens, skews[i], NULL);
}

void kt_plan_cells_of(const kt_shapes *shapes, kt_serving_format format, kt_profile profile,
                      int threads, kt_plan_cells *out) {
    static const int64_t tokens[] = {1, 8, 64, 512, 16, 32, 128, 256}, gains[] = {1, 64, 512};
    static const int64_t step_tokens[] = {1, 8, 512};
    size_t n = profile == KT_PROFILE_QUICK ? 4 : sizeof tokens / sizeof *tokens;
    kt_serving_role roles[KT_MAX_ROLES];
    const kt_problem *p = &roles[0].problem;

    out->n = 0;
    if (kt_roles_list(shapes, format, roles) == 0 || p->op != KT_OP_MOE_FFN || p->experts < 2)
        return;
    for (size_t i = 0; i < sizeof gains / sizeof *gains; i++)
        add_skewed(out, "layer_gain", p, threads, gains[i]);
    for (size_t i = 0; threads > 1 && i < sizeof step_tokens / sizeof *step_tokens; i++)
        add(out, "threads", p, threads, step_tokens[i], usual_skew, NULL);
    if (threads > 1) add(out, "spin", p, threads, 1, usual_skew, NULL);
    for (size_t i = 0; i < n; i++) add_skewed(out, "moe_layer", p, threads, tokens[i]);
    add(out, "cpu_gpu_split", p, threads, 1, usual_skew, no_gpu);
    add(out, "prefill_offload", p, threads, 512, usual_skew, no_gpu);
}

static char *write_key(const char *cell, const kt_problem *p, int threads, int64_t tokens,
                       const char *routing, char *out, size_t out_bytes) {
    char more[KT_CELL_MORE_BYTES];

    snprintf(out, out_bytes, "%s %s/%s n=%lld k=%lld E=%lld/%lld%s t=%d T=%lld %s", cell,
             kt_weight_format_name(p->weights), kt_act_format_name(p->acts), (long long)p->n,
             (long long)p->k, (long long)p->experts, (long long)p->topk,
             kt_cell_more(p, more, sizeof more), threads, (long long)tokens, routing);
    return out;
}

char *kt_plan_cell_key(const kt_plan_cell *c, char *out, size_t out_bytes) {
    return write_key(c->cell, &c->problem, c->threads, c->tokens, c->routing, out, out_bytes);
}

char *kt_plan_key(const kt_table_plan *p, char *out, size_t out_bytes) {
    return write_key(p->cell, &p->row.problem, p->row.threads, p->tokens, p->routing, out,
                     out_bytes);
}
