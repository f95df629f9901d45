/* One file of the output: packed in memory piece by piece, written one behind the other, its head
 * last, when the checksums are known. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/err.h"
#include "runtime/model/bytes.h"
#include "runtime/model/convert_impl.h"

/* ---- the head ---- */

static void put_metadata(kt_json_writer *j, const kt_convert_work *w, const kt_convert_shard *s) {
    kt_json_key(j, "__metadata__");
    kt_json_begin_object(j);
    kt_json_add_string(j, "format", "kt-packed");
    for (int i = s->first; i < s->first + s->n; i++) {
        const kt_convert_piece *p = &w->pieces[i];
        char text[KT_PACKED_TEXT], all[KT_PACKED_TEXT + 32];
        kt_packed_text(&p->piece, text, sizeof text);
        snprintf(all, sizeof all, "%s checksum=%016llx", text, (unsigned long long)p->checksum);
        kt_json_add_string(j, p->piece.name, all);
    }
    kt_json_end_object(j);
}

static void put_head(kt_json_writer *j, const kt_convert_work *w, const kt_convert_shard *s) {
    int64_t offset = 0;

    kt_json_begin_object(j);
    put_metadata(j, w, s);
    for (int i = s->first; i < s->first + s->n; i++) {
        const kt_packed_piece *p = &w->pieces[i].piece;
        kt_json_key(j, p->name);
        kt_json_begin_object(j);
        kt_json_add_string(j, "dtype", "U8");
        kt_json_key(j, "shape");
        kt_json_begin_array(j);
        kt_json_put_int(j, p->count);
        kt_json_put_int(j, (int64_t)p->bytes);
        kt_json_end_array(j);
        kt_json_key(j, "data_offsets");
        kt_json_begin_array(j);
        kt_json_put_int(j, offset);
        offset += p->count * (int64_t)p->bytes;
        kt_json_put_int(j, offset);
        kt_json_end_array(j);
        kt_json_end_object(j);
    }
    kt_json_end_object(j);
}

/* Its length and spaces to where data begin. The length of the text does not depend on the
 * checksums. */
static kt_status make_head(const kt_convert_work *w, const kt_convert_shard *s, char **out,
                           size_t *bytes, kt_err *err) {
    kt_json_writer j = {0};
    const char *text;
    size_t size = 0;

    put_head(&j, w, s);
    text = kt_json_writer_text(&j, &size);
    *bytes = (8 + size + KT_PACKED_ALIGN - 1) / KT_PACKED_ALIGN * KT_PACKED_ALIGN;
    *out = text ? malloc(*bytes) : NULL;
    if (*out) {
        memset(*out, ' ', *bytes);
        for (int i = 0; i < 8; i++) (*out)[i] = (char)((uint64_t)(*bytes - 8) >> 8 * i);
        memcpy(*out + 8, text, size);
    }
    kt_json_writer_deinit(&j);
    return *out ? KT_OK : kt_fail(err, KT_E_NOMEM, "%s: no memory for its head", s->name);
}

kt_status kt_convert_measure_shard(const kt_convert_work *w, kt_convert_shard *s, kt_err *err) {
    char *head;
    size_t bytes;

    KT_TRY(make_head(w, s, &head, &bytes, err));
    free(head);
    s->bytes = bytes + s->data_bytes;
    return KT_OK;
}

/* ---- packing and writing ---- */

typedef struct shard_writer {
    kt_convert_work *work;
    kt_convert_shard *shard;
    int fd;
    size_t n_sums;
    char *lines; /* for the journal */
    size_t lines_bytes, lines_room;
    kt_json_writer line;
} shard_writer;

static kt_status fail_errno(const kt_convert_work *w, const char *verb, kt_err *err) {
    return kt_fail(err, KT_E_IO, "%.300s: cannot %s: %s", w->path, verb, strerror(errno));
}

static kt_status put_bytes(const kt_convert_work *w, int fd, const uint8_t *data, size_t bytes,
                           kt_err *err) {
    while (bytes) {
        ssize_t n = write(fd, data, bytes < (1 << 26) ? bytes : 1 << 26);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail_errno(w, "write", err);
        data += n;
        bytes -= (size_t)n;
    }
    return KT_OK;
}

typedef struct summing {
    const uint8_t *data;
    size_t bytes, chunks; /* of a matrix */
    uint64_t *sums;
} summing;

static void sum_chunks(void *arg, int64_t begin, int64_t end, int tid) {
    const summing *s = arg;
    (void)tid;

    for (size_t i = (size_t)begin; i < (size_t)end; i++) {
        const size_t at = i % s->chunks * KT_PACKED_CHUNK;
        const size_t n = s->bytes - at < KT_PACKED_CHUNK ? s->bytes - at : KT_PACKED_CHUNK;
        s->sums[i] = kt_checksum(s->data + i / s->chunks * s->bytes + at, n);
    }
}

