/* Models of published shapes with random weights. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/rng.h"
#include "runtime/exec/engine.h"
#include "runtime/model/synthetic_blocks.h"
#include "runtime/model/synthetic_model.h"
#include "runtime/model/weight_source.h"

Test(synthetic, a_shape_is_scaled_with_its_layers) {
    kt_model_dir *dir = malloc(sizeof *dir);
    int64_t all = 0;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_synthetic_dir("QWEN3-30b", 8, KT_W_NONE, dir, &all, &err), KT_OK, "%s",
                 err.message);
    cr_expect_str_eq(dir->name, "Qwen3-30B-A3B");
    cr_expect_eq(all, 48);
    cr_expect_eq(dir->graph.numbers.layers, 8);
    cr_expect_eq(dir->graph.numbers.vocab,
                 25344); /* 151936 * 8 / 48 = 25322.7, up to whole panels */
    cr_expect_eq(dir->graph.numbers.hidden, 2048);
    cr_expect_eq(kt_graph_experts(&dir->graph, 7)->count, 128);
    cr_expect_eq(kt_graph_experts(&dir->graph, 7)->n, 768);
    kt_model_dir_deinit(dir);
    cr_assert_eq(kt_synthetic_dir("qwen3-235b", 0, KT_W_NONE, dir, &all, &err), KT_OK, "%s",
                 err.message);
    cr_expect_eq(dir->graph.numbers.layers, 94);
    cr_expect_eq(dir->graph.numbers.vocab, 151936);
    kt_model_dir_deinit(dir);
    free(dir);
}

Test(synthetic, names_that_fit_no_or_several_shapes_are_refused) {
    static const struct {
        const char *name;
        int64_t layers;
        kt_status status;
        const char *words;
    } cases[] = {
        {"parrot-7b", 1, KT_E_NOT_FOUND, "no bundled model"},
        {"", 1, KT_E_NOT_FOUND, "no bundled model"},
        {"qwen3", 1, KT_E_NOT_FOUND, "more than one begins so: Qwen3-235B-A22B, Qwen3-30B"},
        {"qwen3-31b", 1, KT_E_NOT_FOUND, "did you mean Qwen3-30B-A3B?"},
        {"tiny-moe", 1, KT_E_NOT_FOUND, "no 'config'"},
        {"qwen3-30b", 49, KT_E_INVALID, "expected 1 to 48"}};
    kt_model_dir *dir = malloc(sizeof *dir);
    int64_t all;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_err err = {KT_OK, ""};
        cr_expect_eq(kt_synthetic_dir(cases[i].name, cases[i].layers, KT_W_NONE, dir, &all, &err),
                     cases[i].status, "%s", cases[i].name);
        cr_expect(strstr(err.message, cases[i].words), "%s: %s", cases[i].name, err.message);
    }
    free(dir);
}

