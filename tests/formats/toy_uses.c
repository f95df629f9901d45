/* What the tree does with a format of which it has one file more (toy.sh): names, sets, words of the
 * command line, GGUF files, products. Prints what is wrong and exits with 1.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch/model/gguf_tensors.h"
#include "dispatch/model/needs.h"
#include "kernels/formats/format.h"
#include "kernels/gemm/gemm_gate.h"
#include "runtime/exec/option_words.h"

static int wrong;

static void expect(int is_right, const char *what) {
    if (!is_right) printf("toy format: %s\n", what), wrong = 1;
}

/* A file of one tensor [2, 64] of `type`, whose data are `bytes` zeros. */
static size_t make_gguf(uint32_t type, size_t bytes, uint8_t *file) {
    const uint32_t version = 3, rank = 2;
    const uint64_t counts[2] = {1, 0}, name_size = 1, sizes[2] = {64, 2}, offset = 0;
    size_t n = 0;

#define PUT(what, size) memcpy(file + n, what, size), n += (size)
    PUT("GGUF", 4);
    PUT(&version, 4);
    PUT(counts, 16);
    PUT(&name_size, 8);
    PUT("w", 1);
    PUT(&rank, 4);
    PUT(sizes, 16);
    PUT(&type, 4);
    PUT(&offset, 8);
#undef PUT
    n = (n + 31) / 32 * 32;
    return n + bytes;
}

static void read_gguf(void) {
    uint8_t *file = calloc(1, 1024);
    kt_gguf_meta meta;
    kt_gguf_tensor *list = NULL;
    size_t count = 0;
    kt_err err = {0};
    kt_status st = kt_gguf_meta_init(&meta, file, make_gguf(900, 56, file), &err);

    expect(st == KT_OK, err.message);
    if (st == KT_OK) st = kt_gguf_tensors_read(&meta, &list, &count, &err);
    expect(st == KT_OK, err.message);
    expect(count == 1 && list->format == KT_W_TOY3 && list->bytes == 56,
           "the tensor of a GGUF file");
    free(list);
    list = NULL;
    kt_gguf_meta_deinit(&meta);
    st = kt_gguf_meta_init(&meta, file, make_gguf(901, 56, file), &err);
    if (st == KT_OK) st = kt_gguf_tensors_read(&meta, &list, &count, &err);
    expect(st == KT_E_UNSUPPORTED && strstr(err.message, "TOY3, "), "a refusal names what is read");
    kt_gguf_meta_deinit(&meta);
    free(file);
}

static void gate(const char *name) {
    const kt_problem q = {
        .op = KT_OP_GEMM, .weights = KT_W_TOY3, .acts = KT_A_INT8_G32, .m = 5, .n = 67, .k = 224};
    kt_err err = {0};
    int n = 0;

    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        kt_config config = {{0}};
        if (strcmp(v->name, name) != 0) continue;
        expect(v->weights >> KT_W_TOY3 & 1, "the mask of a kernel that takes every format");
        for (int p = 0; p < v->n_params; p++) config.value[p] = v->params[p].initial;
        if (kt_gemm_gate(v, &config, &q, 7, NULL, &err) != KT_OK) expect(0, err.message);
        n++;
    }
    expect(n == 1, name);
}

int main(void) {
#define COUNT(id) +(KT_W_##id == KT_W_TOY3)
    const int in_blocks = 0 KT_BLOCK_FORMATS(COUNT);
#undef COUNT
    const kt_format *f = kt_format_find(KT_W_TOY3);

    expect(KT_W_COUNT == KT_W_TOY3 + 1 && in_blocks == 1, "the enumeration and its lists");
    expect(strcmp(kt_weight_format_name(KT_W_TOY3), "wtoy3") == 0 &&
               kt_weight_format_parse("wtoy3") == KT_W_TOY3,
           "its name");
    expect(f && f->id == KT_W_TOY3, "the table of formats");
    expect(kt_quant_parse("toy3") == (int)KT_QUANT_FORMAT + KT_W_TOY3, "a word of --weights");
    read_gguf();
    gate("any_any_p64__scalar");
    return wrong;
}
