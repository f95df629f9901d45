/* The merge loop and its tables.
 *
 * The textbook loop looks for the lowest rank again after each merge, which is quadratic: a
 * megabyte without a space would take hours. Short pieces, nearly all of real text, still use it,
 * since scanning a handful of ranks beats any structure; longer ones use a heap of (rank, position)
 * over a linked list of symbols. Heap entries are never removed when a neighbour's merge makes them
 * stale: each symbol remembers the rank of the pair that starts at it, and an entry that disagrees
 * is dropped. Ranks are unique per pair, so agreeing means being the same pair.
 *
 * Before any merging the piece is looked up as a whole. That is exact for the tokens that the
 * merges lead to from their own bytes, which kt_bpe_finish finds out once.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/bpe.h"

enum {
    short_piece = 48, /* bytes; above, the heap wins (measured near 40 to 60) */
    max_merged =
        1024 /* bytes of a token that merges make; bounds the time of a hostile vocabulary */
};

static const uint32_t no_rank = UINT32_MAX;

typedef struct kt_merge {
    int32_t left, right; /* left < 0: empty slot */
    uint32_t rank;
    int32_t result;
} kt_merge;

typedef struct kt_bpe_symbol {
    int32_t id;
    uint32_t rank; /* of the pair (this, next); no_rank = none, or this symbol was merged away */
    uint32_t prev, next;
} kt_bpe_symbol;

static uint64_t mix(uint64_t h) {
    h ^= h >> 32;
    h *= 0xd6e8feb86659fd93u;
    h ^= h >> 32;
    return h * 0xd6e8feb86659fd93u;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    uint64_t h = n, word;

    for (; n >= sizeof word; s += sizeof word, n -= sizeof word) {
        memcpy(&word, s, sizeof word);
        h = mix(h ^ word);
    }
    word = 0;
    memcpy(&word, s, n);
    h = mix(h ^ word);
    return h ^ h >> 29;
}

static size_t hash_pair(int32_t left, int32_t right) {
    uint64_t h = mix((uint64_t)(uint32_t)left << 32 | (uint32_t)right);
    return (size_t)(h ^ h >> 29);
}

void kt_bpe_init(kt_bpe *b) {
    memset(b, 0, sizeof *b);
    for (int i = 0; i < 256; i++) b->byte_ids[i] = -1;
}

void kt_bpe_deinit(kt_bpe *b) {
    free(b->bytes.data);
    free(b->tokens);
    free(b->vocab);
    free(b->merges);
    kt_bpe_init(b);
}

void kt_bpe_work_deinit(kt_bpe_work *work) {
    free(work->symbols);
    free(work->heap);
    memset(work, 0, sizeof *work);
}

kt_status kt_bpe_add_token(kt_bpe *b, int64_t id, const char *bytes, size_t size, uint32_t flags,
                           kt_err *err) {
    kt_token *t;

    if (id < 0 || id >= KT_BPE_MAX_IDS) {
        return kt_fail(err, KT_E_FORMAT, "token id %lld, expected 0 to %d", (long long)id,
                       KT_BPE_MAX_IDS - 1);
    }
    if (size > UINT32_MAX - b->bytes.size) {
        return kt_fail(err, KT_E_FORMAT, "tokens of more than 4 GiB together");
    }
    if (id >= b->token_capacity) {
        int32_t capacity = b->token_capacity ? b->token_capacity : 4096;
        kt_token *grown;
        while (capacity <= id) capacity *= 2;
        grown = realloc(b->tokens, (size_t)capacity * sizeof *grown);
        if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %d tokens", capacity);
        memset(grown + b->token_capacity, 0,
               (size_t)(capacity - b->token_capacity) * sizeof *grown);
        b->tokens = grown;
        b->token_capacity = capacity;
    }
    t = &b->tokens[id];
    if (t->flags & KT_TOKEN_PRESENT) {
        if (!(flags & KT_TOKEN_ADDED)) {
            return kt_fail(err, KT_E_FORMAT, "token id %lld occurs twice", (long long)id);
        }
        if (t->size == size && (!size || !memcmp(b->bytes.data + t->offset, bytes, size))) {
            t->flags |= flags;
            return KT_OK;
        }
        t->flags &= ~(uint32_t)KT_TOKEN_PIECE; /* its text is no byte alphabet after all */
    }
    t->offset = (uint32_t)b->bytes.size;
    t->size = (uint32_t)size;
    t->flags |= flags | KT_TOKEN_PRESENT;
    if (id >= b->n_tokens) b->n_tokens = (int32_t)id + 1;
    return kt_text_append(&b->bytes, bytes, size, err);
}

static size_t table_size(size_t n) {
    size_t size = 64;
    while (size < n * 2) size *= 2;
    return size;
}

