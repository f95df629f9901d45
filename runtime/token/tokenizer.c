/* From text to ids and back. The order is that of the reference tokenizers: added tokens that are not
 * normalised, normal form, added tokens that are, pieces, merges.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/token/tokenizer.h"

#include <stdio.h>

#include "runtime/token/tokenizer_impl.h"
#include "runtime/token/utf8_scan.h"

void kt_tokenizer_destroy(kt_tokenizer *t) {
    if (!t) return;
    kt_bpe_deinit(&t->bpe);
    kt_added_deinit(&t->added_raw);
    kt_added_deinit(&t->added_normal);
    kt_splitter_deinit(&t->splitter);
    free(t);
}

/* ---- text to ids ---- */

/* One call of encode. */
typedef struct encoding {
    const kt_tokenizer *t;
    bool parse_special;
    kt_bpe_work bpe;
    kt_split_work *split;
    kt_text clean, normal, tmp;
    kt_ids ids;
} encoding;

static kt_status encode_piece(void *arg, const char *piece, size_t size, kt_err *err) {
    encoding *e = arg;
    return kt_bpe_encode(&e->t->bpe, &e->bpe, piece, size, &e->ids, err);
}

typedef kt_status (*section_fn)(encoding *e, const char *s, size_t n, kt_err *err);

static kt_status encode_pieces(encoding *e, const char *s, size_t n, kt_err *err) {
    return kt_splitter_run(&e->t->splitter, e->split, s, n, encode_piece, e, err);
}

/* Append the ids of the added tokens in s, and what lies between them through `between`. */
static kt_status cut_added(encoding *e, const kt_added *added, const char *s, size_t n,
                           section_fn between, kt_err *err) {
    kt_added_match m;
    size_t at = 0;

    while (kt_added_next(added, s, n, at, e->parse_special, &m)) {
        if (m.begin > at) KT_TRY(between(e, s + at, m.begin - at, err));
        KT_TRY(kt_ids_append(&e->ids, m.id, err));
        at = m.end;
    }
    return at < n ? between(e, s + at, n - at, err) : KT_OK;
}

static kt_status encode_section(encoding *e, const char *s, size_t n, kt_err *err) {
    const kt_tokenizer *t = e->t;
    bool plain = true;

    for (int i = 0; i < t->n_forms; i++) plain = plain && kt_normalize_is_plain(t->forms[i], s, n);
    if (!plain) {
        KT_TRY(kt_tokenizer_normalize(t, s, n, &e->normal, &e->tmp, err));
        s = e->normal.data;
        n = e->normal.size;
    }
    return cut_added(e, &t->added_normal, s, n, encode_pieces, err);
}

/* Copy s into out with one U+FFFD for each maximal ill-formed part. */
static kt_status clean_utf8(const char *s, size_t n, kt_text *out, kt_err *err) {
    size_t i = 0;

    while (i < n) {
        size_t good = kt_utf8_valid_prefix(s + i, n - i);
        uint32_t cp;
        int bad;
        KT_TRY(kt_text_append(out, s + i, good, err));
        i += good;
        if (i == n) break;
        bad = kt_utf8_next(s + i, n - i, &cp);
        i = bad == 0 ? n : i + (size_t)-bad;
        KT_TRY(kt_text_append(out, KT_UTF8_REPLACEMENT, 3, err));
    }
    return KT_OK;
}

kt_status kt_tokenizer_encode(const kt_tokenizer *t, const char *text, size_t size,
                              bool parse_special, int32_t **ids, size_t *count, kt_err *err) {
    encoding e = {.t = t, .parse_special = parse_special};
    kt_status st;

    *ids = NULL;
    *count = 0;
    st = kt_split_work_create(&e.split, err);
    if (st == KT_OK && kt_utf8_valid_prefix(text, size) != size) {
        st = clean_utf8(text, size, &e.clean, err);
        text = e.clean.data;
        size = e.clean.size;
    }
    if (st == KT_OK) st = kt_ids_reserve(&e.ids, size / 4 + 1, err);
    if (st == KT_OK) st = cut_added(&e, &t->added_raw, text, size, encode_section, err);
    if (st == KT_OK) {
        *ids = e.ids.data;
        *count = e.ids.size;
        e.ids.data = NULL;
    }
    kt_split_work_destroy(e.split);
    kt_bpe_work_deinit(&e.bpe);
    free(e.clean.data);
    free(e.normal.data);
    free(e.tmp.data);
    free(e.ids.data);
    return st;
}

