/* Diagnostic log: text or JSON lines to a stream chosen by main.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_LOG_H
#define KT_BASE_LOG_H

#include <stdio.h>

#include "base/log_writer.h"

typedef enum kt_log_level { KT_LOG_DEBUG, KT_LOG_INFO, KT_LOG_WARN, KT_LOG_ERROR } kt_log_level;

/* A sink, owned by main and handed down (no global state). Zero-initialised = silent. */
typedef struct kt_log {
    FILE *stream; /* borrowed; NULL = silent */
    kt_log_writer
        *writer; /* borrowed; lines go to it instead of the stream, which may be NULL then */
    /* NULL, or given each message instead: one line, of any thread */
    void (*sink)(void *arg, kt_log_level level, const char *area, const char *message);
    void *sink_arg;
    kt_log_level level; /* lowest level that is written */
    int json;           /* one JSON object per line: {"ts","level","area","msg"} */
} kt_log;

/* Write one line. log may be NULL. Thread-safe (one stdio call per line). Waits for whoever reads
 * the stream, unless the log has a writer. */
void kt_log_write(const kt_log *log, kt_log_level level, const char *area, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