static bool is_token(const kt_bpe *b, uint32_t slot, const char *bytes, size_t size) {
    const kt_token *t = &b->tokens[slot - 1];
    return t->size == size && memcmp(b->bytes.data + t->offset, bytes, size) == 0;
}

/* The slot that holds these bytes, or the empty one where they belong. */
static size_t vocab_slot(const kt_bpe *b, const char *bytes, size_t size) {
    size_t i = (size_t)hash_bytes(bytes, size) & b->vocab_mask;
    while (b->vocab[i] && !is_token(b, b->vocab[i], bytes, size)) i = (i + 1) & b->vocab_mask;
    return i;
}

kt_status kt_bpe_index(kt_bpe *b, kt_err *err) {
    size_t n = table_size((size_t)b->n_tokens);

    b->vocab = calloc(n, sizeof *b->vocab);
    if (!b->vocab) return kt_fail(err, KT_E_NOMEM, "no memory for the vocabulary's index");
    b->vocab_mask = n - 1;
    for (int32_t id = 0; id < b->n_tokens; id++) {
        const kt_token *t = &b->tokens[id];
        const char *bytes = b->bytes.data + t->offset;
        size_t slot;
        if (!(t->flags & KT_TOKEN_PIECE) || t->size == 0) continue;
        slot = vocab_slot(b, bytes, t->size);
        if (b->vocab[slot]) {
            return kt_fail(err, KT_E_FORMAT, "tokens %u and %d have the same text",
                           b->vocab[slot] - 1, id);
        }
        b->vocab[slot] = (uint32_t)id + 1;
        if (t->size == 1) b->byte_ids[(unsigned char)*bytes] = id;
    }
    return KT_OK;
}

int32_t kt_bpe_find(const kt_bpe *b, const char *bytes, size_t size) {
    return b->vocab ? (int32_t)b->vocab[vocab_slot(b, bytes, size)] - 1 : -1;
}

/* The slot of this pair, or the empty one where it belongs. */
static kt_merge *merge_slot(kt_merge *merges, size_t mask, int32_t left, int32_t right) {
    size_t i = hash_pair(left, right) & mask;
    while (merges[i].left >= 0 && (merges[i].left != left || merges[i].right != right)) {
        i = (i + 1) & mask;
    }
    return &merges[i];
}

static kt_status grow_merges(kt_bpe *b, kt_err *err) {
    size_t n = b->merges ? (b->merge_mask + 1) * 2 : 4096;
    kt_merge *merges = malloc(n * sizeof *merges);

    if (!merges) return kt_fail(err, KT_E_NOMEM, "no memory for %zu merges", n);
    for (size_t i = 0; i < n; i++) merges[i].left = -1;
    for (size_t i = 0; b->merges && i <= b->merge_mask; i++) {
        const kt_merge *m = &b->merges[i];
        if (m->left >= 0) *merge_slot(merges, n - 1, m->left, m->right) = *m;
    }
    free(b->merges);
    b->merges = merges;
    b->merge_mask = n - 1;
    return KT_OK;
}

/* A pair given twice keeps its first rank. */
static kt_status put_merge(kt_bpe *b, kt_merge merge, kt_err *err) {
    kt_merge *m;

    if (!b->merges || b->n_merges * 2 > b->merge_mask) KT_TRY(grow_merges(b, err));
    m = merge_slot(b->merges, b->merge_mask, merge.left, merge.right);
    if (m->left < 0) *m = merge;
    b->n_merges++;
    return KT_OK;
}

kt_status kt_bpe_add_merge(kt_bpe *b, const char *left, size_t n_left, const char *right,
                           size_t n_right, kt_err *err) {
    char joined[max_merged];
    int32_t ids[3];

    if (n_left == 0 || n_right == 0) {
        return kt_fail(err, KT_E_FORMAT, "merge %zu has an empty part", b->n_merges);
    }
    if (n_left > sizeof joined || n_right > sizeof joined - n_left) {
        return kt_fail(err, KT_E_FORMAT, "merge %zu makes a token of over %zu bytes", b->n_merges,
                       sizeof joined);
    }
    memcpy(joined, left, n_left);
    memcpy(joined + n_left, right, n_right);
    ids[0] = kt_bpe_find(b, left, n_left);
    ids[1] = kt_bpe_find(b, right, n_right);
    ids[2] = kt_bpe_find(b, joined, n_left + n_right);
    for (int i = 0; i < 3; i++) {
        static const char *const what[] = {"left part", "right part", "result"};
        if (ids[i] >= 0) continue;
        return kt_fail(err, KT_E_FORMAT, "the %s of merge %zu is not in the vocabulary", what[i],
                       b->n_merges);
    }
    return put_merge(b, (kt_merge){ids[0], ids[1], (uint32_t)b->n_merges, ids[2]}, err);
}

