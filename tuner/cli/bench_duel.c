/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/cli/bench_duel.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"
#include "tuner/cli/workbench.h"
#include "tuner/measure/trial.h"
#include "tuner/space/candidates.h"
#include "tuner/space/cell.h"
#include "tuner/verify/verdicts.h"

/* What was asked for; else the format's own encoding, unless the variant reads only another. */
static kt_status find_acts(const kt_duel_options *o, const kt_format *format, kt_act_format *out,
                           kt_err *err) {
    int acts = o->acts ? kt_act_format_parse(o->acts) : -1;

    *out = acts < 0 ? format->acts : (kt_act_format)acts;
    if (o->acts && acts < 0)
        return kt_fail(err, KT_E_INVALID, "--acts '%s': expected a8, a8p, abf16 or af32", o->acts);
    for (size_t i = 0; i < kt_builtin_variant_count && !o->acts; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (strcmp(v->name, o->variant) != 0 || v->acts == 0 || v->acts >> format->acts & 1)
            continue;
        *out = (kt_act_format)__builtin_ctz(v->acts);
    }
    return KT_OK;
}

/* Rows are the last ones of the context. One slot of the cache may take up to 4 GiB. */
static kt_status make_attention(const kt_duel_options *o, kt_problem *p, kt_err *err) {
    const int weights = o->weights ? kt_weight_format_parse(o->weights) : KT_W_BF16;
    const int64_t most = 1 << 20;

    if (weights != KT_W_BF16 && weights != KT_W_INT8_CHANNEL && weights != KT_W_FP8_CHANNEL)
        return kt_fail(err, KT_E_INVALID, "--weights '%s': expected the cache's wbf16, w8c or wf8c",
                       o->weights);
    if (o->m < 1 || o->m > 4096 || o->n < 1 || o->n > 4096 || o->k < 1 || o->k > 1024 ||
        o->kv_heads < 1 || o->kv_heads > o->n || o->n % o->kv_heads != 0 || o->v < 0 ||
        o->v > 1024 || o->context < o->m || o->context > most ||
        (o->context >> 10) * o->kv_heads * (o->k + o->v) > most)
        return kt_fail(err, KT_E_INVALID,
                       "--op attn --m %lld --n %lld --k %lld --kv-heads %lld --v %lld --context "
                       "%lld: expected rows, 1 to 4096 heads, their size to 1024, kv heads that "
                       "divide them, the size of a value (0 = of a key) to 1024, and keys, as many "
                       "as rows or more, to 1048576 and 4 GiB of cache",
                       (long long)o->m, (long long)o->n, (long long)o->k, (long long)o->kv_heads,
                       (long long)o->v, (long long)o->context);
    *p = (kt_problem){.op = KT_OP_ATTN,
                      .weights = (kt_weight_format)weights,
                      .m = o->m,
                      .n = o->n,
                      .k = o->k,
                      .kv_heads = o->kv_heads,
                      .v = o->v == o->k ? 0 : o->v,
                      .context = o->context};
    return KT_OK;
}

/* Sizes are bounded so that products of them stay in range; variants refuse what they cannot. */
static kt_status make_sequence(const kt_duel_options *o, kt_op op, kt_problem *p, kt_err *err) {
    const int64_t most = 1 << 16;
    const bool is_delta = op == KT_OP_DELTA, is_index = op == KT_OP_INDEX;

    if (o->m < 1 || o->m > 4096 || o->n < 1 || o->n > most || o->k < 1 || o->k > 1024 ||
        (is_delta && (o->kv_heads < 1 || o->kv_heads > o->n || o->v < 1 || o->v > 1024)) ||
        (is_index && (o->context < 1 || o->context > 1 << 20)))
        return kt_fail(err, KT_E_INVALID,
                       "--op %s --m %lld --n %lld --k %lld --kv-heads %lld --v %lld --context "
                       "%lld: expected m 1 to 4096, n to 65536, k to 1024 (conv: channels and "
                       "taps; delta: value heads, size of a key, --kv-heads, --v to 1024; index: "
                       "heads, size of a key, --context to 1048576)",
                       o->op, (long long)o->m, (long long)o->n, (long long)o->k,
                       (long long)o->kv_heads, (long long)o->v, (long long)o->context);
    *p = (kt_problem){.op = op, .m = o->m, .n = o->n, .k = o->k};
    if (is_delta) p->kv_heads = o->kv_heads, p->v = o->v;
    if (is_index) p->context = o->context, p->weights = KT_W_BF16;
    return KT_OK;
}

