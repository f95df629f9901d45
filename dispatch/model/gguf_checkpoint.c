/* GGUF files as checkpoints: the tensors of all parts by name, shapes in the order of
 * safetensors (the contiguous dimension last). SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/checkpoint_impl.h"
#include "dispatch/model/gguf_tensors.h"

enum { MAX_PARTS = 1000, MAX_PATH_BYTES = 4096 };

static kt_dtype dtype_of(kt_weight_format format) {
    switch (format) {
    case KT_W_F32: return KT_DTYPE_F32;
    case KT_W_F16: return KT_DTYPE_F16;
    case KT_W_BF16: return KT_DTYPE_BF16;
    default: return KT_DTYPE_U8;
    }
}

static kt_status add_tensor(kt_checkpoint *c, const kt_gguf_tensor *g, int file, kt_err *err) {
    kt_tensor t = {.dtype = g->has_integers ? KT_DTYPE_I32 : dtype_of(g->format),
                   .rank = g->rank,
                   .data = g->data,
                   .bytes = g->bytes,
                   .file = file};

    t.blocks = t.dtype == KT_DTYPE_U8 ? g->format : KT_W_NONE;
    for (int i = 0; i < g->rank; i++) t.shape[i] = g->size[g->rank - 1 - i];
    t.name = kt_arena_strndup(&c->arena, g->name, strlen(g->name));
    if (!t.name) return kt_fail(err, KT_E_NOMEM, "no memory for tensor names");
    c->tensors[c->n_tensors++] = t;
    return KT_OK;
}

/* Map one part and add its tensors; its metadata goes to *meta, which the caller ends. */
static kt_status read_part(kt_checkpoint *c, int file, kt_gguf_meta *meta, kt_err *err) {
    kt_shard *s = &c->shards[file];
    kt_gguf_tensor *list = NULL;
    size_t count = 0;
    kt_status st = kt_mapping_open(s->path, &s->mapping, err);

    if (st != KT_OK) return st;
    st = kt_gguf_meta_init(meta, s->mapping.data, s->mapping.bytes, err);
    if (st == KT_OK) st = kt_gguf_tensors_read(meta, &list, &count, err);
    if (st == KT_OK) st = kt_checkpoint_reserve(c, count, err);
    for (size_t i = 0; i < count && st == KT_OK; i++) st = add_tensor(c, &list[i], file, err);
    free(list);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", s->path);
}

/* How many parts the first one says there are, and that it is the first. */
static kt_status count_parts(const kt_checkpoint *c, int64_t *parts, kt_err *err) {
    int64_t no = kt_gguf_int(&c->meta, "split.no", 0);

    *parts = kt_gguf_int(&c->meta, "split.count", 1);
    if (no > 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: part %lld of %lld of a GGUF file, give the first",
                       c->shards[0].path, (long long)no + 1, (long long)*parts);
    if (*parts < 1) *parts = 1;
    if (*parts <= MAX_PARTS) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: split.count is %lld, expected at most %d",
                   c->shards[0].path, (long long)*parts, MAX_PARTS);
}

/* "x-00001-of-00003.gguf" -> "x-00002-of-00003.gguf": where the first part's number stands. */
static kt_status part_path(kt_checkpoint *c, int64_t part, int64_t parts, kt_err *err) {
    const char *first = c->shards[0].path;
    char end[48], path[MAX_PATH_BYTES];
    size_t size = strlen(first), tail;

    tail = (size_t)snprintf(end, sizeof end, "-00001-of-%05lld.gguf", (long long)parts);
    if (size <= tail || size >= sizeof path || strcmp(first + size - tail, end) != 0)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: the first of %lld parts, its name should end in '%s'", first,
                       (long long)parts, end);
    snprintf(end, sizeof end, "-%05lld-of-%05lld.gguf", (long long)part + 1, (long long)parts);
    snprintf(path, sizeof path, "%.*s%s", (int)(size - tail), first, end);
    c->shards[part].path = kt_arena_strndup(&c->arena, path, strlen(path));
    return c->shards[part].path ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for a path");
}

static kt_status read_others(kt_checkpoint *c, int64_t parts, kt_err *err) {
    const int64_t expected = kt_gguf_int(&c->meta, "split.tensors.count", -1);
    kt_shard *shards = realloc(c->shards, (size_t)parts * sizeof *shards);

    if (!shards) return kt_fail(err, KT_E_NOMEM, "no memory for %lld parts", (long long)parts);
    c->shards = shards;
    for (int64_t i = 1; i < parts; i++) {
        kt_gguf_meta meta = {0};
        kt_status st;
        c->shards[i] = (kt_shard){0};
        c->n_shards = (int)i + 1;
        KT_TRY(part_path(c, i, parts, err));
        st = read_part(c, (int)i, &meta, err);
        if (st == KT_OK && kt_gguf_int(&meta, "split.no", -1) != i)
            st = kt_fail(err, KT_E_FORMAT, "%.200s: split.no is %lld, expected %lld",
                         c->shards[i].path, (long long)kt_gguf_int(&meta, "split.no", -1),
                         (long long)i);
        kt_gguf_meta_deinit(&meta);
        KT_TRY(st);
    }
    if (expected < 0 || (size_t)expected == c->n_tensors) return KT_OK;
    return kt_fail(err, KT_E_FORMAT,
                   "%.200s: %zu tensors in %lld parts, split.tensors.count is %lld",
                   c->shards[0].path, c->n_tensors, (long long)parts, (long long)expected);
}

static kt_status read_gguf(kt_checkpoint *c, const char *path, kt_err *err) {
    int64_t parts;

    c->is_gguf = true;
    c->shards[0].path = kt_arena_strndup(&c->arena, path, strlen(path));
    if (!c->shards[0].path) return kt_fail(err, KT_E_NOMEM, "no memory for a path");
    KT_TRY(read_part(c, 0, &c->meta, err));
    KT_TRY(count_parts(c, &parts, err));
    if (parts > 1) KT_TRY(read_others(c, parts, err));
    return kt_checkpoint_finish(c, err);
}

kt_status kt_checkpoint_open_gguf(const char *path, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = kt_checkpoint_create(1);
    kt_status st;

    *out = NULL;
    if (!c) return kt_fail(err, KT_E_NOMEM, "no memory for a checkpoint");
    st = read_gguf(c, path, err);
    if (st != KT_OK) {
        kt_checkpoint_close(c);
        return st;
    }
    *out = c;
    return KT_OK;
}
