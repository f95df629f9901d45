/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/store/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "tuner/store/crc32.h"
#include "tuner/store/zipped.h"

enum { TAIL_BYTES = 18 /* ,"crc":"5e1f00aa"} */ };

static const size_t max_journal_bytes = (size_t)1 << 30;
static const int64_t sync_interval_ns = 1000000000;

struct kt_journal {
    int fd; /* -1 = read only */
    char *path;
    kt_json_doc **docs;
    size_t n, capacity, dropped;
    int64_t synced_ns;
    bool is_dirty; /* written since the last sync */
};

kt_status kt_journal_path_of(const char *table_path, char *out, size_t out_bytes, kt_err *err) {
    static const char table_end[] = ".kttable.json";
    size_t size = strlen(table_path), end = sizeof table_end - 1;
    int n;

    if (size > end && strcmp(table_path + size - end, table_end) == 0) size -= end;
    n = snprintf(out, out_bytes, "%.*s.journal.jsonl", (int)size, table_path);
    if (n < 0 || (size_t)n >= out_bytes)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", table_path);
    return KT_OK;
}

/* The checked record of one line (without its newline) into *out, NULL when it is damaged. Fails
 * for lack of memory only. */
static kt_status parse_line(const char *line, size_t size, kt_json_doc **out) {
    kt_json_doc *doc = NULL;
    char want[TAIL_BYTES + 1];
    kt_status st;

    *out = NULL;
    if (size <= TAIL_BYTES) return KT_OK;
    snprintf(want, sizeof want, ",\"crc\":\"%08x\"}", kt_crc32(line, size - TAIL_BYTES));
    if (memcmp(line + size - TAIL_BYTES, want, TAIL_BYTES) != 0) return KT_OK;
    st = kt_json_parse(line, size, NULL, &doc, NULL);
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    if (kt_json_type_of(kt_json_root(doc)) == KT_JSON_OBJECT)
        *out = doc;
    else
        kt_json_destroy(doc);
    return KT_OK;
}

static kt_status keep(kt_journal *j, kt_json_doc *doc, kt_err *err) {
    if (j->n == j->capacity) {
        size_t capacity = j->capacity ? 2 * j->capacity : 256;
        kt_json_doc **docs = realloc(j->docs, capacity * sizeof *docs);
        if (!docs) {
            kt_json_destroy(doc);
            return kt_fail(err, KT_E_NOMEM, "%s: no memory for its records", j->path);
        }
        j->docs = docs;
        j->capacity = capacity;
    }
    j->docs[j->n++] = doc;
    return KT_OK;
}

/* Read all lines; *whole receives the bytes up to the last newline. */
static kt_status read_lines(kt_journal *j, size_t *whole, kt_err *err) {
    char *text = NULL;
    size_t size = 0, at = 0;
    kt_status st = kt_zipped_read(j->path, max_journal_bytes, &text, &size, err);

    if (st != KT_OK) return st;
    while (at < size && st == KT_OK) {
        const char *end = memchr(text + at, '\n', size - at);
        kt_json_doc *doc;
        if (!end) {
            j->dropped++;
            break;
        }
        st = parse_line(text + at, (size_t)(end - text) - at, &doc);
        if (st != KT_OK)
            kt_fail(err, st, "%s: no memory for its records", j->path);
        else if (doc)
            st = keep(j, doc, err);
        else
            j->dropped++;
        at = (size_t)(end - text) + 1;
    }
    *whole = at;
    free(text);
    return st;
}

static kt_status make(const char *path, kt_journal **out, kt_err *err) {
    kt_journal *j = calloc(1, sizeof *j);
    *out = NULL;
    if (j) j->path = strdup(path);
    if (!j || !j->path) {
        free(j);
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for the journal", path);
    }
    j->fd = -1;
    *out = j;
    return KT_OK;
}

static kt_status open_locked(kt_journal *j, bool fresh, kt_err *err) {
    size_t whole = 0;

    j->fd = open(j->path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (j->fd < 0) return kt_fail(err, KT_E_IO, "%s: cannot open: %s", j->path, strerror(errno));
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: another kttune is writing it; wait for its end, or take a "
                       "table of its own with --out",
                       j->path);
    if (!fresh) KT_TRY(read_lines(j, &whole, err));
    if (ftruncate(j->fd, (off_t)whole) != 0)
        return kt_fail(err, KT_E_IO, "%s: %s", j->path, strerror(errno));
    return KT_OK;
}

kt_status kt_journal_open(const char *path, bool fresh, kt_journal **out, kt_err *err) {
    kt_journal *j;
    kt_status st;

    KT_TRY(make(path, out, err));
    j = *out;
    st = open_locked(j, fresh, err);
    if (st == KT_OK) return KT_OK;
    kt_journal_close(j);
    *out = NULL;
    return st;
}

kt_status kt_journal_read(const char *path, kt_journal **out, kt_err *err) {
    size_t whole;
    kt_status st;

    KT_TRY(make(path, out, err));
    st = read_lines(*out, &whole, err);
    if (st == KT_OK) return KT_OK;
    kt_journal_close(*out);
    *out = NULL;
    return st;
}

void kt_journal_close(kt_journal *j) {
    if (!j) return;
    for (size_t i = 0; i < j->n; i++) kt_json_destroy(j->docs[i]);
    if (j->fd >= 0) {
        if (j->is_dirty) fdatasync(j->fd);
        close(j->fd); /* releases the lock */
    }
    free(j->docs);
    free(j->path);
    free(j);
}

size_t kt_journal_count(const kt_journal *j) {
    return j->n;
}

const kt_json *kt_journal_at(const kt_journal *j, size_t i) {
    return i < j->n ? kt_json_root(j->docs[i]) : NULL;
}

size_t kt_journal_dropped(const kt_journal *j) {
    return j->dropped;
}

static kt_status write_all(const kt_journal *j, const char *line, size_t size, kt_err *err) {
    while (size > 0) {
        ssize_t done = write(j->fd, line, size);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0) return kt_fail(err, KT_E_IO, "%s: %s", j->path, strerror(errno));
        line += done;
        size -= (size_t)done;
    }
    return KT_OK;
}

/* The page cache survives a killed process; only a power cut needs the disk. A disk takes 4 to 40 ms to
 * confirm, as long as a rung of a small cell, so it is asked once per interval. */
static kt_status sync_now_and_then(kt_journal *j, kt_err *err) {
    int64_t now = kt_clock_ns();
    if (now - j->synced_ns < sync_interval_ns) return KT_OK;
    if (fdatasync(j->fd) != 0) return kt_fail(err, KT_E_IO, "%s: %s", j->path, strerror(errno));
    j->synced_ns = kt_clock_ns();
    j->is_dirty = false;
    return KT_OK;
}

kt_status kt_journal_append(kt_journal *j, const kt_json_writer *w, kt_err *err) {
    size_t size = 0;
    const char *text = kt_json_writer_text(w, &size);
    char *line;
    kt_status st;

    if (!text || size < 2 || text[size - 1] != '}')
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a record", j->path);
    line = malloc(size + TAIL_BYTES + 2);
    if (!line) return kt_fail(err, KT_E_NOMEM, "%s: no memory for a record", j->path);
    memcpy(line, text, size - 1);
    snprintf(line + size - 1, TAIL_BYTES + 2, ",\"crc\":\"%08x\"}\n", kt_crc32(text, size - 1));
    j->is_dirty = true;
    st = write_all(j, line, size - 1 + TAIL_BYTES + 1, err);
    free(line);
    return st == KT_OK ? sync_now_and_then(j, err) : st;
}
