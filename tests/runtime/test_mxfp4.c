/* MXFP4 in safetensors: stacked blocks and scales, compressed-tensors' packed bytes, and bytes with
 * E8M0 exponents. Random codes are written in each form and, since every number of the format is a
 * bfloat16, as a BF16 checkpoint, which the double reference reads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "runtime/loader/finite.h"
#include "runtime/loader/matrix_source.h"
#include "tests/support/damage.h"
#include "tests/support/qwen3_ref.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"
#include "tests/support/written_model.h"

enum { N_TOKENS = 12, VOCAB = 96, HIDDEN = 160, INNER = 96, EXPERTS = 3, LAYERS = 2 };

typedef enum form { FORM_BF16, FORM_STACKED, FORM_PACKED, FORM_EXPONENTS, FORMS } form;

static const kt_model_shape shape = {.layers = LAYERS,
                                     .hidden = HIDDEN,
                                     .vocab = VOCAB,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .head_dim = 32,
                                     .experts = EXPERTS,
                                     .topk = 2,
                                     .expert_size = INNER,
                                     .dense_size = 96,
                                     .dense_layer = -1,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

/* E2M1, from its bits: sign, two of exponent, one of mantissa. */
static double value_of(int code, int exponent) {
    const int e = code >> 1 & 3, m = code & 1;
    const double magnitude = e ? (1 + m / 2.0) * (1 << (e - 1)) : m / 2.0;

    return ldexp(code & 8 ? -magnitude : magnitude, exponent - 127);
}

typedef struct writer {
    form form;
    kt_written_model model;
} writer;

/* One matrix [n, k] of codes and exponents, of `seed`. */
static void draw(uint64_t seed, int64_t n, int64_t k, uint8_t *codes, uint8_t *exponents) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n * k; i++) codes[i] = (uint8_t)kt_rng_below(&rng, 16);
    for (int64_t i = 0; i < n * k / 32; i++) exponents[i] = (uint8_t)(120 + kt_rng_below(&rng, 4));
}

static uint64_t seed_of(int64_t layer, int64_t expert, int part) {
    return (uint64_t)(1 + part + 3 * (expert + EXPERTS * layer));
}

/* Input 2i in the low nibble of byte i. */
static void pair_up(const uint8_t *codes, int64_t count, uint8_t *out) {
    for (int64_t i = 0; i < count / 2; i++)
        out[i] = (uint8_t)(codes[2 * i] | codes[2 * i + 1] << 4);
}

static void put_matrix(writer *w, const char *matrix, uint64_t seed, int64_t n, int64_t k) {
    uint8_t *codes = malloc((size_t)(n * k)), *exponents = malloc((size_t)(n * k / 32));
    uint8_t *pairs = malloc((size_t)(n * k / 2));
    uint16_t *bf16 = malloc((size_t)(2 * n * k));
    char name[240];

    draw(seed, n, k, codes, exponents);
    pair_up(codes, n * k, pairs);
    for (int64_t i = 0; i < n * k; i++)
        bf16[i] = kt_f32_to_bf16((float)value_of(codes[i], exponents[i / 32]));
    if (w->form == FORM_BF16) {
        snprintf(name, sizeof name, "%s.weight", matrix);
        kt_written_put(&w->model, name, KT_DTYPE_BF16, 2, (int64_t[]){n, k}, bf16);
        free(pairs), free(exponents);
    } else {
        const bool is_packed = w->form == FORM_PACKED;
        snprintf(name, sizeof name, "%s.%s", matrix, is_packed ? "weight_packed" : "weight");
        kt_written_put(&w->model, name, is_packed ? KT_DTYPE_U8 : KT_DTYPE_I8, 2,
                       (int64_t[]){n, k / 2}, pairs);
        snprintf(name, sizeof name, "%s.%s", matrix, is_packed ? "weight_scale" : "scale");
        kt_written_put(&w->model, name, is_packed ? KT_DTYPE_U8 : KT_DTYPE_F8_E8M0, 2,
                       (int64_t[]){n, k / 32}, exponents);
        free(bf16);
    }
    free(codes);
}

