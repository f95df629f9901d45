/* The tensor list of GGUF files: what is in them, and files that lie.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/rng.h"
#include "dispatch/model/gguf_tensors.h"
#include "tests/support/guard.h"

/* A file of one value and two tensors, field by field. */
typedef struct file {
    uint8_t bytes[1024];
    size_t n;
    size_t name, rank, size, type, offset; /* where the first tensor's fields are */
} file;

static void put(file *f, uint64_t v, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) f->bytes[f->n++] = (uint8_t)(v >> 8 * i);
}

static void put_name(file *f, const char *name) {
    put(f, strlen(name), 8);
    memcpy(f->bytes + f->n, name, strlen(name));
    f->n += strlen(name);
}

static file make(void) {
    file f = {.n = 0};

    memcpy(f.bytes, "GGUF", 4);
    f.n = 4;
    put(&f, 3, 4), put(&f, 2, 8), put(&f, 1, 8);
    put_name(&f, "general.alignment");
    put(&f, 4, 4), put(&f, 64, 4);
    f.name = f.n;
    put_name(&f, "w");
    f.rank = f.n, put(&f, 3, 4);
    f.size = f.n, put(&f, 64, 8), put(&f, 2, 8), put(&f, 3, 8);
    f.type = f.n, put(&f, 2, 4); /* Q4_0: 36 bytes a row */
    f.offset = f.n, put(&f, 64, 8);
    put_name(&f, "a");
    put(&f, 1, 4), put(&f, 5, 8), put(&f, 0, 4), put(&f, 0, 8);
    f.n = (f.n + 63) / 64 * 64 + 64 + 216;
    return f;
}

/* Reads a copy that ends at an inaccessible page. */
static kt_status read_file(const file *f, kt_gguf_tensor **list, size_t *count, kt_err *err) {
    uint8_t *bytes = kt_guard_alloc(f->n, 1, 0);
    kt_gguf_meta meta;
    kt_status st;

    memcpy(bytes, f->bytes, f->n);
    *list = NULL;
    st = kt_gguf_meta_init(&meta, bytes, f->n, err);
    if (st == KT_OK) {
        st = kt_gguf_tensors_read(&meta, list, count, err);
        for (size_t i = 0; st == KT_OK && i < *count; i++) {
            const kt_gguf_tensor *t = &(*list)[i];
            cr_assert(t->data >= bytes && t->data + t->bytes <= bytes + f->n);
        }
        kt_gguf_meta_deinit(&meta);
    }
    kt_guard_free(bytes);
    return st;
}

Test(gguf_tensors, are_listed_with_format_and_place) {
    file f = make();
    kt_gguf_tensor *list;
    const kt_gguf_tensor *w;
    kt_matrix m;
    size_t count;
    kt_err err = {0};

    cr_assert_eq(read_file(&f, &list, &count, &err), KT_OK, "%s", err.message);
    cr_assert_eq(count, 2);
    cr_assert_str_eq(list[0].name, "a");
    cr_assert_null(kt_gguf_tensor_find(list, count, "b"));
    w = kt_gguf_tensor_find(list, count, "w");
    cr_assert(w && w->format == KT_W_Q4_0 && w->bytes == 216 && w->size[3] == 1);
    m = kt_gguf_matrix(w, 2);
    cr_assert(m.n == 2 && m.k == 64 && (const uint8_t *)m.data == w->data + 144);
    free(list);
}

