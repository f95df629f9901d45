/* Importance of inputs: what is added up, its file, and what the search of scales makes of it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/rng.h"
#include "runtime/exec/engine.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/model/format_budget.h"
#include "runtime/model/weight_loss.h"
#include "tests/support/temp.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

enum { N = 96 };

/* Run N tokens in chunks and write the importance; hidden as in kt_engine_forward, or NULL. */
static void observe(const char *path, int threads, int64_t chunk, float *hidden) {
    kt_engine_options o = {
        .model_dir = MODEL, .table_path = "", .n_threads = threads, .deterministic = true};
    kt_engine_info info;
    kt_engine *e;
    kt_sequence *s;
    int32_t tokens[N];
    float *logits;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_engine_write_importance(e, path, &err), KT_E_INVALID);
    cr_assert_eq(kt_engine_observe_inputs(e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    kt_engine_set_chunk(e, chunk);
    for (int i = 0; i < N; i++) tokens[i] = (int32_t)((37 * i + 11) % info.vocab);
    logits = malloc(sizeof *logits * N * (size_t)info.vocab);
    cr_assert_eq(kt_sequence_create(e, N, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_engine_forward(e, s, tokens, N, N, logits, hidden, NULL, NULL, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(kt_engine_write_importance(e, path, &err), KT_OK, "%s", err.message);
    free(logits);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
}

static kt_checkpoint *open_file(const char *path) {
    kt_checkpoint *c;
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_checkpoint_open_file(path, &c, &err), KT_OK, "%s", err.message);
    return c;
}

static const float *values(const kt_checkpoint *c, const char *name, int64_t k) {
    const kt_tensor *t;
    kt_err err = {KT_OK, ""};
    cr_assert_eq(kt_checkpoint_need(c, name, 1, &k, &t, &err), KT_OK, "%s", err.message);
    return (const float *)(const void *)t->data;
}

/* The inputs of q are the layer's norm of its hidden state, which can be computed here. */
static void check_qkv(const kt_checkpoint *file, const kt_checkpoint *model,
                      const kt_model_dir *dir, int64_t layer, const float *hidden) {
    const int64_t h = dir->graph.numbers.hidden;
    const double eps = dir->graph.nodes[0].eps;
    double *want = calloc((size_t)h, sizeof *want);
    const float *got, *x = hidden + layer * N * h;
    const kt_tensor *norm;
    char name[160];

    snprintf(name, sizeof name, "model.layers.%lld.input_layernorm.weight", (long long)layer);
    norm = kt_checkpoint_find(model, name);
    cr_assert(norm && norm->dtype == KT_DTYPE_BF16);
    for (int r = 0; r < N; r++) {
        double mean = 0;
        for (int64_t i = 0; i < h; i++) mean += (double)x[r * h + i] * x[r * h + i] / (double)h;
        for (int64_t i = 0; i < h; i++) {
            uint32_t bits = (uint32_t)(norm->data[2 * i] | norm->data[2 * i + 1] << 8) << 16;
            float w;
            memcpy(&w, &bits, sizeof w);
            want[i] += x[r * h + i] * (double)x[r * h + i] * w * w / (mean + eps) / N;
        }
    }
    snprintf(name, sizeof name, "model.layers.%lld.self_attn.k_proj.weight", (long long)layer);
    got = values(file, name, h);
    for (int64_t i = 0; i < h; i++) /* f32 rows: a handful of roundings, squared */
        cr_assert(fabs(got[i] - want[i]) <= 4e-6 * want[i], "layer %lld, input %lld: %g, not %g",
                  (long long)layer, (long long)i, got[i], want[i]);
    free(want);
}

Test(importance, is_the_mean_square_of_inputs, .timeout = 60) {
    char temp[512];
    kt_model_dir *dir = malloc(sizeof *dir);
    const kt_model_numbers *n;
    kt_checkpoint *file;
    float *hidden;
    char path[600];
    int n_chosen = 0, n_unused = 0;
    kt_err err = {KT_OK, ""};

    kt_temp_make(temp, sizeof temp);
    snprintf(path, sizeof path, "%s/i.safetensors", temp);
    cr_assert_eq(kt_model_dir_read(MODEL, dir, &err), KT_OK, "%s", err.message);
    n = &dir->graph.numbers;
    hidden = malloc(sizeof *hidden * (size_t)((n->layers + 1) * N * n->hidden));
    observe(path, 2, 64, hidden);
    file = open_file(path);
    for (int64_t l = 0; l < n->layers; l++) {
        const kt_weight *experts = kt_graph_experts(&dir->graph, (int)l);
        check_qkv(file, dir->checkpoint, dir, l, hidden);
        for (int64_t e = 0; e < experts->count; e++) { /* an expert sees all of a token or none */
            double sum[2] = {0, 0};
            for (int which = 0; which < 2; which++) {
                const int64_t k = which ? experts->n : experts->k;
                char name[160];
                const float *x;
                snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%lld.%s_proj.weight",
                         (long long)l, (long long)e, which ? "down" : "up");
                x = values(file, name, k);
                for (int64_t i = 0; i < k; i++) sum[which] += x[i];
            }
            cr_expect_eq(sum[0] > 0, sum[1] > 0);
            n_chosen += sum[0] > 0;
            n_unused += sum[0] == 0;
        }
    }
    cr_expect_gt(n_chosen, n_unused);
    kt_checkpoint_close(file);
    free(hidden);
    kt_model_dir_deinit(dir);
    free(dir);
    kt_temp_remove(temp);
}

/* Row by row in the order of the text: the same bytes in any chunks, few rows or many, on any
 * threads. */
Test(importance, does_not_depend_on_chunks_or_threads, .timeout = 60) {
    static const struct {
        int threads;
        int64_t chunk;
    } ways[] = {{1, N}, {2, 17}, {2, 1}};
    char temp[512];
    char *text[3];
    size_t size[3];
    kt_err err = {KT_OK, ""};

    kt_temp_make(temp, sizeof temp);
    for (int i = 0; i < 3; i++) {
        char path[600];
        snprintf(path, sizeof path, "%s/%d.safetensors", temp, i);
        observe(path, ways[i].threads, ways[i].chunk, NULL);
        cr_assert_eq(kt_file_read(path, 1 << 26, &text[i], &size[i], &err), KT_OK, "%s",
                     err.message);
        cr_expect_eq(size[i], size[0]);
        cr_expect(memcmp(text[i], text[0], size[0]) == 0, "way %d", i);
    }
    for (int i = 0; i < 3; i++) free(text[i]);
    kt_temp_remove(temp);
}

static kt_weight_losses *losses(kt_quant quant, const kt_checkpoint *importance) {
    kt_model_dir *dir = malloc(sizeof *dir);
    kt_weight_losses *out = NULL;
    kt_pool *pool;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_model_dir_read(MODEL, dir, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_pool_create(&(kt_pool_options){.n_threads = 2}, &pool, &err), KT_OK);
    cr_assert_eq(kt_weight_losses_measure(dir, quant, importance, pool, NULL, &out, &err), KT_OK,
                 "%s", err.message);
    kt_pool_destroy(pool);
    kt_model_dir_deinit(dir);
    free(dir);
    return out;
}

/* Every tensor is there once, and each loses what its format is known to lose. */
Test(importance, losses_of_a_model_are_those_of_its_formats, .timeout = 60) {
    static const struct {
        kt_quant quant;
        double experts[2], others[2];             /* least and most, relative */
    } cases[] = {{KT_QUANT_BF16, {0, 0}, {0, 0}}, /* stored so */
                 {KT_QUANT_INT8, {0.004, 0.012}, {0.004, 0.012}},
                 {KT_QUANT_INT4, {0.06, 0.1}, {0.004, 0.012}},
                 {(kt_quant)(KT_QUANT_FORMAT + KT_W_INT4_G128), {0.08, 0.12}, {0.004, 0.012}},
                 {(kt_quant)(KT_QUANT_FORMAT + KT_W_FP8_B128), {0.02, 0.032}, {0.02, 0.032}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_weight_losses *l = losses(cases[i].quant, NULL);
        cr_expect_eq(kt_weight_losses_count(l), 4 * (4 + 16 * 3) + 1);
        for (size_t j = 0; j < kt_weight_losses_count(l); j++) {
            const kt_weight_loss *m = kt_weight_losses_at(l, j);
            const double *range = m->expert >= 0 ? cases[i].experts : cases[i].others;
            double rms = kt_format_loss_rms(&m->loss);
            cr_expect(rms >= range[0] && rms <= range[1], "%s as %s: %g", m->name, m->format->name,
                      rms);
            cr_expect_eq(m->loss.weighted_total, 0);
        }
        kt_weight_losses_destroy(l);
    }
}

/* The weighted error of nearly every tensor falls, the plain one rises; and an engine loads with
 * it. */
Test(importance, moves_errors_to_where_inputs_are_small, .timeout = 60) {
    char temp[512];
    kt_format_loss with = {0}, ones = {0};
    kt_weight_losses *l;
    kt_checkpoint *file;
    kt_engine_options o = {.model_dir = MODEL, .weights = KT_QUANT_INT4, .table_path = ""};
    kt_engine *e;
    char path[600];
    kt_err err = {KT_OK, ""};

    kt_temp_make(temp, sizeof temp);
    snprintf(path, sizeof path, "%s/i.safetensors", temp);
    observe(path, 2, 512, NULL);
    file = open_file(path);
    l = losses(KT_QUANT_INT4, file);
    for (size_t j = 0; j < kt_weight_losses_count(l); j++)
        kt_format_loss_add(&with, &kt_weight_losses_at(l, j)->loss);
    kt_weight_losses_destroy(l);
    l = losses(KT_QUANT_INT4, NULL);
    for (size_t j = 0; j < kt_weight_losses_count(l); j++)
        kt_format_loss_add(&ones, &kt_weight_losses_at(l, j)->loss);
    kt_weight_losses_destroy(l);
    kt_checkpoint_close(file);
    cr_expect_gt(kt_format_loss_rms(&with), kt_format_loss_rms(&ones));
    cr_expect_lt(kt_format_loss_weighted_rms(&with), 0.98 * kt_format_loss_rms(&with));
    o.importance = path;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_destroy(e);
    o.weights = KT_QUANT_BF16;
    cr_expect_eq(kt_engine_create(&o, &e, &err), KT_E_INVALID);
    cr_expect(strstr(err.message, "not quantised"), "%s", err.message);
    kt_temp_remove(temp);
}

/* One tensor with q's name, of `count` numbers that begin with x. */
static kt_status load_with(const char *path, float x, int64_t count, kt_dtype dtype, kt_err *err) {
    kt_engine_options o = {
        .model_dir = MODEL, .weights = KT_QUANT_INT8, .table_path = "", .importance = path};
    float *data = calloc((size_t)count, sizeof *data);
    kt_tensor_out t = {.name = "model.layers.0.self_attn.q_proj.weight",
                       .dtype = dtype,
                       .rank = 1,
                       .shape = {count},
                       .data = data};
    kt_engine *e = NULL;
    kt_status st;

    data[0] = x;
    cr_assert_eq(kt_safetensors_write(path, &t, 1, err), KT_OK, "%s", err->message);
    st = kt_engine_create(&o, &e, err);
    free(data);
    kt_engine_destroy(e);
    return st;
}

Test(importance, files_that_make_no_sense_are_refused, .timeout = 60) {
    char temp[512];
    kt_model_dir *dir = malloc(sizeof *dir);
    char path[600];
    kt_err err = {KT_OK, ""};
    int64_t h;

    kt_temp_make(temp, sizeof temp);
    snprintf(path, sizeof path, "%s/i.safetensors", temp);
    cr_assert_eq(kt_model_dir_read(MODEL, dir, &err), KT_OK, "%s", err.message);
    h = dir->graph.numbers.hidden;
    cr_expect_eq(load_with(path, NAN, h, KT_DTYPE_F32, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "input 0 has nan"), "%s", err.message);
    cr_expect_eq(load_with(path, -1, h, KT_DTYPE_F32, &err), KT_E_FORMAT);
    cr_expect_eq(load_with(path, INFINITY, h, KT_DTYPE_F32, &err), KT_E_FORMAT);
    cr_expect_eq(load_with(path, 1, h, KT_DTYPE_I32, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "expected F32"), "%s", err.message);
    cr_expect_neq(load_with(path, 1, h + 1, KT_DTYPE_F32, &err), KT_OK);
    cr_expect_neq(load_with(path, 1, h, KT_DTYPE_F32, &err), KT_OK); /* the others are missing */
    cr_expect(strstr(err.message, "o_proj") || strstr(err.message, "lm_head"), "%s", err.message);
    kt_model_dir_deinit(dir);
    free(dir);
    kt_temp_remove(temp);
}

/* ---- formats within a budget ---- */

enum { ITEMS = 5, OPTIONS = 4 };

/* The least error of all choices that take at most `budget`; < 0 = none does. */
static double least_error(const kt_budget_item *items, int n, size_t budget) {
    double best = -1;

    if (n == 0) return 0;
    for (int i = 0; i < items->n_options; i++) {
        const kt_budget_option *o = &items->options[i];
        const double rest =
            o->bytes > budget ? -1 : least_error(items + 1, n - 1, budget - o->bytes);
        if (rest >= 0 && (best < 0 || rest + o->error < best)) best = rest + o->error;
    }
    return best;
}

/* Against every choice there is: as good as any of one step less, and the best where nothing was
 * left over. */
Test(importance, budgets_take_the_least_error) {
    kt_budget_option options[ITEMS][OPTIONS];
    kt_budget_item items[ITEMS];
    kt_rng rng;
    int n_best = 0;

    kt_rng_seed(&rng, 5);
    for (int round = 0; round < 300; round++) {
        size_t most = 0, largest = 0, bytes, sum = 0;
        double error = 0, best;
        for (int i = 0; i < ITEMS; i++) {
            items[i] = (kt_budget_item){.options = options[i], .n_options = OPTIONS};
            for (int j = 0; j < OPTIONS; j++) {
                const size_t size = 1 + kt_rng_below(&rng, 30);
                options[i][j] = (kt_budget_option){size, (double)kt_rng_below(&rng, 50)};
                if (size > largest) largest = size;
            }
        }
        most = kt_format_budget_least(items, ITEMS) + kt_rng_below(&rng, 60);
        cr_assert_eq(kt_format_budget_choose(items, ITEMS, most, &bytes, NULL), KT_OK);
        for (int i = 0; i < ITEMS; i++) {
            sum += options[i][items[i].taken].bytes;
            error += options[i][items[i].taken].error;
        }
        cr_assert_eq(sum, bytes, "round %d: %zu bytes, said %zu", round, sum, bytes);
        cr_assert_leq(bytes, most, "round %d", round);
        best = least_error(items, ITEMS, most);
        n_best += error <= best;
        best = least_error(items, ITEMS, most > largest ? most - largest : 0);
        cr_expect(best < 0 || error <= best, "round %d: error %g, of %zu bytes less %g", round,
                  error, largest, best);
    }
    cr_expect_geq(n_best, 200, "only %d of 300 were the best there is", n_best);
    cr_assert_eq(kt_format_budget_choose(items, ITEMS, kt_format_budget_least(items, ITEMS) - 1,
                                         &(size_t){0}, NULL),
                 KT_E_INVALID);
}
