/* What is counted before loading, against the published shapes (sizes in billions of weights) and
 * against machines of any size. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "dispatch/model/family.h"
#include "dispatch/model/resolve.h"
#include "runtime/exec/step.h"
#include "runtime/exec/step_bytes.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/shape_fit.h"
#include "runtime/model/speed_bound.h"
#include "runtime/model/staging.h"
#include "runtime/model/step_estimate.h"
#include "runtime/model/synthetic_model.h"

#define GIB (1024.0 * 1024.0 * 1024.0)
#define PLENTY UINT64_MAX /* a machine that is large enough */

static const char kimi[] =
    "{\"model_type\":\"kimi_k2\",\"num_hidden_layers\":61,\"hidden_size\":7168,"
    "\"num_attention_heads\":64,\"num_key_value_heads\":64,\"q_lora_rank\":1536,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"intermediate_size\":18432,"
    "\"n_routed_experts\":384,\"n_shared_experts\":1,\"num_experts_per_tok\":8,"
    "\"moe_intermediate_size\":2048,\"n_group\":1,\"topk_group\":1,\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.827,\"rope_theta\":50000.0,\"max_position_embeddings\":131072,"
    "\"vocab_size\":163840,\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\"%s}";

/* Everything that a plan needs. */
typedef struct subject {
    kt_model_dir dir;
    kt_registry *registry;
    kt_planner *planner;
    kt_model_plan plan;
} subject;

static void describe(const char *config, kt_graph *out) {
    kt_json_doc *doc = NULL;
    kt_err err = {KT_OK, ""};
    kt_graph_request request = {0};

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, &err), KT_OK, "%s", err.message);
    request.source = (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = "config"};
    cr_assert_eq(kt_graph_build(&request, out, &err), KT_OK, "%s", err.message);
    kt_json_destroy(doc);
}

/* s->dir describes the model. */
static void plan_graph(subject *s, const char *model, kt_quant quant, int threads, int64_t rows) {
    const kt_fingerprint machine = {0};
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &s->registry, &err),
                 KT_OK);
    cr_assert_eq(kt_planner_create(s->registry, NULL, &machine, NULL, &s->planner, &err), KT_OK);
    cr_assert_eq(kt_model_plan_make(s->planner, &s->dir.graph, quant, KT_W_BF16, threads, rows,
                                    s->dir.graph.numbers.max_context, &s->plan, &err),
                 KT_OK, "%s: %s", model, err.message);
}

/* Of a bundled shape, the bundled model, or (a text that begins with '{') a config. */
static void plan_for(subject *s, const char *model, kt_quant quant, int threads, int64_t rows) {
    int64_t layers;
    kt_err err = {KT_OK, ""};

    memset(s, 0, sizeof *s);
    if (*model == '{')
        describe(model, &s->dir.graph);
    else if (strcmp(model, "tiny-moe") == 0)
        cr_assert_eq(kt_model_dir_read(model, &s->dir, &err), KT_OK, "%s", err.message);
    else
        cr_assert_eq(kt_synthetic_dir(model, 0, KT_W_NONE, &s->dir, &layers, &err), KT_OK, "%s",
                     err.message);
    plan_graph(s, model, quant, threads, rows);
}

static void end(subject *s) {
    kt_model_plan_deinit(&s->plan);
    kt_planner_destroy(s->planner);
    kt_registry_destroy(s->registry);
    kt_model_dir_deinit(&s->dir);
}

static kt_memory_plan count(const subject *s, int64_t context, uint64_t available) {
    const kt_memory_request r = {
        .plan = &s->plan, .n_nodes = 1, .context = context, .available = available};
    kt_memory_plan p;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_memory_plan_make(&r, &p, &err), KT_OK, "%s", err.message);
    return p;
}

/* Logits are rows times the vocabulary; pages are made of what the rest leaves, or as asked. */
Test(memory_plan, logits_and_pages_that_are_made_are_counted) {
    subject s;
    kt_memory_plan p, less;
    kt_memory_request r = {.n_nodes = 1, .context = 4096, .logit_rows = 128};
    kt_err err = {KT_OK, ""};

    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT4, 2, 512);
    r.plan = &s.plan;
    p = count(&s, 4096, PLENTY);
    cr_expect_eq(p.bytes[KT_MEMORY_LOGITS], (size_t)4 * 151936);
    cr_expect_eq(p.pool.pages, 16 * 64, "%lld pages", (long long)p.pool.pages);
    r.available = p.needed + 3 * p.bytes[KT_MEMORY_CACHE];
    cr_assert_eq(kt_memory_plan_make(&r, &p, &err), KT_OK, "%s", err.message);
    cr_expect_eq(p.bytes[KT_MEMORY_LOGITS], (size_t)4 * 128 * 151936);
    cr_expect(p.pool.pages > 64 && p.pool.pages <= 64 + 96 && p.pool.bytes > 0, "%lld pages",
              (long long)p.pool.pages);
    r.takes_longest = true;
    cr_assert_eq(kt_memory_plan_make(&r, &less, &err), KT_OK, "%s", err.message);
    cr_expect_geq(less.pool.pages * 64, less.longest);
    r.kv_memory = p.bytes[KT_MEMORY_CACHE] * 2;
    cr_assert_eq(kt_memory_plan_make(&r, &p, &err), KT_OK, "%s", err.message);
    cr_expect_eq(p.pool.pages, 128);
    r.available = p.needed - 1;
    cr_assert_eq(kt_memory_plan_make(&r, &p, &err), KT_OK, "%s", err.message);
    cr_expect_eq(p.pool.pages, 0, "none of what does not fit");
    end(&s);
}

