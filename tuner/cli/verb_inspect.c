/* kttune inspect: what the compiler made of a variant. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/cost/cost.h"
#include "kernels/formats/format.h"
#include "tuner/cli/bench_duel.h"
#include "tuner/cli/child_output.h"
#include "tuner/cli/program_code.h"
#include "tuner/report/static_cycles.h"
#include "tuner/space/cell.h"

enum { MODEL_BYTES = 80, MOST_TIMED_LOOPS = 32 };

typedef struct inspection {
    const kt_variant *variant;
    kt_variant_code code;
    kt_code_loops loops;
    double cycles[MOST_TIMED_LOOPS]; /* per iteration, by llvm-mca; 0 = unknown */
    char model[MODEL_BYTES];         /* whose scheduling model */
    char why[KT_ERR_SIZE];           /* why there are no cycles */
    bool has_bench;
    kt_bench_duel_result bench;
    kt_counters counters;
    kt_ceilings ceilings;
    double ghz; /* of the clock, by a chain of multiplications */
} inspection;

typedef struct inspect_options {
    int64_t loop; /* whose code is printed */
    bool all, bench, json;
    kt_duel_options duel;
} inspect_options;

static const kt_variant *find_variant(const char *name) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (strcmp(kt_builtin_variants[i]->name, name) == 0) return kt_builtin_variants[i];
    return NULL;
}

/* --- static cycles --- */

/* Does this llvm-mca know the processor? It only warns and takes another one when not. */
static bool knows_model(const char *mcpu, kt_err *err) {
    const char *argv[] = {"llvm-mca", mcpu, NULL};
    char *text = NULL;
    bool known =
        kt_child_output(argv, "nop\n", &text, err) == KT_OK && !strstr(text, "not a recognized");
    free(text);
    return known;
}

static void estimate_cycles(inspection *x) {
    kt_cpu cpu;
    const char *models[4];
    char mcpu[64];
    const char *argv[] = {
        "llvm-mca", mcpu, "-iterations=100", "-instruction-info=0", "-resource-pressure=0", NULL};
    kt_err err = {KT_OK, "llvm-mca knows none of the processors tried"};
    size_t n, i;

    kt_cpu_probe(&cpu);
    n = kt_mca_models(cpu.microarch, models);
    for (i = 0; i < n; i++) {
        snprintf(mcpu, sizeof mcpu, "-mcpu=%s", models[i]);
        if (knows_model(mcpu, &err) || err.status == KT_E_NOT_FOUND) break;
    }
    if (i == n || err.status == KT_E_NOT_FOUND) {
        snprintf(x->why, sizeof x->why, "%s", err.message);
        return;
    }
    snprintf(x->model, sizeof x->model, "%s%s%s%s", models[i],
             i ? " (this llvm-mca does not know " : "", i ? models[0] : "", i ? ")" : "");
    for (size_t l = 0; l < x->loops.n && l < MOST_TIMED_LOOPS; l++) {
        char *input = NULL, *report = NULL;
        if (kt_loop_assembly(&x->code.listing, &x->loops.list[l], &input, &err) == KT_OK &&
            kt_child_output(argv, input, &report, &err) == KT_OK)
            x->cycles[l] = kt_mca_cycles(report);
        else
            snprintf(x->why, sizeof x->why, "%s", err.message);
        free(input);
        free(report);
    }
}

static int products_of(const kt_code_loop *l) {
    return l->count[KT_CODE_DOT] + l->count[KT_CODE_FMA];
}

/* --- text --- */

static const char *function_of(const inspection *x, const kt_code_loop *l) {
    const kt_code_function *f =
        kt_variant_code_at(&x->code, x->code.listing.list[l->member[0]].address);
    return f ? f->name : "?";
}

static void print_loop_line(const inspection *x, size_t i) {
    const kt_code_loop *l = &x->loops.list[i];
    double cycles = i < MOST_TIMED_LOOPS ? x->cycles[i] : 0;

    printf("%3zu  %-30.30s %5zu", i + 1, function_of(x, l), l->n);
    for (int c = 0; c < KT_CODE_CLASSES; c++) printf(" %5d", l->count[c]);
    printf("  %5d %4s %6d", kt_code_vector_registers(l),
           l->vector_bytes == 1024 ? "tile"
           : l->vector_bytes == 64 ? "zmm"
           : l->vector_bytes == 32 ? "ymm"
           : l->vector_bytes == 16 ? "xmm"
                                   : "-",
           l->vector_spills);
    if (cycles > 0) printf("  %6.1f %6.2f", cycles, products_of(l) / cycles);
    putchar('\n');
}