/* Weights have the spread they claim, and experts repeat byte for byte. */
Test(synthetic, tensors_are_what_they_are_said_to_be) {
    static const struct {
        const char *name;
        double mean, deviation;
    } want[] = {{"model.embed_tokens.weight", 0, KT_SYNTHETIC_EMBEDDING},
                {"lm_head.weight", 0, KT_SYNTHETIC_OTHER},
                {"model.layers.0.mlp.gate.weight", 0, KT_SYNTHETIC_ROUTER},
                {"model.layers.0.self_attn.q_norm.weight", 1, 0},
                {"model.norm.weight", 1, 0},
                {"model.layers.0.mlp.experts.127.down_proj.weight", 0, KT_SYNTHETIC_OTHER}};
    kt_model_dir *dir = malloc(sizeof *dir);
    kt_checkpoint *c;
    int64_t all;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_synthetic_dir("qwen3-30b", 1, KT_W_NONE, dir, &all, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_synthetic_checkpoint(dir, 1, &c, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        const kt_tensor *t = kt_checkpoint_find(c, want[i].name);
        double sum = 0, squares = 0, mean, n;
        cr_assert(t, "%s", want[i].name);
        n = (double)(t->bytes / 2);
        for (size_t j = 0; j < t->bytes / 2; j++) {
            uint32_t bits = (uint32_t)(t->data[2 * j] | t->data[2 * j + 1] << 8) << 16;
            float x;
            memcpy(&x, &bits, sizeof x);
            sum += x;
            squares += (double)x * x;
        }
        mean = sum / n;
        cr_expect_lt(fabs(mean - want[i].mean), 0.05 * want[i].deviation + 1e-9, "%s: mean %g",
                     want[i].name, mean);
        /* 4096 draws know a deviation to 1.1 % */
        cr_expect_lt(fabs(sqrt(squares / n - mean * mean) - want[i].deviation),
                     0.05 * want[i].deviation + 1e-9, "%s", want[i].name);
    }
    cr_expect_eq(kt_checkpoint_find(c, "model.layers.0.mlp.experts.1.up_proj.weight")->data,
                 kt_checkpoint_find(c, "model.layers.0.mlp.experts.5.up_proj.weight")->data);
    cr_expect_neq(kt_checkpoint_find(c, "model.layers.0.mlp.experts.1.up_proj.weight")->data,
                  kt_checkpoint_find(c, "model.layers.0.mlp.experts.2.up_proj.weight")->data);
    kt_checkpoint_close(c);
    kt_model_dir_deinit(dir);
    free(dir);
}

/* Blocks of every GGUF format decode to weights of mean 0 and the deviation asked for. */
Test(synthetic, blocks_have_the_spread_of_other_weights) {
    enum { BLOCKS = 4096 };
    uint8_t *blocks = malloc(BLOCKS * 256);
    int n_formats = 0;

    for (size_t f = 0; f < kt_builtin_format_count; f++) {
        const kt_format *format = kt_builtin_formats[f];
        kt_matrix w = {.format = format->id, .n = BLOCKS, .k = format->block, .data = blocks};
        double row[256], sum = 0, squares = 0, n = (double)BLOCKS * (double)format->block,
                         deviation, shifts = 0;
        kt_rng rng;
        if (!format->block_bytes) continue;
        n_formats++;
        kt_rng_seed(&rng, 7);
        kt_synthetic_blocks(format, BLOCKS, KT_SYNTHETIC_OTHER, &rng, blocks);
        for (int64_t b = 0; b < BLOCKS; b++) {
            double mean = 0;
            format->decode_row(&w, b, row);
            for (int64_t i = 0; i < format->block; i++) {
                mean += row[i] / (double)format->block;
                squares += row[i] * row[i];
            }
            sum += mean * (double)format->block;
            shifts += mean * mean / BLOCKS;
        }
        deviation = sqrt(squares / n);
        /* 256 blocks know a deviation of random scales to a few percent; MXFP4 steps by 2 */
        cr_expect_lt(fabs(sum / n), 0.05 * KT_SYNTHETIC_OTHER, "%s: mean %g", format->name,
                     sum / n);
        cr_expect(deviation > 0.7 * KT_SYNTHETIC_OTHER && deviation < 1.42 * KT_SYNTHETIC_OTHER &&
                      (format->id == KT_W_MXFP4 ||
                       fabs(deviation - KT_SYNTHETIC_OTHER) < 0.05 * KT_SYNTHETIC_OTHER),
                  "%s: deviation %g", format->name, deviation);
        /* without its minimum a block of Q4_1 would lie 0.85 deviations to one side */
        cr_expect_lt(sqrt(shifts), 0.5 * deviation, "%s: blocks shifted by %g", format->name,
                     sqrt(shifts));
    }
    cr_expect_eq(n_formats, 23);
    free(blocks);
}

/* Each id has its own text, and both ways lead back. */
Test(synthetic, made_up_tokens_are_words) {
    enum { N = 25344 };
    kt_tokenizer *t;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(kt_tokenizer_make_up(255, &t, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "255 tokens, expected 256 to"), "%s", err.message);
    cr_assert_eq(kt_tokenizer_make_up(N, &t, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_tokenizer_size(t), N);
    for (int32_t id = 0; id < N; id += id < 600 ? 1 : 97) {
        size_t size, n;
        bool is_special;
        int32_t *back;
        const char *text = kt_tokenizer_bytes(t, id, &size, &is_special);
        cr_assert(text && size > 0 && !is_special, "id %d has no text", id);
        if (id >= 128 && id < 256) continue; /* half a character */
        cr_assert_eq(kt_tokenizer_encode(t, text, size, true, &back, &n, &err), KT_OK, "%s",
                     err.message);
        cr_expect(n == 1 && back[0] == id, "'%.*s' of id %d is %zu tokens, first %d", (int)size,
                  text, id, n, n ? back[0] : -1);
        free(back);
    }
    kt_tokenizer_destroy(t);
}

/* It runs, its logits are numbers, a prompt spreads over the experts, and the profile adds up. */
static void run_a_layer(kt_quant weights) {
    enum { N = 64 };
    kt_engine_options o = {.synthetic = "qwen3-30b",
                           .synthetic_layers = 1,
                           .weights = weights,
                           .table_path = "",
                           .n_threads = 2,
                           .max_context = N};
    kt_engine *e;
    kt_engine_info info;
    kt_sequence *s;
    kt_profile p;
    kt_rng rng;
    int32_t tokens[N];
    float *logits;
    double share = 0, bytes = 0;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    cr_expect_eq(info.layers, 1);
    cr_expect_eq(info.layers_of_all, 48);
    cr_expect_null(kt_engine_tokenizer(e));
    logits = malloc((size_t)info.vocab * sizeof *logits);
    kt_rng_seed(&rng, 1);
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)kt_rng_below(&rng, (uint64_t)info.vocab);
    cr_assert_eq(kt_sequence_create(e, N, &s, &err), KT_OK, "%s", err.message);
    kt_engine_profile(e, true);
    cr_assert_eq(kt_engine_forward(e, s, tokens, N, 1, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_engine_profile_read(e, &p);
    for (int64_t i = 0; i < info.vocab; i++) cr_assert(isfinite(logits[i]));
    cr_expect_eq(p.moe_layers, 1);
    cr_expect_eq(p.expert_rows, N * 8);
    cr_expect_gt(p.experts_hit, 100); /* of 128; even routing would hit 126 */
    for (int i = 0; i < KT_PROFILE_KINDS; i++) {
        share += (double)p.kind[i].time_ns / (double)p.time_ns;
        bytes += p.kind[i].bytes;
    }
    cr_expect(fabs(share - 1) < 0.02, "the kinds take %g of the time", share);
    cr_expect_leq(p.busy_ns + p.serial_ns, 2 * p.time_ns);
    /* Everything but the embedding, the experts nobody chose and the norms is read once. */
    cr_expect_lt(bytes, (double)info.weight_bytes);
    cr_expect_gt(bytes, 0.7 * (double)info.weight_bytes);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    free(logits);
}

Test(synthetic, a_layer_of_the_30b_shape_runs, .timeout = 120) {
    run_a_layer(KT_QUANT_INT4);
}

Test(synthetic, experts_may_be_gguf_blocks_or_fp8, .timeout = 240) {
    run_a_layer((kt_quant)(KT_QUANT_FORMAT + KT_W_Q4_K));
#ifndef __SANITIZE_ADDRESS__ /* the same code makes them */
    run_a_layer((kt_quant)(KT_QUANT_FORMAT + KT_W_MXFP4));
    run_a_layer((kt_quant)(KT_QUANT_FORMAT + KT_W_FP8_B128));
#endif
}

/* DeepSeek-V4 with random weights: all that its loader asks for is there, and experts by token are
 * different ones of those that there are. */
Test(synthetic, tensors_of_v4_are_those_that_are_loaded) {
    static const char config[] =
        "{\"model_type\":\"deepseek_v4\",\"num_hidden_layers\":3,\"hidden_size\":64,"
        "\"vocab_size\":96,\"num_attention_heads\":4,\"num_key_value_heads\":1,\"head_dim\":32,"
        "\"qk_rope_head_dim\":16,\"q_lora_rank\":32,\"o_groups\":2,\"o_lora_rank\":32,"
        "\"n_routed_experts\":7,\"num_experts_per_tok\":3,\"n_shared_experts\":1,"
        "\"moe_intermediate_size\":32,\"scoring_func\":\"sqrtsoftplus\",\"num_hash_layers\":2,"
        "\"sliding_window\":8,\"compress_ratios\":[0,4,128],\"index_n_heads\":2,"
        "\"index_head_dim\":32,\"index_topk\":4,\"rope_theta\":10000,"
        "\"compress_rope_theta\":160000,\"hc_mult\":4,\"hc_sinkhorn_iters\":3,\"hc_eps\":1e-6,"
        "\"rms_norm_eps\":1e-6,\"max_position_embeddings\":256,\"norm_topk_prob\":true}";
    kt_model_dir *dir = calloc(1, sizeof *dir);
    kt_weight_finder finder;
    kt_graph_request request = {0};
    kt_json_doc *doc;
    int n_tables = 0;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_json_parse(config, strlen(config), NULL, &doc, &err), KT_OK, "%s", err.message);
    request.source = (kt_config_source){.json = kt_json_root(doc), .arch = "", .where = "config"};
    cr_assert_eq(kt_graph_build(&request, &dir->graph, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_synthetic_checkpoint(dir, 1, &dir->checkpoint, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_weight_finder_init(&finder, dir->checkpoint, &dir->graph, &err), KT_OK);
    for (int i = 0; i < dir->graph.n_weights; i++) {
        const kt_weight *w = &dir->graph.weights[i];
        const bool is_small = w->kind == KT_WEIGHT_VECTOR || w->kind == KT_WEIGHT_ROUTER ||
                              w->kind == KT_WEIGHT_TABLE;
        kt_matrix_source source;
        const kt_tensor *t;
        n_tables += w->ids == 7;
        if (is_small)
            cr_expect_eq(kt_weight_tensor(&finder, w, &t, &err), KT_OK, "%s", err.message);
        else if (w->kind != KT_WEIGHT_HEADS)
            cr_expect_eq(kt_weight_source(&finder, w, 0, 1, 0, &source, &err), KT_OK, "%s: %s",
                         w->role, err.message);
    }
    cr_expect_eq(n_tables, 2);
    kt_weight_finder_deinit(&finder);
    kt_model_dir_deinit(dir);
    kt_json_destroy(doc);
    free(dir);
}

/* A token of a layer of random weights, whose experts repeat: 8 of 128. */
static float *forward_random(const char *device) {
    const int32_t token = 77;
    const kt_engine_options o = {.synthetic = "qwen3-30b",
                                 .synthetic_layers = 1,
                                 .weights = KT_QUANT_INT4,
                                 .exact_acts = true,
                                 .device = device,
                                 .gpu_experts = device ? "100%" : NULL,
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .n_threads = 2,
                                 .max_context = 64};
    kt_engine_info info;
    kt_engine *e;
    kt_sequence *s;
    float *logits;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    logits = calloc((size_t)info.vocab, sizeof *logits);
    cr_assert_eq(kt_sequence_create(e, 1, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, &token, 1, 1, logits, NULL, NULL, NULL, &err), KT_OK, "%s",
                 err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
    return logits;
}

Test(synthetic, experts_that_repeat_are_copies, .timeout = 120) {
    float *want = forward_random(NULL), *got = forward_random("emulated:memory=2G");
    double off = 0, all = 0;

    for (int i = 0; i < 3200; i++) {
        off += (double)(got[i] - want[i]) * (double)(got[i] - want[i]);
        all += (double)want[i] * want[i];
    }
    cr_expect(off <= 0.01 * 0.01 * all, "off by %g", sqrt(off / all));
    free(want), free(got);
}