/* The matrices of one row, of many, and nothing for logits that are not asked for. */
Test(memory_plan, a_step_is_expected_to_take_what_its_matrices_do) {
    subject s;
    double one, sixteen, none, many, experts;

    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT4, 2, 512);
    one = kt_step_estimate_ns(&s.plan, 1, 1, &experts);
    none = kt_step_estimate_ns(&s.plan, 1, 0, NULL);
    sixteen = kt_step_estimate_ns(&s.plan, 16, 16, NULL);
    many = kt_step_estimate_ns(&s.plan, 512, 0, NULL);
    cr_expect(experts > 0.3 * one && experts < 0.8 * one, "%g of %g", experts, one);
    cr_expect(0 < none && none < one, "%g %g", none, one);
    /* of 128 experts 8, and with 16 rows 82, are read */
    cr_expect(sixteen > 4 * one && sixteen < 16 * one, "%g %g", one, sixteen);
    cr_expect(many > sixteen && many < 512 * one, "%g %g %g", one, sixteen, many);
    /* 1.8e9 weights of the experts at 4.5 bits, 0.8e9 of the rest at 8, from 20 GB/s or what else
     * an unknown machine is taken for */
    cr_expect(one > 20e6 && one < 400e6, "%g", one);
    end(&s);
}

static void near_by(double got, double want, double share, const char *model, const char *what) {
    cr_expect(got >= (1 - share) * want && got <= (1 + share) * want,
              "%s: %s: %.4g, expected %.4g within %g %%", model, what, got, want, 100 * share);
}

/* Published weights, without MTP layers. `tables` keep BF16: the embedding; `heads`: the absorbed
 * halves of kv_b; `routers`. */
typedef struct published {
    const char *model;
    double total_e9, routed_e9;
    double embedding, heads, routers; /* weights */
    double read_e9;                   /* routed weights for a token */
    double cache_bytes;               /* of a token, 16 bits */
    double state_bytes;               /* of recurrent layers in f32; kept twice */
} published;

