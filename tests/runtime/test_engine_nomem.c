/* Weights, the engine and what it makes, with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"
#include "dispatch/plan/plan.h"
#include "runtime/device/device_run.h"
#include "runtime/device/hot_experts.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/perplexity.h"
#include "runtime/exec/step.h"
#include "runtime/sched/backend.h"
#include "runtime/model/weight_loss.h"
#include "runtime/model/weights.h"
#include "tests/support/nomem.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

static const kt_model_shape small = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 128,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 128,
                                     .dense_size = 128,
                                     .dense_layer = 0,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

/* Everything below a model's weights, made once. */
static struct {
    char folder[256];
    kt_model_dir dir;
    kt_registry *registry;
    kt_planner *planner;
    kt_pool *pool;
    kt_model_plan plan;
    kt_node_plan nodes;
} base;

static void make_base(void) {
    static const kt_pool_options threads = {.n_threads = 2, .no_pin = 1};
    const kt_fingerprint machine = {.usable_cores = 2, .numa_nodes = 1};
    kt_err err = {KT_OK, ""};

    kt_temp_make(base.folder, sizeof base.folder);
    kt_random_model(&small, 3, base.folder);
    cr_assert_eq(kt_model_dir_read(base.folder, &base.dir, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &base.registry, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_planner_create(base.registry, NULL, &machine, NULL, &base.planner, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(kt_pool_create(&threads, &base.pool, &err), KT_OK, "%s", err.message);
}

static void remove_base(void) {
    kt_model_plan_deinit(&base.plan);
    kt_model_dir_deinit(&base.dir);
    kt_pool_destroy(base.pool);
    kt_planner_destroy(base.planner);
    kt_registry_destroy(base.registry);
    kt_temp_remove(base.folder);
}
TestSuite(engine_nomem, .init = make_base, .fini = remove_base, .timeout = 240);

static kt_status make_plan(void *out, const void *with, kt_err *err) {
    return kt_model_plan_make(base.planner, &base.dir.graph, *(const kt_quant *)with, KT_W_BF16, 2,
                              16, 64, out, err);
}
static void unmake_plan(void *out) {
    kt_model_plan_deinit(out);
}

static void plan_for(kt_quant weights, int groups) {
    kt_err err = {KT_OK, ""};
    kt_model_plan_deinit(&base.plan);
    cr_assert_eq(make_plan(&base.plan, &weights, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_node_plan_make(groups, NULL, 0, 2, &base.nodes, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(base.nodes.n, groups > 1 ? groups : 1);
}

Test(engine_nomem, a_plan_is_made_or_not) {
    static const kt_quant native = KT_QUANT_NATIVE;
    const kt_nomem_case c = {.function = "kt_model_plan_make",
                             .make = make_plan,
                             .unmake = unmake_plan,
                             .with = &native,
                             .out_bytes = sizeof(kt_model_plan),
                             .says = "memory",
                             .n_optional = 20}; /* libraries that cannot be tried are not used */
    kt_nomem_check(&c);
}

/* ---- weights ---- */

static kt_status load_weights(void *out, const void *with, kt_err *err) {
    const kt_weights_request request = {.checkpoint = base.dir.checkpoint,
                                        .graph = &base.dir.graph,
                                        .plan = &base.plan,
                                        .pool = base.pool,
                                        .nodes = &base.nodes};
    (void)with;
    return kt_weights_load(&request, out, err);
}
static void unload_weights(void *out) {
    kt_weights_destroy(*(kt_weights **)out);
}

static kt_status make_step(void *out, const void *with, kt_err *err) {
    return kt_step_init(out, &base.dir.graph, &base.plan, with, &base.nodes, NULL, base.pool, 64,
                        err);
}
static void unmake_step(void *out) {
    kt_step_deinit(out);
}

/* Over two groups of threads experts are cut, so that slices and their workspaces are made too. */
Test(engine_nomem, weights_and_steps_are_whole_or_none) {
    static const struct {
        kt_quant weights;
        int groups;
    } cases[] = {{KT_QUANT_NATIVE, KT_NUMA_OFF}, {KT_QUANT_INT4, KT_NUMA_OFF}, {KT_QUANT_INT8, 2}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_weights *weights = NULL;
        kt_err err = {KT_OK, ""};
        kt_nomem_case c = {.function = "kt_weights_load",
                           .make = load_weights,
                           .unmake = unload_weights,
                           .out_bytes = sizeof(kt_weights *),
                           .says = "memory"};
        plan_for(cases[i].weights, cases[i].groups);
        kt_nomem_check(&c);
        cr_assert_eq(load_weights(&weights, NULL, &err), KT_OK, "%s", err.message);
        c.function = "kt_step_init", c.make = make_step, c.unmake = unmake_step;
        c.with = weights, c.out_bytes = sizeof(kt_step);
        kt_nomem_check(&c);
        kt_weights_destroy(weights);
    }
}

/* ---- a device ---- */

static const int32_t hot_ids[] = {0, 2};

static kt_device_ask ask_of_base(void) {
    return (kt_device_ask){.graph = &base.dir.graph,
                           .plan = &base.plan,
                           .target = &kt_cuda_targets[0],
                           .max_rows = 16,
                           .max_context = 64};
}

static kt_status make_placement(void *out, const void *with, kt_err *err) {
    const kt_device_ask ask = ask_of_base();
    return kt_place(&ask, with, false, out, err);
}
static void unmake_placement(void *out) {
    kt_placement_deinit(out);
}

static kt_status choose_experts(void *out, const void *with, kt_err *err) {
    const kt_hot_request request = {.amount = "50%", .strategy = "random", .bytes = with};
    kt_hot_experts *hot;
    const kt_status st = kt_hot_experts_choose(&base.dir.graph, &request, out, &hot, err);

    if (st != KT_OK) kt_arena_deinit(out);
    return st;
}
static void forget_experts(void *out) {
    kt_arena_deinit(out);
}

static kt_stream_plan crossing; /* experts cross and move */

static kt_status plan_crossing(void *out, const void *with, kt_err *err) {
    const kt_device_ask ask = ask_of_base();
    const kt_stream_word word = {.rows = 1, .percent = -1};
    const kt_stream_request request = {.ask = &ask, .word = &word, .learns = true};

    (void)with;
    return kt_stream_plan_make(&request, out, err);
}
static void forget_crossing(void *out) {
    kt_stream_plan_deinit(out);
}

/* A step, whose placement it has. */
static kt_status make_device_step(void *out, const void *with, kt_err *err) {
    const kt_step *step = with;
    const kt_device_options options = {.class = "emulated", .memory_bytes = 64 << 20};
    kt_device_setup setup = {.step = step,
                             .placement = step->place,
                             .stream = &crossing,
                             .weights = step->weights,
                             .checkpoint = base.dir.checkpoint,
                             .pool = base.pool};

    KT_TRY(kt_device_open(&options, &setup.device, err));
    return kt_device_step_create(&setup, out, err);
}
static void unmake_device_step(void *out) {
    kt_device_step_destroy(*(kt_device_step **)out);
}

Test(engine_nomem, a_device_has_its_part_of_a_model_or_nothing) {
    kt_hot_experts *hot = calloc((size_t)base.dir.graph.n_weights, sizeof *hot);
    size_t *bytes = calloc((size_t)base.dir.graph.n_weights, sizeof *bytes);
    kt_nomem_case c = {.function = "kt_place",
                       .make = make_placement,
                       .unmake = unmake_placement,
                       .with = hot,
                       .out_bytes = sizeof(kt_placement),
                       .says = "memory"};
    kt_placement place;
    kt_weights *weights = NULL;
    kt_step step;
    kt_err err = {KT_OK, ""};

    plan_for(KT_QUANT_NATIVE, KT_NUMA_OFF);
    for (int i = 0; i < base.dir.graph.n_weights; i++) {
        if (base.dir.graph.weights[i].use != KT_USE_EXPERTS) continue;
        hot[i] = (kt_hot_experts){hot_ids, 2};
        bytes[i] = 1;
    }
    kt_nomem_check(&c);
    c.function = "kt_hot_experts_choose", c.make = choose_experts, c.unmake = forget_experts;
    c.with = bytes, c.out_bytes = sizeof(kt_arena);
    kt_nomem_check(&c);
    c.function = "kt_stream_plan_make", c.make = plan_crossing, c.unmake = forget_crossing;
    c.out_bytes = sizeof(kt_stream_plan);
    kt_nomem_check(&c);
    cr_assert_eq(plan_crossing(&crossing, NULL, &err), KT_OK, "%s", err.message);
    cr_assert_eq(make_placement(&place, hot, &err), KT_OK, "%s", err.message);
    base.plan.away = place.away;
    cr_assert_eq(load_weights(&weights, NULL, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_step_init(&step, &base.dir.graph, &base.plan, weights, &base.nodes, &place,
                              base.pool, 64, &err),
                 KT_OK, "%s", err.message);
    c.function = "kt_device_step_create", c.make = make_device_step;
    c.unmake = unmake_device_step, c.with = &step, c.out_bytes = sizeof(kt_device_step *);
    c.says = "", c.n_optional = 1; /* a list of what is pinned */
    kt_nomem_check(&c);
    kt_stream_plan_deinit(&crossing);
    kt_step_deinit(&step);
    kt_weights_destroy(weights);
    base.plan.away = NULL;
    kt_placement_deinit(&place);
    free(hot);
    free(bytes);
}

static int never(void *arg) {
    (void)arg;
    return 0;
}

static kt_status measure_loss(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_weight_losses_measure(&base.dir, KT_QUANT_INT4, NULL, base.pool, never, out, err);
}
static void unmeasure_loss(void *out) {
    kt_weight_losses_destroy(*(kt_weight_losses **)out);
}

Test(engine_nomem, losses_are_measured_or_not) {
    const kt_nomem_case c = {.function = "kt_weight_losses_measure",
                             .make = measure_loss,
                             .unmake = unmeasure_loss,
                             .out_bytes = sizeof(kt_weight_losses *),
                             .says = "memory"};
    kt_nomem_check(&c);
}

/* ---- the engine ---- */

static kt_status make_engine(void *out, const void *with, kt_err *err) {
    return kt_engine_create(with, out, err);
}
static void unmake_engine(void *out) {
    kt_engine_destroy(*(kt_engine **)out);
}

static kt_status make_sequence(void *out, const void *with, kt_err *err) {
    return kt_sequence_create(*(kt_engine *const *)with, 16, out, err);
}
static void unmake_sequence(void *out) {
    kt_sequence_destroy(*(kt_sequence **)out);
}

static kt_status fork_sequence(void *out, const void *with, kt_err *err) {
    return kt_sequence_fork(*(kt_sequence *const *)with, out, err);
}

/* Reserving, reusing and running: a sequence stays as it was where memory fails. */
static void check_sequence(kt_engine *e) {
    int32_t tokens[70];
    kt_sequence *s = NULL;
    kt_err err = {KT_OK, ""};
    long held;
    kt_nomem_case c = {.function = "kt_sequence_fork",
                       .make = fork_sequence,
                       .unmake = unmake_sequence,
                       .with = &s,
                       .out_bytes = sizeof(kt_sequence *),
                       .says = "memory"};

    for (int i = 0; i < 70; i++) tokens[i] = i % 9;
    cr_assert_eq(kt_sequence_create(e, 70, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, 66, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
    kt_nomem_check(&c);
    held = kt_nomem_held();
    for (int i = 0; i < 2; i++) {
        kt_nomem_after(i);
        cr_assert_eq(kt_sequence_reserve(s, 200, &err), KT_E_NOMEM);
        cr_assert(kt_nomem_failed());
        cr_assert_eq(kt_sequence_length(s), 66);
    }
    cr_expect_geq(kt_nomem_held(), held);
    kt_nomem_after(0);
    cr_assert_eq(kt_engine_forward(e, s, tokens + 66, 4, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
    cr_assert_not(kt_nomem_failed(), "a step allocates");
    kt_sequence_destroy(s);
    cr_assert_eq(kt_sequence_create(e, 0, &s, &err), KT_OK, "%s", err.message);
    kt_nomem_after(0);
    cr_assert_eq(kt_sequence_reuse(s, tokens, 70), 0, "without tables nothing is reused");
    cr_assert(kt_nomem_failed());
    cr_assert_eq(kt_sequence_reuse(s, tokens, 70), 64);
    kt_sequence_destroy(s);
}

static kt_status measure_perplexity(void *out, const void *with, kt_err *err) {
    static const int32_t tokens[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    kt_perplexity result;
    (void)out;
    return kt_perplexity_measure(*(kt_engine *const *)with, tokens, 12, 4, NULL, NULL, &result,
                                 err);
}

static kt_status record(void *out, const void *with, kt_err *err) {
    char path[400];
    (void)out;
    snprintf(path, sizeof path, "%s/steps.jsonl", base.folder);
    return kt_engine_record(*(kt_engine *const *)with, path, 0, err);
}

/* Three tokens of a new sequence, with an allocation of the step failing (kt_nomem_after). */
static kt_status run_three(kt_engine *e, long allocation, float *logits, bool *has_failed,
                           kt_err *err) {
    static const int32_t tokens[3] = {1, 2, 3};
    kt_sequence *s;
    kt_status st;

    cr_assert_eq(kt_sequence_create(e, 3, &s, err), KT_OK, "%s", err->message);
    kt_nomem_after(allocation);
    st = kt_engine_forward(e, s, tokens, 3, 3, logits, NULL, NULL, NULL, err);
    *has_failed = kt_nomem_failed();
    kt_sequence_destroy(s);
    return st;
}

/* The first step of two devices makes graphs. Where one of them cannot, the step goes part by part,
 * or is an error when the other one has begun; the next one is right in either case, unless the
 * device was lost. */
Test(engine_nomem, a_step_of_two_devices_is_right_or_an_error, .timeout = 240) {
    const kt_engine_options options = {.model_dir = base.folder,
                                       .table_path = "",
                                       .n_threads = 2,
                                       .max_context = 64,
                                       .device = "emulated*2",
                                       .gpu_experts = "50%",
                                       .tokenizer_optional = true};
    const size_t bytes = 3 * 128 * sizeof(float);
    float *want = calloc(1, bytes), *got = calloc(1, bytes);
    int n_errors = 0, n_undone = 0;
    bool has_failed = true;

    for (long i = -1; i < 60 && has_failed; i++) {
        kt_err err = {KT_OK, ""};
        kt_engine *e;
        kt_status st;
        cr_assert_eq(kt_engine_create(&options, &e, &err), KT_OK, "%s", err.message);
        st = run_three(e, i, i < 0 ? want : got, &has_failed, &err);
        has_failed = has_failed || i < 0;
        if (st == KT_OK && i >= 0) cr_expect_arr_eq(got, want, bytes, "allocation %ld", i);
        n_errors += st != KT_OK;
        n_undone += strstr(err.message, "on some devices only") != NULL;
        if (st != KT_OK) cr_expect(*err.message, "allocation %ld: no reason", i);
        if (!strstr(err.message, "lost")) {
            bool again;
            cr_expect_eq(run_three(e, -1, got, &again, &err), KT_OK, "allocation %ld: %s", i,
                         err.message);
            cr_expect_arr_eq(got, want, bytes, "allocation %ld, again", i);
        }
        kt_engine_destroy(e);
    }
    cr_expect_gt(n_errors, 0);
    cr_expect_gt(n_undone, 0, "no device refused behind another one");
    free(want), free(got);
}

Test(engine_nomem, an_engine_is_whole_or_none_and_works_afterwards) {
    const kt_engine_options options = {.model_dir = base.folder,
                                       .table_path = "",
                                       .n_threads = 2,
                                       .max_chunk = 16,
                                       .tokenizer_optional = true};
    const int32_t tokens[3] = {1, 2, 3};
    float *logits = malloc(128 * sizeof *logits);
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_engine_create",
                       .make = make_engine,
                       .unmake = unmake_engine,
                       .with = &options,
                       .out_bytes = sizeof(kt_engine *),
                       .says = "",
                       .n_optional = 20, /* libraries that cannot be tried are not used */
                       .most = 120};

    kt_nomem_check(&c);
    cr_assert_eq(kt_engine_create(&options, &e, &err), KT_OK, "%s", err.message);
    c = (kt_nomem_case){.with = &e, .says = "memory"};
    c.function = "kt_sequence_create", c.make = make_sequence, c.unmake = unmake_sequence;
    c.out_bytes = sizeof(kt_sequence *);
    kt_nomem_check(&c);
    check_sequence(e);
    c.function = "kt_perplexity_measure", c.make = measure_perplexity, c.unmake = NULL;
    c.out_bytes = 0;
    kt_nomem_check(&c);

    /* Nothing of this is needed to go on. */
    cr_assert_eq(kt_sequence_create(e, 16, &s, &err), KT_OK, "%s", err.message);
    kt_nomem_after(0);
    cr_assert_eq(kt_engine_forward(e, s, tokens, 3, 1, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    cr_assert_not(kt_nomem_failed(), "a forward call allocates");
    for (long i = 0;; i++) {
        bool did_fail;
        kt_status st;
        kt_nomem_after(i);
        st = record(NULL, &e, &err);
        did_fail = kt_nomem_failed();
        cr_assert_eq(st, did_fail ? KT_E_NOMEM : KT_OK, "%s", err.message);
        cr_assert_eq(kt_engine_forward(e, s, tokens, 1, 0, NULL, NULL, NULL, NULL, &err), KT_OK,
                     "%s", err.message);
        if (!did_fail) break;
    }
    kt_nomem_after(0);
    cr_assert_eq(kt_engine_observe_inputs(e, &err), KT_E_NOMEM);
    cr_assert(kt_nomem_failed());
    cr_assert_eq(kt_engine_forward(e, s, tokens, 1, 1, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    free(logits);
}
