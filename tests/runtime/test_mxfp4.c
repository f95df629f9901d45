/* E2M1 codes in safetensors. MXFP4: stacked blocks and scales, compressed-tensors' packed bytes, and
 * bytes with E8M0 exponents; NVFP4 as modelopt and compressed-tensors write it. Random codes are
 * written in each form and, since every number (of NVFP4 with such factors) is a bfloat16, as a BF16
 * checkpoint, which the double reference reads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "dispatch/model/build_impl.h"
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
            kt_matrix_source_add_fp4(&s, KT_W_MXFP4, &stored, &scales, first, step, ROWS / step, K);
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

/* ---- NVFP4: E4M3 scales per 16 inputs, and a factor of the matrix ---- */

typedef enum nv_form { NV_BF16, NV_MODELOPT, NV_COMPRESSED, NV_FORMS } nv_form;

enum { NV_HIDDEN = 192, NV_INNER = 64, NV_HEADS = 4, NV_KV_HEADS = 2, NV_HEAD = 32 };

static const kt_model_shape nv_shape = {.layers = LAYERS,
                                        .hidden = NV_HIDDEN,
                                        .vocab = VOCAB,
                                        .heads = NV_HEADS,
                                        .kv_heads = NV_KV_HEADS,
                                        .head_dim = NV_HEAD,
                                        .experts = EXPERTS,
                                        .topk = 2,
                                        .expert_size = NV_INNER,
                                        .dense_layer = -1,
                                        .is_normalised = 1,
                                        .dtype = KT_DTYPE_BF16};

static double e4m3_value(int bits) {
    const int e = bits >> 3 & 15, m = bits & 7;
    const double size = e ? ldexp(1 + m / 8.0, e - 7) : ldexp(m / 8.0, -6);

    return bits & 128 ? -size : size;
}

/* Scales of either sign around 1, and the factor 2^-shift of the matrix: all are BF16 then. */
static int nv_draw(const char *matrix, int64_t n, int64_t k, uint8_t *codes, uint8_t *scales) {
    kt_rng rng;
    uint64_t seed = 1;

    for (const char *c = matrix; *c; c++) seed = 31 * seed + (unsigned char)*c;
    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < n * k; i++) codes[i] = (uint8_t)kt_rng_below(&rng, 16);
    for (int64_t i = 0; i < n * k / 16; i++)
        scales[i] = (uint8_t)(kt_rng_below(&rng, 2) << 7 | (48 + kt_rng_below(&rng, 16)));
    return 3 + (int)kt_rng_below(&rng, 4);
}

static void nv_put_scalar(kt_written_model *w, const char *matrix, const char *part, int rank,
                          float value) {
    float *data = malloc(sizeof *data);
    char name[240];

    *data = value;
    snprintf(name, sizeof name, "%s.%s", matrix, part);
    kt_written_put(w, name, KT_DTYPE_F32, rank, (int64_t[]){1}, data);
}

static void nv_put_matrix(nv_form f, kt_written_model *w, const char *matrix, int64_t n,
                          int64_t k) {
    const bool is_packed = f == NV_COMPRESSED;
    uint8_t *codes = malloc((size_t)(n * k)), *scales = malloc((size_t)(n * k / 16));
    uint8_t *pairs = malloc((size_t)(n * k / 2));
    uint16_t *bf16 = malloc((size_t)(2 * n * k));
    const int shift = nv_draw(matrix, n, k, codes, scales);
    char name[240];

    pair_up(codes, n * k, pairs);
    for (int64_t i = 0; i < n * k; i++)
        bf16[i] = kt_f32_to_bf16(
            (float)ldexp(value_of(codes[i], 127) * e4m3_value(scales[i / 16]), -shift));
    free(codes);
    snprintf(name, sizeof name, "%s.%s", matrix, is_packed ? "weight_packed" : "weight");
    if (f == NV_BF16) {
        kt_written_put(w, name, KT_DTYPE_BF16, 2, (int64_t[]){n, k}, bf16);
        free(pairs), free(scales);
        return;
    }
    kt_written_put(w, name, KT_DTYPE_U8, 2, (int64_t[]){n, k / 2}, pairs);
    snprintf(name, sizeof name, "%s.weight_scale", matrix);
    kt_written_put(w, name, KT_DTYPE_F8_E4M3, 2, (int64_t[]){n, k / 16}, scales);
    nv_put_scalar(w, matrix, is_packed ? "weight_global_scale" : "weight_scale_2", is_packed,
                  ldexpf(1, is_packed ? shift : -shift));
    nv_put_scalar(w, matrix, is_packed ? "input_global_scale" : "input_scale", is_packed, 0.5f);
    free(bf16);
}

