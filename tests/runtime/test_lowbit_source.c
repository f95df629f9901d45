/* Loading GGUF's low-bit blocks: lists of tensors, exact w8g16m, floats, what is refused.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "dispatch/model/gguf_tensors.h"
#include "dispatch/model/needs.h"
#include "kernels/formats/w8g16m.h"
#include "runtime/loader/finite.h"
#include "runtime/loader/lowbit_source.h"
#include "tests/support/guard.h"
#include "tests/support/temp.h"

/* Random blocks whose d, where it has a place, is 1.5. */
static void fill(kt_lowbit type, uint8_t *to, size_t n_blocks) {
    static const int d_at[KT_LOWBIT_COUNT] = {[KT_LOWBIT_TQ1_0] = 52, [KT_LOWBIT_TQ2_0] = 64};
    const int bytes = kt_lowbit_of(type)->bytes;
    kt_rng rng;

    kt_rng_seed(&rng, (uint64_t)type);
    for (size_t i = 0; i < n_blocks; i++, to += bytes) {
        for (int k = 0; k < bytes; k++) to[k] = (uint8_t)kt_rng_below(&rng, 256);
        if (type == KT_LOWBIT_IQ1_M)
            to[55] &= 0x3f;
        else if (type != KT_LOWBIT_NVFP4)
            memcpy(to + d_at[type], "\x00\x3e", 2);
    }
}

enum { N = 6, K = 4608, LAST = 2 }; /* 18 blocks of 256: more than is decoded at a time */

static void check_source(kt_lowbit type) {
    const kt_lowbit_type *t = kt_lowbit_of(type);
    const size_t row = (size_t)(K / t->inputs * t->bytes), g = 2 * K / 16;
    uint8_t *blocks = kt_guard_alloc(N * row, 1, 0), *other = kt_guard_alloc(N * row, 1, 0);
    int8_t *whole = kt_guard_alloc(N * K, 1, 0), *code = kt_guard_alloc((N - 1) * K, 1, 0);
    float *terms = kt_guard_alloc(4 * N * g, 4, 0), *scales = kt_guard_alloc(4 * (N - 1) * g, 4, 0);
    float *value = kt_guard_alloc(4 * K, 4, 0);
    kt_tensor a = {.name = "a",
                   .dtype = KT_DTYPE_U8,
                   .rank = 2,
                   .shape = {N, K},
                   .data = blocks,
                   .bytes = N * row,
                   .blocks = KT_W_INT8_G16M,
                   .lowbit = type};
    kt_tensor b = a;
    kt_matrix_source s = {0};
    kt_err err = {0};

    b.data = other;
    fill(type, blocks, N * row / (size_t)t->bytes);
    fill(type, other, N * row / (size_t)t->bytes);
    other[row + 8] ^= 0xff;
    kt_lowbit_rows(type, blocks + row, 4, K, whole, terms);
    kt_lowbit_rows(type, other, LAST, K, whole + 4 * K, terms + 4 * g);
    kt_matrix_source_add(&s, &a, 1, 4);
    kt_matrix_source_add(&s, &b, 0, LAST);
    cr_assert(kt_matrix_source_is_exact(&s, 0, KT_W_INT8_G16M));
    cr_assert_eq(kt_matrix_source_check_finite(NULL, &s, 0, N, &err), KT_OK, "%s", err.message);
    for (int from = 0; from < N - 1; from += 2) /* rows 1 to 5 in parts of up to two */
        cr_assert_eq(kt_matrix_source_encode_rows(&s, kt_format_find(KT_W_INT8_G16M), 1 + from,
                                                  from + 3 < N ? from + 3 : N, code + from * K,
                                                  scales + from * (int)g, NULL, &err),
                     KT_OK, "%s", err.message);
    cr_expect_eq(memcmp(code, whole + K, (N - 1) * K), 0, "%s", t->name);
    cr_expect_eq(memcmp(scales, terms + g, 4 * (N - 1) * g), 0, "%s", t->name);
    kt_lowbit_read_row(&a, 2, K, value);
    for (int i = 0; i < K; i++)
        cr_assert_eq(value[i], terms[g + (size_t)(i / 16 * 2)] * (float)whole[K + i], "%s at %d",
                     t->name, i);
    kt_guard_free(blocks);
    kt_guard_free(other);
    kt_guard_free(whole);
    kt_guard_free(code);
    kt_guard_free(terms);
    kt_guard_free(scales);
    kt_guard_free(value);
}

Test(lowbit_source, rows_of_pieces_become_w8g16m_exactly) {
    for (int t = KT_LOWBIT_NONE + 1; t < KT_LOWBIT_COUNT; t++) check_source((kt_lowbit)t);
}

Test(lowbit_source, a_scale_that_is_not_finite_is_refused_by_its_place) {
    uint8_t blocks[4 * 66];
    kt_tensor a = {.name = "a",
                   .dtype = KT_DTYPE_U8,
                   .rank = 2,
                   .shape = {2, 512},
                   .data = blocks,
                   .bytes = sizeof blocks,
                   .blocks = KT_W_INT8_G16M,
                   .lowbit = KT_LOWBIT_TQ2_0};
    kt_matrix_source s = {0};
    kt_matrix borrowed;
    kt_err err = {0};

    fill(KT_LOWBIT_TQ2_0, blocks, 4);
    memcpy(blocks + 3 * 66 + 64, "\x00\x7c", 2);
    kt_matrix_source_add(&s, &a, 0, 2);
    cr_assert_eq(kt_matrix_source_borrow(&s, KT_W_INT8_G16M, &borrowed), 0);
    cr_assert_eq(kt_matrix_source_check_finite(NULL, &s, 0, 1, &err), KT_OK);
    cr_assert_neq(kt_matrix_source_check_finite(NULL, &s, 0, 2, &err), KT_OK);
    cr_assert(strstr(err.message, "block 1 of row 1"), "%s", err.message);
}