static const published shapes[] = {
    {"Qwen3-30B-A3B", 30.53, 28.99, 151936.0 * 2048, 0, 48.0 * 128 * 2048, 1.81, 98304, 0},
    {"Qwen3-235B-A22B", 235.09, 227.10, 151936.0 * 4096, 0, 94.0 * 128 * 4096, 14.19, 192512, 0},
    {"DeepSeek-V3", 671.03, 653.91, 129280.0 * 7168, 61.0 * 128 * 256 * 512, 58.0 * 256 * 7168,
     20.43, 70272, 0},
    {"GLM-4.7", 352.80, 335.96, 151552.0 * 5120, 0, 89.0 * 160 * 5120, 16.80, 376832, 0},
    {"Kimi-K2", 1026.41, 1014.69, 163840.0 * 7168, 61.0 * 64 * 256 * 512, 60.0 * 384 * 7168, 21.14,
     70272, 0},
    {"MiniMax-M2", 228.69, 224.68, 200064.0 * 3072, 0, 62.0 * 256 * 3072, 7.02, 253952, 0},
    {"Qwen3-Next-80B-A3B", 79.67, 77.31, 151936.0 * 2048, 0, 48.0 * 512 * 2048, 1.51, 24576,
     4 * 36 * (32 * 128.0 * 128 + 3 * 8192)},
    {"Qwen3.5-35B-A3B", 34.66, 32.21, 248320.0 * 2048, 0, 40.0 * 256 * 2048, 1.01, 20480,
     4 * 30 * (32 * 128.0 * 128 + 3 * 8192)},
    {"Qwen3.5-397B-A17B", 396.35, 386.55, 248320.0 * 4096, 0, 60.0 * 512 * 4096, 7.55, 30720,
     4 * 45 * (64 * 128.0 * 128 + 3 * 12288)},
    {"GLM-5.2", 743.4, 724.78, 154880.0 * 6144, 78.0 * 64 * 448 * 512, 75.0 * 256 * 6144, 22.65,
     95232, 0},
    {"GLM-4.7-Flash", 29.94, 27.78, 154880.0 * 2048, 47.0 * 20 * 448 * 512, 46.0 * 64 * 2048, 1.74,
     54144, 0}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* Of the published checkpoints as they are stored, without MTP (GiB). */
Test(memory_plan, bundled_shapes_are_counted_as_published) {
    static const struct {
        const char *model;
        double gib;
    } published_sizes[] = {{"Qwen3-30B-A3B", 56.9},      {"Qwen3-235B-A22B", 437.9},
                           {"DeepSeek-V3", 626.9},       {"DeepSeek-V3.2", 627.7},
                           {"GLM-4.7", 657.1},           {"MiniMax-M2", 214.2},
                           {"Kimi-K2-Thinking", 553.4},  {"Qwen3-Next-80B-A3B", 148.4},
                           {"Qwen3.5-35B-A3B", 64.6},    {"Qwen3.5-122B-A10B", 227.4},
                           {"Qwen3.5-397B-A17B", 738.3}, {"GLM-5.2", 1384.7},
                           {"GLM-4.7-Flash", 55.8},      {"DeepSeek-V4-Flash", 145.4},
                           {"DeepSeek-V4-Pro", 787.6},   {"MiniMax-M3", 412.0},
                           {"Kimi-K2.5", 553.4}};

    for (size_t i = 0; i < sizeof published_sizes / sizeof *published_sizes; i++) {
        const char *model = published_sizes[i].model;
        subject s = {0};
        kt_memory_plan p;
        kt_err err = {KT_OK, ""};
        cr_assert_eq(kt_published_dir(model, &s.dir, &err), KT_OK, "%s", err.message);
        plan_graph(&s, model, KT_QUANT_NATIVE, 2, 512);
        p = count(&s, 512, PLENTY);
        near_by((double)(p.weights - p.bytes[KT_MEMORY_ROUNDING]) / GIB, published_sizes[i].gib,
                0.01, model, "GiB");
        end(&s);
    }
}

static void plan_shape(subject *s, const published *p, kt_quant quant, int threads) {
    char text[1200];

    snprintf(text, sizeof text, kimi, "");
    plan_for(s, strcmp(p->model, "Kimi-K2") == 0 ? text : p->model, quant, threads, 512);
}

/* Bytes of all weights when routed experts take `experts` and other matrices `rest` bytes a weight.
 */
static double bytes_of(const published *p, double experts, double rest) {
    const double kept = p->embedding + p->heads + p->routers;

    return 1e9 * p->routed_e9 * experts + 2 * kept +
           (1e9 * (p->total_e9 - p->routed_e9) - kept) * rest;
}

Test(memory_plan, weights_are_those_of_published_shapes, .timeout = 120) {
    static const struct {
        kt_quant quant;
        double experts, rest;
    } forms[] = {{KT_QUANT_BF16, 2, 2}, {KT_QUANT_INT8, 1, 1}, {KT_QUANT_INT4, 4.5 / 8, 1}};

    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (int i = 0; i < N_SHAPES; i++) {
            subject s;
            kt_memory_plan p;
            plan_shape(&s, &shapes[i], forms[f].quant, 4);
            p = count(&s, 4096, PLENTY);
            near_by((double)p.weights, bytes_of(&shapes[i], forms[f].experts, forms[f].rest), 0.01,
                    shapes[i].model, kt_quant_word(forms[f].quant));
            near_by((double)p.bytes[KT_MEMORY_EXPERTS],
                    1e9 * shapes[i].routed_e9 * forms[f].experts, 0.01, shapes[i].model, "experts");
            end(&s);
        }
}

Test(memory_plan, caches_are_those_of_published_shapes) {
    for (int i = 0; i < N_SHAPES; i++) {
        subject s;
        plan_shape(&s, &shapes[i], KT_QUANT_INT4, 4);
        near_by((double)count(&s, 32768, PLENTY).bytes[KT_MEMORY_CACHE],
                32768 * shapes[i].cache_bytes + KT_LEAST_SLOTS * shapes[i].state_bytes, 0.001,
                shapes[i].model, "cache");
        end(&s);
    }
}

Test(memory_plan, parts_are_told_apart) {
    const double expert = 3.0 * 7168 * 2048, dense = 3.0 * 7168 * 18432;
    const double small = 58.0 * 256 * (2 * 7168 + 4) + 61 * 4.0 * (2 * 7168 + 1536 + 512);
    size_t sum = 0;
    subject s;
    kt_memory_plan p;

    plan_for(&s, "DeepSeek-V3", KT_QUANT_BF16, 4, 512);
    p = count(&s, 1000, PLENTY);
    near_by((double)p.bytes[KT_MEMORY_EMBEDDING], 2 * 129280.0 * 7168, 0.001, "V3", "embedding");
    near_by((double)p.bytes[KT_MEMORY_HEAD], 2 * 129280.0 * 7168, 0.001, "V3", "head");
    near_by((double)p.bytes[KT_MEMORY_EXPERTS], 2 * 58 * 256 * expert, 0.001, "V3", "experts");
    near_by((double)p.bytes[KT_MEMORY_SHARED], 2 * 58 * expert, 0.001, "V3", "shared");
    near_by((double)p.bytes[KT_MEMORY_DENSE], 2 * 3 * dense, 0.001, "V3", "dense");
    near_by((double)p.bytes[KT_MEMORY_SMALL], small, 0.001, "V3", "small");
    near_by((double)p.bytes[KT_MEMORY_LOGITS], 4 * 129280.0, 0.001, "V3", "logits");
    for (int i = 0; i < KT_MEMORY_STAGING; i++) sum += p.bytes[i];
    cr_expect_eq(sum, p.weights);
    cr_expect_lt(p.bytes[KT_MEMORY_ROUNDING], (size_t)62 << 21);
    end(&s);
}

/* Weights and, one after the other, staging or all the rest. */
Test(memory_plan, need_is_the_higher_of_two_peaks) {
    static const int64_t contexts[] = {1, 40960};

    for (int i = 0; i < 2; i++) {
        subject s;
        kt_memory_plan p;
        size_t running;
        plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT4, 32, contexts[i] < 512 ? 1 : 512);
        p = count(&s, contexts[i], PLENTY);
        running = p.bytes[KT_MEMORY_STEP] + p.bytes[KT_MEMORY_CACHE] + p.bytes[KT_MEMORY_LOGITS];
        cr_expect_eq(running > p.bytes[KT_MEMORY_STAGING], i == 1);
        cr_expect_eq(p.needed, p.weights + (i ? running : p.bytes[KT_MEMORY_STAGING]));
        cr_expect_eq(count(&s, contexts[i], p.needed).longest > 0, 1);
        if (i == 0) cr_expect_eq(count(&s, 1, p.needed - 1).longest, 0);
        end(&s);
    }
}

