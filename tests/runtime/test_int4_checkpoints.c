/* Checkpoints of AWQ, GPTQ and compressed-tensors: made here out of one random model, packed as
 * their programs pack, loaded as they are. The same codes give the same bits whatever the
 * packing, and the logits of the double reference on the decoded weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "dispatch/model/build_impl.h"
#include "runtime/loader/matrix_source.h"
#include "tests/support/damage.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"
#include "tests/support/written_model.h"

enum { GROUP = 64, N_TOKENS = 20, VOCAB = 96 };

static const kt_model_shape shape = {.layers = 2,
                                     .hidden = 128,
                                     .vocab = VOCAB,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 64,
                                     .dense_size = 192,
                                     .dense_layer = 1,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_F16};

/* How a checkpoint is written. */
typedef struct style {
    const char *config; /* members added to config.json */
    kt_int4_packing packing;
    const char *words, *scales, *zeros;
    bool desc_act;
} style;

static const style styles[] = {
    {",\"torch_dtype\":\"float16\",\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4,"
     "\"group_size\":64,\"zero_point\":true,\"version\":\"gemm\"}",
     KT_INT4_AWQ, "qweight", "scales", "qzeros", false},
    {",\"torch_dtype\":\"float16\",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
     "\"group_size\":64,\"desc_act\":false,\"sym\":false}",
     KT_INT4_GPTQ, "qweight", "scales", "qzeros", false},
    {",\"torch_dtype\":\"float16\",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
     "\"group_size\":64,\"desc_act\":false,\"checkpoint_format\":\"gptq_v2\"}",
     KT_INT4_GPTQ_V2, "qweight", "scales", "qzeros", false},
    {",\"torch_dtype\":\"float16\",\"quantization_config\":{\"quant_method\":\"compressed-"
     "tensors\","
     "\"format\":\"pack-quantized\",\"config_groups\":{\"group_0\":{\"weights\":{\"num_bits\":4,"
     "\"group_size\":64,\"symmetric\":false}}}}",
     KT_INT4_ROWS, "weight_packed", "weight_scale", "weight_zero_point", false},
    {",\"torch_dtype\":\"float16\",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,"
     "\"group_size\":64,\"desc_act\":true}",
     KT_INT4_GPTQ, "qweight", "scales", "qzeros", true},
};
enum { N_GOOD = 4, ACT_ORDER = 4 };

typedef struct writer {
    const style *style;
    kt_written_model model;
} writer;

static void put(writer *w, const char *matrix, const char *part, kt_dtype dtype, int64_t d0,
                int64_t d1, void *data) {
    char name[240];

    snprintf(name, sizeof name, "%s.%s", matrix, part);
    kt_written_put(&w->model, name, dtype, d1 ? 2 : 1, (int64_t[]){d0, d1}, data);
}

