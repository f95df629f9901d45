/* What both readers fill a tokenizer with. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "runtime/token/tokenizer_impl.h"
#include "runtime/token/utf8_scan.h"

/* Characters of the alphabet: printable Latin-1 stands for itself, the other 68 bytes, in ascending
 * order, are U+0100 onward. */
static int alphabet_byte(uint32_t cp) {
    if ((cp >= 33 && cp <= 126) || (cp >= 161 && cp <= 172) || (cp >= 174 && cp <= 255)) {
        return (int)cp;
    }
    if (cp < 0x100 || cp > 0x143) return -1;
    cp -= 0x100;
    if (cp <= 32) return (int)cp;
    if (cp <= 66) return (int)(cp - 33 + 127);
    return 173;
}

kt_status kt_byte_alphabet_read(const char *s, size_t n, kt_text *out, bool *ok, kt_err *err) {
    size_t i = 0;

    out->size = 0;
    *ok = false;
    KT_TRY(kt_text_reserve(out, n, err));
    while (i < n) {
        uint32_t cp = 0;
        int len = kt_utf8_next(s + i, n - i, &cp), byte;
        if (len <= 0 || (byte = alphabet_byte(cp)) < 0) return KT_OK;
        out->data[out->size++] = (char)byte;
        i += (size_t)len;
    }
    *ok = true;
    return KT_OK;
}

kt_status kt_tokenizer_normalize(const kt_tokenizer *t, const char *s, size_t n, kt_text *out,
                                 kt_text *tmp, kt_err *err) {
    out->size = 0;
    if (t->n_forms == 0) return kt_text_append(out, s, n, err);
    KT_TRY(kt_normalize(t->forms[0], s, n, out, err));
    for (int i = 1; i < t->n_forms; i++) {
        kt_text from = *out;
        *out = *tmp;
        *tmp = from;
        KT_TRY(kt_normalize(t->forms[i], tmp->data, tmp->size, out, err));
    }
    return KT_OK;
}

kt_status kt_tokenizer_add_special(kt_tokenizer *t, int64_t id, const char *content, size_t size,
                                   kt_added_flags flags, bool normalized, kt_err *err) {
    const uint32_t bits = KT_TOKEN_ADDED | (flags.special ? KT_TOKEN_SPECIAL : 0u);
    kt_text normal = {0}, tmp = {0};
    kt_status st = kt_bpe_add_token(&t->bpe, id, content, size, bits, err);

    if (st == KT_OK && normalized) {
        st = kt_tokenizer_normalize(t, content, size, &normal, &tmp, err);
        if (st == KT_OK) {
            st = kt_added_insert(&t->added_normal, normal.data, normal.size, (int32_t)id, flags,
                                 err);
        }
    } else if (st == KT_OK) {
        st = kt_added_insert(&t->added_raw, content, size, (int32_t)id, flags, err);
    }
    free(normal.data);
    free(tmp.data);
    return st;
}