Test(memory_plan, the_longest_context_fits_and_one_more_does_not) {
    subject s;
    kt_memory_plan p;
    size_t need;

    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT4, 4, 512);
    need = count(&s, 10000, PLENTY).needed;
    p = count(&s, 10000, need);
    cr_expect(kt_memory_fits(&p));
    cr_expect_eq(p.longest, 10000);
    p = count(&s, 10000, need - 1);
    cr_expect(!kt_memory_fits(&p));
    cr_expect_eq(p.longest, 9999);
    cr_expect_eq(count(&s, 5, PLENTY).longest, 40960);
    cr_expect_eq(count(&s, 5, p.weights).longest, 0);
    cr_expect_eq(count(&s, 5, p.weights + p.bytes[KT_MEMORY_STAGING] - 1).longest, 0);
    end(&s);
}

/* 624 GB of INT8 weights were started on a machine of 474 GB, which swapped to death. */
Test(memory_plan, int8_that_is_larger_than_memory_is_refused_and_int4_named) {
    subject s;
    kt_memory_request r = {.n_nodes = 1, .context = 8192, .available = 474000000000};
    kt_err err = {KT_OK, ""};
    double needs = 0;

    plan_for(&s, "DeepSeek-V3", KT_QUANT_INT8, 128, 512);
    r.plan = &s.plan;
    cr_expect_eq(kt_memory_check(&r, "DeepSeek-V3", &err), KT_E_NOMEM);
    cr_assert_eq(sscanf(err.message, "DeepSeek-V3: needs %lf GiB", &needs), 1, "%s", err.message);
    cr_expect(needs > 628 && needs < 632, "%s", err.message); /* scratch follows the kernels */
    cr_expect(strstr(err.message, "(weights 627."), "%s", err.message);
    cr_expect(strstr(err.message, "staging while loading 0.2"), "%s", err.message);
    cr_expect(strstr(err.message, "cache of 8192 tokens 0.5)"), "%s", err.message);
    cr_expect(strstr(err.message, ", 441.4 GiB are available; try --weights int4 (360."), "%s",
              err.message);
    cr_expect(!strstr(err.message, "bf16") && !strstr(err.message, "int8"), "%s", err.message);
    end(&s);
    plan_for(&s, "DeepSeek-V3", KT_QUANT_INT4, 128, 512);
    r.plan = &s.plan;
    cr_expect_eq(kt_memory_check(&r, "DeepSeek-V3", &err), KT_OK);
    r.available = 300000000000;
    cr_expect_eq(kt_memory_check(&r, "DeepSeek-V3", &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "; no format is small enough"), "%s", err.message);
    end(&s);
}

