/* From text to ids and back. The order is that of the reference tokenizers: added tokens that are
 * not normalised, normal form, added tokens that are, pieces, merges.
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
    bool has_spans; /* added tokens only inside of them */
    const kt_trusted_span *spans;
    size_t n_spans;
    size_t next_span; /* of the text as it came */
    const char *text; /* as it came: what spans count in */
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

/* Trusted spans as they lie in some text. Zero-initialise; free(data). */
typedef struct span_list {
    kt_trusted_span *data;
    size_t size, capacity;
} span_list;

static kt_status add_span(span_list *l, size_t begin, size_t end, kt_err *err) {
    void *data = l->data;
    kt_status st = kt_grow(&data, l->size, &l->capacity, 1, sizeof *l->data, err);

    l->data = data;
    if (st != KT_OK) return st;
    l->data[l->size++] = (kt_trusted_span){begin, end};
    return KT_OK;
}

static kt_status encode_pieces(encoding *e, const char *s, size_t n, kt_err *err) {
    return kt_splitter_run(&e->t->splitter, e->split, s, n, encode_piece, e, err);
}

/* Append the ids of the added tokens in s, and what lies between them through `between`. */
static kt_status cut_added(encoding *e, const kt_added *added, const char *s, size_t n,
                           kt_added_places *places, section_fn between, kt_err *err) {
    kt_added_match m;
    size_t at = 0;

    while (kt_added_next(added, s, n, at, e->parse_special, places, &m)) {
        if (m.begin > at) KT_TRY(between(e, s + at, m.begin - at, err));
        KT_TRY(kt_ids_append(&e->ids, m.id, err));
        at = m.end;
    }
    return at < n ? between(e, s + at, n - at, err) : KT_OK;
}

static bool is_plain(const kt_tokenizer *t, const char *s, size_t n) {
    bool plain = true;

    for (int i = 0; i < t->n_forms; i++) plain = plain && kt_normalize_is_plain(t->forms[i], s, n);
    return plain;
}

/* Normalise s[begin, end) behind what `whole` has. */
static kt_status normalize_part(encoding *e, const char *s, size_t begin, size_t end,
                                kt_text *whole, kt_err *err) {
    if (begin == end) return KT_OK;
    KT_TRY(kt_tokenizer_normalize(e->t, s + begin, end - begin, &e->normal, &e->tmp, err));
    return kt_text_append(whole, e->normal.data, e->normal.size, err);
}

/* The spans of section s[0, n) of the text, normalised apart when `whole` is given, and where they
 * then lie. */
static kt_status spans_of_section(encoding *e, const char *s, size_t n, kt_text *whole,
                                  span_list *out, kt_err *err) {
    size_t offset = (size_t)(s - e->text), at = 0;

    while (e->next_span < e->n_spans && e->spans[e->next_span].end <= offset) e->next_span++;
    for (size_t i = e->next_span; i < e->n_spans && e->spans[i].begin < offset + n; i++) {
        size_t begin = e->spans[i].begin > offset ? e->spans[i].begin - offset : 0;
        size_t end = e->spans[i].end < offset + n ? e->spans[i].end - offset : n;
        if (!whole) {
            KT_TRY(add_span(out, begin, end, err));
            continue;
        }
        KT_TRY(normalize_part(e, s, at, begin, whole, err));
        at = whole->size;
        KT_TRY(normalize_part(e, s, begin, end, whole, err));
        KT_TRY(add_span(out, at, whole->size, err));
        at = end;
    }
    return whole ? normalize_part(e, s, at, n, whole, err) : KT_OK;
}

/* A section in whose normal form added tokens are looked for inside of spans. */
static kt_status encode_spanned(encoding *e, const char *s, size_t n, kt_err *err) {
    bool plain = is_plain(e->t, s, n);
    kt_text whole = {0};
    span_list spans = {0};
    kt_added_places places = {0};
    kt_status st = spans_of_section(e, s, n, plain ? NULL : &whole, &spans, err);

    places.spans = spans.data;
    places.n_spans = spans.size;
    if (st == KT_OK)
        st = cut_added(e, &e->t->added_normal, plain ? s : whole.data, plain ? n : whole.size,
                       &places, encode_pieces, err);
    free(whole.data);
    free(spans.data);
    return st;
}

