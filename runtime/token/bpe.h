/* Byte-pair encoding over raw bytes: vocabulary, merges, and the encoding of one piece.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BPE_H
#define KT_RUNTIME_BPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "runtime/token/text.h"

#define KT_BPE_MAX_IDS (1 << 24) /* ids above this are taken for a damaged file */

enum {
    KT_TOKEN_PRESENT = 1, /* the id exists */
    KT_TOKEN_PIECE = 2,   /* can come out of the merges */
    KT_TOKEN_WHOLE = 4,   /* a piece equal to this token encodes to just this token */
    KT_TOKEN_ADDED = 8,   /* matched in the text before pieces are cut */
    KT_TOKEN_SPECIAL = 16 /* added, and control rather than text */
};

typedef struct kt_token {
    uint32_t offset, size; /* into bytes */
    uint32_t flags;
} kt_token;

typedef struct kt_bpe {
    kt_text bytes; /* of all tokens, one after another */
    kt_token *tokens;
    int32_t n_tokens; /* largest id + 1 */
    int32_t token_capacity;
    uint32_t *vocab; /* open addressing: id + 1 of pieces, by their bytes */
    size_t vocab_mask;
    struct kt_merge *merges; /* open addressing by the pair of ids */
    size_t merge_mask, n_merges;
    int32_t byte_ids[256]; /* id of each single byte, -1 = absent */
    bool ignore_merges;    /* a whole piece found in the vocabulary is one token */
    bool by_rank; /* without merges, neighbours merge whose bytes together are a piece, by its id */
} kt_bpe;

/* Scratch of one encoding thread. Zero-initialise; kt_bpe_work_deinit. */
typedef struct kt_bpe_work {
    struct kt_bpe_symbol *symbols;
    size_t symbol_capacity;
    uint64_t *heap;
    size_t heap_size, heap_capacity;
} kt_bpe_work;

void kt_bpe_init(kt_bpe *b);
void kt_bpe_deinit(kt_bpe *b);
void kt_bpe_work_deinit(kt_bpe_work *work);

/* Building, in this order: every token, then index, then every merge by ascending rank (or none,
 * with by_rank), then finish.
 *
 * add_token copies the bytes and refuses an id that is out of range or taken; an added token may
 * take over the id of a piece, as tokenizer.json lists most of them in both places. */
kt_status kt_bpe_add_token(kt_bpe *b, int64_t id, const char *bytes, size_t size, uint32_t flags,
                           kt_err *err);
kt_status kt_bpe_index(kt_bpe *b, kt_err *err);
kt_status kt_bpe_add_merge(kt_bpe *b, const char *left, size_t n_left, const char *right,
                           size_t n_right, kt_err *err);
kt_status kt_bpe_finish(kt_bpe *b, kt_err *err);

/* Id of the piece with these bytes, or -1. */
int32_t kt_bpe_find(const kt_bpe *b, const char *bytes, size_t size);

/* Append the ids of one piece: merge the pair of lowest rank, leftmost first, until none is left.
 * O(n log n) in the length of the piece. Bytes that are not in the vocabulary are dropped. */
kt_status kt_bpe_encode(const kt_bpe *b, kt_bpe_work *work, const char *piece, size_t size,
                        kt_ids *out, kt_err *err);

#endif