/* tiktoken has no list of merges: any two neighbours merge whose joined bytes are a token, the
 * lowest id first. So each way to cut a token into two is a merge with that token's id as its
 * rank. Several merges share a rank then, which the heap bears: at one position an equal rank
 * means the same bytes. */
static kt_status add_merges_of_ranks(kt_bpe *b, kt_err *err) {
    for (int32_t id = 0; id < b->n_tokens; id++) {
        const kt_token *t = &b->tokens[id];
        const char *bytes = b->bytes.data + t->offset;
        if (!(t->flags & KT_TOKEN_PIECE)) continue;
        if (t->size > max_merged) {
            return kt_fail(err, KT_E_FORMAT, "token %d has %u bytes, expected at most %d", id,
                           t->size, max_merged);
        }
        for (uint32_t cut = 1; cut < t->size; cut++) {
            int32_t left = kt_bpe_find(b, bytes, cut), right;
            if (left < 0) continue;
            right = kt_bpe_find(b, bytes + cut, t->size - cut);
            if (right < 0) continue;
            KT_TRY(put_merge(b, (kt_merge){left, right, (uint32_t)id, id}, err));
        }
    }
    return KT_OK;
}

static const kt_merge *find_merge(const kt_bpe *b, int32_t left, int32_t right) {
    const kt_merge *m = merge_slot(b->merges, b->merge_mask, left, right);
    return m->left < 0 ? NULL : m;
}

static uint32_t pair_rank(const kt_bpe *b, int32_t left, int32_t right) {
    const kt_merge *m = find_merge(b, left, right);
    return m ? m->rank : no_rank;
}

/* Merge n <= short_piece symbols in place; returns how many are left. */
static size_t merge_short(const kt_bpe *b, int32_t *ids, size_t n) {
    uint32_t rank[short_piece];

    for (size_t i = 0; i + 1 < n; i++) rank[i] = pair_rank(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++) {
            if (rank[i] < rank[best]) best = i;
        }
        if (rank[best] == no_rank) break;
        ids[best] = find_merge(b, ids[best], ids[best + 1])->result;
        n--;
        memmove(ids + best + 1, ids + best + 2, (n - best - 1) * sizeof *ids);
        memmove(rank + best, rank + best + 1, (n - best) * sizeof *rank);
        if (best + 1 < n) rank[best] = pair_rank(b, ids[best], ids[best + 1]);
        if (best > 0) rank[best - 1] = pair_rank(b, ids[best - 1], ids[best]);
    }
    return n;
}

/* Entries order by rank, then by position. */
static uint64_t entry_of(uint32_t rank, uint32_t position) {
    return (uint64_t)rank << 32 | position;
}

static void sift_down(uint64_t *heap, size_t n, size_t i) {
    uint64_t e = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (e <= heap[child]) break;
        heap[i] = heap[child];
    }
    heap[i] = e;
}

static kt_status heap_push(kt_bpe_work *w, uint64_t e, kt_err *err) {
    void *data = w->heap;
    size_t i;
    kt_status st = kt_grow(&data, w->heap_size, &w->heap_capacity, 1, sizeof e, err);

    w->heap = data;
    if (st != KT_OK) return st;
    for (i = w->heap_size++; i > 0 && e < w->heap[(i - 1) / 2]; i = (i - 1) / 2) {
        w->heap[i] = w->heap[(i - 1) / 2];
    }
    w->heap[i] = e;
    return KT_OK;
}

static kt_status rank_pair(const kt_bpe *b, kt_bpe_work *w, uint32_t at, kt_err *err) {
    kt_bpe_symbol *s = &w->symbols[at];

    s->rank = s->next ? pair_rank(b, s->id, w->symbols[s->next].id) : no_rank;
    return s->rank == no_rank ? KT_OK : heap_push(w, entry_of(s->rank, at), err);
}

/* Fill symbols and heap from the bytes of the piece. Index 0 is a sentinel, so that 0 as prev or
 * next means "none". */
static kt_status begin_long(const kt_bpe *b, kt_bpe_work *w, const char *piece, size_t size,
                            kt_err *err) {
    void *symbols = w->symbols, *heap = w->heap;
    size_t n = 0;
    kt_status st;

    if (size >= UINT32_MAX - 2) {
        return kt_fail(err, KT_E_UNSUPPORTED, "a piece of %zu bytes, 4 GiB is the most", size);
    }
    st = kt_grow(&symbols, 0, &w->symbol_capacity, size + 1, sizeof *w->symbols, err);
    w->symbols = symbols;
    if (st != KT_OK) return st;
    st = kt_grow(&heap, 0, &w->heap_capacity, size, sizeof *w->heap, err);
    w->heap = heap;
    if (st != KT_OK) return st;

    for (size_t i = 0; i < size; i++) {
        int32_t id = b->byte_ids[(unsigned char)piece[i]];
        if (id < 0) continue;
        w->symbols[n + 1] = (kt_bpe_symbol){id, no_rank, (uint32_t)n, (uint32_t)n + 2};
        n++;
    }
    w->symbols[0] = (kt_bpe_symbol){-1, no_rank, 0, n ? 1 : 0};
    if (n) w->symbols[n].next = 0;
    w->heap_size = 0;
    for (size_t i = 1; i <= n; i++) {
        kt_bpe_symbol *s = &w->symbols[i];
        s->rank = i < n ? pair_rank(b, s->id, w->symbols[i + 1].id) : no_rank;
        if (s->rank != no_rank) w->heap[w->heap_size++] = entry_of(s->rank, (uint32_t)i);
    }
    for (size_t i = w->heap_size / 2; i-- > 0;) sift_down(w->heap, w->heap_size, i);
    return KT_OK;
}