static kt_status encode_section(encoding *e, const char *s, size_t n, kt_err *err) {
    const kt_tokenizer *t = e->t;

    if (e->has_spans && t->added_normal.n_nodes) return encode_spanned(e, s, n, err);
    if (!is_plain(t, s, n)) {
        KT_TRY(kt_tokenizer_normalize(t, s, n, &e->normal, &e->tmp, err));
        s = e->normal.data;
        n = e->normal.size;
    }
    return cut_added(e, &t->added_normal, s, n, NULL, encode_pieces, err);
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

/* Clean text for e, and its spans, which count in the text as it came, moved along with it. */
static kt_status clean_spans(encoding *e, const char *text, size_t size, span_list *out,
                             kt_err *err) {
    size_t at = 0;

    for (size_t i = 0; i < e->n_spans; i++) {
        size_t begin;
        KT_TRY(clean_utf8(text + at, e->spans[i].begin - at, &e->clean, err));
        begin = e->clean.size;
        at = e->spans[i].end;
        KT_TRY(clean_utf8(text + e->spans[i].begin, at - e->spans[i].begin, &e->clean, err));
        KT_TRY(add_span(out, begin, e->clean.size, err));
    }
    KT_TRY(clean_utf8(text + at, size - at, &e->clean, err));
    e->spans = out->data;
    return KT_OK;
}

static kt_status encode(encoding *e, const char *text, size_t size, int32_t **ids, size_t *count,
                        kt_err *err) {
    span_list moved = {0};
    kt_added_places places;
    kt_status st;

    *ids = NULL;
    *count = 0;
    st = kt_split_work_create(&e->split, err);
    if (st == KT_OK && kt_utf8_valid_prefix(text, size) != size) {
        st = clean_spans(e, text, size, &moved, err);
        text = e->clean.data;
        size = e->clean.size;
    }
    e->text = text;
    places = (kt_added_places){e->spans, e->n_spans, 0};
    if (st == KT_OK) st = kt_ids_reserve(&e->ids, size / 4 + 1, err);
    if (st == KT_OK)
        st = cut_added(e, &e->t->added_raw, text, size, e->has_spans ? &places : NULL,
                       encode_section, err);
    if (st == KT_OK) {
        *ids = e->ids.data;
        *count = e->ids.size;
        e->ids.data = NULL;
    }
    kt_split_work_destroy(e->split);
    kt_bpe_work_deinit(&e->bpe);
    free(moved.data);
    free(e->clean.data);
    free(e->normal.data);
    free(e->tmp.data);
    free(e->ids.data);
    return st;
}

kt_status kt_tokenizer_encode(const kt_tokenizer *t, const char *text, size_t size,
                              bool parse_special, int32_t **ids, size_t *count, kt_err *err) {
    encoding e = {.t = t, .parse_special = parse_special};
    return encode(&e, text, size, ids, count, err);
}

kt_status kt_tokenizer_encode_spans(const kt_tokenizer *t, const char *text, size_t size,
                                    const kt_trusted_span *spans, size_t n_spans, int32_t **ids,
                                    size_t *count, kt_err *err) {
    encoding e = {
        .t = t, .parse_special = true, .has_spans = true, .spans = spans, .n_spans = n_spans};

    for (size_t i = 0, end = 0; i < n_spans; end = spans[i++].end)
        if (spans[i].begin < end || spans[i].end < spans[i].begin || spans[i].end > size)
            return kt_fail(err, KT_E_INVALID,
                           "trusted span %zu is [%zu, %zu), expected ascending ones in %zu bytes",
                           i, spans[i].begin, spans[i].end, size);
    return encode(&e, text, size, ids, count, err);
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
