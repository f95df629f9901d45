/* A thread that writes lines for others, who never wait: what does not fit into its memory is lost
 * and counted. For the log of a server, whose reader may be slow or gone.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_LOG_WRITER_H
#define KT_BASE_LOG_WRITER_H

#include <stddef.h>

#include "kt/status.h"

typedef struct kt_log_writer kt_log_writer;

/* fd: borrowed, written to until destroy. A reader that closed it ends the writing and nothing
 * else. */
kt_status kt_log_writer_create(int fd, kt_log_writer **out, kt_err *err);
/* Writes what is there for at most half a second; a reader that takes nothing does not hold up the
 * end of a program. Accepts NULL. */
void kt_log_writer_destroy(kt_log_writer *w);

/* Whole lines, with their ends. Copies or loses them; never waits for the reader. Any thread. When
 * there is room again a line tells how many were lost. */
void kt_log_writer_put(kt_log_writer *w, const char *lines, size_t size);

#endif
