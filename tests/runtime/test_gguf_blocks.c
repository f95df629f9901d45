/* What a GGUF file says of the blocks of its tensors. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "dispatch/model/checkpoint.h"
#include "tests/support/temp.h"

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

Test(gguf_blocks, files_name_their_tensors) {
    static const struct {
        uint64_t type;
        kt_weight_format format;
        size_t bytes;
    } blocks[] = {{16, KT_W_IQ2_XXS, 66}, {17, KT_W_IQ2_XS, 74}, {22, KT_W_IQ2_S, 82},
                  {18, KT_W_IQ3_XXS, 98}, {21, KT_W_IQ3_S, 110}, {19, KT_W_IQ1_S, 50},
                  {29, KT_W_IQ1_M, 56},   {34, KT_W_TQ1_0, 54},  {35, KT_W_TQ2_0, 66},
                  {40, KT_W_NVFP4, 36}};
    file f;
    kt_checkpoint *c = NULL;
    const kt_tensor *t;
    kt_err err = {0};

    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        f = make(blocks[i].type == 40 ? 64 : 256, blocks[i].type, "y");
        cr_assert_eq(open_file(&f, &c, &err), KT_OK, "%s", err.message);
        t = kt_checkpoint_find(c, "blk.0.x.weight");
        cr_expect(t->blocks == blocks[i].format, "type %d", (int)blocks[i].type);
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
