/* The line of a step is built backwards in time: its layers come while it runs, its head when it
 * is over. So the layers' text is kept apart from the head, and both are written with one call.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/exec/recorder.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "kt/version.h"

#define DEFAULT_BYTES ((int64_t)256 << 20)
#define LEAST_BYTES ((int64_t)1 << 20)
#define PAIR_BYTES 16  /* "65535,65535," */
#define LAYER_BYTES 4  /* "[]," */
#define HEAD_BYTES 192 /* five numbers of at most 20 digits and their keys */

struct kt_recorder {
    int fd;
    char path[PATH_MAX], older[PATH_MAX];
    char *header; /* owned: the first line of every file */
    size_t header_bytes;
    char *layers; /* owned: text of the step's layers */
    size_t used, room;
    int64_t written, half;
    int64_t steps, lost;
    const kt_log *log;
};

static kt_status make_header(kt_recorder *r, const kt_recorder_options *o, kt_err *err) {
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"experts", o->experts},
                   {"topk", o->topk},
                   {"moe_layers", o->moe_layers},
                   {"threads", o->threads}};
    kt_json_writer w = {0};
    const char *text;
    size_t size = 0;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "schema", "kt-trace-1");
    kt_json_add_string(&w, "model", o->model);
    if (o->weights) kt_json_add_string(&w, "weights", o->weights);
    if (o->kv) kt_json_add_string(&w, "kv", o->kv);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        kt_json_add_int(&w, numbers[i].key, numbers[i].value);
    kt_json_add_string(&w, "build", "kt " KT_VERSION);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size);
    r->header = text ? malloc(size + 1) : NULL;
    if (r->header) {
        memcpy(r->header, text, size);
        r->header[size] = '\n';
        r->header_bytes = size + 1;
    }
    kt_json_writer_deinit(&w);
    return r->header ? KT_OK : kt_fail(err, KT_E_NOMEM, "%s: no memory for the header", r->path);
}

/* All of both parts in one call: with O_APPEND the line lands whole. */
static int put(kt_recorder *r, const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    const struct iovec parts[] = {{(void *)(uintptr_t)a, a_bytes}, {(void *)(uintptr_t)b, b_bytes}};
    ssize_t want = (ssize_t)(a_bytes + b_bytes), n;

    do n = writev(r->fd, parts, 2);
    while (n < 0 && errno == EINTR);
    if (n > 0) r->written += n;
    return n == want ? 0 : n < 0 ? errno : ENOSPC;
}

static kt_status start_file(kt_recorder *r, kt_err *err) {
    int failed;

    r->fd = open(r->path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    r->written = 0;
    failed = r->fd < 0 ? errno : put(r, r->header, r->header_bytes, NULL, 0);
    if (!failed) return KT_OK;
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
    return kt_fail(err, KT_E_IO, "%.300s: %s", r->path, strerror(failed));
}

/* The server goes on without its record. */
static void give_up(kt_recorder *r, const char *why) {
    if (r->fd >= 0) close(r->fd);
    r->fd = -1;
    kt_log_write(r->log, KT_LOG_WARN, "record", "%.300s: recording ends after %lld steps: %s",
                 r->path, (long long)r->steps, why);
}

static void rotate(kt_recorder *r) {
    kt_err err = {KT_OK, ""};

    close(r->fd);
    r->fd = -1;
    if (rename(r->path, r->older) != 0)
        give_up(r, strerror(errno));
    else if (start_file(r, &err) != KT_OK)
        give_up(r, err.message);
}

kt_status kt_recorder_open(const kt_recorder_options *o, kt_recorder **out, kt_err *err) {
    int64_t most = o->max_rows < o->experts / o->topk ? o->max_rows * o->topk : o->experts;
    int64_t bytes = o->max_bytes > 0 ? o->max_bytes : DEFAULT_BYTES;
    kt_recorder *r;
    kt_status st;

    *out = NULL;
    if (o->experts < 1 || o->topk < 1 || o->moe_layers < 1)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s has no layers with routed experts: there is nothing to record",
                       o->model);
    r = calloc(1, sizeof *r);
    if (!r) return kt_fail(err, KT_E_NOMEM, "%.200s: no memory for a recorder", o->path);
    r->fd = -1;
    r->log = o->log;
    r->half = (bytes > LEAST_BYTES ? bytes : LEAST_BYTES) / 2;
    r->room = (size_t)o->moe_layers * ((size_t)most * PAIR_BYTES + LAYER_BYTES) + LAYER_BYTES;
    r->layers = malloc(r->room);
    st = r->layers ? KT_OK : kt_fail(err, KT_E_NOMEM, "%.200s: no memory for a recorder", o->path);
    if (st == KT_OK && (snprintf(r->path, sizeof r->path, "%s", o->path) >= PATH_MAX - 2 ||
                        snprintf(r->older, sizeof r->older, "%s.1", o->path) >= PATH_MAX))
        st = kt_fail(err, KT_E_INVALID, "%.200s: path too long", o->path);
    if (st == KT_OK) st = make_header(r, o, err);
    if (st == KT_OK) st = start_file(r, err);
    if (st != KT_OK) {
        kt_recorder_close(r);
        return st;
    }
    *out = r;
    return KT_OK;
}

