/* From rules to one deterministic automaton over bytes per rule, whose states may also call rules.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GRAMMAR_BUILD_H
#define KT_RUNTIME_GRAMMAR_BUILD_H

#include <stdint.h>

#include "kt/status.h"
#include "runtime/serve/grammar/grammar_rules.h"

/* A special token in the text: this byte, which no UTF-8 text holds, and the id in three more, the
 * highest first. */
enum { KT_TOKEN_BYTE = 0xff };

typedef struct kt_auto_call {
    int32_t start;   /* state that the called rule begins in */
    int32_t back_to; /* where it goes on afterwards */
} kt_auto_call;

enum {
    KT_AUTO_ACCEPTS = 1, /* the rule may end here */
    KT_AUTO_ENDS = 2     /* it can only end here */
};

/* Bytes that no rule tells apart are one class. Every state can reach an end: what cannot has been
 * cut away. No rule calls itself before it has read a byte. Immutable. */
typedef struct kt_auto {
    uint8_t class_of[256];
    int32_t n_classes, n_states, start;
    int32_t *next;       /* [n_states, n_classes]: state, or -1 */
    uint8_t *flags;      /* [n_states] */
    int32_t *call_begin; /* [n_states + 1] into call */
    kt_auto_call *call;
} kt_auto;

/* Rule 0 is the whole text. The rules may gain helper rules. KT_E_INVALID with the name of a rule
 * that is undefined, calls itself first, or can never end; KT_E_UNSUPPORTED beyond the limits. On
 * error *out is empty. */
kt_status kt_auto_build(kt_rules *r, kt_auto *out, kt_err *err);
void kt_auto_deinit(kt_auto *a);

#endif
