/* Grammars and output parsers as a request wants them. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_REQUEST_HOOKS_H
#define KT_RUNTIME_REQUEST_HOOKS_H

#include "runtime/chat/parser.h"
#include "runtime/serve/grammar/grammar.h"
#include "runtime/serve/request.h"

/* The grammar is borrowed and outlives the request. */
kt_constraint kt_constraint_of_grammar(kt_grammar *grammar);
/* Options and what they point to are borrowed and outlive the request; each choice gets a seed of
 * its own. */
kt_output kt_output_of_parser(const kt_parser_options *options);

#endif
