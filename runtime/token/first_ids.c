/* What stands in front of every text: the BOS of models that have one. Where a model says so: GGUF
 * metadata, tokenizer_config.json's add_bos_token, or the template of tokenizer.json's
 * post-processor, which add_bos_token overrides. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "runtime/token/tokenizer_impl.h"

const int32_t *kt_tokenizer_first_ids(const kt_tokenizer *t, size_t *n) {
    *n = (size_t)t->n_first;
    return t->first;
}

kt_status kt_tokenizer_begin(const kt_tokenizer *t, int32_t **ids, size_t *n, kt_err *err) {
    const size_t more = (size_t)t->n_first, bytes = more * sizeof **ids;
    int32_t *grown;

    if (more == 0 || (*n >= more && memcmp(*ids, t->first, bytes) == 0)) return KT_OK;
    grown = realloc(*ids, (*n + more) * sizeof *grown);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %zu ids", *n + more);
    memmove(grown + more, grown, *n * sizeof *grown);
    memcpy(grown, t->first, bytes);
    *ids = grown;
    *n += more;
    return KT_OK;
}

void kt_tokenizer_add_first(kt_tokenizer *t, int64_t id) {
    if (id < 0 || id >= kt_tokenizer_size(t) || t->n_first == KT_TOKENIZER_MOST_FIRST) return;
    t->first[t->n_first++] = (int32_t)id;
}

/* {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": ...}], "special_tokens": {"<s>":
 * {"ids": [1]}}}, alone or in a sequence of processors. */
static void read_template(kt_tokenizer *t, const kt_json *p, int depth) {
    const kt_json *list = kt_json_get(p, "processors"), *single = kt_json_get(p, "single");

    for (size_t i = 0; depth < 4 && i < kt_json_length(list); i++)
        read_template(t, kt_json_at(list, i), depth + 1);
    if (strcmp(kt_json_text(p, "type"), "TemplateProcessing") != 0) return;
    for (size_t i = 0; i < kt_json_length(single); i++) {
        const kt_json *special = kt_json_get(kt_json_at(single, i), "SpecialToken");
        const char *name = kt_json_text(special, "id");
        const kt_json *ids =
            kt_json_get(kt_json_get(kt_json_get(p, "special_tokens"), name), "ids");
        if (!special) return; /* the text itself */
        for (size_t k = 0; k < kt_json_length(ids); k++)
            kt_tokenizer_add_first(t, kt_json_int(kt_json_at(ids, k), -1));
    }
}

/* The other file of a model's tokenizer, beside path; NULL when it is not there or no JSON. */
static kt_status read_config(const char *path, kt_json_doc **out, kt_err *err) {
    const char *slash = strrchr(path, '/');
    char config[4096], *text = NULL;
    size_t size = 0;
    kt_status st;
    int n = snprintf(config, sizeof config, "%.*stokenizer_config.json",
                     slash ? (int)(slash + 1 - path) : 0, path);

    *out = NULL;
    if (n < 0 || (size_t)n >= sizeof config) return KT_OK;
    st = kt_file_read(config, (size_t)64 << 20, &text, &size, err);
    if (st == KT_OK) st = kt_json_parse(text, size, NULL, out, err);
    free(text);
    if (st == KT_OK) return KT_OK;
    *out = NULL;
    return st == KT_E_NOMEM ? kt_fail_prefix(err, st, "tokenizer_config.json") : KT_OK;
}

kt_status kt_tokenizer_read_first(kt_tokenizer *t, const kt_json *root, const char *path,
                                  kt_err *err) {
    kt_json_doc *doc;
    const kt_json *config, *add, *bos;
    const char *text;

    KT_TRY(read_config(path, &doc, err));
    config = kt_json_root(doc);
    add = kt_json_get(config, "add_bos_token");
    bos = kt_json_get(config, "bos_token");
    text = kt_json_type_of(bos) == KT_JSON_OBJECT ? kt_json_text(bos, "content")
                                                  : kt_json_text(config, "bos_token");
    if (kt_json_type_of(add) != KT_JSON_BOOL)
        read_template(t, kt_json_get(root, "post_processor"), 0);
    else if (kt_json_bool(add, false) && *text)
        kt_tokenizer_add_first(t, kt_tokenizer_find(t, text));
    kt_json_destroy(doc);
    return KT_OK;
}
