/* What grammar_build.h promises of an automaton. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_TRIM_H
#define KT_RUNTIME_GRAMMAR_TRIM_H

#include <stdint.h>

#include "runtime/serve/grammar/grammar_build.h"

/* Refuse left recursion and a text that can never end; cut away edges and calls that lead nowhere;
 * set KT_AUTO_ENDS. start[rule] is the first state of each of r's rules, whose names are for
 * messages. */
kt_status kt_auto_check(kt_auto *a, const kt_rules *r, const int32_t *start, kt_err *err);

#endif