Test(memory_plan, a_shorter_context_is_proposed_where_that_is_enough) {
    subject s;
    kt_memory_request r = {.n_nodes = 1, .context = 40960};
    char want[80];
    kt_err err = {KT_OK, ""};
    kt_memory_plan p;

    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_BF16, 4, 512);
    r.plan = &s.plan;
    r.available = count(&s, 10000, PLENTY).needed;
    cr_expect_eq(kt_memory_check(&r, "qwen", &err), KT_E_NOMEM);
    cr_expect(strstr(err.message, "are available; try --context 10000"), "%s", err.message);
    end(&s);
    /* Other weights, with as much context as they leave room for. */
    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT8, 4, 512);
    r.available = count(&s, 20000, PLENTY).needed;
    end(&s);
    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_BF16, 4, 512);
    r.plan = &s.plan;
    p = count(&s, 40960, r.available);
    cr_expect_eq(p.longest, 0);
    cr_expect_eq(kt_memory_check(&r, "qwen", &err), KT_E_NOMEM);
    snprintf(want, sizeof want, "try --weights int8 (");
    cr_expect(strstr(err.message, want) && strstr(err.message, " GiB, --context 20000) or int4 ("),
              "%s", err.message);
    end(&s);
}

static void absurd(char *out, size_t bytes, int layers, int hidden, int head, int inner,
                   int experts) {
    snprintf(out, bytes,
             "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%d,\"hidden_size\":%d,"
             "\"vocab_size\":16777216,\"num_attention_heads\":4096,\"num_key_value_heads\":4096,"
             "\"head_dim\":%d,\"num_experts\":%d,\"num_experts_per_tok\":8,"
             "\"moe_intermediate_size\":%d,\"intermediate_size\":1048576,"
             "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"norm_topk_prob\":true,"
             "\"max_position_embeddings\":16777216,\"rms_norm_eps\":1e-6,\"rope_theta\":1e6,"
             "\"hidden_act\":\"silu\"}",
             layers, hidden, head, experts, inner);
}

Test(memory_plan, absurd_sizes_are_too_large_to_count) {
    char text[900];
    subject s;
    kt_memory_request r = {.n_nodes = 1, .context = 16777216, .available = PLENTY};
    kt_memory_plan p;
    kt_memory_choice choices[KT_MEMORY_CHOICES];
    kt_err err = {KT_OK, ""};

    absurd(text, sizeof text, 200, 1048576, 256, 1048576,
           65536); /* 2.5e19 experts' weights and more: over 2^64 bytes */
    plan_for(&s, text, KT_QUANT_BF16, 2, 512);
    r.plan = &s.plan;
    memset(&p, 1, sizeof p);
    cr_expect_eq(kt_memory_plan_make(&r, &p, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "too large to count"), "%s", err.message);
    cr_expect_eq(p.needed + p.weights, 0);
    cr_expect_eq(kt_memory_check(&r, "absurd", &err), KT_E_UNSUPPORTED);
    cr_expect_eq(kt_memory_survey(&r, choices, &err), KT_OK);
    cr_expect(strstr(choices[KT_QUANT_BF16].why.message, "too large to count"));
    end(&s);
    absurd(text, sizeof text, 1, 1048576, 256, 1024, 8); /* large, but a number */
    plan_for(&s, text, KT_QUANT_BF16, 2, 512);
    r.plan = &s.plan;
    cr_expect_eq(kt_memory_plan_make(&r, &p, &err), KT_OK, "%s", err.message);
    near_by((double)p.bytes[KT_MEMORY_CACHE], 4.0 * 4096 * 256 * 16777216, 0.001, "one layer",
            "cache");
    end(&s);
}

/* A cache alone can be too large, too. */
Test(memory_plan, a_cache_that_overflows_is_no_small_one) {
    char text[900];
    subject s;
    kt_memory_request r = {.n_nodes = 1, .context = INT32_MAX, .available = PLENTY};
    size_t step;
    kt_memory_plan p;
    kt_err err = {KT_OK, ""};

    absurd(text, sizeof text, 1024, 64, 4096, 64, 8);
    plan_for(&s, text, KT_QUANT_BF16, 2, 1);
    r.plan = &s.plan;
    cr_assert_eq(kt_step_bytes(&s.plan, 1, r.context, &step, &err), KT_OK);
    cr_expect_lt(step, SIZE_MAX, "then it is not the cache that is looked at");
    cr_expect_eq(kt_memory_plan_make(&r, &p, &err), KT_E_UNSUPPORTED);
    r.context = INT64_MAX / 2;
    cr_assert_eq(kt_step_bytes(&s.plan, 1, r.context, &step, &err), KT_OK);
    cr_expect_eq(step, SIZE_MAX);
    cr_expect_eq(kt_memory_plan_make(&r, &p, &err), KT_E_UNSUPPORTED);
    end(&s);
}

/* ---- staging ---- */