static void print_code(const inspection *x, size_t i) {
    const kt_code_loop *l = &x->loops.list[i];

    printf("\nloop %zu of %s: %zu instructions, %d read and %d write memory (%d and %d of them the "
           "stack), %d general registers%s\n",
           i + 1, function_of(x, l), l->n, l->reads, l->writes, l->stack_reads, l->stack_writes,
           l->general_registers, l->has_call ? ", calls others" : "");
    for (size_t k = 0; k < l->n; k++) {
        const kt_instruction *in = &x->code.listing.list[l->member[k]];
        printf("  %-8s %8llx  %s%s\n", kt_code_class_name(in->code_class),
               (unsigned long long)in->address, in->text, in->is_stack ? "   # stack" : "");
    }
}

static void print_counters(const inspection *x) {
    const kt_counters *c = &x->counters;
    double cycles = c->value[KT_COUNTER_CYCLES], misses = c->value[KT_COUNTER_CACHE_MISSES];

    if (!kt_counters_has(c, KT_COUNTER_CYCLES)) {
        printf("counters: not to be had (perf_event_open: %s); clock about %.2f GHz, by a chain "
               "of multiplications\n",
               strerror(c->error[KT_COUNTER_CYCLES]), x->ghz);
        return;
    }
    printf("counters of the rounds: %.3g cycles, %.3g instructions (%.2f per cycle)", cycles,
           c->value[KT_COUNTER_INSTRUCTIONS], c->value[KT_COUNTER_INSTRUCTIONS] / cycles);
    if (kt_counters_has(c, KT_COUNTER_CACHE_MISSES))
        printf(", %.3g cache misses (%.1f per 1000 instructions)", misses,
               1000 * misses / c->value[KT_COUNTER_INSTRUCTIONS]);
    if (kt_counters_has(c, KT_COUNTER_CPU_NS))
        printf(", clock %.2f GHz", cycles / c->value[KT_COUNTER_CPU_NS]);
    putchar('\n');
}

static void print_bench(const inspection *x, const kt_duel_options *o) {
    const kt_bench_duel_result *r = &x->bench;
    char key[KT_CELL_KEY_BYTES];
    double bytes = 0, ops = 0, ns = r->p25_ns[0];
    double bound = kt_cost_ns(&r->problem, x->variant, &x->ceilings, (int)o->threads);
    double stream = o->threads > 1 ? x->ceilings.stream_gbs_all : x->ceilings.stream_gbs_1t;

    kt_problem_work(&r->problem, &bytes, &ops);
    printf("\n%s, cold weights, verified: %.1f us +-%.1f %% (p25 of %d rounds, %d disturbed)\n",
           kt_cell_key(&r->problem, (int)o->threads, key, sizeof key), ns / 1e3,
           50 * (r->spread[0].high - r->spread[0].low) / ns, r->rounds, r->voided);
    printf("%.1f GB/s of %.1f the machine reads, %.1f Gop/s; roofline bound %.1f us: at %.0f %% "
           "of the roofline%s\n",
           r->bytes[0] / ns, stream, r->operations / ns, bound / 1e3, 100 * bound / ns,
           kt_cost_excess(&r->problem, x->variant, &x->ceilings, (int)o->threads, ns));
    print_counters(x);
}

static void print_text(const inspection *x, const inspect_options *o) {
    const kt_variant *v = x->variant;
    char isa[160];

    printf("%s  %s, %s, version %d: %zu functions, %llu bytes of code, %zu innermost loops\n",
           v->name, kt_op_name(v->op), kt_isa_format(v->isa, isa, sizeof isa), (int)v->version,
           x->code.n_functions, (unsigned long long)x->code.bytes, x->loops.n);
    if (strstr(v->name, "__lib"))
        printf("the work is done by a library outside this program, which is not shown\n");
    printf("%3s  %-30s %5s", "", "function", "instr");
    for (int c = 0; c < KT_CODE_CLASSES; c++)
        printf(" %5.5s", kt_code_class_name((kt_code_class)c));
    printf("  %5s %4s %6s%s\n", "regs", "", "spills", x->model[0] ? "  cycles prod/c" : "");
    for (size_t i = 0; i < x->loops.n && (o->all || i < 12); i++) print_loop_line(x, i);
    if (!o->all && x->loops.n > 12) printf("     and %zu smaller ones (--all)\n", x->loops.n - 12);
    if (x->model[0])
        printf(
            "cycles of an iteration and products (dot, fma) per cycle: llvm-mca, model %s, every "
            "load from L1\n",
            x->model);
    if (x->why[0]) printf("static cycles: %s (package llvm)\n", x->why);
    for (size_t i = 0; i < x->loops.n; i++)
        if (o->all || (int64_t)i + 1 == o->loop) print_code(x, i);
    if (x->has_bench) print_bench(x, &o->duel);
}

/* --- JSON --- */

