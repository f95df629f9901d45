/* Stored numbers that are not finite: found in every type, refused by name in every role, and what
 * happens when they are let in.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/iq1.h"
#include "runtime/exec/engine.h"
#include "runtime/loader/finite.h"
#include "tests/support/damage.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define KT KT_BUILD_DIR "/kt "
#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static const kt_model_shape shape = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 50,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 32,
                                     .dense_size = 64,
                                     .dense_layer = 1,
                                     .has_bias = 1,
                                     .dtype = KT_DTYPE_BF16};

/* ---- the search ---- */

/* Every value of each float type of one or two bytes, against what its standard says. */
static int should_be_found(kt_dtype dtype, unsigned bits) {
    switch (dtype) {
    case KT_DTYPE_BF16: return !isfinite(kt_bf16_to_f32((uint16_t)bits));
    case KT_DTYPE_F16: return !isfinite(kt_f16_to_f32((uint16_t)bits));
    case KT_DTYPE_F8_E4M3: return !isfinite(kt_f8e4m3_to_f32((uint8_t)bits));
    case KT_DTYPE_F8_E5M2: return !isfinite(kt_f16_to_f32((uint16_t)(bits << 8)));
    case KT_DTYPE_F8_E8M0: return bits == 255;
    default: return 0;
    }
}

Test(finite, every_code_of_small_types_is_told_right) {
    static const kt_dtype types[] = {KT_DTYPE_BF16,    KT_DTYPE_F16,     KT_DTYPE_F8_E4M3,
                                     KT_DTYPE_F8_E5M2, KT_DTYPE_F8_E8M0, KT_DTYPE_U8,
                                     KT_DTYPE_I16};

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const size_t bytes = kt_dtype_bytes(types[i]);
        for (unsigned bits = 0; bits < 1u << 8 * bytes; bits++) {
            uint8_t data[2] = {(uint8_t)bits, (uint8_t)(bits >> 8)};
            const kt_tensor t = {.dtype = types[i], .data = data};
            int found = kt_tensor_find_nonfinite(&t, 0, 1) == 0;
            cr_assert_eq(found, should_be_found(types[i], bits), "%s of %#x: found %d",
                         kt_dtype_name(types[i]), bits, found);
        }
    }
}

/* One bad value at each of these places, in data that starts at an odd address. */
Test(finite, the_first_is_found_wherever_it_is) {
    static const kt_dtype types[] = {KT_DTYPE_F32, KT_DTYPE_F64, KT_DTYPE_BF16, KT_DTYPE_F16,
                                     KT_DTYPE_F8_E4M3};
    static const int64_t places[] = {0, 1, 7, 4095, 4096, 4097, 8191, 9998};
    const int64_t count = 10000;
    uint8_t *data = calloc(1, 8 * 10000 + 1);

    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const size_t bytes = kt_dtype_bytes(types[i]);
        kt_tensor t = {.dtype = types[i], .data = data + 1};
        cr_expect_eq(kt_tensor_find_nonfinite(&t, 0, count), -1);
        for (size_t p = 0; p < sizeof places / sizeof *places; p++) {
            uint8_t *at = data + 1 + (size_t)places[p] * bytes;
            memset(at, 0xff, bytes);
            memset(at + bytes, 0xff, bytes); /* a second one behind it */
            cr_expect_eq(kt_tensor_find_nonfinite(&t, 0, count), places[p], "%s at %lld",
                         kt_dtype_name(types[i]), (long long)places[p]);
            cr_expect_eq(kt_tensor_find_nonfinite(&t, places[p], 1), places[p]);
            cr_expect_eq(kt_tensor_find_nonfinite(&t, places[p] + 2, count - places[p] - 2), -1);
            memset(at, 0, 2 * bytes);
        }
    }
    free(data);
}