/* Gate and up of all experts of a layer, rows in turn; or down. */
static void put_stack(writer *w, int64_t layer, int first, int n_parts, int64_t n, int64_t k,
                      const char *what) {
    const int64_t rows = n_parts * n, bytes = k / 2, blocks = k / 32;
    uint8_t *pairs = malloc((size_t)(EXPERTS * rows * bytes));
    uint8_t *exponents = malloc((size_t)(EXPERTS * rows * blocks));
    uint8_t *codes = malloc((size_t)(n * k)), *drawn = malloc((size_t)(n * blocks));
    char name[240];

    for (int64_t e = 0; e < EXPERTS; e++)
        for (int p = 0; p < n_parts; p++) {
            draw(seed_of(layer, e, first + p), n, k, codes, drawn);
            for (int64_t r = 0; r < n; r++) {
                const int64_t row = e * rows + n_parts * r + p;
                pair_up(codes + r * k, k, pairs + row * bytes);
                memcpy(exponents + row * blocks, drawn + r * blocks, (size_t)blocks);
            }
        }
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%s_blocks", (long long)layer, what);
    kt_written_put(&w->model, name, KT_DTYPE_U8, 4, (int64_t[]){EXPERTS, rows, blocks, 16}, pairs);
    snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%s_scales", (long long)layer, what);
    kt_written_put(&w->model, name, KT_DTYPE_U8, 3, (int64_t[]){EXPERTS, rows, blocks}, exponents);
    free(codes), free(drawn);
}

static void put_experts(writer *w, int64_t layer) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char matrix[200];

    if (w->form == FORM_STACKED) {
        put_stack(w, layer, 0, 2, INNER, HIDDEN, "gate_up_proj");
        put_stack(w, layer, 2, 1, HIDDEN, INNER, "down_proj");
        return;
    }
    for (int64_t e = 0; e < EXPERTS; e++)
        for (int p = 0; p < 3; p++) {
            snprintf(matrix, sizeof matrix, "model.layers.%lld.mlp.experts.%lld.%s",
                     (long long)layer, (long long)e, parts[p]);
            put_matrix(w, matrix, seed_of(layer, e, p), p < 2 ? INNER : HIDDEN,
                       p < 2 ? HIDDEN : INNER);
        }
}

