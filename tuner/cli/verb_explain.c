/* kttune explain: what would run for one problem, and why. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/space/candidates.h"
#include "tuner/space/shapes.h"

typedef struct explain_options {
    const char *table, *model, *op, *weights, *role, *format;
    int64_t m, n, k, experts[2], threads;
} explain_options;

/* The problem from its sizes, or from a model's role. */
static kt_status find_problem(const explain_options *o, kt_problem *out, kt_err *err) {
    int op = kt_op_parse(o->op), threads = (int)o->threads;
    kt_cell_list cells = {0};
    kt_shapes shapes;
    kt_status st;
    bool found = false;

    if (op != KT_OP_GEMM && op != KT_OP_MOE_FFN)
        return kt_fail(err, KT_E_INVALID, "--op '%s': expected gemm or moe_ffn", o->op);
    if (o->n > 0) {
        int weights = o->weights ? kt_weight_format_parse(o->weights) : KT_W_BF16;
        const kt_format *f = weights < 0 ? NULL : kt_format_find((kt_weight_format)weights);
        if (!f)
            return kt_fail(err, KT_E_INVALID, "--weights '%s': expected wbf16, w8c or w4g32",
                           o->weights);
        *out = (kt_problem){
            .op = (kt_op)op, .weights = f->id, .acts = f->acts, .m = o->m, .n = o->n, .k = o->k};
        if (op == KT_OP_MOE_FFN) {
            out->experts = o->experts[0] ? o->experts[0] : 1;
            out->topk = o->experts[1] ? o->experts[1] : 1;
        }
        return KT_OK;
    }
    if (kt_serving_format_parse(o->format) < 0)
        return kt_fail(err, KT_E_INVALID, "--format '%s': expected native, bf16, int8 or int4",
                       o->format);
    KT_TRY(kt_shapes_find(o->model, &shapes, NULL, 0, err));
    st = kt_cells_of_shapes(&shapes, (kt_serving_format)kt_serving_format_parse(o->format),
                            KT_PROFILE_QUICK, &threads, 1, &cells, err);
    for (size_t i = 0; st == KT_OK && i < cells.n && !found; i++) {
        const kt_tune_cell *c = &cells.cells[i];
        if ((int)c->problem.op != op || (o->role && strcmp(o->role, c->role) != 0)) continue;
        *out = c->problem;
        out->m = o->m;
        found = true;
    }
    kt_cell_list_deinit(&cells);
    if (st == KT_OK && !found)
        st = kt_fail(err, KT_E_INVALID, "model '%s' has no %s%s%s", o->model, o->op,
                     o->role ? " named " : "", o->role ? o->role : "");
    return st;
}

/* Rows of the same weights and threads around m. */
static void print_rows(const kt_table *t, const kt_problem *p, int threads) {
    const kt_table_row *below = NULL, *above = NULL;
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        if (r->threads != threads || !kt_same_weights(&r->problem, p)) continue;
        if (r->problem.m <= p->m && (!below || r->problem.m > below->problem.m)) below = r;
        if (r->problem.m >= p->m && (!above || r->problem.m < above->problem.m)) above = r;
    }
    for (int i = 0; i < 2; i++) {
        const kt_table_row *r = i ? above : below;
        if (!r || (i && above == below)) continue;
        printf("row     m=%lld %s: %s {%s} %.1f us, default %s {%s} %.1f us, %d rounds\n",
               (long long)r->problem.m, r->status, r->variant, r->config, r->time_ns / 1e3,
               r->default_variant, r->default_config, r->default_ns / 1e3, r->rounds);
        for (int j = 0; j < r->n_runners; j++)
            printf("        next: %s {%s} %.1f us\n", r->runner[j].variant, r->runner[j].config,
                   r->runner[j].time_ns / 1e3);
    }
    if (!below && !above) printf("row     none for these weights on %d threads\n", threads);
}

static void print_roofline(const kt_workbench *b, const kt_problem *p, int threads) {
    for (size_t i = 0; i < kt_registry_count(b->registry); i++) {
        const kt_variant *v = kt_registry_at(b->registry, i);
        kt_config c = kt_config_initial(v);
        kt_err why = {0};
        if (v->op != p->op) continue;
        if (kt_variant_accepts(v, p, &c, &why) == KT_OK)
            printf("bound   %-38s at least %.1f us\n", v->name,
                   kt_cost_ns(p, v, &b->machine.ceilings, threads) / 1e3);
        else if (v->weights >> p->weights & 1)
            printf("refuses %-38s %s\n", v->name, why.message);
    }
}

