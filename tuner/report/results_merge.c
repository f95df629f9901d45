/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/results_merge.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/table/table.h"
#include "tuner/store/zipped.h"

enum { PATH_BYTES = 1024 };
static const size_t max_bytes = (size_t)1 << 30;

static bool is_same_file(const char *a, const char *b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_ino == y.st_ino && x.st_dev == y.st_dev;
}

static bool exists(const char *path) {
    struct stat info;
    return stat(path, &info) == 0;
}

/* --- tables --- */

static kt_status add_missing(kt_table *t, const kt_table *old, kt_err *err) {
    for (size_t i = 0; i < old->n_rows; i++)
        if (!kt_table_find(t, &old->rows[i].problem, old->rows[i].threads))
            KT_TRY(kt_table_put(t, &old->rows[i], err));
    for (size_t i = 0; i < old->n_plans; i++)
        if (!kt_table_find_plan(t, &old->plans[i]))
            KT_TRY(kt_table_put_plan(t, &old->plans[i], err));
    return KT_OK;
}

kt_status kt_results_merge_table(const char *from, const char *to, kt_err *err) {
    kt_table *t = NULL, *old = NULL;
    kt_err why = {0};
    kt_status st;

    if (is_same_file(from, to)) return KT_OK;
    st = kt_table_load(from, &t, err);
    if (st == KT_OK && exists(to)) st = kt_table_load(to, &old, err);
    if (st == KT_OK && old &&
        kt_fingerprint_compare(&old->fingerprint, &t->fingerprint, &why) == KT_MATCH_OTHER)
        st = kt_fail(err, KT_E_MISMATCH,
                     "%s is of another machine (%.300s); expected one like this in its class's "
                     "folder",
                     to, why.message);
    if (st == KT_OK && old && strcmp(old->workload, t->workload) != 0)
        st = kt_fail(err, KT_E_MISMATCH, "%s is of model '%s', expected '%s'", to, old->workload,
                     t->workload);
    if (st == KT_OK && old) st = add_missing(t, old, err);
    if (st == KT_OK) st = kt_table_save(t, to, err);
    kt_table_destroy(old);
    kt_table_destroy(t);
    return st;
}

/* --- journals --- */

/* From one session's line to the next one's: the line tells sessions apart (time, command, machine). */
typedef struct chunk {
    const char *text;
    size_t size, head; /* head: bytes of the session's own line */
} chunk;

typedef struct text_file {
    char *text; /* owned */
    size_t size;
    chunk *list; /* owned */
    size_t n;
} text_file;

static void close_text(text_file *f) {
    free(f->text);
    free(f->list);
}

static bool begins_session(const char *line, size_t size) {
    static const char head[] = "{\"t\":\"session\"";
    return size >= sizeof head - 1 && memcmp(line, head, sizeof head - 1) == 0;
}

/* A last line without its end was torn by a crash and is left out. What lies before the first session (no
 * writer leaves anything there) goes with it as a chunk of its own. */
static kt_status open_text(const char *path, text_file *f, kt_err *err) {
    size_t capacity = 0;

    memset(f, 0, sizeof *f);
    if (!exists(path)) return KT_OK;
    KT_TRY(kt_zipped_read(path, max_bytes, &f->text, &f->size, err));
    while (f->size > 0 && f->text[f->size - 1] != '\n') f->size--;
    for (size_t at = 0, size; at < f->size; at += size) {
        const char *line = f->text + at;
        size = (size_t)((const char *)memchr(line, '\n', f->size - at) - line) + 1;
        if (f->n == 0 || begins_session(line, size)) {
            if (f->n == capacity) {
                chunk *more = realloc(f->list, (capacity = 2 * capacity + 8) * sizeof *more);
                if (!more) return kt_fail(err, KT_E_NOMEM, "%s: no memory", path);
                f->list = more;
            }
            f->list[f->n++] = (chunk){line, 0, size};
        }
        f->list[f->n - 1].size += size;
    }
    return KT_OK;
}

static const chunk *find_chunk(const text_file *f, const chunk *wanted) {
    for (size_t i = 0; i < f->n; i++)
        if (f->list[i].head == wanted->head &&
            memcmp(f->list[i].text, wanted->text, wanted->head) == 0)
            return &f->list[i];
    return NULL;
}

static kt_status join(const text_file *ours, const text_file *theirs, const char *to, kt_err *err) {
    char *out = malloc(ours->size + theirs->size + 1);
    size_t used = 0;
    kt_status st;

    if (!out) return kt_fail(err, KT_E_NOMEM, "%s: no memory", to);
    for (size_t i = 0; i < theirs->n; i++) { /* in their order: what was filed stays where it is */
        const chunk *c = &theirs->list[i], *same = find_chunk(ours, c);
        if (same && same->size > c->size) c = same;
        memcpy(out + used, c->text, c->size);
        used += c->size;
    }
    for (size_t i = 0; i < ours->n; i++) {
        if (find_chunk(theirs, &ours->list[i])) continue;
        memcpy(out + used, ours->list[i].text, ours->list[i].size);
        used += ours->list[i].size;
    }
    st = kt_zipped_write(to, out, used, err);
    free(out);
    return st;
}

kt_status kt_results_merge_journal(const char *from, const char *to, kt_err *err) {
    char source[PATH_BYTES], filed[PATH_BYTES], packed[PATH_BYTES];
    text_file ours = {0}, theirs = {0};
    kt_status st;

    KT_TRY(kt_zipped_find(from, source, sizeof source, err));
    KT_TRY(kt_zipped_find(to, filed, sizeof filed, err));
    if (!exists(source))
        return kt_fail(err, KT_E_NOT_FOUND, "%s: no such file, expected the table's journal", from);
    if (is_same_file(source, filed)) return KT_OK;
    if (snprintf(packed, sizeof packed, "%s" KT_ZIPPED_END, to) >= (int)sizeof packed)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", to);
    st = open_text(source, &ours, err);
    if (st == KT_OK) st = open_text(filed, &theirs, err);
    if (st == KT_OK) st = join(&ours, &theirs, packed, err);
    if (st == KT_OK && strcmp(filed, packed) != 0) unlink(filed); /* of an older version, or none */
    close_text(&ours);
    close_text(&theirs);
    return st;
}