static void write_checkpoint(form f, const char *from, const char *folder) {
    static const char *const configs[FORMS] = {
        NULL,
        ",\"quantization_config\":{\"quant_method\":\"mxfp4\",\"modules_to_not_convert\":"
        "[\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\"]}",
        ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
        "\"mxfp4-pack-quantized\",\"ignore\":[\"re:.*self_attn.*\"]}",
        NULL};
    kt_model_shape written = shape;
    kt_checkpoint *c = NULL;
    writer *w = calloc(1, sizeof *w);
    kt_err err = {0};

    written.extra = configs[f];
    kt_random_model(&written, 4, folder); /* for its config.json */
    w->form = f;
    cr_assert_eq(kt_checkpoint_open(from, &c, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        if (strstr(t->name, ".experts.")) continue;
        kt_written_copy(&w->model, t);
    }
    for (int64_t l = 0; l < LAYERS; l++) put_experts(w, l);
    kt_written_finish(&w->model, folder);
    free(w);
    kt_checkpoint_close(c);
}

static char plain[512], folder[FORMS][512];

static void make_folders(void) {
    kt_temp_make(plain, sizeof plain);
    kt_random_model(&shape, 3, plain);
    for (int f = 0; f < FORMS; f++) {
        kt_temp_make(folder[f], sizeof folder[f]);
        write_checkpoint((form)f, plain, folder[f]);
    }
}

static void remove_folders(void) {
    kt_temp_remove(plain);
    for (int f = 0; f < FORMS; f++) kt_temp_remove(folder[f]);
}

static void draw_tokens(int32_t *tokens) {
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (7 * i + 3) % VOCAB;
}

/* Every form is what the double reference makes of the BF16 checkpoint, and all have the same bits.
 * */
Test(mxfp4, every_form_has_the_numbers_that_were_written, .init = make_folders,
     .fini = remove_folders, .timeout = 120) {
    static float first[N_TOKENS * VOCAB], logits[N_TOKENS * VOCAB];
    int32_t tokens[N_TOKENS];
    int64_t decided;
    double error, rounded;
    kt_err err = {0};
    kt_ref_model *m = kt_ref_load(folder[FORM_BF16], KT_QUANT_NATIVE, &err);

    cr_assert(m, "%s", err.message);
    draw_tokens(tokens);
    kt_written_forward(folder[FORM_STACKED], tokens, N_TOKENS, first);
    error = kt_ref_compare(m, tokens, N_TOKENS, KT_REF_INT8, first, &decided, &rounded);
    cr_expect_gt(4 * decided, N_TOKENS, "%lld decided", (long long)decided);
    cr_expect_leq(error, 1.5 * rounded, "off by %g, the reference by %g", error, rounded);
    cr_expect_lt(rounded, 0.1);
    kt_ref_free(m);
    for (int f = FORM_PACKED; f < FORMS; f++) {
        kt_written_forward(folder[f], tokens, N_TOKENS, logits);
        cr_expect(memcmp(first, logits, sizeof first) == 0, "form %d", f);
    }
}

/* All 16 codes with exponents from 0 to 254, every other row: the blocks decode to the numbers. */
Test(mxfp4, rows_become_blocks_without_loss) {
    enum { ROWS = 6, K = 64 };
    uint8_t codes[ROWS * K], pairs[ROWS * K / 2], exponents[ROWS * K / 32];
    const kt_tensor stored = {.name = "x_blocks",
                              .rank = 4,
                              .shape = {1, ROWS, K / 32, 16},
                              .dtype = KT_DTYPE_U8,
                              .data = pairs,
                              .bytes = sizeof pairs};
    const kt_tensor scales = {.name = "x_scales",
                              .rank = 3,
                              .shape = {1, ROWS, K / 32},
                              .dtype = KT_DTYPE_U8,
                              .data = exponents,
                              .bytes = sizeof exponents};
    const kt_format *f = kt_format_find(KT_W_MXFP4);
    uint8_t blocks[ROWS * K / 32 * 17];
    double row[K];
    kt_err err = {0};

    for (int i = 0; i < ROWS * K; i++) codes[i] = (uint8_t)((i * 7 + i / 16) % 16);
    for (int i = 0; i < ROWS * K / 32; i++) exponents[i] = (uint8_t)(i * 254 / 11);
    pair_up(codes, ROWS * K, pairs);
    for (int step = 1; step <= 2; step++)
        for (int first = 0; first < step; first++) {
            kt_matrix_source s = {0};
            kt_matrix w = {.format = KT_W_MXFP4, .n = ROWS / step, .k = K, .data = blocks};
            kt_matrix_source_add_mxfp4(&s, &stored, &scales, first, step, ROWS / step, K);
            cr_assert_eq(kt_matrix_source_borrow(&s, KT_W_MXFP4, &w), 0);
            cr_assert_eq(kt_matrix_source_encode(&s, f, 0, s.rows, blocks, NULL, NULL, &err), KT_OK,
                         "%s", err.message);
            cr_assert_eq(kt_matrix_source_check_finite(NULL, &s, 0, s.rows, &err), KT_OK);
            for (int64_t r = 0; r < s.rows; r++) {
                f->decode_row(&w, r, row);
                for (int64_t i = 0; i < K; i++) {
                    const int64_t at = (first + r * step) * K + i;
                    cr_expect_eq(row[i], value_of(codes[at], exponents[at / 32]),
                                 "step %d row %lld input %lld", step, (long long)r, (long long)i);
                }
            }
        }
}

/* 255 is E8M0's NaN, and it is not a number in any form. */
Test(mxfp4, refuses_exponents_that_are_nan, .init = make_folders, .fini = remove_folders) {
    static const char *const names[FORMS] = {NULL, "model.layers.1.mlp.experts.gate_up_proj_scales",
                                             "model.layers.1.mlp.experts.2.down_proj.weight_scale",
                                             "model.layers.0.mlp.experts.1.up_proj.scale"};
    static const char *const where[FORMS] = {NULL, "element [0, 1, 2] is NaN",
                                             "element [2, 1] is NaN", "element [1, 2] is NaN"};
    const uint8_t nan = 255;

    for (int f = FORM_STACKED; f < FORMS; f++) {
        kt_engine *e = NULL;
        kt_err err = {0};
        kt_damage_element(folder[f], names[f], 7, &nan);
        cr_expect_eq(kt_written_load(folder[f], KT_QUANT_NATIVE, &e, &err), KT_E_FORMAT, "%s",
                     err.message);
        cr_expect(strstr(err.message, names[f]) && strstr(err.message, where[f]), "%s",
                  err.message);
        cr_expect_null(e);
    }
}

/* What the blocks hold is encoded anew when that is asked for, to the bits of the same numbers in
 * BF16. */
Test(mxfp4, is_encoded_anew_when_asked, .init = make_folders, .fini = remove_folders,
     .timeout = 120) {
    static float first[N_TOKENS * VOCAB], logits[N_TOKENS * VOCAB];
    int32_t tokens[N_TOKENS];

    draw_tokens(tokens);
    kt_written_forward_as(folder[FORM_BF16], KT_QUANT_INT8, tokens, N_TOKENS, first);
    for (int f = FORM_STACKED; f < FORMS; f++) {
        kt_written_forward_as(folder[f], KT_QUANT_INT8, tokens, N_TOKENS, logits);
        cr_expect(memcmp(first, logits, sizeof first) == 0, "form %d", f);
    }
}

/* The first `was` of a folder's file becomes `is`, which is as long. */
static void overwrite(const char *in, const char *was, const char *is) {
    const size_t n = strlen(was);
    char path[600], text[1 << 14];
    FILE *f;
    size_t size, at = 0;

    snprintf(path, sizeof path, "%s/model.safetensors", in);
    f = fopen(path, "r+b");
    cr_assert(f && strlen(is) == n);
    size = fread(text, 1, sizeof text, f);
    while (at + n <= size && memcmp(text + at, was, n) != 0) at++;
    cr_assert_leq(at + n, size, "%s", was);
    cr_assert_eq(fseek(f, (long)at, SEEK_SET), 0);
    cr_assert_eq(fwrite(is, 1, n, f), n);
    cr_assert_eq(fclose(f), 0);
}

/* Tensors that are missing, or of another type or shape, are named. */
Test(mxfp4, refuses_other_tensors_by_name, .init = make_folders, .fini = remove_folders) {
    static const struct {
        form form;
        const char *name, *becomes, *says;
    } cases[] = {{FORM_STACKED, "down_proj_scales\":{\"dtype\":\"U8\"",
                  "down_proj_scalez\":{\"dtype\":\"U8\"", "down_proj_scales' is missing"},
                 {FORM_STACKED, "down_proj_blocks\":{\"dtype\":\"U8\"",
                  "down_proj_blocks\":{\"dtype\":\"I8\"", NULL}, /* the same bytes */
                 {FORM_STACKED, "_scales\":{\"dtype\":\"U8\"", "_scales\":{\"dtype\":\"I8\"",
                  "dtype I8, expected U8 or F8_E8M0"},
                 {FORM_STACKED, "\"shape\":[3,192,5,16]", "\"shape\":[3,192,16,5]",
                  "config.json asks for [3, 192, 5, 16]"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_engine *e = NULL;
        kt_err err = {0};
        kt_status st;
        write_checkpoint(cases[i].form, plain, folder[cases[i].form]);
        overwrite(folder[cases[i].form], cases[i].name, cases[i].becomes);
        st = kt_written_load(folder[cases[i].form], KT_QUANT_NATIVE, &e, &err);
        cr_expect_eq(st == KT_OK, cases[i].says == NULL, "case %zu: %s", i, err.message);
        if (cases[i].says)
            cr_expect(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        kt_engine_destroy(e);
    }
}