static kt_status explain(const explain_options *o, const kt_workbench *b, const kt_table *t,
                         const char *where, kt_err *err) {
    char key[KT_CELL_KEY_BYTES], name[KT_CONTENDER_NAME_BYTES];
    kt_choice_map *map = calloc(1, sizeof *map);
    kt_planner *planner = NULL;
    kt_plan_source source = {0};
    kt_problem p;
    kt_status st = map ? find_problem(o, &p, err) : kt_fail(err, KT_E_NOMEM, "explain: no memory");

    if (st == KT_OK) st = kt_planner_create(b->registry, t, &b->machine, NULL, &planner, err);
    if (st == KT_OK)
        st = kt_plan_resolve(planner, &p, (int)o->threads, KT_M_DENSE, 0.7, map, &source, err);
    if (st == KT_OK) {
        printf("problem %s\ntable   %s\n", kt_cell_key(&p, (int)o->threads, key, sizeof key),
               t ? where : "none");
        printf("choice  %s, layout %s\n",
               kt_contender_name(kt_choice_for(map, p.m), name, sizeof name), source.layout);
        printf("source  %d buckets from rows, %d estimated%s%s\n", source.tuned_cells,
               source.untuned_cells, *source.note ? "\nnote    " : "", source.note);
        if (t) print_rows(t, &p, (int)o->threads);
        print_roofline(b, &p, (int)o->threads);
    }
    kt_planner_destroy(planner);
    free(map);
    return st;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    explain_options o = {.model = "tiny-moe", .op = "moe_ffn", .format = "native", .m = 1};
    const kt_switch switches[] = {
        {"table", KT_SWITCH_TEXT, &o.table, "FILE", "default: the one serving would use"},
        {"model", KT_SWITCH_TEXT, &o.model, "NAME", "whose shapes and table; default tiny-moe"},
        {"format", KT_SWITCH_TEXT, &o.format, "F", "native, bf16, int8 or int4; default native"},
        {"op", KT_SWITCH_TEXT, &o.op, "OP", "gemm or moe_ffn; default moe_ffn"},
        {"role", KT_SWITCH_TEXT, &o.role, "NAME", "experts, qkv, o, lm_head; default the first"},
        {"m", KT_SWITCH_COUNT, &o.m, "N", "rows (per expert); default 1"},
        {"threads", KT_SWITCH_COUNT, &o.threads, "N", "default all cores"},
        {"weights", KT_SWITCH_TEXT, &o.weights, "F", "with --n: wbf16, w8c or w4g32"},
        {"n", KT_SWITCH_COUNT, &o.n, "N", "sizes instead of a model's role"},
        {"k", KT_SWITCH_COUNT, &o.k, "N", ""},
        {"experts", KT_SWITCH_SIZE, o.experts, "E/K", ""},
    };
    const kt_verb_usage usage = {
        "explain", "",
        "What runs for one problem: the choice, the rows it comes from, what else there is, and "
        "what\n"
        "would improve it.",
        "  kttune explain --op moe_ffn --m 7\n"
        "  kttune explain --table mine.kttable.json --op gemm --role lm_head --m 1\n"};
    kt_workbench b = {0};
    kt_table *t = NULL;
    char where[1024] = "";
    kt_err err;
    kt_status st;
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 NULL, 0, NULL);

    (void)context;
    if (code >= 0) return code;
    if (o.m < 1 || o.m > 1 << 20) return kt_switch_fail(&usage, "--m: expected 1 or more");
    if (o.threads > 1024) return kt_switch_fail(&usage, "--threads: expected at most 1024");
    if (o.n > 0 && (o.k < 32 || o.k % 32 != 0 || o.k > 1 << 24 || o.n > 1 << 28))
        return kt_switch_fail(&usage, "--n needs --k, a multiple of 32");
    st = kt_workbench_init(&b, false, &err);
    if (st != KT_OK) return kt_verb_fail(&err);
    if (o.threads == 0) o.threads = b.topology.usable_cores;
    st = kt_table_choose(&b, o.table, o.model, where, sizeof where, &t, &err);
    if (st == KT_E_NOT_FOUND && !o.table) st = KT_OK; /* explain the fallback */
    if (st == KT_OK) st = explain(&o, &b, t, where, &err);
    kt_table_destroy(t);
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_explain = {
    .name = "explain", .summary = "which variant runs for a problem, and why", .run = run};