static kt_status make_problem(const kt_duel_options *o, kt_problem *p, kt_err *err) {
    const int op = kt_op_parse(o->op),
              weights = o->weights ? kt_weight_format_parse(o->weights) : -1;
    const kt_format *format = weights < 0 ? NULL : kt_format_find((kt_weight_format)weights);

    if (!kt_op_is_tuned(op))
        return kt_fail(err, KT_E_INVALID, "--op '%s': expected " KT_TUNED_OPS, o->op);
    if (op == KT_OP_ATTN) return make_attention(o, p, err);
    if (op != KT_OP_GEMM && op != KT_OP_MOE_FFN) return make_sequence(o, (kt_op)op, p, err);
    if (!o->weights) return kt_fail(err, KT_E_INVALID, "--op %s needs --weights", o->op);
    if (!format)
        return kt_fail(err, KT_E_INVALID, "--weights '%s': expected wbf16, w8c, w4g32, wq4_k ...",
                       o->weights);
    if (o->m < 1 || o->m > 65536 || o->n < 32 || o->n > 1 << 24 || o->k < 32 || o->k > 1 << 24 ||
        o->k % 32 != 0)
        return kt_fail(err, KT_E_INVALID,
                       "--m %lld --n %lld --k %lld: expected m 1 to 65536, n 32 to 16777216, k "
                       "a multiple of 32 to 16777216",
                       (long long)o->m, (long long)o->n, (long long)o->k);
    *p = (kt_problem){.op = (kt_op)op,
                      .weights = (kt_weight_format)weights,
                      .acts = format->acts,
                      .m = o->m,
                      .n = o->n,
                      .k = o->k};
    KT_TRY(find_acts(o, format, &p->acts, err));
    if (op != KT_OP_MOE_FFN) return KT_OK;
    p->experts = o->experts[0];
    p->topk = o->experts[1] ? o->experts[1] : 1;
    if (p->experts < 1 || p->experts > 65536 || p->topk > p->experts || p->n % 32 != 0)
        return kt_fail(err, KT_E_INVALID, "--experts %lld/%lld: expected experts/top-k",
                       (long long)p->experts, (long long)p->topk);
    return KT_OK;
}

