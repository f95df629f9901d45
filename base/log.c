/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/log.h"

#include <stdarg.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/json.h"

enum {
    MESSAGE_BYTES = 4096,                /* longer messages end in "..." */
    LINE_BYTES = 6 * MESSAGE_BYTES + 512 /* each byte an escape */
};

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

/* A line of at most `size` bytes with its end; its length. */
static size_t format_json(char *out, size_t size, const char *time, const char *level,
                          const char *area, const char *message) {
    kt_json_writer w = {0};
    const char *line;
    size_t n = 0;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "ts", time);
    kt_json_add_string(&w, "level", level);
    kt_json_add_string(&w, "area", area);
    kt_json_add_string(&w, "msg", message);
    kt_json_end_object(&w);
    line = kt_json_writer_text(&w, &n);
    if (!line || n + 1 >= size) n = 0;
    if (n) {
        memcpy(out, line, n);
        out[n++] = '\n';
    }
    kt_json_writer_deinit(&w);
    return n;
}

/* One message is one line: a name from a request must not be able to forge another. */
static void flatten(char *message) {
    for (; *message; message++)
        if ((unsigned char)*message < ' ' || *message == 0x7f) *message = ' ';
}

void kt_log_write(const kt_log *log, kt_log_level level, const char *area, const char *format,
                  ...) {
    char message[MESSAGE_BYTES];
    char line[LINE_BYTES], time[40];
    size_t size;
    va_list args;
    int n;

    if (!log || (!log->stream && !log->writer && !log->sink) || level < log->level) return;
    va_start(args, format);
    n = vsnprintf(message, sizeof message, format, args);
    va_end(args);
    if (n < 0) return;
    if ((size_t)n >= sizeof message) memcpy(message + sizeof message - 4, "...", 4);
    if (log->sink) {
        flatten(message);
        log->sink(log->sink_arg, level, area, message);
        return;
    }
    format_time(kt_clock_unix_ms(), time, sizeof time);
    if (log->json) {
        size = format_json(line, sizeof line, time, level_name(level), area, message);
    } else {
        flatten(message);
        n = snprintf(line, sizeof line, "%s %-5s %.80s: %s\n", time, level_name(level), area,
                     message);
        size = n > 0 ? (size_t)n : 0;
    }
    if (log->writer) {
        kt_log_writer_put(log->writer, line, size);
        return;
    }
    fwrite(line, 1, size, log->stream);
    fflush(log->stream);
}
