/* The journal of a conversion, which stays as its report: what was begun, what each tensor lost,
 * which shards are whole. A line is {"sum":"<16 digits>","line":{...}}; the checksum is that of the
 * text behind "line":. Lines behind the last whole shard are those of a run that was ended: they
 * are cut off. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/err.h"
#include "runtime/model/convert_impl.h"

#define MOST_BYTES ((size_t)1 << 30)

enum { LINE_AT = 33 }; /* {"sum":"0123456789abcdef","line": */

/* ---- lines ---- */

/* The line's own text without its checksum, or NULL when it is not whole. */
static const char *open_line(const char *line, size_t size, size_t *inside) {
    char head[LINE_AT + 1];

    if (size < LINE_AT + 2 || line[size - 1] != '}') return NULL;
    *inside = size - LINE_AT - 1;
    snprintf(head, sizeof head, "{\"sum\":\"%016llx\",\"line\":",
             (unsigned long long)kt_checksum(line + LINE_AT, *inside));
    return memcmp(head, line, LINE_AT) == 0 ? line + LINE_AT : NULL;
}

/* The writer's text as a line behind `lines`; *lines NULL with *room set = no memory. */
static void push_line(kt_json_writer *w, char **lines, size_t *size, size_t *room) {
    size_t inside = 0;
    const char *text = kt_json_writer_text(w, &inside);
    const size_t need = *size + LINE_AT + inside + 3;
    char *more;

    if (*room && !*lines) return;
    if (need > *room || !text) {
        *room = 2 * need + 4096;
        more = text ? realloc(*lines, *room) : NULL;
        if (!more) free(*lines);
        *lines = more;
        if (!more) return;
    }
    *size += (size_t)snprintf(*lines + *size, LINE_AT + 1, "{\"sum\":\"%016llx\",\"line\":",
                              (unsigned long long)kt_checksum(text, inside));
    memcpy(*lines + *size, text, inside);
    memcpy(*lines + *size + inside, "}\n", 2);
    *size += inside + 2;
}