Test(finite, messages_name_position_and_value) {
    static const struct {
        uint32_t bits;
        const char *name;
    } values[] = {
        {0x7f800000, "Inf"}, {0xff800000, "-Inf"}, {0x7fc00000, "NaN"}, {0xff800001, "NaN"}};
    float data[2 * 3 * 4] = {0};
    kt_tensor t = {.name = "w", .dtype = KT_DTYPE_F32, .rank = 3, .shape = {2, 3, 4}};
    kt_matrix_source s = {0};
    char expected[80];
    kt_err err;

    t.data = (const uint8_t *)data;
    t.bytes = sizeof data;
    kt_matrix_source_add(&s, &t, 3, 3);
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        memcpy(&data[1 * 12 + 2 * 4 + 3], &values[i].bits, 4);
        cr_assert_eq(kt_matrix_source_check_finite(NULL, &s, 0, 3, &err), KT_E_FORMAT);
        snprintf(expected, sizeof expected, "tensor 'w': element [1, 2, 3] is %s, expected finite",
                 values[i].name);
        cr_expect(strstr(err.message, expected), "%s lacks %s", err.message, expected);
        cr_expect_eq(kt_matrix_source_check_finite(NULL, &s, 0, 2, &err), KT_OK, "row 2 of 3");
    }
}

/* Heads of blocks: every float in them, in the last block of the last row, and no other byte. */
Test(finite, heads_of_blocks_are_looked_at) {
    int n_formats = 0, n_found = 0;

    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        const int64_t k = 2 * f->block, rows = 3;
        kt_tensor t = {.name = "w", .dtype = KT_DTYPE_U8, .rank = 2};
        kt_matrix_source s = {0};
        uint8_t *data, *last;
        size_t bytes, scales;
        if (!f->block_bytes) continue;
        n_formats++;
        f->plain_bytes(rows, k, &bytes, &scales);
        data = calloc(1, bytes);
        t.shape[0] = rows, t.shape[1] = k, t.blocks = f->id;
        t.data = data, t.bytes = bytes;
        kt_matrix_source_add(&s, &t, 0, rows);
        last = data + bytes - (size_t)f->block_bytes;
        for (int at = 0; at + 1 < f->block_bytes; at++) {
            const kt_matrix w = {.format = f->id, .n = rows, .k = k, .data = data};
            double *row = malloc((size_t)k * sizeof *row);
            int bad = 0;
            last[at] = 0xff, last[at + 1] = 0xff;
            f->decode_row(&w, rows - 1, row);
            for (int64_t j = 0; j < k; j++) bad |= !isfinite(row[j]);
            if (at == f->d_at || at == f->m_at) bad = 1;
            /* a scale that is only half set may decode to zeros times infinity either way */
            if (at == f->d_at || at == f->m_at || (f->d_at < 0 && at == 0) || !bad) {
                int found = kt_matrix_source_check_finite(NULL, &s, 0, rows, NULL) != KT_OK;
                cr_expect_eq(found, bad, "%s: byte %d: found %d, expected %d", f->name, at, found,
                             bad);
                n_found += found;
                cr_expect_eq(kt_matrix_source_check_finite(NULL, &s, 0, rows - 1, NULL), KT_OK);
            }
            last[at] = 0, last[at + 1] = 0;
            free(row);
        }
        free(data);
    }
    cr_assert_geq(n_formats, 13);
    cr_assert_geq(n_found, n_formats);
}

/* Its bits lie in four bytes. */
Test(finite, the_scale_of_iq1_m_is_looked_at) {
    uint8_t blocks[2 * 56] = {0};
    kt_tensor t = {.name = "w",
                   .dtype = KT_DTYPE_U8,
                   .rank = 2,
                   .shape = {2, 256},
                   .data = blocks,
                   .bytes = sizeof blocks,
                   .blocks = KT_W_IQ1_M};
    kt_matrix_source s = {0};
    kt_err err = {KT_OK, ""};

    kt_matrix_source_add(&s, &t, 0, 2);
    kt_iq1_m_put_d(blocks + 56, 0x7bff);
    cr_expect_eq(kt_matrix_source_check_finite(NULL, &s, 0, 2, &err), KT_OK);
    kt_iq1_m_put_d(blocks + 56, 0xfc00);
    cr_expect_eq(kt_matrix_source_check_finite(NULL, &s, 0, 1, &err), KT_OK);
    cr_expect_neq(kt_matrix_source_check_finite(NULL, &s, 0, 2, &err), KT_OK);
    cr_expect(strstr(err.message, "block 0 of row 1 is -Inf"), "%s", err.message);
}