/* Nibble `value` of row r and input i (or group i) in a tensor of the style. */
static void put_nibble(const style *s, uint32_t *words, bool is_zero, int64_t n, int64_t width,
                       int64_t r, int64_t i, uint32_t value) {
    static const int awq_place[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    int64_t word, place;

    if (is_zero ? s->packing == KT_INT4_ROWS : false)
        word = r / 8 * width + i, place = r % 8;
    else if (s->packing == KT_INT4_ROWS)
        word = r * (width / 8) + i / 8, place = i % 8;
    else if (s->packing == KT_INT4_AWQ)
        word = i * (n / 8) + r / 8, place = awq_place[r % 8];
    else if (is_zero)
        word = i * (n / 8) + r / 8, place = r % 8;
    else
        word = i / 8 * n + r, place = i % 8;
    words[word] |= value << 4 * place;
}

/* One linear layer: quantised by our own encoder, then packed in the style. Zero points stay 1
 * .. 15. */
static void put_quantised(writer *w, const char *matrix, const kt_tensor *t) {
    const style *s = w->style;
    const int64_t n = t->shape[0], k = t->shape[1], groups = k / GROUP;
    const kt_format *f = kt_format_find(KT_W_INT4Z_G64);
    float *x = malloc(sizeof *x * (size_t)(n * k));
    uint8_t *data = malloc((size_t)(n * k / 2)), *meta = malloc((size_t)(3 * n * groups));
    uint32_t *words = calloc((size_t)(n * k / 8), 4), *zeros = calloc((size_t)(n * groups / 8), 4);
    uint16_t *scales = malloc((size_t)(2 * n * groups));
    int32_t *index = malloc(sizeof *index * (size_t)k);

    kt_tensor_read_f32(t, 0, n * k, x);
    f->encode_rows(x, n, k, NULL, 0, n, data, meta, NULL);
    for (int64_t r = 0; r < n; r++)
        for (int64_t i = 0; i < k; i++) {
            uint8_t byte = data[r * (k / 2) + i / 2];
            put_nibble(s, words, false, n, k, r, i, i % 2 ? byte >> 4 : byte & 15);
        }
    for (int64_t r = 0; r < n; r++)
        for (int64_t g = 0; g < groups; g++) {
            const uint8_t *row = meta + 3 * r * groups;
            int zero = row[2 * groups + g];
            cr_assert(zero > 0, "a zero point of 0 cannot be written as GPTQ");
            put_nibble(s, zeros, true, n, groups, r, g,
                       (uint32_t)(zero - (s->packing == KT_INT4_GPTQ)));
            memcpy(&scales[s->packing == KT_INT4_ROWS ? r * groups + g : g * n + r], row + 2 * g,
                   2);
        }
    for (int64_t i = 0; i < k; i++) index[i] = (int32_t)((s->desc_act ? k - 1 - i : i) / GROUP);
    if (s->packing == KT_INT4_ROWS) {
        put(w, matrix, s->words, KT_DTYPE_I32, n, k / 8, words);
        put(w, matrix, s->scales, KT_DTYPE_F16, n, groups, scales);
        put(w, matrix, s->zeros, KT_DTYPE_I32, n / 8, groups, zeros);
        free(index);
    } else {
        const int64_t d0 = s->packing == KT_INT4_AWQ ? k : k / 8;
        put(w, matrix, s->words, KT_DTYPE_I32, d0, s->packing == KT_INT4_AWQ ? n / 8 : n, words);
        put(w, matrix, s->scales, KT_DTYPE_F16, groups, n, scales);
        put(w, matrix, s->zeros, KT_DTYPE_I32, groups, n / 8, zeros);
        if (s->packing == KT_INT4_AWQ)
            free(index);
        else
            put(w, matrix, "g_idx", KT_DTYPE_I32, k, 0, index);
    }
    free(x), free(data), free(meta);
}

/* q, k, v, o and everything of the feed-forward but the router. */
static bool is_quantised(const char *name) {
    return strstr(name, "_proj.weight") != NULL;
}

static void write_checkpoint(const style *s, const char *from, const char *folder) {
    kt_model_shape written = shape;
    kt_checkpoint *c = NULL;
    writer *w = calloc(1, sizeof *w);
    char matrix[200];
    kt_err err = {0};

    written.extra = s->config;
    kt_random_model(&written, 4, folder); /* for its config.json */
    w->style = s;
    cr_assert_eq(kt_checkpoint_open(from, &c, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        if (is_quantised(t->name)) {
            snprintf(matrix, sizeof matrix, "%s", t->name);
            matrix[strlen(matrix) - strlen(".weight")] = '\0';
            put_quantised(w, matrix, t);
        } else {
            kt_written_copy(&w->model, t);
        }
    }
    kt_written_finish(&w->model, folder);
    free(w);
    kt_checkpoint_close(c);
}

static char floats[512], packed[N_GOOD + 1][512];

static void make_folders(void) {
    kt_temp_make(floats, sizeof floats);
    kt_random_model(&shape, 3, floats);
    for (int i = 0; i <= N_GOOD; i++) {
        kt_temp_make(packed[i], sizeof packed[i]);
        write_checkpoint(&styles[i], floats, packed[i]);
    }
}

static void remove_folders(void) {
    kt_temp_remove(floats);
    for (int i = 0; i <= N_GOOD; i++) kt_temp_remove(packed[i]);
}

Test(int4_checkpoints, give_the_same_bits_in_every_packing, .init = make_folders,
     .fini = remove_folders, .timeout = 180) {
    static float first[N_TOKENS * VOCAB], logits[N_TOKENS * VOCAB];
    int32_t tokens[N_TOKENS];

    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (7 * i + 3) % VOCAB;
    for (int i = 0; i < N_GOOD; i++) {
        kt_written_forward(packed[i], tokens, N_TOKENS, i ? logits : first);
        if (i) cr_expect(memcmp(first, logits, sizeof first) == 0, "style %d", i);
    }
}

Test(int4_checkpoints, agree_with_the_decoded_weights_in_double, .init = make_folders,
     .fini = remove_folders, .timeout = 180) {
    static float logits[N_TOKENS * VOCAB];
    int32_t tokens[N_TOKENS];
    int64_t decided;
    kt_err err = {0};

    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (7 * i + 3) % VOCAB;
    for (int i = 0; i < N_GOOD; i++) {
        kt_ref_model *m = kt_ref_load(packed[i], KT_QUANT_NATIVE, &err);
        double error, rounded;

        cr_assert(m, "%s", err.message);
        kt_written_forward(packed[i], tokens, N_TOKENS, logits);
        error = kt_ref_compare(m, tokens, N_TOKENS, KT_REF_INT8, logits, &decided, &rounded);
        cr_expect_gt(4 * decided, N_TOKENS, "%lld decided", (long long)decided);
        cr_expect_leq(error, 1.5 * rounded, "style %d: off by %g, the reference by %g", i, error,
                      rounded);
        cr_expect_lt(rounded, 0.1);
        kt_ref_free(m);
    }
}

/* A line for each reason; here what becomes of the one asked for. */
static void keep_warning(void *arg, kt_log_level level, const char *area, const char *message) {
    if (level == KT_LOG_WARN && strcmp(area, "loader") == 0 && strstr(message, "few bits"))
        snprintf(arg, 256, "%s", message);
}

/* Decoded and encoded anew, all packings to the same bits, near those of the codes as they are. */
Test(int4_checkpoints, are_encoded_anew_when_asked, .init = make_folders, .fini = remove_folders,
     .timeout = 180) {
    static float first[N_TOKENS * VOCAB], logits[N_TOKENS * VOCAB], exact[N_TOKENS * VOCAB];
    double error = 0, energy = 0;
    char said[256] = "";
    kt_engine_options o = {.model_dir = packed[0],
                           .weights = KT_QUANT_INT8,
                           .table_path = "",
                           .n_threads = 2,
                           .tokenizer_optional = true};
    const kt_log log = {.sink = keep_warning, .sink_arg = said};
    int32_t tokens[N_TOKENS];
    kt_engine *e = NULL;
    kt_err err = {0};

    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (7 * i + 3) % VOCAB;
    kt_written_forward(packed[0], tokens, N_TOKENS, exact);
    for (int i = 0; i < N_GOOD; i++) {
        kt_written_forward_as(packed[i], KT_QUANT_INT8, tokens, N_TOKENS, i ? logits : first);
        if (i) cr_expect(memcmp(first, logits, sizeof first) == 0, "style %d", i);
    }
    kt_written_forward_as(packed[ACT_ORDER], KT_QUANT_INT8, tokens, N_TOKENS,
                          logits); /* other numbers: it loads */
    for (int i = 0; i < N_TOKENS * VOCAB; i++) {
        error += (double)(first[i] - exact[i]) * (first[i] - exact[i]);
        energy += (double)exact[i] * exact[i];
    }
    cr_expect(error > 0 && error < 1e-3 * energy, "%g of %g", error, energy);
    o.log = &log;
    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_destroy(e);
    cr_expect(strstr(said, "w4zg64 of qkv as w8c"), "%s", said);
}

Test(int4_checkpoints, refuse_act_order_as_it_is, .init = make_folders, .fini = remove_folders) {
    kt_engine *e = NULL;
    kt_err err = {0};

    cr_assert_eq(kt_written_load(packed[ACT_ORDER], KT_QUANT_NATIVE, &e, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "desc_act") && strstr(err.message, "qweight"), "%s", err.message);
    cr_assert_null(e);
}

/* An infinite scale of q, and of an expert, in every packing. */
Test(int4_checkpoints, refuse_scales_that_are_not_finite, .init = make_folders,
     .fini = remove_folders) {
    static const char *const matrices[] = {"model.layers.0.self_attn.q_proj",
                                           "model.layers.0.mlp.experts.2.down_proj"};
    const uint16_t infinity = 0x7c00, one = 0x3c00;
    char name[200], expected[300];

    for (int i = 0; i < N_GOOD; i++)
        for (int m = 0; m < 2; m++) {
            kt_engine *e = NULL;
            kt_err err = {0};
            snprintf(name, sizeof name, "%s.%s", matrices[m], styles[i].scales);
            snprintf(expected, sizeof expected, "tensor '%s': element [0, 1] is Inf", name);
            if (m && styles[i].packing == KT_INT4_ROWS) /* one group */
                snprintf(expected, sizeof expected, "tensor '%s': element [1, 0] is Inf", name);
            kt_damage_element(packed[i], name, 1, &infinity);
            cr_expect_eq(kt_written_load(packed[i], KT_QUANT_NATIVE, &e, &err), KT_E_FORMAT, "%s",
                         name);
            cr_expect(strstr(err.message, expected), "%s lacks %s", err.message, expected);
            kt_damage_element(packed[i], name, 1, &one);
        }
}

/* What quantization_config may say that we do not do. */
Test(int4_checkpoints, refuse_other_settings_by_name) {
    static const struct {
        const char *config, *says;
    } cases[] = {
        {"{\"quant_method\":\"bitsandbytes\"}", "quant_method 'bitsandbytes', expected awq"},
        {"{\"quant_method\":\"awq\",\"bits\":8,\"group_size\":64}", "bits is 8, expected 4"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":-1}", "group_size -1, expected 32"},
        {"{\"quant_method\":\"awq\",\"bits\":4,\"group_size\":64,\"version\":\"gemv\"}",
         "AWQ version 'gemv'"},
        {"{\"quant_method\":\"awq\",\"bits\":4}", "group_size"},
        {"{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,"
         "\"checkpoint_format\":\"marlin\"}",
         "checkpoint_format 'marlin'"},
        {"{\"quant_method\":\"compressed-tensors\",\"format\":\"int-quantized\"}",
         "format 'int-quantized'"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"W4A8_AWQ\"}",
         "quant_algo 'W4A8_AWQ', expected NVFP4 or FP8"},
        {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"group_size\":32}",
         "group_size is 32, expected 16"},
        {"[]", "quant_method ''"},
        {"{}", "quant_method ''"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        kt_json_doc *doc = NULL;
        kt_declared declared = {0};
        kt_err err = {0};

        snprintf(text, sizeof text, "{\"quantization_config\":%s}", cases[i].config);
        cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, &err), KT_OK);
        cr_expect_neq(
            kt_declared_read(&(kt_config_source){.json = kt_json_root(doc), .where = "config.json"},
                             &declared, &err),
            KT_OK, "case %zu", i);
        cr_expect(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        kt_json_destroy(doc);
    }
}
