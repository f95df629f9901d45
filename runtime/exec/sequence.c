/* Sequences: their tokens, pages and states. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/exec/engine_impl.h"
#include "runtime/kv/page_tier.h"

_Static_assert(KT_PAGE_TOKENS == KT_PREFIX_TOKENS, "one size of pages");

/* ---- making and reserving ---- */

kt_status kt_sequence_create(kt_engine *e, int64_t capacity, kt_sequence **out, kt_err *err) {
    kt_sequence *s = NULL;
    kt_status st;

    *out = NULL;
    if (capacity < 0)
        return kt_fail(err, KT_E_INVALID, "sequence of %lld tokens, expected 0 or more",
                       (long long)capacity);
    s = calloc(1, sizeof *s);
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for a sequence");
    s->engine = e;
    s->state = s->marked = KT_STATE_NONE;
    st = kt_sequence_reserve(s, capacity, err);
    if (st != KT_OK) {
        kt_sequence_destroy(s);
        return st;
    }
    *out = s;
    return KT_OK;
}

void kt_sequence_destroy(kt_sequence *s) {
    if (!s) return;
    while (s->n_pages > 0) kt_pages_give(&s->engine->pages, s->page[--s->n_pages]);
    kt_states_give(&s->engine->states, s->state);
    kt_states_give(&s->engine->states, s->marked);
    free(s->page);
    free(s->token);
    free(s);
}

int64_t kt_sequence_length(const kt_sequence *s) {
    return s->length;
}

/* Room for so many pages in the tables. */
static bool grow(kt_sequence *s, int64_t pages) {
    uint32_t *page;
    int32_t *token;

    if (pages <= s->room) return true;
    page = realloc(s->page, (size_t)pages * sizeof *page);
    if (page) s->page = page;
    token = page ? realloc(s->token, (size_t)pages * KT_PAGE_TOKENS * sizeof *token) : NULL;
    if (!token) return false;
    s->token = token;
    s->room = pages;
    return true;
}

/* A state of zeros, where the model has states and the sequence none. */
static bool begin_state(kt_sequence *s) {
    kt_engine *e = s->engine;

    if (!e->state_floats || s->state != KT_STATE_NONE) return true;
    s->state = kt_states_take(&e->states);
    if (s->state == KT_STATE_NONE) return false;
    kt_states_clear(&e->states, s->state);
    return true;
}

kt_status kt_sequence_reserve(kt_sequence *s, int64_t tokens, kt_err *err) {
    kt_engine *e = s->engine;
    const int64_t pages = kt_kv_pages_for(tokens), more = pages - s->n_pages;

    if (tokens > e->max_context)
        return kt_fail(err, KT_E_INVALID, "sequence of %lld tokens: the context is %lld",
                       (long long)tokens, (long long)e->max_context);
    if (tokens <= s->capacity) return KT_OK;
    if (more > kt_pages_room(&e->pages))
        return kt_fail(
            err, KT_E_NOMEM,
            "sequence of %lld tokens: %lld more pages of %d tokens are needed, %lld of %lld "
            "can be had (--kv-memory)",
            (long long)tokens, (long long)more, KT_PAGE_TOKENS, (long long)kt_pages_room(&e->pages),
            (long long)e->pages.n);
    if (!grow(s, pages))
        return kt_fail(err, KT_E_NOMEM, "no memory for a sequence of %lld tokens",
                       (long long)tokens);
    if (!begin_state(s))
        return kt_fail(
            err, KT_E_NOMEM,
            "sequence of %lld tokens: all %lld slots for states of recurrent layers are in "
            "use (--kv-memory)",
            (long long)tokens, (long long)e->states.n);
    while (s->n_pages < pages) s->page[s->n_pages++] = (uint32_t)kt_pages_take(&e->pages);
    s->capacity = tokens;
    return KT_OK;
}

/* ---- appending ---- */

/* Page i is full. Where the same tokens are known already, their page is used and ours given back.
 */
