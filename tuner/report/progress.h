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
    double seconds_at_start;       /* predicted work when it began */
} kt_progress;

void kt_progress_init(kt_progress *p, FILE *to, int64_t start_ns, int64_t deadline_ns);
/* Show where the session stands; seconds_left: predicted work of the open cells. */
void kt_progress_show(kt_progress *p, const kt_session_progress *s, double seconds_left,
                      double seconds_total);
/* Leave the status line. */
void kt_progress_end(kt_progress *p);

#endif
