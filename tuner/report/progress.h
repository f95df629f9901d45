/* One status line with an estimate of the end; lines every ten seconds where nobody watches.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_PROGRESS_H
#define KT_TUNER_PROGRESS_H

#include <stdio.h>

#include "tuner/session/session.h"

typedef struct kt_progress {
    FILE *to; /* borrowed; NULL = silent */
    bool is_terminal;
    int64_t start_ns, deadline_ns; /* INT64_MAX = no budget */
    int64_t last_ns;               /* of the last line */
} kt_progress;

void kt_progress_init(kt_progress *p, FILE *to, int64_t start_ns, int64_t deadline_ns);
/* Show where the session stands, when the last line is old enough. Cheap otherwise: may be called
 * between samples. */
void kt_progress_show(kt_progress *p, const kt_session *session);
/* Leave the status line. */
void kt_progress_end(kt_progress *p);

#endif
