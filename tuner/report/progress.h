/* One status line: share of the serving time that is decided, and when all will be, or what the
 * budget will not reach; lines every ten seconds where nobody watches.
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
/* Wall time of the cells that were raced over their predicted time; near 1 until enough was
 * seen. */
double kt_progress_pace(const kt_session_progress *progress);
/* Leave the status line. */
void kt_progress_end(kt_progress *p);

#endif