/* ---- loading ---- */

static kt_status make_engine(const char *path, kt_quant weights, bool allow, kt_engine **out,
                             kt_err *err) {
    kt_engine_options o = {.model_dir = path,
                           .weights = weights,
                           .table_path = "",
                           .n_threads = 2,
                           .allow_nonfinite = allow,
                           .tokenizer_optional = true};
    return kt_engine_create(&o, out, err);
}

/* One of each role, and its number of elements. */
static const struct {
    const char *name;
    int64_t at;
    const char *position;
} roles[] = {{"model.embed_tokens.weight", 50 * 64 - 1, "[49, 63]"},
             {"model.norm.weight", 3, "[3]"},
             {"lm_head.weight", 64, "[1, 0]"},
             {"model.layers.0.input_layernorm.weight", 63, "[63]"},
             {"model.layers.1.post_attention_layernorm.weight", 0, "[0]"},
             {"model.layers.0.self_attn.q_norm.weight", 31, "[31]"},
             {"model.layers.0.self_attn.k_norm.weight", 1, "[1]"},
             {"model.layers.0.self_attn.q_proj.weight", 0, "[0, 0]"},
             {"model.layers.0.self_attn.k_proj.weight", 65, "[1, 1]"},
             {"model.layers.0.self_attn.v_proj.weight", 32 * 64 - 1, "[31, 63]"},
             {"model.layers.1.self_attn.o_proj.weight", 64 * 64 - 1, "[63, 63]"},
             {"model.layers.0.self_attn.q_proj.bias", 5, "[5]"},
             {"model.layers.0.self_attn.v_proj.bias", 5, "[5]"},
             {"model.layers.1.self_attn.o_proj.bias", 5, "[5]"},
             {"model.layers.0.mlp.gate.weight", 4 * 64 - 1, "[3, 63]"},
             {"model.layers.0.mlp.experts.3.gate_proj.weight", 7, "[0, 7]"},
             {"model.layers.0.mlp.experts.0.up_proj.weight", 2047, "[31, 63]"},
             {"model.layers.0.mlp.experts.2.down_proj.weight", 32, "[1, 0]"},
             {"model.layers.1.mlp.gate_proj.weight", 64, "[1, 0]"},
             {"model.layers.1.mlp.up_proj.weight", 64, "[1, 0]"},
             {"model.layers.1.mlp.down_proj.weight", 64, "[1, 0]"}};

/* A NaN of each stored type, refused by tensor, position and value as native and as every format
 * that is made from it. */
static void refuse_each_role(kt_dtype dtype, const kt_quant *formats, size_t n_formats) {
    static const uint16_t halves[] = {0xff80, 0xfc00}; /* -Inf as BF16 and F16 */
    static const uint32_t whole = 0xff800000u;
    const void *value =
        dtype == KT_DTYPE_F32 ? (const void *)&whole : &halves[dtype == KT_DTYPE_F16];
    kt_model_shape s = shape;

    s.dtype = dtype;
    if (dtype == KT_DTYPE_F16) s.extra = ",\"torch_dtype\":\"float16\"";
    for (size_t r = 0; r < sizeof roles / sizeof *roles; r++) {
        char path[PATH_MAX], expected[300];
        kt_temp_make(path, sizeof path);
        kt_random_model(&s, 1, path);
        kt_damage_element(path, roles[r].name, roles[r].at, value);
        snprintf(expected, sizeof expected, "tensor '%s': element %s is -Inf", roles[r].name,
                 roles[r].position);
        for (size_t f = 0; f < n_formats; f++) {
            kt_engine *e;
            kt_err err = {KT_OK, ""};
            cr_expect_eq(make_engine(path, formats[f], false, &e, &err), KT_E_FORMAT,
                         "%s as format %d was loaded: '%s'", roles[r].name, (int)formats[f],
                         err.message);
            cr_expect(strstr(err.message, expected), "'%s' lacks '%s'", err.message, expected);
            cr_expect_null(e);
        }
        kt_temp_remove(path);
    }
}

