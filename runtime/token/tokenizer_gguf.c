/* Tokenizer out of GGUF metadata. SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "dispatch/model/gguf_meta.h"
#include "runtime/token/tokenizer_impl.h"

enum { normal = 1, control = 3, user_defined = 4 }; /* tokenizer.ggml.token_type */

static kt_status read_pre(kt_tokenizer *t, const kt_gguf_meta *m, kt_err *err) {
    const char *name = "default";
    size_t n = strlen(name);

    if (kt_gguf_find(m, "tokenizer.ggml.pre")) {
        KT_TRY(kt_gguf_need_string(m, "tokenizer.ggml.pre", &name, &n, err));
    }
    return kt_tokenizer_set_pre(t, name, n, err);
}

static kt_status read_tokens(kt_tokenizer *t, const kt_gguf_meta *m, kt_text *bytes, kt_err *err) {
    const kt_gguf_value *tokens, *kinds = NULL;
    const uint8_t *at;

    KT_TRY(kt_gguf_need_array(m, "tokenizer.ggml.tokens", KT_GGUF_STRING, &tokens, err));
    if (kt_gguf_find(m, "tokenizer.ggml.token_type")) {
        KT_TRY(kt_gguf_need_array(m, "tokenizer.ggml.token_type", KT_GGUF_I32, &kinds, err));
        if (kinds->count != tokens->count) {
            return kt_fail(err, KT_E_MISMATCH, "%llu tokens but %llu token types",
                           (unsigned long long)tokens->count, (unsigned long long)kinds->count);
        }
    }
    at = tokens->data;
    for (uint64_t i = 0; i < tokens->count && i < KT_BPE_MAX_IDS; i++) {
        size_t n;
        const char *s = kt_gguf_next_string(&at, &n);
        int kind = kinds ? kt_gguf_i32(kinds, i) : normal;
        bool in_alphabet;
        if ((kind == control || kind == user_defined) && n > 0) {
            kt_added_flags flags = {.special = kind == control};
            KT_TRY(kt_tokenizer_add_special(t, (int64_t)i, s, n, flags, false, err));
            continue;
        }
        KT_TRY(kt_byte_alphabet_read(s, n, bytes, &in_alphabet, err));
        KT_TRY(kt_bpe_add_token(&t->bpe, (int64_t)i, in_alphabet ? bytes->data : s,
                                in_alphabet ? bytes->size : n, in_alphabet ? KT_TOKEN_PIECE : 0,
                                err));
    }
    return KT_OK;
}

static kt_status read_merges(kt_tokenizer *t, const kt_gguf_meta *m, kt_text *a, kt_text *b,
                             kt_err *err) {
    const kt_gguf_value *merges;
    const uint8_t *at;

    KT_TRY(kt_gguf_need_array(m, "tokenizer.ggml.merges", KT_GGUF_STRING, &merges, err));
    at = merges->data;
    for (uint64_t i = 0; i < merges->count; i++) {
        size_t n;
        const char *s = kt_gguf_next_string(&at, &n);
        const char *space = n > 2 ? memchr(s + 1, ' ', n - 1) : NULL;
        bool ok_a = false, ok_b = false;
        if (space) {
            size_t n_a = (size_t)(space - s);
            KT_TRY(kt_byte_alphabet_read(s, n_a, a, &ok_a, err));
            KT_TRY(kt_byte_alphabet_read(space + 1, n - n_a - 1, b, &ok_b, err));
        }
        if (!ok_a || !ok_b) {
            return kt_fail(err, KT_E_FORMAT, "merge %llu is not two tokens of the byte alphabet",
                           (unsigned long long)i);
        }
        KT_TRY(kt_bpe_add_merge(&t->bpe, a->data, a->size, b->data, b->size, err));
    }
    return KT_OK;
}

static kt_status read_all(kt_tokenizer *t, const kt_gguf_meta *m, kt_text *a, kt_text *b,
                          kt_err *err) {
    const char *model;
    size_t n;

    KT_TRY(kt_gguf_need_string(m, "tokenizer.ggml.model", &model, &n, err));
    if (n != 4 || memcmp(model, "gpt2", 4) != 0) {
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "a tokenizer of type '%.*s' is not supported, only byte-level BPE ('gpt2') is",
            n < 100 ? (int)n : 100, model);
    }
    KT_TRY(read_pre(t, m, err));
    KT_TRY(read_tokens(t, m, a, err));
    KT_TRY(kt_bpe_index(&t->bpe, err));
    if (!t->bpe.by_rank || kt_gguf_find(m, "tokenizer.ggml.merges"))
        KT_TRY(read_merges(t, m, a, b, err));
    KT_TRY(kt_bpe_finish(&t->bpe, err));
    if (kt_gguf_int(m, "tokenizer.ggml.add_bos_token", 0))
        kt_tokenizer_add_first(t, kt_gguf_int(m, "tokenizer.ggml.bos_token_id", -1));
    return KT_OK;
}

kt_status kt_tokenizer_read_gguf(kt_tokenizer *t, const char *path, kt_err *err) {
    kt_text a = {0}, b = {0};
    kt_mapping file = {0};
    kt_gguf_meta meta = {0};
    kt_status st = kt_mapping_open(path, &file, err);

    if (st != KT_OK) return st;
    st = kt_gguf_meta_init(&meta, file.data, file.bytes, err);
    if (st == KT_OK) st = read_all(t, &meta, &a, &b, err);
    if (st != KT_OK) st = kt_fail_prefix(err, st, "%s", path);
    kt_gguf_meta_deinit(&meta);
    kt_mapping_close(&file);
    free(a.data);
    free(b.data);
    return st;
}