static void put_loop(kt_json_writer *w, const inspection *x, size_t i) {
    const kt_code_loop *l = &x->loops.list[i];

    kt_json_begin_object(w);
    kt_json_add_string(w, "function", function_of(x, l));
    kt_json_add_int(w, "address", (int64_t)x->code.listing.list[l->member[0]].address);
    kt_json_add_int(w, "instructions", (int64_t)l->n);
    kt_json_key(w, "mix");
    kt_json_begin_object(w);
    for (int c = 0; c < KT_CODE_CLASSES; c++)
        kt_json_add_int(w, kt_code_class_name((kt_code_class)c), l->count[c]);
    kt_json_end_object(w);
    kt_json_add_int(w, "memory_reads", l->reads);
    kt_json_add_int(w, "memory_writes", l->writes);
    kt_json_add_int(w, "stack_reads", l->stack_reads);
    kt_json_add_int(w, "stack_writes", l->stack_writes);
    kt_json_add_int(w, "vector_spills", l->vector_spills);
    kt_json_add_int(w, "vector_bytes", l->vector_bytes);
    kt_json_add_int(w, "vector_registers", kt_code_vector_registers(l));
    kt_json_add_int(w, "tile_registers", __builtin_popcount(l->tile_registers));
    kt_json_add_int(w, "general_registers", l->general_registers);
    kt_json_add_int(w, "set_aside", l->n_aside);
    kt_json_add_bool(w, "calls", l->has_call);
    kt_json_key(w, "cycles");
    if (i < MOST_TIMED_LOOPS && x->cycles[i] > 0)
        kt_json_put_fixed(w, x->cycles[i], 2);
    else
        kt_json_put_null(w);
    kt_json_key(w, "code");
    kt_json_begin_array(w);
    for (size_t k = 0; k < l->n; k++)
        kt_json_put_string(w, x->code.listing.list[l->member[k]].text);
    kt_json_end_array(w);
    kt_json_end_object(w);
}

static void put_bench(kt_json_writer *w, const inspection *x, const kt_duel_options *o) {
    const kt_bench_duel_result *r = &x->bench;
    char key[KT_CELL_KEY_BYTES];

    kt_json_key(w, "bench");
    if (!x->has_bench) {
        kt_json_put_null(w);
        return;
    }
    kt_json_begin_object(w);
    kt_json_add_string(w, "cell", kt_cell_key(&r->problem, (int)o->threads, key, sizeof key));
    kt_json_add_fixed(w, "ns", r->p25_ns[0], 1);
    kt_json_add_fixed(w, "low", r->spread[0].low, 1);
    kt_json_add_fixed(w, "high", r->spread[0].high, 1);
    kt_json_add_fixed(w, "gbs", r->bytes[0] / r->p25_ns[0], 2);
    kt_json_add_fixed(w, "gops", r->operations / r->p25_ns[0], 2);
    kt_json_add_fixed(w, "bound_ns",
                      kt_cost_ns(&r->problem, x->variant, &x->ceilings, (int)o->threads), 1);
    kt_json_add_fixed(w, "ghz", x->ghz, 3);
    kt_json_key(w, "counters");
    kt_json_begin_object(w);
    for (int c = 0; c < KT_COUNTERS; c++)
        if (kt_counters_has(&x->counters, (kt_counter)c))
            kt_json_add_fixed(w, kt_counter_name((kt_counter)c), x->counters.value[c], 0);
    kt_json_end_object(w);
    kt_json_end_object(w);
}

static void print_json(const inspection *x, const inspect_options *o) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    char isa[160];

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "variant", x->variant->name);
    kt_json_add_string(&w, "op", kt_op_name(x->variant->op));
    kt_json_add_string(&w, "isa", kt_isa_format(x->variant->isa, isa, sizeof isa));
    kt_json_add_int(&w, "version", x->variant->version);
    kt_json_add_int(&w, "functions", (int64_t)x->code.n_functions);
    kt_json_add_int(&w, "code_bytes", (int64_t)x->code.bytes);
    kt_json_add_string(&w, "disassembler", x->code.tool);
    kt_json_add_string(&w, "cycle_model", x->model);
    kt_json_key(&w, "loops");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < x->loops.n; i++) put_loop(&w, x, i);
    kt_json_end_array(&w);
    put_bench(&w, x, &o->duel);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

/* --- bench --- */

static int first_bit(uint64_t mask) {
    return mask ? __builtin_ctzll(mask) : -1;
}