static const struct {
    const char *name;
    int64_t n, k;
    int experts;
} nv_matrices[] = {{"mlp.experts.%d.gate_proj", NV_INNER, NV_HIDDEN, EXPERTS},
                   {"mlp.experts.%d.up_proj", NV_INNER, NV_HIDDEN, EXPERTS},
                   {"mlp.experts.%d.down_proj", NV_HIDDEN, NV_INNER, EXPERTS},
                   {"self_attn.q_proj", NV_HEADS *NV_HEAD, NV_HIDDEN, 1},
                   {"self_attn.k_proj", NV_KV_HEADS *NV_HEAD, NV_HIDDEN, 1},
                   {"self_attn.v_proj", NV_KV_HEADS *NV_HEAD, NV_HIDDEN, 1},
                   {"self_attn.o_proj", NV_HIDDEN, NV_HEADS *NV_HEAD, 1}};

static void nv_put_layer(nv_form f, kt_written_model *w, int layer) {
    for (size_t i = 0; i < sizeof nv_matrices / sizeof *nv_matrices; i++)
        for (int e = 0; e < nv_matrices[i].experts; e++) {
            const char *from = nv_matrices[i].name, *hole = strstr(from, "%d");
            char matrix[200];
            if (hole)
                snprintf(matrix, sizeof matrix, "model.layers.%d.%.*s%d%s", layer,
                         (int)(hole - from), from, e, hole + 2);
            else
                snprintf(matrix, sizeof matrix, "model.layers.%d.%s", layer, from);
            nv_put_matrix(f, w, matrix, nv_matrices[i].n, nv_matrices[i].k);
        }
}

static void nv_write(nv_form f, const char *to) {
    static const char *const configs[NV_FORMS] = {
        NULL, ",\"quantization_config\":{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\"}",
        ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
        "\"nvfp4-pack-quantized\"}"};
    kt_written_model *w = calloc(1, sizeof *w);
    kt_model_shape written = nv_shape;
    kt_checkpoint *c = NULL;
    kt_err err = {0};

    written.extra = configs[f];
    kt_random_model(&written, 4, to);
    cr_assert_eq(kt_checkpoint_open(to, &c, &err), KT_OK, "%s", err.message);
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        if (!strstr(t->name, ".experts.") && !strstr(t->name, "_proj.")) kt_written_copy(w, t);
    }
    kt_checkpoint_close(c);
    for (int l = 0; l < LAYERS; l++) nv_put_layer(f, w, l);
    kt_written_finish(w, to);
    free(w);
}

static void nv_make(void) {
    for (int f = 0; f < NV_FORMS; f++) {
        kt_temp_make(folder[f], sizeof folder[f]);
        nv_write((nv_form)f, folder[f]);
    }
}

static void nv_remove(void) {
    for (int f = 0; f < NV_FORMS; f++) kt_temp_remove(folder[f]);
}

/* Both forms are what the double reference makes of the same numbers in BF16, with the same bits;
 * and as INT8 to the bits of those. */
Test(nvfp4, both_forms_have_the_numbers_that_were_written, .init = nv_make, .fini = nv_remove,
     .timeout = 120) {
    static float first[N_TOKENS * VOCAB], logits[N_TOKENS * VOCAB];
    int32_t tokens[N_TOKENS];
    int64_t decided;
    double error, rounded;
    kt_err err = {0};
    kt_ref_model *m = kt_ref_load(folder[NV_BF16], KT_QUANT_NATIVE, &err);

    cr_assert(m, "%s", err.message);
    draw_tokens(tokens);
    kt_written_forward(folder[NV_MODELOPT], tokens, N_TOKENS, first);
    error = kt_ref_compare(m, tokens, N_TOKENS, KT_REF_INT8, first, &decided, &rounded);
    cr_expect_gt(4 * decided, N_TOKENS, "%lld decided", (long long)decided);
    cr_expect_leq(error, 1.5 * rounded, "off by %g, the reference by %g", error, rounded);
    cr_expect_lt(rounded, 0.1);
    kt_ref_free(m);
    kt_written_forward(folder[NV_COMPRESSED], tokens, N_TOKENS, logits);
    cr_expect_eq(memcmp(first, logits, sizeof first), 0);
    kt_written_forward_as(folder[NV_BF16], KT_QUANT_INT8, tokens, N_TOKENS, first);
    for (int f = NV_MODELOPT; f < NV_FORMS; f++) {
        kt_written_forward_as(folder[f], KT_QUANT_INT8, tokens, N_TOKENS, logits);
        cr_expect_eq(memcmp(first, logits, sizeof first), 0, "form %d", f);
    }
}

