/* kttune explain: what would run for one problem, and why. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/shell_word.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"
#include "tuner/cli/run_plans.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/space/candidates.h"
#include "tuner/space/cell.h"
#include "tuner/space/shapes.h"
#include "tuner/store/row_json.h"

typedef struct explain_options {
    const char *table, *model, *op, *weights, *role, *format;
    int64_t m, n, k, experts[2], kv_heads, v, context, threads;
    bool deterministic, json;
} explain_options;

/* Of attention: what cannot be one is refused by the variants, none of which takes it. */
static kt_weight_format cache_of(const explain_options *o) {
    const int weights = o->weights ? kt_weight_format_parse(o->weights) : -1;
    return weights < 0 ? KT_W_BF16 : (kt_weight_format)weights;
}

/* The problem from its sizes, or from a model's role. */
static kt_status find_problem(const explain_options *o, kt_problem *out, kt_err *err) {
    int op = kt_op_parse(o->op), threads = (int)o->threads;
    kt_cell_list cells = {0};
    kt_shapes shapes;
    kt_status st;
    bool found = false;

    if (!kt_op_is_tuned(op))
        return kt_fail(err, KT_E_INVALID, "--op '%s': expected " KT_TUNED_OPS, o->op);
    if (o->n > 0 && op != KT_OP_GEMM && op != KT_OP_MOE_FFN) {
        *out = (kt_problem){.op = (kt_op)op,
                            .weights = op == KT_OP_INDEX  ? KT_W_BF16
                                       : op == KT_OP_ATTN ? cache_of(o)
                                                          : KT_W_NONE,
                            .m = o->m,
                            .n = o->n,
                            .k = o->k,
                            .kv_heads = o->kv_heads,
                            .context = o->context,
                            .v = o->v};
        return KT_OK;
    }
    if (o->n > 0) {
        int weights = o->weights ? kt_weight_format_parse(o->weights) : KT_W_BF16;
        const kt_format *f = weights < 0 ? NULL : kt_format_find((kt_weight_format)weights);
        if (!f)
            return kt_fail(err, KT_E_INVALID,
                           "--weights '%s': expected wbf16, w8c, w4g32, wq4_k ...", o->weights);
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

/* Rows of the same weights and threads around m: the next ones below and above, or the one of m
 * itself. Returns how many. */
static int find_rows(const kt_table *t, const kt_problem *p, int threads,
                     const kt_table_row *out[2]) {
    const kt_table_row *below = NULL, *above = NULL;
    int n = 0;
    for (size_t i = 0; t && i < t->n_rows; i++) {
        const kt_table_row *r = &t->rows[i];
        if (r->threads != threads || !kt_same_weights(&r->problem, p)) continue;
        if (r->problem.m <= p->m && (!below || r->problem.m > below->problem.m)) below = r;
        if (r->problem.m >= p->m && (!above || r->problem.m < above->problem.m)) above = r;
    }
    if (below) out[n++] = below;
    if (above && above != below) out[n++] = above;
    return n;
}

static void print_rows(const kt_table *t, const kt_problem *p, int threads) {
    const kt_table_row *rows[2];
    int n = find_rows(t, p, threads, rows);

    for (int i = 0; i < n; i++) {
        const kt_table_row *r = rows[i];
        printf("row     m=%lld %s: %s {%s} %.1f us, default %s {%s} %.1f us, %d rounds\n",
               (long long)r->problem.m, kt_row_status(r), r->variant, r->config, r->time_ns / 1e3,
               r->default_variant, r->default_config, r->default_ns / 1e3, r->rounds);
        for (int j = 0; j < r->n_runners; j++)
            printf("        next: %s {%s} %.1f us\n", r->runner[j].variant, r->runner[j].config,
                   r->runner[j].time_ns / 1e3);
    }
    if (n == 0) printf("row     none for these weights on %d threads\n", threads);
}

/* Why a variant does not run: variants that say the same are one line. */
typedef struct refusal {
    char why[KT_ERR_SIZE];
    const char *first; /* name */
    int n;
} refusal;

enum { MOST_REFUSALS = 32 };

/* "w4g32_a8_moe64__avx2: .." says who before why. */
static const char *without_name(const char *why, const char *name) {
    size_t size = strlen(name);
    if (strncmp(why, name, size) == 0 && why[size] == ' ') return why + size + 1;
    return strncmp(why, name, size) == 0 && why[size] == ':'
               ? why + size + 1 + (why[size + 1] == ' ')
               : why;
}

static void note_refusal(refusal *list, int *n, const char *why, const char *name) {
    int i = 0;
    why = without_name(why, name);
    while (i < *n && strcmp(list[i].why, why) != 0) i++;
    if (i == MOST_REFUSALS) return;
    if (i == *n) {
        snprintf(list[i].why, sizeof list[i].why, "%s", why);
        list[i].first = name;
        ++*n;
    }
    list[i].n++;
}

/* Without a reason against it in `why`, its estimate counts. */
static bool is_contender(const kt_variant *v, const kt_problem *p, bool deterministic,
                         kt_err *why) {
    kt_config c = kt_config_initial(v);
    return kt_variant_accepts(v, p, &c, why) == KT_OK &&
           (!deterministic || kt_variant_keeps_bits(v, why) == KT_OK);
}

/* Lower bounds of the time by the measured ceilings, for one call (of one active expert for
 * moe_ffn), and how much of the best row's time they are; then who refuses, by reason. */
static void print_roofline(const kt_workbench *b, const kt_table *t, const kt_problem *p,
                           int threads, bool deterministic) {
    const kt_table_row *rows[2], *own = NULL;
    refusal *refusals = calloc(MOST_REFUSALS, sizeof *refusals);
    int n = find_rows(t, p, threads, rows), n_refusals = 0;

    for (int i = 0; i < n; i++)
        if (rows[i]->problem.m == p->m) own = rows[i];
    for (size_t i = 0; i < kt_registry_count(b->registry); i++) {
        const kt_variant *v = kt_registry_at(b->registry, i);
        kt_err why = {0};
        double ns;
        if (v->op != p->op) continue;
        if (!is_contender(v, p, deterministic, &why)) {
            if (refusals && (v->weights >> p->weights & 1 || !kt_problem_is_packed(p)))
                note_refusal(refusals, &n_refusals, why.message, v->name);
            continue;
        }
        ns = kt_cost_ns(p, v, &b->machine.ceilings, threads);
        printf("bound   %-38s at least %.1f us a call%s", v->name, ns / 1e3,
               p->op == KT_OP_MOE_FFN ? " of one expert" : "");
        if (own) printf(", %.0f %% of the row's time", 100 * ns / own->time_ns);
        printf(", bits '%s'\n", v->bits ? v->bits : "");
    }
    for (int i = 0; i < n_refusals; i++)
        if (refusals[i].n == 1)
            printf("refuses %-38s %s\n", refusals[i].first, refusals[i].why);
        else
            printf("refuse  %d variants, %s and others: %s\n", refusals[i].n, refusals[i].first,
                   refusals[i].why);
    free(refusals);
}

static void put_bounds(kt_json_writer *w, const kt_workbench *b, const kt_problem *p, int threads,
                       bool deterministic) {
    kt_json_key(w, "bounds");
    kt_json_begin_array(w);
    for (size_t i = 0; i < kt_registry_count(b->registry); i++) {
        const kt_variant *v = kt_registry_at(b->registry, i);
        kt_err why = {0};
        bool accepted;
        if (v->op != p->op || (v->weights && !(v->weights >> p->weights & 1))) continue;
        accepted = is_contender(v, p, deterministic, &why);
        kt_json_begin_object(w);
        kt_json_add_string(w, "variant", v->name);
        kt_json_add_string(w, "bits", v->bits ? v->bits : "");
        kt_json_add_string(w, "refused", accepted ? "" : why.message);
        if (accepted)
            kt_json_add_fixed(w, "ns", kt_cost_ns(p, v, &b->machine.ceilings, threads), 1);
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
}

static void print_json(const kt_workbench *b, const kt_table *t, const char *where,
                       const kt_problem *p, int threads, const kt_choice *choice,
                       const kt_plan_source *source) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    char key[KT_CELL_KEY_BYTES], name[KT_CONTENDER_NAME_BYTES];
    const kt_table_row *rows[2];
    int n = find_rows(t, p, threads, rows);

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "problem", kt_cell_key(p, threads, key, sizeof key));
    kt_json_add_string(&w, "table", t ? where : "");
    kt_json_add_string(&w, "choice", kt_contender_name(choice, name, sizeof name));
    kt_json_add_string(&w, "layout", source->layout);
    kt_json_add_string(&w, "bits", choice->variant->bits ? choice->variant->bits : "");
    kt_json_add_bool(&w, "deterministic", *source->bits != '\0');
    kt_json_add_string(&w, "note", source->note);
    kt_json_add_int(&w, "tuned_buckets", source->tuned_cells);
    kt_json_add_int(&w, "estimated_buckets", source->untuned_cells);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (int i = 0; i < n; i++) kt_row_write(rows[i], &w);
    kt_json_end_array(&w);
    kt_json_key(&w, "plans");
    kt_json_begin_array(&w);
    for (size_t i = 0; t && i < t->n_plans; i++)
        if (t->plans[i].row.threads == threads && kt_same_weights(&t->plans[i].row.problem, p))
            kt_write_table_plan(&t->plans[i], t->fingerprint.ceilings.aa_noise_p95, &w);
    kt_json_end_array(&w);
    put_bounds(&w, b, p, threads, *source->bits != '\0');
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

/* Plan cells of these experts: how a layer of them runs, whatever m. */
static void print_plans(const kt_table *t, const kt_problem *p, int threads) {
    for (size_t i = 0; i < t->n_plans; i++)
        if (t->plans[i].row.threads == threads && kt_same_weights(&t->plans[i].row.problem, p))
            kt_print_table_plan(&t->plans[i], t->fingerprint.ceilings.aa_noise_p95);
}

static void print_text(const kt_workbench *b, const kt_table *t, const char *where,
                       const kt_problem *p, int threads, const kt_choice *choice,
                       const kt_plan_source *source) {
    char key[KT_CELL_KEY_BYTES], name[KT_CONTENDER_NAME_BYTES];

    printf("problem %s\ntable   %s\n", kt_cell_key(p, threads, key, sizeof key),
           t ? where : "none");
    printf("choice  %s, layout %s\n", kt_contender_name(choice, name, sizeof name), source->layout);
    printf("bits    '%s'%s\n", choice->variant->bits ? choice->variant->bits : "",
           *source->bits ? ", for every m and any number of threads"
                         : ", of this m; other m and threads may have others (--deterministic)");
    printf("source  %d buckets from rows, %d estimated%s%s\n", source->tuned_cells,
           source->untuned_cells, *source->note ? "\nnote    " : "", source->note);
    if (t) print_rows(t, p, threads);
    if (t) print_plans(t, p, threads);
    print_roofline(b, t, p, threads, *source->bits != '\0');
}

/* The command that makes the rows of this problem. */
static char *tune_command(const explain_options *o, char *out, size_t bytes) {
    char model[300];

    snprintf(out, bytes, "kttune run --model %s --format %s --threads %d",
             kt_shell_word(o->model, model, sizeof model), o->format, (int)o->threads);
    return out;
}

/* An operation without packed weights has one answer for its rows, from the nearest row. */
static kt_status explain_kept(const explain_options *o, const kt_problem *p, const kt_workbench *b,
                              const kt_table *t, const char *where, kt_err *err) {
    const kt_table_row *rows[2];
    kt_plan_source source = {.layout = "none"};
    kt_planner *planner = NULL;
    kt_choice choice;
    kt_status st = kt_planner_create(b->registry, t, &b->machine, NULL, &planner, err);

    if (st == KT_OK && o->deterministic) kt_planner_keep_bits(planner);
    if (st == KT_OK) st = kt_plan_resolve_simple(planner, p, (int)o->threads, &choice, err);
    kt_planner_destroy(planner);
    if (st != KT_OK) return st;
    source.tuned_cells = find_rows(t, p, (int)o->threads, rows);
    source.untuned_cells = source.tuned_cells == 0;
    if (o->deterministic) snprintf(source.bits, sizeof source.bits, "%s", choice.variant->bits);
    (o->json ? print_json : print_text)(b, t, where, p, (int)o->threads, &choice, &source);
    return KT_OK;
}

static kt_status explain(const explain_options *o, kt_problem *p, const kt_workbench *b,
                         const kt_table *t, const char *where, kt_err *err) {
    kt_choice_map *map = calloc(1, sizeof *map);
    kt_planner *planner = NULL;
    kt_plan_source source = {0};
    char command[KT_ERR_SIZE];
    kt_status st =
        map ? kt_planner_create_for(b->registry, t, &b->machine,
                                    tune_command(o, command, sizeof command), NULL, &planner, err)
            : kt_fail(err, KT_E_NOMEM, "explain: no memory");

    if (st == KT_OK && o->deterministic) kt_planner_keep_bits(planner);
    if (st == KT_OK) p->acts = kt_plan_acts(planner, p);
    if (st == KT_OK)
        st = kt_plan_resolve(planner, p, (int)o->threads, KT_M_DENSE, KT_DECODE_SHARE, map, &source,
                             err);
    if (st == KT_OK)
        (o->json ? print_json : print_text)(b, t, where, p, (int)o->threads,
                                            kt_choice_for(map, p->m), &source);
    kt_planner_destroy(planner);
    free(map);
    return st;
}

static kt_status explain_any(const explain_options *o, kt_problem *p, const kt_workbench *b,
                             const kt_table *t, const char *where, kt_err *err) {
    return kt_problem_is_packed(p) ? explain(o, p, b, t, where, err)
                                   : explain_kept(o, p, b, t, where, err);
}

static bool is_matrix(const char *op) {
    return strcmp(op, "gemm") == 0 || strcmp(op, "moe_ffn") == 0;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    explain_options o = {.model = "tiny-moe", .op = "moe_ffn", .format = "native", .m = 1};
    const kt_switch switches[] = {
        {"table", KT_SWITCH_TEXT, &o.table, "FILE", "default: the one serving would use"},
        {"model", KT_SWITCH_TEXT, &o.model, "NAME", "whose shapes and table; default tiny-moe"},
        {"format", KT_SWITCH_TEXT, &o.format, "F", "native, bf16, int8 or int4; default native"},
        {"op", KT_SWITCH_TEXT, &o.op, "OP", KT_TUNED_OPS "; default moe_ffn"},
        {"role", KT_SWITCH_TEXT, &o.role, "NAME", "experts, qkv, o, lm_head; default the first"},
        {"m", KT_SWITCH_COUNT, &o.m, "N", "rows (per expert); default 1"},
        {"threads", KT_SWITCH_COUNT, &o.threads, "N", "default all cores"},
        {"weights", KT_SWITCH_TEXT, &o.weights, "F", "with --n: wbf16, w8c, w4g32, wq4_k ..."},
        {"n", KT_SWITCH_COUNT, &o.n, "N",
         "outputs (moe_ffn: intermediate size), instead of a role"},
        {"k", KT_SWITCH_COUNT, &o.k, "N", "inputs (moe_ffn: hidden size)"},
        {"experts", KT_SWITCH_SIZE, o.experts, "E/K", "moe_ffn: experts and how many a token uses"},
        {"kv-heads", KT_SWITCH_COUNT, &o.kv_heads, "N", "delta, with --n: key heads"},
        {"v", KT_SWITCH_COUNT, &o.v, "N", "delta: size of a value; --k that of a key"},
        {"context", KT_SWITCH_COUNT, &o.context, "N", "index, with --n: keys"},
        {"deterministic", KT_SWITCH_FLAG, &o.deterministic, NULL,
         "as with kt ... --deterministic: one class of bits for every m"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "print a JSON object"},
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
    kt_problem problem;
    kt_err err;
    kt_status st;
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 NULL, 0, NULL);

    (void)context;
    if (code >= 0) return code;
    if (o.m < 1 || o.m > 1 << 20) return kt_switch_fail(&usage, "--m: expected 1 or more");
    if (o.threads > 1024) return kt_switch_fail(&usage, "--threads: expected at most 1024");
    if (o.n > 0 && (o.k < 1 || o.k > 1 << 24 || o.n > 1 << 28 ||
                    (is_matrix(o.op) && (o.k < 32 || o.k % 32 != 0))))
        return kt_switch_fail(&usage, "--n needs --k, of a matrix a multiple of 32");
    st = kt_workbench_init(&b, false, &err);
    if (o.threads == 0) o.threads = b.topology.usable_cores;
    if (st == KT_OK) st = find_problem(&o, &problem, &err);
    if (st != KT_OK) {
        kt_workbench_deinit(&b);
        return kt_verb_fail(&err);
    }
    st = kt_table_choose(&b, o.table, o.model, where, sizeof where, &t, &err);
    if (st == KT_E_NOT_FOUND && !o.table) st = KT_OK; /* explain the fallback */
    if (st == KT_OK) st = explain_any(&o, &problem, &b, t, where, &err);
    kt_table_destroy(t);
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_explain = {
    .name = "explain", .summary = "which variant runs for a problem, and why", .run = run};