kt_status kt_recorder_check(const char *path, kt_err *err) {
    const int existed = access(path, F_OK) == 0;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);

    if (fd < 0) return kt_fail(err, KT_E_IO, "%.300s: %s", path, strerror(errno));
    close(fd);
    if (!existed) unlink(path);
    return KT_OK;
}

void kt_recorder_close(kt_recorder *r) {
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    free(r->header);
    free(r->layers);
    free(r);
}

static void put_number(kt_recorder *r, int64_t v) {
    char digits[20];
    int n = 0;

    do digits[n++] = (char)('0' + v % 10);
    while (v /= 10);
    while (n > 0) r->layers[r->used++] = digits[--n];
}

void kt_recorder_begin(kt_recorder *r) {
    r->used = 0;
}

/* "]," ends the layer before, "," what stands before the next number. */
void kt_recorder_layer(kt_recorder *r) {
    if (r->room - r->used < LAYER_BYTES) return;
    if (r->used) {
        r->layers[r->used++] = ']';
        r->layers[r->used++] = ',';
    }
    r->layers[r->used++] = '[';
}

void kt_recorder_expert(kt_recorder *r, int64_t expert, int64_t rows) {
    if (r->used == 0 || expert < 0 || expert > 65535 || rows < 1 || rows > 65536 ||
        r->room - r->used < PAIR_BYTES)
        return;
    if (r->layers[r->used - 1] != '[') r->layers[r->used++] = ',';
    put_number(r, expert);
    r->layers[r->used++] = ',';
    put_number(r, rows);
}

void kt_recorder_end(kt_recorder *r, const kt_recorded_step *s) {
    char head[HEAD_BYTES];
    int n, failed;

    if (r->fd >= 0 && r->written + (int64_t)(r->used + HEAD_BYTES) > r->half &&
        r->written > (int64_t)r->header_bytes)
        rotate(r);
    if (r->fd < 0) {
        r->lost++;
        return;
    }
    n = snprintf(head, sizeof head,
                 "{\"decode\":%lld,\"prefill\":%lld,\"logits\":%lld,\"context\":%lld,"
                 "\"time_ns\":%lld,\"layers\":[",
                 (long long)s->decode, (long long)s->prefill, (long long)s->logits,
                 (long long)s->context, (long long)(s->time_ns > 0 ? s->time_ns : 1));
    if (r->used && r->room - r->used >= LAYER_BYTES) r->layers[r->used++] = ']';
    memcpy(r->layers + r->used, "]}\n", 3);
    failed = put(r, head, (size_t)n, r->layers, r->used + 3);
    if (failed) {
        r->lost++;
        give_up(r, strerror(failed));
        return;
    }
    r->steps++;
}

int64_t kt_recorder_steps(const kt_recorder *r) {
    return r->steps;
}

int64_t kt_recorder_lost(const kt_recorder *r) {
    return r->lost;
}