static void learn(kt_sequence *s, int64_t i) {
    kt_page_pool *p = &s->engine->pages;
    const int64_t before = i ? (int64_t)s->page[i - 1] : KT_PREFIX_NONE;
    const int64_t known = kt_prefix_find(p->prefix, before, s->token + i * KT_PAGE_TOKENS);

    if (known == KT_PREFIX_NONE) {
        kt_prefix_add(p->prefix, s->page[i], before, s->token + i * KT_PAGE_TOKENS);
        kt_page_tier_keep(p, s->page[i], before, s->token + i * KT_PAGE_TOKENS);
        return;
    }
    kt_pages_share(p, (uint32_t)known);
    kt_pages_give(p, s->page[i]);
    s->page[i] = (uint32_t)known;
}

/* What was guessed before is right, or was taken back: only this step's guesses may still go. */
void kt_sequence_append(kt_sequence *s, const int32_t *tokens, int64_t n) {
    const int64_t certain = s->length + (n > s->guesses ? n - s->guesses : 0);

    memcpy(s->token + s->length, tokens, (size_t)n * sizeof *tokens);
    s->length += n;
    for (; (s->known + 1) * KT_PAGE_TOKENS <= certain; s->known++) learn(s, s->known);
    s->guesses = 0;
}

int64_t kt_sequence_guess(kt_sequence *s, int64_t n, int n_spans) {
    const kt_engine *e = s->engine;

    s->guesses = e->state_floats && kt_states_room(&e->states) < n_spans ? 0 : n;
    return s->guesses;
}

/* Does the sequence end with a page whose state is not kept yet? */
static bool lacks_state(kt_sequence *s) {
    kt_engine *e = s->engine;

    if (!e->state_floats || s->length == 0 || s->length != s->known * KT_PAGE_TOKENS) return false;
    return kt_states_use(&e->states, s->page[s->known - 1]) == KT_STATE_NONE;
}

void kt_sequence_keep_state(kt_sequence *s) {
    kt_engine *e = s->engine;
    int32_t slot;

    if (!lacks_state(s)) return;
    slot = kt_states_take(&e->states);
    if (slot == KT_STATE_NONE) return;
    kt_states_copy(&e->states, s->state, slot);
    kt_states_keep(&e->states, slot, s->page[s->known - 1]);
}

void kt_sequence_keep_recent(kt_sequence *s) {
    if (!lacks_state(s)) return;
    if (s->recent) kt_states_drop(&s->engine->states, s->page[s->recent - 1]);
    s->recent = s->known;
    kt_sequence_keep_state(s);
}

void kt_sequence_mark(kt_sequence *s) {
    kt_engine *e = s->engine;

    if (!e->state_floats) return;
    if (s->marked == KT_STATE_NONE) s->marked = kt_states_take(&e->states);
    if (s->marked == KT_STATE_NONE) return;
    kt_states_copy(&e->states, s->state, s->marked);
    s->mark = s->length;
}

int64_t kt_sequence_chunk(const kt_sequence *s, int64_t left) {
    const int64_t end = (s->length + left - 1) / KT_PAGE_TOKENS * KT_PAGE_TOKENS;

    return s->engine->state_floats && end > s->length ? end - s->length : left;
}

/* ---- reuse ---- */

/* Whole pages of the longest known beginning of at most n tokens; with recurrent layers up to the
 * last one that has a state. */
static int64_t known_pages(const kt_engine *e, const int32_t *tokens, int64_t n) {
    int64_t page = KT_PREFIX_NONE, pages = 0, usable = 0;

    while ((pages + 1) * KT_PAGE_TOKENS <= n) {
        page = kt_prefix_find(e->pages.prefix, page, tokens + pages * KT_PAGE_TOKENS);
        if (page == KT_PREFIX_NONE) break;
        pages++;
        if (!e->state_floats || kt_states_has(&e->states, (uint32_t)page)) usable = pages;
    }
    return usable;
}