/* No more is asked for by 128 threads than by a few. */
Test(memory_plan, staging_of_128_threads_keeps_to_its_budget, .timeout = 120) {
    static const kt_quant quants[] = {KT_QUANT_BF16, KT_QUANT_INT8, KT_QUANT_INT4,
                                      (kt_quant)(KT_QUANT_FORMAT + KT_W_FP8_B128)};

    for (size_t q = 0; q < sizeof quants / sizeof *quants; q++)
        for (int i = 0; i < N_SHAPES; i++)
            for (int nodes = 1; nodes <= 2; nodes++) {
                subject s;
                kt_staging t;
                plan_shape(&s, &shapes[i], quants[q], 128);
                kt_staging_count(&s.plan, nodes, 128, &t);
                cr_expect_lt(t.total, KT_STAGING_BUDGET + t.slice, "%s, format %zu, %d nodes: %zu",
                             shapes[i].model, q, nodes, t.total);
                cr_expect(t.n_slices >= 1 && t.n_slices <= 128);
                cr_expect_eq(t.total, (size_t)t.n_slices * t.slice + t.whole);
                cr_expect_eq(t.whole, 0);
                cr_expect_eq(t.packed > 0, nodes > 1);
                cr_expect_eq(kt_memory_plan_make(&(kt_memory_request){.plan = &s.plan,
                                                                      .n_nodes = nodes,
                                                                      .context = 512,
                                                                      .available = PLENTY},
                                                 &(kt_memory_plan){.needed = 0}, NULL),
                             KT_OK);
                end(&s);
            }
}

Test(memory_plan, few_threads_all_have_a_slice) {
    subject s;
    kt_staging t;

    plan_for(&s, "DeepSeek-V3", KT_QUANT_INT8, 8, 512);
    kt_staging_count(&s.plan, 1, 8, &t);
    cr_expect_eq(t.n_slices, 8);
    /* Gate and up: 64 rows of 7168 codes, and a scale each, twice; or o: 64 rows of 16384. */
    cr_expect_eq(t.scratch, 4 * 16 * 18432);
    near_by((double)(t.slice - t.scratch), 64.0 * 18432, 0.01, "DeepSeek-V3", "block");
    cr_expect_eq(count(&s, 100, PLENTY).bytes[KT_MEMORY_STAGING], t.total);
    end(&s);
}

/* ---- what is really taken ---- */

/* tiny-moe, loaded: weights and working memory are what was counted, and staging was large enough.
 */
Test(memory_plan, a_loaded_model_takes_what_was_counted) {
    static const kt_quant quants[] = {KT_QUANT_NATIVE, KT_QUANT_INT8, KT_QUANT_INT4};
    const kt_pool_options options = {.n_threads = 3};
    kt_pool *pool;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_pool_create(&options, &pool, &err), KT_OK);
    for (size_t q = 0; q < sizeof quants / sizeof *quants; q++) {
        const kt_node_plan nodes = {.n = 1, .threads = {3}, .memory = {-1}};
        subject s;
        kt_weights *weights;
        kt_step step;
        kt_memory_plan p;
        kt_weights_request load = {.plan = &s.plan, .pool = pool, .nodes = &nodes};
        const kt_choice *largest;
        plan_for(&s, "tiny-moe", quants[q], 3, 64);
        load.checkpoint = s.dir.checkpoint;
        load.graph = &s.dir.graph;
        cr_assert_eq(kt_weights_load(&load, &weights, &err), KT_OK, "%s", err.message);
        p = count(&s, 300, PLENTY);
        cr_expect_eq(kt_weights_bytes(weights), p.weights - p.bytes[KT_MEMORY_ROUNDING]);
        cr_expect_eq(p.weights % ((size_t)2 << 20), 0);
        cr_expect_lt(p.bytes[KT_MEMORY_ROUNDING], (size_t)5 << 21);
        cr_assert_eq(
            kt_step_init(&step, load.graph, &s.plan, weights, &nodes, NULL, pool, 300, &err),
            KT_OK);
        cr_expect_lt(step.buffer.bytes, p.bytes[KT_MEMORY_STEP]);
        largest = kt_attn_largest(step.attn[0].job.choices, step.attn[0].job.choice,
                                  &step.attn[0].problem);
        near_by((double)p.bytes[KT_MEMORY_STEP],
                (double)(step.buffer.bytes + kt_moe_workspace_bytes(step.ffn[0].job.layer, 64, 3) +
                         kt_attn_job_bytes(largest, &step.attn[0].problem, 300, 3)),
                1e-9, "tiny-moe", "working memory");
        kt_step_deinit(&step);
        kt_weights_destroy(weights);
        end(&s);
    }
    kt_pool_destroy(pool);
}

/* ---- other weights ---- */