/* `count` packed matrices from the buffer to the file. */
static kt_status put_items(shard_writer *s, const kt_packed_piece *p, int64_t count, kt_err *err) {
    kt_convert_work *w = s->work;
    const kt_convert_request *r = w->request;
    summing sum = {w->buffer.data, p->bytes, kt_packed_chunks(p->bytes), w->sums + s->n_sums};
    kt_phase phase = {.run = sum_chunks, .arg = &sum, .n_tasks = count * (int64_t)sum.chunks};

    KT_TRY(kt_packer_failure(&w->packer, err));
    kt_pool_run(w->pool, &phase, 1);
    s->n_sums += (size_t)phase.n_tasks;
    KT_TRY(put_bytes(w, s->fd, w->buffer.data, p->bytes * (size_t)count, err));
    w->bytes_done += p->bytes * (size_t)count;
    if (r->progress) {
        kt_convert_progress now = {w->bytes_done, w->bytes_total, (int)(s->shard - w->shards),
                                   w->n_shards};
        r->progress(r->progress_arg, &now);
    }
    if (r->cancel && r->cancel(NULL))
        return kt_fail(err, KT_E_CANCELLED,
                       "interrupted; the same command goes on behind shard %d of %d",
                       (int)(s->shard - w->shards), w->n_shards);
    return KT_OK;
}

/* Sums of the blocks of `count` matrices in the order of the blocks, whatever thread had them. */
static kt_status note_losses(shard_writer *s, const kt_convert_piece *p, int64_t first,
                             int64_t count, int64_t blocks, kt_err *err) {
    kt_convert_work *w = s->work;
    const kt_weight *of = &w->model.graph.weights[p->weight];
    kt_run runs[KT_WEIGHT_PARTS];

    kt_weight_runs(of, w->plan.quant, runs);
    for (int64_t e = 0; e < count; e++)
        for (int part = 0; part < runs[p->run].n; part++) {
            kt_format_loss loss = {0};
            for (int64_t b = 0; b < blocks; b++)
                kt_format_loss_add(&loss, &w->losses[e * blocks + b][part]);
            if (loss.energy > 0 || loss.error_sq > 0)
                kt_convert_note_loss(w, &s->line, p, runs[p->run].first + part, first + e, &loss,
                                     &s->lines, &s->lines_bytes, &s->lines_room);
        }
    return s->lines || s->lines_room == 0 ? KT_OK
                                          : kt_fail(err, KT_E_NOMEM, "no memory for the journal");
}

static kt_status put_matrix(shard_writer *s, const kt_convert_piece *p, kt_err *err) {
    kt_convert_work *w = s->work;
    const kt_problem_plan *plan = kt_model_plan_run(&w->plan, p->weight, p->run);
    const int64_t blocks = kt_packer_blocks(plan, p->piece.n);
    kt_run runs[KT_WEIGHT_PARTS];
    kt_matrix_source source;

    kt_weight_runs(&w->model.graph.weights[p->weight], w->plan.quant, runs);
    KT_TRY(kt_weight_source(&w->packer.finder, &w->model.graph.weights[p->weight],
                            runs[p->run].first, runs[p->run].n, 0, &source, err));
    memset(w->losses, 0, (size_t)blocks * sizeof *w->losses);
    kt_packer_dense(&w->packer, plan, &source, w->buffer.data);
    KT_TRY(put_items(s, &p->piece, 1, err));
    return note_losses(s, p, 0, 1, blocks, err);
}

/* As many experts at a time as the buffer holds. */
static kt_status put_experts(shard_writer *s, const kt_convert_piece *p, kt_err *err) {
    kt_convert_work *w = s->work;
    const kt_problem_plan *plan = kt_model_plan_run(&w->plan, p->weight, 0);
    const int64_t blocks = kt_packer_blocks(plan, 0), all = p->piece.count;
    const int64_t room = (int64_t)(w->buffer.bytes / p->piece.bytes);
    const int64_t step = room < all ? room : all;
    kt_placing place = {.whole = kt_problem_plan_layer(plan), .n = 1, .bytes = {p->piece.bytes}};
    kt_status st = KT_OK;

    place.at = calloc((size_t)step, sizeof *place.at);
    if (!place.at) return kt_fail(err, KT_E_NOMEM, "no memory for a list of experts");
    for (int64_t e = 0; e < step; e++)
        place.at[e] = (uint8_t *)w->buffer.data + (size_t)e * p->piece.bytes;
    for (int64_t first = 0; first < all && st == KT_OK; first += step) {
        place.count = all - first < step ? all - first : step;
        memset(w->losses, 0, (size_t)(place.count * blocks) * sizeof *w->losses);
        st = kt_packer_experts(&w->packer, p->weight, first, &place, err);
        if (st == KT_OK) st = put_items(s, &p->piece, place.count, err);
        if (st == KT_OK) st = note_losses(s, p, first, place.count, blocks, err);
    }
    free(place.at);
    return st;
}

