/* Pre-tokenisation: cutting text into the pieces that are encoded one by one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SPLITTER_H
#define KT_RUNTIME_SPLITTER_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/status.h"

/* What becomes of the matches and of the gaps between them. */
typedef enum kt_split_behavior {
    KT_SPLIT_ISOLATED,        /* each match and each gap is a piece */
    KT_SPLIT_REMOVED,         /* only gaps are pieces */
    KT_SPLIT_MERGED_PREVIOUS, /* a match belongs to the gap before it */
    KT_SPLIT_MERGED_NEXT,     /* a match belongs to the gap after it */
    KT_SPLIT_CONTIGUOUS       /* neighbouring matches are one piece */
} kt_split_behavior;

/* Steps applied one after another, each to the pieces of the one before. Zero-initialise; immutable
 * while in use, then safe in several threads. */
typedef struct kt_splitter {
    struct kt_split_step *steps;
    int n_steps;
} kt_splitter;

void kt_splitter_deinit(kt_splitter *s);

/* pattern is a regular expression in Oniguruma's Ruby syntax as tokenizer.json has it, or with
 * `literal` plain text. invert exchanges matches and gaps. Refuses what PCRE2 would read otherwise. */
kt_status kt_splitter_add(kt_splitter *s, const char *pattern, size_t size, bool literal,
                          kt_split_behavior behavior, bool invert, kt_err *err);
/* A step that puts a space in front of each piece that has none. */
kt_status kt_splitter_add_prefix_space(kt_splitter *s, kt_err *err);

typedef kt_status (*kt_piece_fn)(void *arg, const char *piece, size_t size, kt_err *err);

/* Scratch of one thread. */
typedef struct kt_split_work kt_split_work;
kt_status kt_split_work_create(kt_split_work **out, kt_err *err);
void kt_split_work_destroy(kt_split_work *work);

/* Call emit for each piece (never empty) of text, which is well-formed UTF-8. Text on which a pattern
 * takes unreasonably many steps is refused with KT_E_UNSUPPORTED. */
kt_status kt_splitter_run(const kt_splitter *s, kt_split_work *work, const char *text, size_t size,
                          kt_piece_fn emit, void *arg, kt_err *err);

#endif