Test(lowbit_source, tables_are_kept_as_floats) {
    kt_weight table = {.kind = KT_WEIGHT_TABLE, .n_parts = 1};

    table.part[0].stored = KT_W_INT8_G16M;
    cr_assert_eq(kt_weight_kept_as(&table), KT_W_F32);
    table.part[0].stored = KT_W_Q6_K;
    cr_assert_eq(kt_weight_kept_as(&table), KT_W_Q6_K);
}

/* ---- files ---- */

typedef struct file {
    uint8_t bytes[1024];
    size_t n;
} file;

static void put(file *f, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) f->bytes[f->n++] = (uint8_t)(v >> 8 * i);
}

static void put_tensor(file *f, const char *name, uint64_t k, uint64_t n, uint64_t type,
                       uint64_t at) {
    put(f, strlen(name), 8);
    memcpy(f->bytes + f->n, name, strlen(name));
    f->n += strlen(name);
    put(f, 2, 4), put(f, k, 8), put(f, n, 8), put(f, type, 4), put(f, at, 8);
}

static file make(uint64_t k, uint64_t type, const char *second) {
    file f = {.n = 4};

    memcpy(f.bytes, "GGUF", 4);
    put(&f, 3, 4), put(&f, 2, 8), put(&f, 0, 8);
    put_tensor(&f, "blk.0.x.weight", k, 2, type, 0);
    put_tensor(&f, second, 1, 1, 0, 256);
    f.n = (f.n + 31) / 32 * 32 + 260;
    return f;
}

static kt_status open_file(const file *f, kt_checkpoint **out, kt_err *err) {
    char folder[256], path[300];
    kt_status st;

    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "m.gguf", f->bytes, f->n);
    snprintf(path, sizeof path, "%s/m.gguf", folder);
    st = kt_checkpoint_open(path, out, err);
    kt_temp_remove(folder);
    return st;
}

Test(lowbit_source, files_name_their_tensors) {
    static const struct {
        uint64_t type;
        kt_weight_format format;
        size_t bytes;
    } blocks[] = {{16, KT_W_IQ2_XXS, 66}, {17, KT_W_IQ2_XS, 74}, {22, KT_W_IQ2_S, 82},
                  {18, KT_W_IQ3_XXS, 98}, {21, KT_W_IQ3_S, 110}, {19, KT_W_IQ1_S, 50},
                  {29, KT_W_IQ1_M, 56},   {34, KT_W_TQ1_0, 54},  {35, KT_W_TQ2_0, 66}};
    file f;
    kt_checkpoint *c = NULL;
    const kt_tensor *t;
    kt_err err = {0};

    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) { /* as they are */
        f = make(256, blocks[i].type, "y");
        cr_assert_eq(open_file(&f, &c, &err), KT_OK, "%s", err.message);
        t = kt_checkpoint_find(c, "blk.0.x.weight");
        cr_expect(t->lowbit == KT_LOWBIT_NONE && t->blocks == blocks[i].format, "type %d",
                  (int)blocks[i].type);
        cr_expect_eq(t->bytes, 2 * blocks[i].bytes);
        kt_checkpoint_close(c);
    }
    f = make(320, 16, "y");
    cr_assert_neq(open_file(&f, &c, &err), KT_OK);
    cr_assert(strstr(err.message, "2 x 320: k must be a multiple of 256"), "%s", err.message);
    f = make(1024, 16, "y"); /* 528 bytes of 260 */
    cr_assert_neq(open_file(&f, &c, &err), KT_OK);
    f = make(256, 31, "y");
    cr_assert_neq(open_file(&f, &c, &err), KT_OK);
    cr_assert(strstr(err.message, "type 31, expected"), "%s", err.message);
}

/* Types with a weight format are that format. */
Test(lowbit_source, formats_of_their_own_are_no_lowbit_types) {
    static const struct {
        uint64_t type, k, bytes;
        kt_weight_format format;
    } cases[] = {{34, 256, 108, KT_W_TQ1_0},
                 {35, 256, 132, KT_W_TQ2_0},
                 {40, 64, 72, KT_W_NVFP4},
                 {19, 256, 100, KT_W_IQ1_S},
                 {29, 256, 112, KT_W_IQ1_M}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file f = make(cases[i].k, cases[i].type, "blk.0.x.scale");
        kt_checkpoint *c = NULL;
        const kt_tensor *t;
        kt_err err = {0};
        cr_assert_eq(open_file(&f, &c, &err), KT_OK, "%s", err.message);
        t = kt_checkpoint_find(c, "blk.0.x.weight");
        cr_assert(t && t->lowbit == KT_LOWBIT_NONE && t->blocks == cases[i].format);
        cr_assert_eq(t->bytes, cases[i].bytes);
        kt_checkpoint_close(c);
    }
}
