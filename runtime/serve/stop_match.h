/* Stop strings over streamed text. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STOP_MATCH_H
#define KT_RUNTIME_STOP_MATCH_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/status.h"
#include "runtime/token/text.h"

enum { KT_MAX_STOPS = 16, KT_MAX_STOP_BYTES = 1024 };

typedef struct kt_stops {
    char *text[KT_MAX_STOPS]; /* owned */
    size_t size[KT_MAX_STOPS];
    int n;
} kt_stops;

void kt_stops_deinit(kt_stops *s);

/* Append n bytes of new text to held, and move to out what can be shown: everything in front of the
 * first stop string (then *stopped), else all but an end that may still become one. */
kt_status kt_stops_push(const kt_stops *s, kt_text *held, const char *text, size_t n, kt_text *out,
                        bool *stopped, kt_err *err);

#endif