/* The sequence's first pages become the known ones. */
static void take_over(kt_sequence *s, const int32_t *tokens, int64_t pages) {
    kt_page_pool *p = &s->engine->pages;
    int64_t before = KT_PREFIX_NONE;

    for (int64_t i = 0; i < pages; i++) {
        before = kt_prefix_find(p->prefix, before, tokens + i * KT_PAGE_TOKENS);
        kt_pages_share(p, (uint32_t)before);
        if (i < s->n_pages)
            kt_pages_give(p, s->page[i]);
        else
            s->n_pages++;
        s->page[i] = (uint32_t)before;
    }
    s->length = pages * KT_PAGE_TOKENS;
    s->known = pages;
    if (s->capacity < s->length) s->capacity = s->length;
    memcpy(s->token, tokens, (size_t)s->length * sizeof *tokens);
}

/* A copy of the state at the end of the sequence's last page, which a slot that is taken for it may
 * be the end of. */
static bool take_over_state(kt_sequence *s) {
    kt_engine *e = s->engine;
    const uint32_t page = s->page[s->length / KT_PAGE_TOKENS - 1];
    int32_t kept = kt_states_use(&e->states, page);

    if (s->state == KT_STATE_NONE) s->state = kt_states_take(&e->states);
    if (s->state == KT_STATE_NONE || !kt_states_has(&e->states, page)) return false;
    kt_states_copy(&e->states, kept, s->state);
    return true;
}

int64_t kt_sequence_reuse(kt_sequence *s, const int32_t *tokens, int64_t n) {
    kt_engine *e = s->engine;
    const int64_t most = n - 1 < e->max_context ? n - 1 : e->max_context;
    int64_t pages;

    if (s->length == 0) kt_page_tier_restore(&e->pages, tokens, most);
    pages = s->length == 0 ? known_pages(e, tokens, most) : 0;
    if (pages == 0 || !grow(s, pages)) return s->length;
    take_over(s, tokens, pages);
    if (e->state_floats && !take_over_state(s)) return kt_sequence_truncate(s, 0);
    e->reused_tokens += s->length;
    return s->length;
}

kt_status kt_sequence_fork(const kt_sequence *s, kt_sequence **out, kt_err *err) {
    kt_engine *e = s->engine;
    const int64_t whole = s->known, shared = whole * KT_PAGE_TOKENS;
    kt_sequence *f = NULL;
    kt_status st;

    *out = NULL;
    KT_TRY(kt_sequence_create(e, 0, &f, err));
    if (!grow(f, whole)) {
        kt_sequence_destroy(f);
        return kt_fail(err, KT_E_NOMEM, "no memory for a sequence of %lld tokens",
                       (long long)s->length);
    }
    for (; f->n_pages < whole; f->n_pages++) {
        f->page[f->n_pages] = s->page[f->n_pages];
        kt_pages_share(&e->pages, s->page[f->n_pages]);
    }
    f->capacity = shared;
    st = kt_sequence_reserve(f, s->capacity, err);
    if (st == KT_OK && !begin_state(f))
        st = kt_fail(err, KT_E_NOMEM, "all %lld slots for states of recurrent layers are in use",
                     (long long)e->states.n);
    if (st != KT_OK) {
        kt_sequence_destroy(f);
        return st;
    }
    for (int64_t i = whole, at = shared; at < s->length; i++, at += KT_PAGE_TOKENS)
        kt_pages_copy(&e->pages, s->page[i], f->page[i],
                      s->length - at < KT_PAGE_TOKENS ? s->length - at : KT_PAGE_TOKENS);
    if (e->state_floats && s->state != KT_STATE_NONE)
        kt_states_copy(&e->states, s->state, f->state);
    if (s->length) memcpy(f->token, s->token, (size_t)s->length * sizeof *s->token);
    f->length = s->length;
    f->known = whole;
    *out = f;
    return KT_OK;
}

/* ---- going back ---- */