Test(finite, every_role_of_a_bf16_checkpoint, .timeout = 120) {
    const kt_quant formats[] = {KT_QUANT_NATIVE, KT_QUANT_INT8, KT_QUANT_INT4,
                                KT_QUANT_FORMAT + KT_W_FP8_B128};
    refuse_each_role(KT_DTYPE_BF16, formats, 4);
}

Test(finite, every_role_of_an_f16_checkpoint, .timeout = 120) {
    const kt_quant formats[] = {KT_QUANT_FORMAT + KT_W_F16, KT_QUANT_BF16, KT_QUANT_INT4};
    refuse_each_role(KT_DTYPE_F16, formats, 3);
}

Test(finite, every_role_of_an_f32_checkpoint, .timeout = 120) {
    const kt_quant formats[] = {KT_QUANT_BF16, KT_QUANT_INT8};
    refuse_each_role(KT_DTYPE_F32, formats, 2);
}

Test(finite, fused_experts) {
    const uint16_t nan = 0x7fc1;
    kt_model_shape s = shape;
    char path[PATH_MAX];
    kt_engine *e;
    kt_err err = {KT_OK, ""};

    s.is_fused = 1;
    kt_temp_make(path, sizeof path);
    kt_random_model(&s, 1, path);
    kt_damage_element(path, "model.layers.0.mlp.experts.gate_up_proj", (3 * 64 + 40) * 64 + 5,
                      &nan);
    cr_expect_eq(make_engine(path, KT_QUANT_NATIVE, false, &e, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "gate_up_proj': element [3, 40, 5] is NaN"), "%s", err.message);
    kt_temp_remove(path);
}

/* ---- let in ---- */

static kt_status run(kt_engine *e, kt_err *err) {
    const int32_t tokens[] = {1, 2, 3, 4, 5};
    float *logits = malloc(5 * 50 * sizeof *logits);
    kt_sequence *s;
    kt_status st;

    cr_assert_eq(kt_sequence_create(e, 5, &s, err), KT_OK, "%s", err->message);
    st = kt_engine_forward(e, s, tokens, 5, 5, logits, NULL, NULL, NULL, err);
    cr_expect_eq(kt_sequence_length(s), 5, "all tokens were run");
    kt_sequence_destroy(s);
    free(logits);
    return st;
}

/* With the flag the model loads, and what it computes is refused where it shows. */
Test(finite, let_in_it_shows_in_the_logits) {
    static const struct {
        const char *name;
        kt_dtype dtype;
        kt_quant weights;
    } cases[] = {{"model.norm.weight", KT_DTYPE_BF16, KT_QUANT_NATIVE},
                 {"model.layers.0.self_attn.v_proj.weight", KT_DTYPE_BF16, KT_QUANT_NATIVE},
                 {"model.layers.1.mlp.down_proj.weight", KT_DTYPE_BF16, KT_QUANT_NATIVE},
                 {"model.layers.1.self_attn.o_proj.weight", KT_DTYPE_F32, KT_QUANT_BF16}};
    const uint16_t half = 0x7fc0;
    const uint32_t whole = 0x7fc00000;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_model_shape s = shape;
        char path[PATH_MAX];
        kt_engine *e = NULL;
        kt_err err = {KT_OK, ""};
        s.dtype = cases[i].dtype;
        kt_temp_make(path, sizeof path);
        kt_random_model(&s, 1, path);
        kt_damage_element(path, cases[i].name, 3,
                          s.dtype == KT_DTYPE_F32 ? (const void *)&whole : (const void *)&half);
        cr_assert_eq(make_engine(path, cases[i].weights, true, &e, &err), KT_OK, "%s: %s",
                     cases[i].name, err.message);
        cr_expect_eq(run(e, &err), KT_E_FORMAT, "%s: the logits were accepted", cases[i].name);
        cr_expect(strstr(err.message, "the logits after token"), "%s", err.message);
        kt_engine_destroy(e);
        cr_expect_eq(make_engine(path, KT_QUANT_INT8, true, &e, &err) == KT_OK, i == 0,
                     "%s: quantised", cases[i].name);
        kt_engine_destroy(e);
        kt_temp_remove(path);
    }
}

