/* Which reader a path belongs to. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "runtime/token/tokenizer_impl.h"

static bool ends_with(const char *s, const char *end) {
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

kt_status kt_tokenizer_load(const char *path, kt_tokenizer **out, kt_err *err) {
    char inside[4096];
    struct stat info;
    kt_tokenizer *t;
    kt_status st;

    *out = NULL;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        int n = snprintf(inside, sizeof inside, "%s/tokenizer.json", path);
        if (n < 0 || (size_t)n >= sizeof inside) {
            return kt_fail(err, KT_E_INVALID, "%s: the path is too long", path);
        }
        path = inside;
    }
    t = calloc(1, sizeof *t);
    if (!t) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the tokenizer", path);
    kt_bpe_init(&t->bpe);
    st = ends_with(path, ".gguf") ? kt_tokenizer_read_gguf(t, path, err)
                                  : kt_tokenizer_read_json(t, path, err);
    if (st != KT_OK) {
        kt_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return KT_OK;
}