/* ---- ids to text ---- */

int32_t kt_tokenizer_size(const kt_tokenizer *t) {
    return t->bpe.n_tokens;
}

const char *kt_tokenizer_bytes(const kt_tokenizer *t, int32_t id, size_t *size, bool *special) {
    const kt_token *token;

    *size = 0;
    if (special) *special = false;
    if (id < 0 || id >= t->bpe.n_tokens) return NULL;
    token = &t->bpe.tokens[id];
    if (!(token->flags & KT_TOKEN_PRESENT)) return NULL;
    *size = token->size;
    if (special) *special = (token->flags & KT_TOKEN_SPECIAL) != 0;
    return t->bpe.bytes.data + token->offset;
}

int32_t kt_tokenizer_find(const kt_tokenizer *t, const char *text) {
    size_t n = strlen(text);
    int32_t id = kt_added_find(&t->added_raw, text, n);

    if (id < 0) id = kt_added_find(&t->added_normal, text, n);
    return id >= 0 ? id : kt_bpe_find(&t->bpe, text, n);
}

kt_status kt_tokenizer_decode(const kt_tokenizer *t, const int32_t *ids, size_t count,
                              bool skip_special, char **text, size_t *size, kt_err *err) {
    kt_text raw = {0}, clean = {0};
    kt_status st = KT_OK;

    *text = NULL;
    *size = 0;
    for (size_t i = 0; st == KT_OK && i < count; i++) {
        bool special;
        size_t n;
        const char *bytes = kt_tokenizer_bytes(t, ids[i], &n, &special);
        if (!(skip_special && special)) st = kt_text_append(&raw, bytes, n, err);
    }
    if (st == KT_OK) st = clean_utf8(raw.data, raw.size, &clean, err);
    if (st == KT_OK) st = kt_text_append(&clean, "", 1, err);
    if (st == KT_OK) {
        *text = clean.data;
        *size = clean.size - 1;
        clean.data = NULL;
    }
    free(raw.data);
    free(clean.data);
    return st;
}

/* At most 3 bytes are held between calls: a character that is not complete yet. */
kt_status kt_detokenizer_push(const kt_tokenizer *t, kt_detokenizer *d, int32_t id,
                              bool skip_special, char *out, size_t out_bytes, size_t *size) {
    bool special;
    size_t n, i = 0, used = 0, total;
    const char *bytes = kt_tokenizer_bytes(t, id, &n, &special);
    char joined[4];

    *size = 0;
    if (!bytes || (skip_special && special)) return KT_OK;
    total = d->n_held + n;
    /* each byte gives at most one U+FFFD */
    if (total > out_bytes / 3) return KT_E_INVALID;
    while (i < total) {
        const char *at = i < d->n_held ? joined : bytes + (i - d->n_held);
        size_t left = total - i;
        uint32_t cp;
        int len;
        if (i < d->n_held) { /* a character that begins in what was held */
            size_t from_held = d->n_held - i, room = sizeof joined - from_held;
            size_t more = n < room ? n : room;
            memcpy(joined, d->held + i, from_held);
            memcpy(joined + from_held, bytes, more);
            left = from_held + more;
        }
        len = kt_utf8_next(at, left, &cp);
        if (len == 0) break;
        memcpy(out + used, len > 0 ? at : KT_UTF8_REPLACEMENT, len > 0 ? (size_t)len : 3);
        used += len > 0 ? (size_t)len : 3;
        i += (size_t)(len > 0 ? len : -len);
    }
    for (size_t k = 0; k < total - i; k++) {
        size_t from = i + k;
        d->held[k] = from < d->n_held ? d->held[from] : bytes[from - d->n_held];
    }
    d->n_held = total - i;
    *size = used;
    return KT_OK;
}

size_t kt_detokenizer_flush(kt_detokenizer *d, char *out, size_t out_bytes) {
    size_t n = d->n_held && out_bytes >= 3 ? 3 : 0;

    memcpy(out, KT_UTF8_REPLACEMENT, n);
    d->n_held = 0;
    return n;
}
