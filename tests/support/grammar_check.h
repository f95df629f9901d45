/* Checks of grammars: texts, masks against trying every token, random texts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_GRAMMAR_CHECK_H
#define KT_TESTS_GRAMMAR_CHECK_H

#include <stdbool.h>

#include "base/rng.h"
#include "runtime/serve/grammar/grammar.h"

/* Is the text, all of it, one of the grammar's? Fails the test when the answer depends on how it is
 * cut. */
bool kt_grammar_takes(kt_grammar *g, const char *text, size_t size);

/* All bytes, common parts of JSON and words, two special tokens, an end: about 400 tokens. */
kt_vocabulary *kt_small_vocabulary(void);
int32_t kt_small_special(const kt_vocabulary *v, int which);
int32_t kt_small_end(const kt_vocabulary *v);
/* The text of a token that is not special, for building texts. */
const char *kt_small_text(int32_t id, size_t *size);

/* Go on by tokens drawn from masks until the end or `most` tokens; then on to the end by whatever
 * finishes. At each step the mask is compared with trying every token. The text goes to out, at
 * most *size bytes; *size becomes its length, or 0 when it did not end. out and size may be
 * NULL. */
void kt_grammar_walk(kt_grammar *g, const kt_vocabulary *v, kt_rng *rng, int most, char *out,
                     size_t *size);

#endif