Test(memory_plan, a_survey_has_what_each_would_need) {
    subject s;
    kt_memory_choice c[KT_MEMORY_CHOICES];
    kt_memory_request r = {.n_nodes = 1, .context = 4096, .available = 40000000000};
    kt_err err = {KT_OK, ""};

    plan_for(&s, "Qwen3-30B-A3B", KT_QUANT_INT8, 4, 512);
    r.plan = &s.plan;
    cr_assert_eq(kt_memory_survey(&r, c, &err), KT_OK, "%s", err.message);
    for (int q = 0; q < KT_MEMORY_CHOICES; q++) cr_expect_eq(c[q].why.status, KT_OK);
    cr_expect_eq(c[KT_QUANT_NATIVE].plan.weights, c[KT_QUANT_BF16].plan.weights);
    cr_expect_eq(c[KT_QUANT_INT8].plan.needed, count(&s, 4096, r.available).needed);
    cr_expect(!kt_memory_fits(&c[KT_QUANT_BF16].plan) && kt_memory_fits(&c[KT_QUANT_INT8].plan));
    cr_expect_eq(c[KT_QUANT_BF16].plan.longest, 0);
    cr_expect_eq(c[KT_QUANT_INT4].plan.longest, 40960);
    end(&s);
}

Test(memory_plan, what_is_stored_in_few_bits_may_become_more) {
    char text[1600];
    subject s;
    kt_memory_choice c[KT_MEMORY_CHOICES];
    kt_memory_request r = {.n_nodes = 1, .context = 4096, .available = PLENTY};
    kt_err err = {KT_OK, ""};

    snprintf(text, sizeof text, kimi,
             ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
             "\"pack-quantized\",\"ignore\":[\"re:.*self_attn.*\"],\"config_groups\":{\"group_0\":"
             "{\"weights\":{\"num_bits\":4,\"group_size\":32,\"symmetric\":true}}}}");
    plan_for(&s, text, KT_QUANT_NATIVE, 4, 512);
    r.plan = &s.plan;
    near_by((double)count(&s, 4096, PLENTY).bytes[KT_MEMORY_EXPERTS], 1014.69e9 * 4.5 / 8, 0.01,
            "Kimi-K2-Thinking", "native experts");
    cr_assert_eq(kt_memory_survey(&r, c, &err), KT_OK, "%s", err.message);
    cr_expect_eq(c[KT_QUANT_NATIVE].why.status, KT_OK, "%s", c[0].why.message);
    for (int q = KT_QUANT_BF16; q < KT_MEMORY_CHOICES; q++)
        cr_expect_eq(c[q].why.status, KT_OK, "%s", c[q].why.message);
    near_by((double)c[KT_QUANT_INT8].plan.bytes[KT_MEMORY_EXPERTS], 1014.69e9, 0.01,
            "Kimi-K2-Thinking", "INT8 experts");
    end(&s);
}

/* ---- speed ---- */

Test(memory_plan, speed_is_bytes_over_stream_and_operations_over_peak) {
    kt_ceilings ceilings = {.stream_gbs_1t = 10, .stream_gbs_all = 30, .peak_scalar_gops = 100};
    const published *q = &shapes[0];
    const double rest = 1e9 * (q->total_e9 - q->routed_e9), head = q->embedding;
    const double attention = 2 * 512 * 2048.0 * 48 * 32 * 256;
    const double ops = 2 * 512 * (1e9 * q->read_e9 + rest - 2 * head - q->routers) + 2 * head;
    /* of the peak of floats, where bytes are multiplied without VNNI */
    const kt_isa here = kt_isa_available(), vnni = KT_ISA_AVX512VNNI | KT_ISA_AVXVNNI;
    const double bytes_peak = here & vnni || !(here & KT_ISA_AVX2) ? 1
                              : here & KT_ISA_AVX512               ? 2
                                                                   : 3;
    subject s;
    kt_speed_bound b;
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < KT_ISA_COUNT; i++) ceilings.peak_gops[i] = 100;
    plan_for(&s, q->model, KT_QUANT_INT4, 2, 512);
    cr_assert_eq(kt_speed_bound_count(&s.plan, 4096, &ceilings, &b, &err), KT_OK);
    near_by(b.decode_bytes,
            1e9 * q->read_e9 * 4.5 / 8 + (rest - head - q->routers) + 2 * q->routers +
                4096 * q->cache_bytes,
            0.01, q->model, "bytes of a token");
    near_by(b.decode_tps, 20e9 / b.decode_bytes, 1e-9, q->model, "decode on two threads");
    near_by(b.prefill_ops, ops + attention, 0.01, q->model, "operations");
    near_by(b.prefill_tps, 512 * 200e9 / ((b.prefill_ops - attention) / bytes_peak + attention),
            0.01, q->model, "prefill");
    for (int i = 0; i < KT_ISA_COUNT; i++) ceilings.peak_gops[i] = 1e9;
    ceilings.peak_scalar_gops = 1e9;
    cr_assert_eq(kt_speed_bound_count(&s.plan, 4096, &ceilings, &b, &err), KT_OK);
    /* All experts are met; the head is read, half of the cache on average. */
    near_by(b.prefill_bytes, 1e9 * q->routed_e9 * 4.5 / 8 + (rest - head) + 2048 * q->cache_bytes,
            0.01, q->model, "bytes of a step");
    near_by(b.prefill_tps, 512 * 20e9 / b.prefill_bytes, 1e-9, q->model, "prefill that reads");
    end(&s);
}