static kt_status encode_long(const kt_bpe *b, kt_bpe_work *w, const char *piece, size_t n,
                             kt_ids *out, kt_err *err) {
    KT_TRY(begin_long(b, w, piece, n, err));
    while (w->heap_size) {
        uint64_t e = w->heap[0];
        uint32_t at = (uint32_t)e;
        kt_bpe_symbol *s = &w->symbols[at], *gone;

        w->heap[0] = w->heap[--w->heap_size];
        if (w->heap_size) sift_down(w->heap, w->heap_size, 0);
        if (s->rank != e >> 32) continue;
        gone = &w->symbols[s->next];
        s->id = find_merge(b, s->id, gone->id)->result;
        s->next = gone->next;
        if (gone->next) w->symbols[gone->next].prev = at;
        gone->rank = no_rank;
        KT_TRY(rank_pair(b, w, at, err));
        if (s->prev) KT_TRY(rank_pair(b, w, s->prev, err));
    }
    for (uint32_t i = w->symbols[0].next; i; i = w->symbols[i].next) {
        KT_TRY(kt_ids_append(out, w->symbols[i].id, err));
    }
    return KT_OK;
}

static kt_status merge_piece(const kt_bpe *b, kt_bpe_work *work, const char *piece, size_t size,
                             kt_ids *out, kt_err *err) {
    int32_t ids[short_piece];
    size_t n = 0;

    if (size > short_piece) return encode_long(b, work, piece, size, out, err);
    for (size_t i = 0; i < size; i++) {
        ids[n] = b->byte_ids[(unsigned char)piece[i]];
        n += ids[n] >= 0;
    }
    n = merge_short(b, ids, n);
    KT_TRY(kt_ids_reserve(out, n, err));
    memcpy(out->data + out->size, ids, n * sizeof *ids);
    out->size += n;
    return KT_OK;
}

kt_status kt_bpe_encode(const kt_bpe *b, kt_bpe_work *work, const char *piece, size_t size,
                        kt_ids *out, kt_err *err) {
    int32_t whole = kt_bpe_find(b, piece, size);

    if (whole >= 0 && (b->ignore_merges || (b->tokens[whole].flags & KT_TOKEN_WHOLE))) {
        return kt_ids_append(out, whole, err);
    }
    return merge_piece(b, work, piece, size, out, err);
}

/* Printable ASCII and continuation bytes must be tokens, or this is another kind of vocabulary.
 * Some byte-level vocabularies lack control characters; those vanish, as with the reference. */
static kt_status check_bytes(const kt_bpe *b, kt_err *err) {
    for (int byte = 0x20; byte < 0xc0; byte++) {
        if (byte == 0x7f || b->byte_ids[byte] >= 0) continue;
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "byte 0x%02x is not in the vocabulary: not a byte-level BPE", byte);
    }
    return KT_OK;
}

kt_status kt_bpe_finish(kt_bpe *b, kt_err *err) {
    kt_bpe_work work = {0};
    kt_ids ids = {0};
    kt_status st = check_bytes(b, err);

    if (st == KT_OK && b->by_rank && !b->merges) st = add_merges_of_ranks(b, err);
    if (st == KT_OK && !b->merges) st = grow_merges(b, err);
    for (int32_t id = 0; st == KT_OK && id < b->n_tokens; id++) {
        kt_token *t = &b->tokens[id];
        const char *bytes = b->bytes.data + t->offset;
        bool complete = t->size > 0 && (t->flags & KT_TOKEN_PIECE);
        for (uint32_t i = 0; complete && i < t->size; i++) {
            complete = b->byte_ids[(unsigned char)bytes[i]] >= 0;
        }
        if (!complete) continue;
        ids.size = 0;
        st = merge_piece(b, &work, bytes, t->size, &ids, err);
        if (st == KT_OK && ids.size == 1 && ids.data[0] == id) t->flags |= KT_TOKEN_WHOLE;
    }
    kt_bpe_work_deinit(&work);
    free(ids.data);
    return st;
}