static kt_status put_piece(shard_writer *s, const kt_convert_piece *p, kt_err *err) {
    kt_convert_work *w = s->work;

    switch (w->model.graph.weights[p->weight].kind) {
    case KT_WEIGHT_MATRIX: return put_matrix(s, p, err);
    case KT_WEIGHT_EXPERTS: return put_experts(s, p, err);
    case KT_WEIGHT_HEADS:
        KT_TRY(kt_packer_heads(&w->packer, p->weight, w->buffer.data, err));
        return put_items(s, &p->piece, p->piece.count, err);
    default:
        memset(w->buffer.data, 0, p->piece.bytes);
        kt_packer_small(&w->packer, p->weight, p->small, w->buffer.data);
        return put_items(s, &p->piece, 1, err);
    }
}

static kt_status fill(shard_writer *s, kt_err *err) {
    kt_convert_work *w = s->work;
    kt_convert_shard *shard = s->shard;
    const size_t head_bytes = shard->bytes - shard->data_bytes;
    char *head;
    size_t bytes;
    kt_status st;

    if (lseek(s->fd, (off_t)head_bytes, SEEK_SET) < 0) return fail_errno(w, "write", err);
    for (int i = shard->first; i < shard->first + shard->n; i++) {
        kt_convert_piece *p = &w->pieces[i];
        const size_t first = s->n_sums;
        KT_TRY(put_piece(s, p, err));
        p->checksum = kt_checksum(w->sums + first, (s->n_sums - first) * sizeof *w->sums);
    }
    KT_TRY(make_head(w, shard, &head, &bytes, err));
    st = lseek(s->fd, 0, SEEK_SET) < 0 ? fail_errno(w, "write", err)
                                       : put_bytes(w, s->fd, (const uint8_t *)head, bytes, err);
    free(head);
    if (st == KT_OK && fsync(s->fd) != 0) st = fail_errno(w, "write", err);
    return st;
}

/* The rename is made durable by the journal's line behind it. */
static kt_status finish(kt_convert_work *w, const kt_convert_shard *shard, kt_err *err) {
    char from[sizeof w->path];
    int folder;

    snprintf(from, sizeof from, "%s", kt_convert_path(w, shard->name, ".part"));
    if (rename(from, kt_convert_path(w, shard->name, "")) != 0) return fail_errno(w, "rename", err);
    folder = open(w->folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder >= 0) {
        fsync(folder);
        close(folder);
    }
    return KT_OK;
}

kt_status kt_convert_write_shard(kt_convert_work *w, int shard, kt_err *err) {
    shard_writer s = {.work = w, .shard = &w->shards[shard]};
    kt_status st;

    kt_convert_path(w, s.shard->name, ".part");
    s.fd = open(w->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (s.fd < 0) return fail_errno(w, "create", err);
    st = fill(&s, err);
    if (close(s.fd) != 0 && st == KT_OK) st = fail_errno(w, "write", err);
    if (st == KT_OK)
        st = finish(w, s.shard, err);
    else
        unlink(kt_convert_path(w, s.shard->name, ".part"));
    if (st == KT_OK) st = kt_convert_end_shard(w, shard, s.lines, s.lines_bytes, err);
    kt_json_writer_deinit(&s.line);
    free(s.lines);
    return st;
}

/* ---- one that an earlier run wrote ---- */

static bool is_piece(const kt_checkpoint *c, const kt_convert_work *w, const kt_packed_piece *p) {
    const int64_t shape[2] = {p->count, (int64_t)p->bytes};
    char text[KT_PACKED_TEXT];
    summing sum = {.bytes = p->bytes, .chunks = kt_packed_chunks(p->bytes), .sums = w->sums};
    kt_phase phase = {.run = sum_chunks, .arg = &sum, .n_tasks = p->count * (int64_t)sum.chunks};
    const kt_tensor *t;
    const char *said, *mark = " checksum=";
    size_t size;

    if (kt_checkpoint_need(c, p->name, 2, shape, &t, NULL) != KT_OK) return false;
    said = kt_checkpoint_metadata(c, t);
    size = strlen(kt_packed_text(p, text, sizeof text));
    if (!said || strncmp(said, text, size) != 0 || strncmp(said + size, mark, strlen(mark)) != 0)
        return false;
    sum.data = t->data;
    kt_pool_run(w->pool, &phase, 1);
    return strtoull(said + size + strlen(mark), NULL, 16) ==
           kt_checksum(w->sums, (size_t)phase.n_tasks * sizeof *w->sums);
}

kt_status kt_convert_find_shard(kt_convert_work *w, int shard, bool *is_whole, kt_err *err) {
    const kt_convert_shard *s = &w->shards[shard];
    kt_checkpoint *c;
    kt_status st = kt_checkpoint_open_panels(kt_convert_path(w, s->name, ""), &c, err);

    *is_whole = st == KT_OK;
    if (st != KT_OK) return st == KT_E_NOMEM ? st : KT_OK;
    for (int i = s->first; i < s->first + s->n && *is_whole; i++)
        *is_whole = is_piece(c, w, &w->pieces[i].piece);
    kt_checkpoint_close(c);
    return KT_OK;
}