static kt_status append(const kt_convert_journal *j, const char *text, size_t size, kt_err *err) {
    while (size) {
        ssize_t n = write(j->fd, text, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return kt_fail(err, KT_E_IO, "%.300s: cannot write: %s", j->path, strerror(errno));
        text += n;
        size -= (size_t)n;
    }
    if (fsync(j->fd) == 0) return KT_OK;
    return kt_fail(err, KT_E_IO, "%.300s: cannot write: %s", j->path, strerror(errno));
}

static kt_status append_line(const kt_convert_journal *j, kt_json_writer *line, const char *before,
                             size_t before_bytes, kt_err *err) {
    char *text = NULL;
    size_t size = 0, room = 0;
    kt_status st;

    if (before_bytes) {
        text = malloc(before_bytes);
        if (text) memcpy(text, before, before_bytes);
        room = size = before_bytes;
    }
    push_line(line, &text, &size, &room);
    kt_json_writer_deinit(line);
    st = text ? append(j, text, size, err)
              : kt_fail(err, KT_E_NOMEM, "%.300s: no memory for a line", j->path);
    free(text);
    return st;
}

/* ---- writing ---- */

static const char *weights_word(const kt_convert_work *w) {
    return w->request->budget ? "budget" : kt_packed_quant_word(w->request->quant);
}

/* {"formats": {name: [format, ...]}, "errors": {name: x}}: what the budget chose. */
static void put_formats(const kt_convert_work *w, kt_json_writer *line) {
    const kt_graph *g = &w->model.graph;
    char name[KT_PACKED_NAME];

    kt_json_begin_object(line);
    kt_json_key(line, "formats");
    kt_packed_put_formats(line, g);
    kt_json_key(line, "errors");
    kt_json_begin_object(line);
    for (int i = 0; i < g->n_weights; i++) {
        if (g->weights[i].part[0].chosen == KT_W_NONE) continue;
        kt_packed_weight_name(g, i, name);
        kt_json_add_double(line, name, w->errors[i]);
    }
    kt_json_end_object(line);
    kt_json_end_object(line);
}

static kt_status write_begin(const kt_convert_work *w, kt_err *err) {
    kt_json_writer line = {0};
    char *before = NULL;
    size_t size = 0, room = 0;
    kt_status st;

    kt_json_begin_object(&line);
    kt_json_add_string(&line, "begin", w->model.name);
    kt_json_add_int(&line, "version", KT_PACKED_VERSION);
    kt_json_add_string(&line, "weights", weights_word(w));
    kt_json_add_string(&line, "identity", w->identity);
    kt_json_add_int(&line, "shards", w->n_shards);
    kt_json_end_object(&line);
    if (!w->request->budget) return append_line(&w->journal, &line, NULL, 0, err);
    push_line(&line, &before, &size, &room);
    kt_json_writer_deinit(&line);
    if (!before) return kt_fail(err, KT_E_NOMEM, "%.300s: no memory for a line", w->journal.path);
    line = (kt_json_writer){0};
    put_formats(w, &line);
    st = append_line(&w->journal, &line, before, size, err);
    free(before);
    return st;
}

void kt_convert_note_loss(kt_convert_work *w, kt_json_writer *line, const kt_convert_piece *p,
                          int part, int64_t item, const kt_format_loss *loss, char **lines,
                          size_t *size, size_t *room) {
    const kt_graph *g = &w->model.graph;
    const kt_weight *of = &g->weights[p->weight];
    const bool is_down = of->kind == KT_WEIGHT_EXPERTS && part == 2;
    char name[240];

    kt_weight_name(g, of, part, item, true, name, sizeof name - 8);
    if (!*name) kt_weight_name(g, of, part, item, false, name, sizeof name - 8);
    strcat(name, ".weight");
    kt_json_writer_deinit(line);
    *line = (kt_json_writer){0};
    kt_json_begin_object(line);
    kt_json_add_string(line, "tensor", name);
    kt_json_add_string(line, "format",
                       kt_weight_format_name(is_down ? p->piece.down : p->piece.format));
    kt_json_add_double(line, "error", kt_format_loss_rms(loss));
    if (w->importance)
        kt_json_add_double(line, "weighted_error", kt_format_loss_weighted_rms(loss));
    kt_json_add_double(line, "largest_error", loss->error_max);
    kt_json_add_double(line, "largest_weight", loss->source_max);
    kt_json_add_double(line, "error_squares", loss->error_sq);
    kt_json_add_double(line, "squares", loss->energy);
    if (w->importance) {
        kt_json_add_double(line, "weighted_error_squares", loss->weighted_sq);
        kt_json_add_double(line, "weighted_squares", loss->weighted_total);
    }
    kt_json_end_object(line);
    push_line(line, lines, size, room);
}

kt_status kt_convert_end_shard(kt_convert_work *w, int shard, const char *lines, size_t size,
                               kt_err *err) {
    kt_json_writer line = {0};

    kt_json_begin_object(&line);
    kt_json_add_string(&line, "shard", w->shards[shard].name);
    kt_json_add_int(&line, "number", shard);
    kt_json_add_int(&line, "bytes", (int64_t)w->shards[shard].bytes);
    kt_json_end_object(&line);
    return append_line(&w->journal, &line, lines, size, err);
}

/* ---- reading ---- */

/* Walk the whole lines; at each the callback, false = stop. Fails for lack of memory only. */
static kt_status walk(const char *text, size_t size,
                      bool (*each)(void *arg, const kt_json *line, size_t end), void *arg,
                      kt_err *err) {
    size_t at = 0;

    while (at < size) {
        const char *end = memchr(text + at, '\n', size - at);
        const size_t length = end ? (size_t)(end - text) - at : 0;
        size_t inside;
        const char *line = end ? open_line(text + at, length, &inside) : NULL;
        kt_json_doc *doc;
        bool goes_on;
        kt_status st;
        if (!line) break;
        st = kt_json_parse(line, inside, NULL, &doc, err);
        if (st == KT_E_NOMEM) return st;
        if (st != KT_OK) break;
        goes_on = each(arg, kt_json_root(doc), at + length + 1);
        kt_json_destroy(doc);
        if (!goes_on) break;
        at += length + 1;
    }
    return KT_OK;
}

typedef struct former_run {
    kt_convert_work *work;
    bool has_begun, has_formats, is_other;
    kt_status status; /* of looking at a shard */
    kt_err *err;
    char model[200], weights[32];
    int done;        /* shards */
    size_t good_end; /* behind the last whole one, or behind the beginning */
} former_run;

static void see_begin(former_run *f, const kt_json *line, size_t end) {
    const kt_convert_work *w = f->work;

    f->has_begun = true;
    f->good_end = end;
    snprintf(f->model, sizeof f->model, "%s", kt_json_text(line, "begin"));
    snprintf(f->weights, sizeof f->weights, "%s", kt_json_text(line, "weights"));
    f->is_other = strcmp(kt_json_text(line, "identity"), w->identity) != 0 ||
                  kt_json_int(kt_json_get(line, "version"), 0) != KT_PACKED_VERSION ||
                  kt_json_int(kt_json_get(line, "shards"), 0) != kt_convert_shards(&w->model.graph);
}

static bool see_line(void *arg, const kt_json *line, size_t end) {
    former_run *f = arg;
    kt_convert_work *w = f->work;
    bool is_whole = false;

    if (!f->has_begun) {
        see_begin(f, line, end);
        return !f->is_other;
    }
    if (kt_json_get(line, "formats")) {
        f->has_formats = true;
        f->good_end = end;
    }
    if (!kt_json_get(line, "shard")) return true;
    if (f->done >= w->n_shards || kt_json_int(kt_json_get(line, "number"), -1) != f->done)
        return false;
    f->status = kt_convert_find_shard(w, f->done, &is_whole, f->err);
    if (!is_whole) return false;
    f->done++;
    f->good_end = end;
    return true;
}

static kt_status refuse_other(const former_run *f, kt_err *err) {
    return kt_fail(err, KT_E_INVALID,
                   "%.200s: holds another conversion, of '%.100s' to %s, or of a source, load or "
                   "importance file that has changed since; expected a new folder",
                   f->work->folder, f->model, f->weights);
}

static kt_status read_former(kt_convert_work *w, int *done, kt_err *err) {
    kt_convert_journal *j = &w->journal;
    former_run f = {.work = w, .err = err};
    char *text;
    size_t size;
    kt_status st;

    KT_TRY(kt_file_read(j->path, MOST_BYTES, &text, &size, err));
    st = walk(text, size, see_line, &f, err);
    free(text);
    KT_TRY(st == KT_OK ? f.status : st);
    if (f.is_other) return refuse_other(&f, err);
    if (w->request->budget && !f.has_formats) { /* ended between its first two lines */
        f.has_begun = false;
        f.good_end = 0;
    }
    *done = f.done;
    if (ftruncate(j->fd, (off_t)f.good_end) != 0 || lseek(j->fd, 0, SEEK_END) < 0)
        return kt_fail(err, KT_E_IO, "%.300s: cannot write: %s", j->path, strerror(errno));
    return f.has_begun ? KT_OK : write_begin(w, err);
}

kt_status kt_convert_open_journal(kt_convert_work *w, int *done, kt_err *err) {
    kt_convert_journal *j = &w->journal;

    *done = 0;
    snprintf(j->path, sizeof j->path, "%s/" KT_CONVERT_JOURNAL, w->folder);
    j->fd = open(j->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (j->fd < 0)
        return kt_fail(err, KT_E_IO, "%.300s: cannot create: %s", j->path, strerror(errno));
    if (flock(j->fd, LOCK_EX | LOCK_NB) != 0)
        return kt_fail(err, KT_E_IO, "%.300s: another conversion is writing into this folder",
                       j->path);
    return read_former(w, done, err);
}

void kt_convert_close_journal(kt_convert_journal *j) {
    if (j->fd >= 0) close(j->fd);
    j->fd = -1;
}

/* ---- formats that were chosen ---- */

typedef struct chosen_formats {
    former_run run;
    bool found;
    kt_status status;
    kt_err *err;
} chosen_formats;

static void read_errors(kt_convert_work *w, const kt_json *errors) {
    char name[KT_PACKED_NAME];

    for (int i = 0; i < w->model.graph.n_weights; i++) {
        kt_packed_weight_name(&w->model.graph, i, name);
        w->errors[i] = kt_json_double(kt_json_get(errors, name), 0);
    }
}

/* The first line says whose journal this is, the second one what was chosen. */
static bool see_formats(void *arg, const kt_json *line, size_t end) {
    chosen_formats *c = arg;
    kt_convert_work *w = c->run.work;

    if (!c->run.has_begun) {
        see_begin(&c->run, line, end);
        return !c->run.is_other;
    }
    if (!kt_json_get(line, "formats")) return false;
    c->status = kt_packed_read_formats(&w->model.graph, kt_json_get(line, "formats"), c->err);
    c->found = c->status == KT_OK;
    if (c->found) read_errors(w, kt_json_get(line, "errors"));
    return false;
}

kt_status kt_convert_read_formats(kt_convert_work *w, bool *found, kt_err *err) {
    chosen_formats c = {.run = {.work = w, .err = err}, .err = err};
    char *text;
    size_t size;
    kt_status st;

    *found = false;
    kt_convert_path(w, KT_CONVERT_JOURNAL, "");
    if (access(w->path, F_OK) != 0) return KT_OK;
    KT_TRY(kt_file_read(w->path, MOST_BYTES, &text, &size, err));
    st = walk(text, size, see_formats, &c, err);
    free(text);
    KT_TRY(st == KT_OK ? c.status : st);
    if (c.run.is_other) return refuse_other(&c.run, err);
    *found = c.found;
    return KT_OK;
}

/* ---- the sum ---- */

typedef struct summary {
    kt_convert_result *result;
    double error, all, weighted, weighted_all;
} summary;

static double number(const kt_json *line, const char *key) {
    return kt_json_double(kt_json_get(line, key), 0);
}

static bool add_line(void *arg, const kt_json *line, size_t end) {
    summary *s = arg;
    kt_convert_result *r = s->result;
    (void)end;

    if (!kt_json_get(line, "tensor")) return true;
    r->tensors++;
    s->error += number(line, "error_squares");
    s->all += number(line, "squares");
    s->weighted += number(line, "weighted_error_squares");
    s->weighted_all += number(line, "weighted_squares");
    if (number(line, "error") <= r->worst) return true;
    r->worst = number(line, "error");
    snprintf(r->worst_name, sizeof r->worst_name, "%s", kt_json_text(line, "tensor"));
    return true;
}

kt_status kt_convert_sum_up(kt_convert_work *w, kt_err *err) {
    summary s = {.result = &w->result};
    char *text;
    size_t size;
    kt_status st;

    KT_TRY(kt_file_read(w->journal.path, MOST_BYTES, &text, &size, err));
    st = walk(text, size, add_line, &s, err);
    free(text);
    KT_TRY(st);
    if (s.all > 0) w->result.error = sqrt(s.error / s.all);
    if (s.weighted_all > 0) w->result.weighted_error = sqrt(s.weighted / s.weighted_all);
    return KT_OK;
}