/* What was not said becomes an expert of a small model, four rows. */
static kt_status run_bench(inspection *x, inspect_options *o, kt_err *err) {
    kt_workbench b = {0};
    kt_duel_options *d = &o->duel;
    kt_status st;

    if (x->variant->op != KT_OP_GEMM && x->variant->op != KT_OP_MOE_FFN)
        return kt_fail(err, KT_E_UNSUPPORTED, "--bench: %s: expected a variant of gemm or moe_ffn",
                       x->variant->name);
    d->op = kt_op_name(x->variant->op);
    d->variant = x->variant->name;
    if (!d->weights)
        d->weights = kt_weight_format_name((kt_weight_format)first_bit(x->variant->weights));
    d->counters = &x->counters;
    KT_TRY(kt_workbench_init(&b, true, err));
    st = kt_duel_run(&b, d, &x->bench, err);
    x->ghz = kt_clock_ghz();
    x->ceilings = b.machine.ceilings;
    x->has_bench = st == KT_OK;
    kt_workbench_deinit(&b);
    return st;
}

static kt_status inspect(inspection *x, inspect_options *o, kt_err *err) {
    KT_TRY(kt_variant_code_read(x->variant, &x->code, err));
    KT_TRY(kt_code_loops_find(&x->code.listing, &x->loops, err));
    if (!o->all && !o->json && x->loops.n > 0 && (o->loop < 1 || (size_t)o->loop > x->loops.n))
        return kt_fail(err, KT_E_INVALID, "--loop %lld: expected 1 to %zu", (long long)o->loop,
                       x->loops.n);
    estimate_cycles(x);
    if (o->bench) KT_TRY(run_bench(x, o, err));
    if (o->json)
        print_json(x, o);
    else
        print_text(x, o);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    inspect_options o = {.loop = 1,
                         .duel = {.m = 4,
                                  .n = 768,
                                  .k = 2048,
                                  .experts = {128, 8},
                                  .threads = 1,
                                  .rounds = 60,
                                  .seed = 1}};
    const kt_switch switches[] = {
        {"loop", KT_SWITCH_COUNT, &o.loop, "N", "print the machine code of loop N; default 1"},
        {"all", KT_SWITCH_FLAG, &o.all, NULL, "of all loops"},
        {"bench", KT_SWITCH_FLAG, &o.bench, NULL,
         "time it too, with the processor's counters and the roofline"},
        {"acts", KT_SWITCH_TEXT, &o.duel.acts, "F",
         "a8, a8p ...; default those that the variant reads"},
        {"weights", KT_SWITCH_TEXT, &o.duel.weights, "F",
         "of --bench; default the variant's first format"},
        {"set", KT_SWITCH_TEXT, &o.duel.set, "P=V,..", "its parameters; default the initial ones"},
        {"m", KT_SWITCH_COUNT, &o.duel.m, "N", "rows (of each expert); default 4"},
        {"n", KT_SWITCH_COUNT, &o.duel.n, "N", "outputs; default 768"},
        {"k", KT_SWITCH_COUNT, &o.duel.k, "N", "inputs; default 2048"},
        {"experts", KT_SWITCH_SIZE, o.duel.experts, "E/K", "default 128/8"},
        {"threads", KT_SWITCH_COUNT, &o.duel.threads, "N", "default 1"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "print a JSON object, with all loops"},
    };
    const kt_verb_usage usage = {
        "inspect", "VARIANT ",
        "Show what the compiler made of a variant: its innermost loops by the vector work in them, "
        "with\n"
        "their instructions by class, vector registers, vector accesses to the stack (spills), and "
        "the\n"
        "cycles of an iteration as llvm-mca predicts them. Needs objdump (package binutils);\n"
        "llvm-mca (package llvm) is optional. Works for variants this machine cannot run, too.",
        "  kttune inspect w4g32_a8_p64__avx512vnni\n"
        "  kttune inspect w4g32_a8_moe64__avx512vnni --loop 3 --bench --m 1\n"};
    inspection x = {0};
    const char *word[1] = {NULL};
    kt_err err = {0};
    kt_status st;
    int n = 0, code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc,
                                        argv, word, 1, &n);

    (void)context;
    if (code >= 0) return code;
    if (n != 1) return kt_switch_fail(&usage, "expected the name of a variant");
    if (o.duel.threads < 1 || o.duel.threads > 1024)
        return kt_switch_fail(&usage, "--threads: expected 1 to 1024");
    x.variant = find_variant(word[0]);
    if (!x.variant)
        return kt_switch_fail(&usage, "'%s' is no variant of this build (`kttune list variants`)",
                              word[0]);
    st = inspect(&x, &o, &err);
    kt_counters_close(&x.counters);
    kt_code_loops_deinit(&x.loops);
    kt_variant_code_deinit(&x.code);
    if (st == KT_OK) return KT_TUNE_OK;
    code = kt_verb_fail(&err);
    return st == KT_E_MISMATCH ? KT_TUNE_GATE : code;
}

const kt_verb kt_verb_inspect = {
    .name = "inspect", .summary = "hot loops of a variant as machine code", .run = run};