/* ---- words ---- */

Test(memory_plan, says_it_in_a_line) {
    const kt_memory_plan p = {
        .bytes = {[KT_MEMORY_STEP] = (size_t)1 << 29, [KT_MEMORY_CACHE] = (size_t)1 << 30},
        .weights = (size_t)10 << 30,
        .needed = (size_t)12 << 30,
        .available = (size_t)20 << 30,
        .context = 40960,
        .cached = 4096,
        .pool = {.pages = 128, .bytes = (size_t)2 << 30}};
    char line[256];

    cr_expect_str_eq(kt_memory_line(&p, line, sizeof line),
                     "memory: 12.00 GiB (weights 10.00, working memory 0.50, cache of 4096 tokens "
                     "1.00, logits 0.00); 8.00 of 20.00 GiB remain; pool of 128 pages: 8192 "
                     "tokens, 2.00 GiB");
    for (int i = 0; i < KT_MEMORY_PARTS; i++)
        cr_expect(strlen(kt_memory_part_name((kt_memory_part)i)) > 3);
}

/* ---- published models on machines ---- */

static kt_shape_fit fit_of(const char *shape, uint64_t small, uint64_t large) {
    const kt_shape_fit_request request = {.shape = shape,
                                          .machines = {small << 30, large << 30},
                                          .n_machines = 2,
                                          .context = 32768,
                                          .cache = KT_W_BF16,
                                          .threads = 16};
    subject s = {0};
    kt_shape_fit fit;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_published_dir(shape, &s.dir, &err), KT_OK, "%s: %s", shape, err.message);
    plan_graph(&s, shape, KT_QUANT_NATIVE, 2, 512);
    cr_assert_eq(kt_shape_fit_count(s.planner, &request, &fit, &err), KT_OK, "%s: %s", shape,
                 err.message);
    end(&s);
    return fit;
}

/* What fits is what bytes of so many weights say; on the larger machine never less. */
Test(memory_plan, machines_are_told_what_they_can_run, .timeout = 60) {
    static const struct {
        const char *shape, *weights[2]; /* NULL = none fits */
    } cases[] = {{"Qwen3-235B-A22B", {"int4", "native"}},
                 {"Kimi-K2.5", {NULL, "q3_k"}},
                 {"DeepSeek-V4-Flash", {"native", "native"}},
                 {"DeepSeek-V3", {"iq1_m", "int4"}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_shape_fit fit = fit_of(cases[i].shape, 192, 512);
        for (int m = 0; m < 2; m++) {
            const kt_machine_fit *f = &fit.machine[m];
            const uint64_t memory = (uint64_t)(m ? 512 : 192) << 30;
            cr_expect_eq(f->fits, cases[i].weights[m] != NULL, "%s: %s", cases[i].shape,
                         f->weights);
            if (cases[i].weights[m])
                cr_expect_str_eq(f->weights, cases[i].weights[m], "%s", cases[i].shape);
            cr_expect_eq(f->fits, f->needed + KT_FIT_RESERVE <= memory, "%s", cases[i].shape);
            cr_expect(!f->fits || f->longest >= fit.context, "%s", cases[i].shape);
        }
    }
}

/* Blocks of 256 do not fit its sizes, so that there is nothing smaller than what was published. */
Test(memory_plan, sizes_that_a_format_cannot_have_are_left_out) {
    const kt_shape_fit fit = fit_of("gpt-oss-20b", 12, 16);

    cr_expect_not(fit.machine[0].fits);
    cr_expect(fit.machine[1].fits || fit.machine[1].weights);
    cr_expect_str_eq(fit.machine[0].weights, "native");
}

/* Every family has a published shape, so that the table is of all. */
Test(memory_plan, every_family_has_a_shape) {
    char names[64][64];
    const int n = kt_model_list_shapes(names, 64);

    for (size_t f = 0; f < kt_builtin_family_count; f++) {
        bool has_one = false;
        for (int i = 0; i < n && !has_one; i++) {
            kt_model_dir *dir = malloc(sizeof *dir);
            if (kt_published_dir(names[i], dir, NULL) == KT_OK) {
                has_one = dir->graph.family == kt_builtin_families[f];
                kt_model_dir_deinit(dir);
            }
            free(dir);
        }
        cr_expect(has_one, "no shape of datasets/workloads is of %s", kt_builtin_families[f]->name);
    }
}