/* Finite weights whose products are too large. */
Test(finite, overflowing_logits_are_refused) {
    const uint16_t huge = 0x7149; /* about 1e30: one such factor fits f32, two do not */
    char path[PATH_MAX];
    kt_engine *e = NULL;
    kt_err err = {KT_OK, ""};

    kt_temp_make(path, sizeof path);
    kt_random_model(&shape, 1, path);
    for (int i = 0; i < 64; i++) kt_damage_element(path, "model.norm.weight", i, &huge);
    for (int i = 0; i < 64; i++) kt_damage_element(path, "lm_head.weight", 7 * 64 + i, &huge);
    cr_assert_eq(make_engine(path, KT_QUANT_NATIVE, false, &e, &err), KT_OK, "%s", err.message);
    cr_expect_eq(run(e, &err), KT_E_FORMAT);
    cr_expect(strstr(err.message, "for token id 7)"), "%s", err.message);
    kt_engine_destroy(e);
    kt_temp_remove(path);
}

/* ---- commands ---- */

static void expect(const char *command, const char *folder, int code, const char *words) {
    char line[4096], *out;
    int got;

    snprintf(line, sizeof line, "F=%s; %s", folder, command);
    got = kt_tune_home_run(line, &out);
    cr_expect(got == code && strstr(out, words), "%s: exit code %d, expected %d and '%s': %s", line,
              got, code, words, out);
    free(out);
}

Test(finite, commands_refuse_and_say_so, .timeout = 120) {
    static const char refused[] = "model.norm.weight': element [2] is NaN";
    static const char bad[] = "the logits after token";
    const uint16_t nan = 0x7fc0;
    kt_model_shape s = shape;
    char path[PATH_MAX];

    s.vocab = 4096; /* that of tiny-moe, whose tokenizer it gets */
    kt_temp_make(path, sizeof path);
    kt_random_model(&s, 1, path);
    expect("cp " TINY "/tokenizer.json $F", path, 0, "");
    expect(KT "generate $F -p 'In that day' -n 3 --table ''", path, 0, "3 tokens");
    kt_damage_element(path, "model.norm.weight", 2, &nan);
    expect(KT "generate $F -p 'In that day' -n 3 --table ''", path, 1, refused);
    expect(KT "serve $F -p 0 --table ''", path, 1, refused);
    expect(KT "bench $F -p 4 -n 2 --table ''", path, 1, refused);
    expect(KT "generate $F -p 'In that day' -n 3 --table '' --allow-nonfinite", path, 1, bad);
    expect(KT "bench $F -p 4 -n 2 --table '' --allow-nonfinite", path, 1, bad);
    expect(KT "bench $F --perplexity " TINY "/sample.txt --window 64 --table '' "
              "--allow-nonfinite",
           path, 1, bad);
    expect(KT "logits $F --tokens 1,2 --table '' -o $F/no", path, 1, refused);
    expect("ls $F/no", path, 2, "No such file");
    /* that one can be looked at */
    expect(KT "logits $F --tokens 1,2 --table '' -o $F/out --allow-nonfinite", path, 1, bad);
    expect("ls $F/out", path, 0, "out");
    expect(KT "quality $F --weights int8", path, 0, "lm_head");
    kt_damage_element(path, "lm_head.weight", 2, &nan);
    expect(KT "quality $F --weights int8", path, 1, "lm_head.weight': element [0, 2] is NaN");
    kt_temp_remove(path);
}