/* Every scale with every code, and a factor that is no power of two: the blocks decode to the
 * numbers in double, from any row on; w8g16m and floats to them rounded. NaN is refused. */
Test(nvfp4, rows_become_blocks_without_loss) {
    enum { ROWS = 64, K = 64, FIRST = 5 };
    static uint8_t codes[ROWS * K], pairs[ROWS * K / 2], scales[ROWS * K / 16];
    static uint8_t blocks[ROWS * K / 64 * 36];
    static int8_t wide[ROWS * K];
    static float factors[ROWS], terms[ROWS * K / 16 * 2], scratch[K * 16];
    static uint16_t floats[ROWS * K];
    const kt_tensor stored = {.name = "x.weight",
                              .rank = 2,
                              .shape = {ROWS, K / 2},
                              .dtype = KT_DTYPE_U8,
                              .data = pairs,
                              .bytes = sizeof pairs};
    const kt_tensor beside = {.name = "x.weight_scale",
                              .rank = 2,
                              .shape = {ROWS, K / 16},
                              .dtype = KT_DTYPE_F8_E4M3,
                              .data = scales,
                              .bytes = sizeof scales};
    const kt_format *f = kt_format_find(KT_W_NVFP4), *g = kt_format_find(KT_W_INT8_G16M);
    const kt_format *bf16 = kt_format_find(KT_W_BF16);
    const kt_matrix w = {KT_W_NVFP4, ROWS - FIRST, K, blocks, factors};
    const kt_matrix wider = {KT_W_INT8_G16M, ROWS - FIRST, K, wide, terms};
    const double factor = 0.0123456789f;
    kt_matrix_source s = {0};
    kt_err err = {0};

    for (int i = 0; i < ROWS * K; i++) codes[i] = (uint8_t)((i * 7 + i / 16) % 16);
    for (int i = 0; i < ROWS * K / 16; i++) scales[i] = (uint8_t)((i & 127) == 127 ? 0x80 : i);
    pair_up(codes, ROWS * K, pairs);
    kt_matrix_source_add_fp4(&s, KT_W_NVFP4, &stored, &beside, 0, 1, ROWS, K);
    kt_matrix_source_times(&s, (float)factor);
    cr_assert_eq(kt_matrix_source_check_finite(NULL, &s, 0, ROWS, &err), KT_OK);
    cr_assert_eq(kt_matrix_source_encode_rows(&s, f, FIRST, ROWS, blocks, factors, NULL, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_matrix_source_encode_rows(&s, g, FIRST, ROWS, wide, terms, scratch, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_matrix_source_encode_rows(&s, bf16, FIRST, ROWS, floats, NULL, scratch, &err),
                 KT_OK, "%s", err.message);
    for (int64_t r = FIRST; r < ROWS; r++) {
        double row[2][K];
        f->decode_row(&w, r - FIRST, row[0]);
        g->decode_row(&wider, r - FIRST, row[1]);
        for (int64_t i = r * K; i < (r + 1) * K; i++) {
            const double want = factor * e4m3_value(scales[i / 16]) * value_of(codes[i], 127);
            cr_expect_eq(row[0][i % K], want, "row %lld input %lld", (long long)r,
                         (long long)(i % K));
            cr_expect_leq(fabs(row[1][i % K] - want), ldexp(fabs(want), -24));
            cr_expect_leq(fabs(kt_bf16_to_f32(floats[i - FIRST * K]) - want),
                          ldexp(fabs(want), -8) * 1.001);
        }
    }
    for (int sign = 0; sign < 2; sign++) {
        scales[31 * 4 + 2] = (uint8_t)(127 | sign << 7);
        cr_expect_neq(kt_matrix_source_check_finite(NULL, &s, 0, ROWS, &err), KT_OK);
        cr_expect(strstr(err.message, "element [31, 2] is NaN"), "%s", err.message);
        s.allows_nonfinite = 1;
        cr_expect_neq(kt_matrix_source_encode(&s, f, 0, ROWS, blocks, factors, NULL, &err), KT_OK);
        cr_expect(strstr(err.message, "scale 2 of row 31 is NaN"), "%s", err.message);
    }
}

/* An engine made of folders with one tensor damaged says which. */
Test(nvfp4, refuses_scales_that_are_nan, .init = nv_make, .fini = nv_remove) {
    static const char name[] = "model.layers.1.mlp.experts.2.down_proj.weight_scale";
    const uint8_t nan = 255;

    for (int f = NV_MODELOPT; f < NV_FORMS; f++) {
        kt_engine *e = NULL;
        kt_err err = {0};
        kt_damage_element(folder[f], name, 7, &nan);
        cr_expect_eq(kt_written_load(folder[f], KT_QUANT_NATIVE, &e, &err), KT_E_FORMAT, "%s",
                     err.message);
        cr_expect(strstr(err.message, name) && strstr(err.message, "element [1, 3] is NaN"), "%s",
                  err.message);
        cr_expect_null(e);
    }
}

/* What is declared stands for tensors that are not at hand; attention that is spared stays float. */
Test(nvfp4, declarations_of_both_kinds_are_read) {
#define MODELOPT "\"quant_method\":\"modelopt\",\"quant_algo\":"
    static const struct {
        const char *config;
        kt_weight_format linear, experts;
    } cases[] = {{"\"quant_method\":\"compressed-tensors\",\"format\":\"nvfp4-pack-quantized\","
                  "\"ignore\":[\"re:.*self_attn.*\"]",
                  KT_W_BF16, KT_W_NVFP4},
                 {MODELOPT "\"NVFP4\",\"group_size\":16", KT_W_NVFP4, KT_W_NVFP4},
                 {MODELOPT "\"FP8\",\"exclude_modules\":[\"model.layers.0.self_attn*\"]", KT_W_BF16,
                  KT_W_FP8_CHANNEL},
                 {MODELOPT "\"MIXED_PRECISION\",\"quantized_layers\":{"
                           "\"model.layers.0.self_attn.q_proj\":{\"quant_algo\":\"FP8\"},"
                           "\"model.layers.0.mlp.experts.0.up_proj\":{\"quant_algo\":\"NVFP4\"}}",
                  KT_W_NVFP4, KT_W_NVFP4}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512];
        kt_json_doc *doc = NULL;
        kt_declared declared = {0};
        kt_err err = {0};
        snprintf(text, sizeof text, "{\"quantization_config\":{%s}}", cases[i].config);
        cr_assert_eq(kt_json_parse(text, strlen(text), NULL, &doc, &err), KT_OK);
        cr_expect_eq(kt_declared_read(&(kt_config_source){.json = kt_json_root(doc), .where = "x"},
                                      &declared, &err),
                     KT_OK, "case %zu: %s", i, err.message);
        cr_expect_eq(declared.linear, cases[i].linear, "case %zu", i);
        cr_expect_eq(declared.experts, cases[i].experts, "case %zu", i);
        kt_json_destroy(doc);
    }
}

/* Older folders of modelopt say it in a file of its own; a plan needs no weights. */
Test(nvfp4, a_configuration_beside_config_json_is_read, .init = nv_make, .fini = nv_remove) {
    static const char text[] =
        "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"NVFP4\","
        "\"group_size\":16,\"exclude_modules\":[\"model.layers.0.self_attn*\"]}}";
    char path[600];
    kt_model_dir d;
    kt_err err = {0};
    FILE *f;

    snprintf(path, sizeof path, "%s/model.safetensors", folder[NV_BF16]);
    cr_assert_eq(remove(path), 0);
    snprintf(path, sizeof path, "%s/hf_quant_config.json", folder[NV_BF16]);
    f = fopen(path, "w");
    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
    cr_assert_eq(kt_model_dir_read(folder[NV_BF16], &d, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_graph_experts(&d.graph, 0)->part[2].stored, KT_W_NVFP4);
    cr_expect_eq(kt_graph_find(&d.graph, "qkv", 0)->part[0].stored, KT_W_BF16);
    kt_model_dir_deinit(&d);
    f = fopen(path, "w");
    cr_assert(f && fputs("{\"quantization\":{\"quant_algo\":\"INT3\"}}", f) >= 0 && fclose(f) == 0);
    cr_expect_neq(kt_model_dir_read(folder[NV_BF16], &d, &err), KT_OK);
    cr_expect(strstr(err.message, "hf_quant_config.json: quant_algo 'INT3'"), "%s", err.message);
}
