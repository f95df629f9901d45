/* How a model family marks its reasoning. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_REASONING_H
#define KT_RUNTIME_REASONING_H

#include <stdbool.h>
#include <stddef.h>

#include "runtime/chat/channels.h"

typedef struct kt_reasoning {
    const char *name;
    const char *const *aliases;  /* names that other servers use, NULL-terminated */
    const char *const *families; /* models without a template that reason so, or NULL */
    const char *evidence;        /* a string that the template contains, or NULL */
    const char *begin, *end;     /* NULL with channels */
    const kt_channels *channels; /* reasoning is messages on one of these; or NULL */
    bool stays_in_text;          /* marks and reasoning are part of the text */
} kt_reasoning;

extern const kt_reasoning kt_reasonings[];
extern const size_t kt_reasoning_count;

#endif