/* The longest length up to `length` whose state there is. */
static int64_t last_kept(const kt_sequence *s, int64_t length) {
    const kt_engine *e = s->engine;
    const int64_t mark = s->marked != KT_STATE_NONE && s->mark <= length ? s->mark : 0;

    if (!e->state_floats) return length;
    for (int64_t page = length / KT_PAGE_TOKENS; page * KT_PAGE_TOKENS > mark; page--)
        if (kt_states_has(&e->states, s->page[page - 1])) return page * KT_PAGE_TOKENS;
    return mark;
}

static void set_state(kt_sequence *s, int64_t length) {
    kt_engine *e = s->engine;
    int32_t from = KT_STATE_NONE;

    if (!e->state_floats || s->state == KT_STATE_NONE) return;
    if (length && s->marked != KT_STATE_NONE && s->mark == length)
        from = s->marked;
    else if (length)
        from = kt_states_use(&e->states, s->page[length / KT_PAGE_TOKENS - 1]);
    if (from == KT_STATE_NONE)
        kt_states_clear(&e->states, s->state);
    else
        kt_states_copy(&e->states, from, s->state);
}

static bool is_own(const kt_page_pool *p, uint32_t page) {
    return p->refs[page] == 1 && !kt_prefix_has(p->prefix, page);
}

/* Take page i out of those behind the tokens, whose order does not matter. */
static void remove_page(kt_sequence *s, int64_t i) {
    kt_pages_give(&s->engine->pages, s->page[i]);
    s->page[i] = s->page[--s->n_pages];
    if (s->capacity > s->n_pages * KT_PAGE_TOKENS) s->capacity = s->n_pages * KT_PAGE_TOKENS;
}

/* Pages behind `length` tokens, the last ones first, are replaced by the sequence's own as far as
 * there are any: always, where nobody else had them. */
static void own_pages_behind(kt_sequence *s, int64_t length) {
    kt_page_pool *p = &s->engine->pages;

    for (int64_t i = s->n_pages; i-- > kt_kv_pages_for(length);) {
        const int64_t capacity = s->capacity;
        int64_t page;
        if (is_own(p, s->page[i])) continue;
        remove_page(s, i);
        page = kt_pages_take(p);
        if (page < 0) continue;
        s->page[s->n_pages++] = (uint32_t)page;
        s->capacity = capacity;
    }
}

/* The page that `length` ends in, if it does so within one, becomes the sequence's own. false =
 * others have it and there is none for a copy. */
static bool own_last_page(kt_sequence *s, int64_t length) {
    kt_page_pool *p = &s->engine->pages;
    const int64_t i = length / KT_PAGE_TOKENS, rest = length % KT_PAGE_TOKENS;
    const uint32_t was = rest ? s->page[i] : 0;
    int64_t page;

    if (!rest || is_own(p, was)) return true;
    page = kt_pages_take(p);
    if (page >= 0) {
        kt_pages_copy(p, was, (uint32_t)page, rest);
        kt_pages_give(p, was);
        s->page[i] = (uint32_t)page;
        return true;
    }
    if (p->refs[was] > 1) return false;
    if (p->states) kt_states_drop(p->states, was);
    kt_prefix_remove(p->prefix, was); /* what followed it was kept for reuse alone, so it is gone */
    return true;
}

int64_t kt_sequence_truncate(kt_sequence *s, int64_t length) {
    kt_engine *e = s->engine;

    if (length < 0 || length >= s->length) return s->length;
    length = last_kept(s, length);
    own_pages_behind(s, length);
    while (!own_last_page(s, length)) {
        length = last_kept(s, length / KT_PAGE_TOKENS * KT_PAGE_TOKENS);
        own_pages_behind(s, length);
    }
    set_state(s, length);
    if (s->known > length / KT_PAGE_TOKENS) s->known = length / KT_PAGE_TOKENS;
    if (s->recent > s->known) s->recent = 0;
    if (s->mark > length) {
        kt_states_give(&e->states, s->marked);
        s->marked = KT_STATE_NONE;
        s->mark = 0;
    }
    s->length = length;
    return length;
}
