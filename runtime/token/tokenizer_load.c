/* Which reader a path belongs to. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/token/tokenizer_impl.h"

typedef kt_status (*reader_fn)(kt_tokenizer *t, const char *path, kt_err *err);

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static reader_fn reader_of(const char *path) {
    if (ends_with(path, ".gguf")) return kt_tokenizer_read_gguf;
    if (ends_with(path, "tiktoken.model")) return kt_tokenizer_read_tiktoken;
    return kt_tokenizer_read_json;
}

/* The tokenizer's file in a folder: the first of these that is there. */
static kt_status find_file(const char *folder, char *out, size_t out_bytes, kt_err *err) {
    static const char *const files[] = {"tokenizer.json", "tiktoken.model"};

    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int n = snprintf(out, out_bytes, "%s/%s", folder, files[i]);
        if (n < 0 || (size_t)n >= out_bytes) {
            return kt_fail(err, KT_E_INVALID, "%.200s: the path is too long", folder);
        }
        if (access(out, F_OK) == 0) return KT_OK;
    }
    return kt_fail(err, KT_E_NOT_FOUND,
                   "%.300s: neither tokenizer.json nor tiktoken.model is there; a model needs its "
                   "tokenizer",
                   folder);
}

kt_status kt_tokenizer_load(const char *path, kt_tokenizer **out, kt_err *err) {
    char inside[4096];
    struct stat info;
    kt_tokenizer *t;
    kt_status st;

    *out = NULL;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        KT_TRY(find_file(path, inside, sizeof inside, err));
        path = inside;
    }
    t = calloc(1, sizeof *t);
    if (!t) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the tokenizer", path);
    kt_bpe_init(&t->bpe);
    st = reader_of(path)(t, path, err);
    if (st != KT_OK) {
        kt_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return KT_OK;
}