static kt_status find_choice(const kt_registry *registry, const kt_problem *p, const char *name,
                             const char *set, kt_choice *out, kt_err *err) {
    out->variant = kt_registry_find(registry, name);
    if (!out->variant)
        return kt_fail(err, KT_E_INVALID,
                       "variant '%s': not usable here (`kttune list variants --why-invalid`)",
                       name);
    out->config = kt_config_initial(out->variant);
    if (set) KT_TRY(kt_config_parse(out->variant, set, &out->config, err));
    if (kt_variant_accepts(out->variant, p, &out->config, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_INVALID, "%s", name);
    return KT_OK;
}

/* Activations as variant A takes them, where it takes others than its format's own. */
static void take_encoding(const kt_registry *registry, const char *name, kt_problem *p) {
    const kt_variant *v = kt_registry_find(registry, name);
    if (v && !(v->acts & 1u << p->acts) && v->acts & 1u << KT_A_INT8_G16P2)
        p->acts = KT_A_INT8_G16P2;
}

static kt_status gate(const kt_problem *p, const kt_bench_duel_result *r, uint64_t seed,
                      kt_err *err) {
    kt_gate_limits limits = {.seed = seed, .deadline_ns = INT64_MAX};
    kt_gate_result results[2];
    KT_TRY(kt_gate_choices(p, r->choice, r->n, &limits, results, err));
    for (int i = 0; i < r->n; i++)
        if (!results[i].passed)
            return kt_fail(err, KT_E_MISMATCH, "%s: %s", results[i].outcome, results[i].message);
    return KT_OK;
}

static kt_status time_rounds(kt_trial *trial, const kt_duel_options *o, kt_bench_duel_result *r,
                             kt_err *err) {
    static const int both[] = {0, 1};
    kt_stopwatch watch = kt_trial_stopwatch(trial);
    kt_samples s;
    kt_rng rng;

    kt_rng_seed(&rng, (uint64_t)o->seed);
    KT_TRY(kt_samples_create(r->n, &s, err));
    if (o->counters) kt_counters_start(o->counters);
    kt_rounds_run(&watch, &s, both, r->n, (int)o->rounds, INT64_MAX, &rng);
    if (o->counters) kt_counters_stop(o->counters);
    for (int i = 0; i < r->n; i++) {
        double x[KT_MAX_SAMPLES];
        int n = kt_samples_pairs(&s, i, i, x, NULL);
        r->spread[i] = kt_quantile_interval(x, n, 0.25, 0.95, &rng);
        r->p25_ns[i] = r->spread[i].point;
        r->least_ns[i] = kt_quantile(x, n, 0);
        r->bytes[i] = kt_trial_bytes(trial, i) / kt_trial_units(trial);
    }
    if (r->n == 2) r->faster = kt_samples_compare(&s, 1, 0, 0.99, &rng);
    r->units = kt_trial_units(trial);
    r->operations = kt_trial_operations(trial) / r->units;
    r->rounds = s.n_rounds;
    r->voided = s.n_voided;
    kt_samples_destroy(&s);
    return KT_OK;
}

static kt_status measure(const kt_workbench *b, const kt_problem *p, const kt_duel_options *o,
                         kt_bench_duel_result *r, kt_err *err) {
    kt_problem encode = {.op = KT_OP_ENCODE, .acts = p->acts, .m = p->m, .n = 1, .k = p->k};
    kt_banks banks = {.rotation_bytes =
                          kt_cold_rotation_bytes(&b->machine.ceilings, b->topology.llc_bytes)};
    kt_pool_options pool = {.n_threads = (int)o->threads};
    kt_trial_setup setup = {
        .problem = *p, .banks = &banks, .choices = r->choice, .n_choices = r->n};
    kt_planner *planner = NULL;
    kt_trial *trial = NULL;
    kt_choice encoder = {0};
    kt_status st;

    if (o->counters) kt_counters_open(o->counters); /* the pool's threads inherit them */
    st = kt_pool_create(&pool, &setup.pool, err);

    if (st == KT_OK) st = kt_planner_create(b->registry, NULL, &b->machine, NULL, &planner, err);
    if (st == KT_OK && kt_problem_is_packed(p))
        st = kt_plan_resolve_simple(planner, &encode, pool.n_threads, &encoder, err);
    if (st == KT_OK) {
        setup.encode = encoder.variant;
        st = kt_trial_create(&setup, &trial, err);
    }
    if (st == KT_OK) st = time_rounds(trial, o, r, err);
    kt_trial_destroy(trial);
    kt_planner_destroy(planner);
    kt_banks_deinit(&banks);
    kt_pool_destroy(setup.pool);
    return st;
}

/* A library names the least that it needs and takes the best that there is for its arithmetic. */
static kt_variant at_its_best(const kt_variant *v) {
    kt_variant best = *v;
    kt_isa with = KT_ISA_AVX2 | KT_ISA_AVX512;

    if (v->numerics == KT_NUM_BF16_F32) with |= KT_ISA_AVX512BF16 | KT_ISA_AMXBF16;
    if (v->numerics == KT_NUM_EXACT_INT32)
        with |= KT_ISA_AVXVNNI | KT_ISA_AVX512VNNI | KT_ISA_AMXINT8;
    if (strstr(v->name, "__lib")) best.isa |= with & kt_isa_available();
    return best;
}

static void print_text(const kt_problem *p, const kt_duel_options *o, const kt_bench_duel_result *r,
                       const kt_ceilings *c) {
    char name[2][KT_CONTENDER_NAME_BYTES], key[KT_CELL_KEY_BYTES];

    printf("%s, cold weights\n", kt_cell_key(p, (int)o->threads, key, sizeof key));
    for (int i = 0; i < r->n; i++) {
        double half = 50 * (r->spread[i].high - r->spread[i].low) / r->p25_ns[i];
        kt_variant best = at_its_best(r->choice[i].variant);
        double bound = kt_cost_ns(p, &best, c, (int)o->threads);
        printf("%c  %s  %.1f us +-%.1f %%  min %.1f  %.1f GB/s  %.1f Gop/s  %.0f %% of the "
               "roofline%s  [verified]\n",
               'A' + i, kt_contender_name(&r->choice[i], name[i], sizeof name[i]),
               r->p25_ns[i] / 1e3, half, r->least_ns[i] / 1e3, r->bytes[i] / r->p25_ns[i],
               r->operations / r->p25_ns[i], 100 * bound / r->p25_ns[i],
               kt_cost_excess(p, &best, c, (int)o->threads, r->p25_ns[i]));
    }
    if (r->n == 2)
        printf("speed of A over B %+.2f %% (99 %% interval %+.2f .. %+.2f %%)%s\n",
               100 * expm1(r->faster.point), 100 * expm1(r->faster.low),
               100 * expm1(r->faster.high),
               r->faster.low <= 0 && r->faster.high >= 0 ? ": no difference shown" : "");
    printf("p25 of %d rounds, %d disturbed%s\nrepeat: kttune bench --op %s", r->rounds, r->voided,
           p->op == KT_OP_MOE_FFN ? "; times are per expert" : "", o->op);
    if (kt_problem_is_packed(p) || p->op == KT_OP_ATTN)
        printf(" --weights %s", kt_weight_format_name(p->weights));
    printf(" --m %lld --n %lld --k %lld", (long long)p->m, (long long)p->n, (long long)p->k);
    if (p->op == KT_OP_DELTA || p->op == KT_OP_ATTN)
        printf(" --kv-heads %lld --v %lld", (long long)p->kv_heads, (long long)p->v);
    if (p->op == KT_OP_INDEX || p->op == KT_OP_ATTN)
        printf(" --context %lld", (long long)p->context);
    if (p->op == KT_OP_MOE_FFN)
        printf(" --experts %lld/%lld", (long long)p->experts, (long long)p->topk);
    if (kt_problem_is_packed(p) && p->acts != kt_format_find(p->weights)->acts)
        printf(" --acts %s", kt_act_format_name(p->acts));
    for (int i = 0; i < r->n; i++) {
        char config[96];
        kt_config_format(r->choice[i].variant, &r->choice[i].config, config, sizeof config);
        printf(" --%s %s", i ? "against" : "variant", r->choice[i].variant->name);
        if (*config) printf(" --%s %s", i ? "against-set" : "set", config);
    }
    printf(" --threads %lld\n", (long long)o->threads);
}

static void print_json(const kt_bench_duel_result *r) {
    kt_json_writer w = {.indent = 2};
    char name[KT_CONTENDER_NAME_BYTES];
    kt_json_begin_object(&w);
    kt_json_key(&w, "contenders");
    kt_json_begin_array(&w);
    for (int i = 0; i < r->n; i++) {
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "name", kt_contender_name(&r->choice[i], name, sizeof name));
        kt_json_add_fixed(&w, "ns", r->p25_ns[i], 1);
        kt_json_add_fixed(&w, "low", r->spread[i].low, 1);
        kt_json_add_fixed(&w, "high", r->spread[i].high, 1);
        kt_json_add_fixed(&w, "gbs", r->bytes[i] / r->p25_ns[i], 2);
        kt_json_add_fixed(&w, "gops", r->operations / r->p25_ns[i], 2);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_key(&w, "faster");
    kt_json_begin_array(&w);
    if (r->n == 2) {
        kt_json_put_fixed(&w, expm1(r->faster.low), 5);
        kt_json_put_fixed(&w, expm1(r->faster.point), 5);
        kt_json_put_fixed(&w, expm1(r->faster.high), 5);
    }
    kt_json_end_array(&w);
    kt_json_add_int(&w, "rounds", r->rounds);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

kt_status kt_duel_run(const kt_workbench *b, const kt_duel_options *o, kt_bench_duel_result *out,
                      kt_err *err) {
    memset(out, 0, sizeof *out);
    out->n = o->against ? 2 : 1;
    KT_TRY(make_problem(o, &out->problem, err));
    if (kt_problem_is_packed(&out->problem)) take_encoding(b->registry, o->variant, &out->problem);
    KT_TRY(find_choice(b->registry, &out->problem, o->variant, o->set, &out->choice[0], err));
    if (o->against)
        KT_TRY(find_choice(b->registry, &out->problem, o->against, o->against_set, &out->choice[1],
                           err));
    KT_TRY(gate(&out->problem, out, (uint64_t)o->seed, err));
    return measure(b, &out->problem, o, out, err);
}

/* A hanging variant cannot be called back from the thread that it runs on, so the process ends. */
static void give_up(int signal) {
    static const char text[] =
        "kttune: bench: no result within --limit: a variant hangs, or the machine "
        "is too busy to tell\n";
    (void)signal;
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0) _exit(KT_TUNE_INTERNAL);
    _exit(KT_TUNE_UNDECIDED);
}

static void set_limit(double seconds) {
    const struct itimerval timer = {
        .it_value = {(time_t)seconds, (suseconds_t)((seconds - floor(seconds)) * 1e6)}};
    signal(SIGALRM, give_up);
    (void)setitimer(ITIMER_REAL, &timer, NULL);
}

int kt_bench_duel(const kt_verb_context *context, const kt_duel_options *o,
                  const kt_verb_usage *usage) {
    kt_workbench b = {0};
    kt_bench_duel_result r;
    kt_err err = {0};
    kt_status st;

    (void)context;
    /* A suite shows what it has when it is stopped; a duel has nothing to finish. */
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (!o->op || !o->variant) return kt_switch_fail(usage, "--op and --variant belong together");
    if (o->rounds < 5 || o->rounds > KT_MAX_SAMPLES / 2 || o->threads < 1 || o->threads > 1024)
        return kt_switch_fail(usage, "expected 5 to %d rounds, 1 to 1024 threads",
                              KT_MAX_SAMPLES / 2);
    set_limit(o->limit);
    st = make_problem(o, &r.problem, &err); /* before three seconds of probing */
    if (st == KT_OK) st = kt_workbench_init(&b, true, &err);
    if (st == KT_OK) st = kt_duel_run(&b, o, &r, &err);
    if (st == KT_OK && o->json) print_json(&r);
    if (st == KT_OK && !o->json) print_text(&r.problem, o, &r, &b.machine.ceilings);
    kt_workbench_deinit(&b);
    if (st != KT_OK) {
        int code = kt_verb_fail(&err);
        return st == KT_E_MISMATCH ? KT_TUNE_GATE : code;
    }
    return r.n == 2 && r.faster.high < 0 ? KT_TUNE_REGRESSION : KT_TUNE_OK;
}
