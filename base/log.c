/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/log.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

enum { MESSAGE_BYTES = 4096 }; /* longer messages end in "..." */

static const char *level_name(kt_log_level level) {
    static const char *const names[] = {"debug", "info", "warn", "error"};
    return (size_t)level < sizeof names / sizeof *names ? names[level] : "unknown";
}

static void format_time(int64_t unix_ms, char *text, size_t size) {
    time_t seconds = (time_t)(unix_ms / 1000);
    struct tm utc;
    size_t n;

    gmtime_r(&seconds, &utc);
    n = strftime(text, size, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, size - n, ".%03dZ", (int)(unix_ms % 1000));
}

static void write_json(FILE *stream, const char *time, const char *level, const char *area,
                       const char *message) {
    kt_json_writer w = {0};
    const char *line;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "ts", time);
    kt_json_add_string(&w, "level", level);
    kt_json_add_string(&w, "area", area);
    kt_json_add_string(&w, "msg", message);
    kt_json_end_object(&w);
    line = kt_json_writer_text(&w, NULL);
    if (line) fprintf(stream, "%s\n", line);
    kt_json_writer_deinit(&w);
}

/* One message is one line: a name from a request must not be able to forge another. */
static void flatten(char *message) {
    for (; *message; message++)
        if ((unsigned char)*message < ' ' || *message == 0x7f) *message = ' ';
}

void kt_log_write(const kt_log *log, kt_log_level level, const char *area, const char *format,
                  ...) {
    char message[MESSAGE_BYTES];
    char time[40];
    va_list args;
    int n;

    if (!log || !log->stream || level < log->level) return;
    va_start(args, format);
    n = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (n < 0) return;
    if ((size_t)n >= sizeof message) memcpy(message + sizeof message - 4, "...", 4);
    format_time(kt_clock_unix_ms(), time, sizeof time);
    if (log->json) {
        write_json(log->stream, time, level_name(level), area, message);
    } else {
        flatten(message);
        fprintf(log->stream, "%s %-5s %s: %s\n", time, level_name(level), area, message);
    }
    fflush(log->stream);
}