Test(gguf_tensors, refuses_what_does_not_fit) {
    const file good = make();
    const struct {
        size_t at;
        uint64_t value;
        size_t bytes;
        const char *says;
    } cases[] = {
        {good.name, 65, 8, "name of 65 bytes"},
        {good.name, 0, 8, "name of 0 bytes"},
        {good.name + 8, 'a', 1, "'a' occurs twice"},
        {good.name + 8, 0, 1, "zero byte"},
        {good.rank, 0, 4, "0 dimensions"},
        {good.rank, 5, 4, "5 dimensions"},
        {good.size, 0, 8, "dimension 0 is 0"},
        {good.size, UINT64_MAX, 8, "dimension 0 is"},
        {good.size + 8, (uint64_t)1 << 60, 8, "dimension 1 is"},
        {good.size, 48, 8, "tensor 'w'"}, /* half a block */
        {good.type, 42, 4, "ggml type 42"},
        {good.type, 31, 4, "ggml type 31"},
        {good.offset, 32, 8, "offset 32"}, /* not aligned */
        {good.offset, 128, 8, "offset 128"},
        {good.offset, (uint64_t)-64, 8, "offset 18446744073709551552"},
        {8, (uint64_t)1 << 40, 8, "1099511627776 tensors"},
        {good.name - 4, 3, 4, "alignment is 3"},
        {good.name - 4, 24, 4, "alignment is 24"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        file f = good;
        kt_gguf_tensor *list;
        size_t count;
        kt_err err = {0};

        f.n = cases[i].at;
        put(&f, cases[i].value, cases[i].bytes);
        f.n = good.n;
        cr_assert_neq(read_file(&f, &list, &count, &err), KT_OK, "case %zu", i);
        cr_assert(strstr(err.message, cases[i].says), "case %zu: %s", i, err.message);
        cr_assert_null(list);
    }
}

/* Cut at every byte, and with random bytes changed: an error or a list that lies in the file. */
Test(gguf_tensors, survives_damage) {
    const file good = make();
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    for (int i = 0; i < 4000; i++) {
        file f = good;
        kt_gguf_tensor *list;
        size_t count;

        if (i < (int)good.n)
            f.n = (size_t)i;
        else
            for (int j = 0; j < 1 + i % 3; j++)
                f.bytes[kt_rng_below(&rng, 180)] = (uint8_t)kt_rng_below(&rng, 256);
        if (read_file(&f, &list, &count, NULL) == KT_OK) free(list);
        cr_assert(i >= (int)good.n || !list, "cut to %d bytes", i);
    }
}

/* --- experts --- */

static void name_expert(kt_gguf_tensor *t, int layer, const char *role, kt_weight_format format) {
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "blk.%d.ffn_%s_exps.weight", layer, role);
    t->format = format;
}

/* Down may differ, gate and up may not. The list is sorted by name, as the reader leaves it. */
Test(gguf_tensors, experts_of_mixed_formats) {
    kt_gguf_tensor list[6];
    kt_gguf_experts e;
    kt_err err = {0};

    name_expert(&list[0], 0, "down", KT_W_Q6_K);
    name_expert(&list[1], 0, "gate", KT_W_Q4_K);
    name_expert(&list[2], 0, "up", KT_W_Q4_K);
    name_expert(&list[3], 1, "down", KT_W_Q4_K);
    name_expert(&list[4], 1, "gate", KT_W_Q4_K);
    name_expert(&list[5], 1, "up", KT_W_Q5_K);
    cr_expect_eq(kt_gguf_experts_find(list, 6, 0, &e, &err), KT_OK, "%s", err.message);
    cr_expect(e.down == &list[0] && e.gate == &list[1] && e.up == &list[2]);
    cr_expect_eq(kt_gguf_experts_find(list, 6, 1, &e, &err), KT_E_UNSUPPORTED);
    cr_expect(strstr(err.message, "'blk.1.ffn_gate_exps.weight'") &&
                  strstr(err.message, "'blk.1.ffn_up_exps.weight'"),
              "%s", err.message);
    cr_expect_eq(kt_gguf_experts_find(list, 6, 2, &e, &err), KT_E_NOT_FOUND);
    cr_expect_eq(kt_gguf_experts_find(list, 2, 0, &e, &err), KT_E_NOT_FOUND);
    cr_expect(strstr(err.message, "blk.0.ffn_up_exps.weight"), "%s", err.message);
}
