/* Tensors by name, whichever file they lie in. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/checkpoint.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/checkpoint_impl.h"

static const struct {
    const char *name;
    size_t bytes;
} dtypes[KT_DTYPE_COUNT] = {
    [KT_DTYPE_BOOL] = {"BOOL", 1},       [KT_DTYPE_U8] = {"U8", 1},
    [KT_DTYPE_I8] = {"I8", 1},           [KT_DTYPE_F8_E4M3] = {"F8_E4M3", 1},
    [KT_DTYPE_F8_E5M2] = {"F8_E5M2", 1}, [KT_DTYPE_F8_E8M0] = {"F8_E8M0", 1},
    [KT_DTYPE_I16] = {"I16", 2},         [KT_DTYPE_U16] = {"U16", 2},
    [KT_DTYPE_F16] = {"F16", 2},         [KT_DTYPE_BF16] = {"BF16", 2},
    [KT_DTYPE_I32] = {"I32", 4},         [KT_DTYPE_U32] = {"U32", 4},
    [KT_DTYPE_F32] = {"F32", 4},         [KT_DTYPE_I64] = {"I64", 8},
    [KT_DTYPE_U64] = {"U64", 8},         [KT_DTYPE_F64] = {"F64", 8},
};

const char *kt_dtype_name(kt_dtype dtype) {
    return (unsigned)dtype < KT_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

size_t kt_dtype_bytes(kt_dtype dtype) {
    return (unsigned)dtype < KT_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

/* "[2, 3]" for messages; long shapes are cut. */
char *kt_shape_format(char *text, size_t size, int rank, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");

    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kt_tensor *)a)->name, ((const kt_tensor *)b)->name);
}

kt_status kt_checkpoint_reserve(kt_checkpoint *c, size_t more, kt_err *err) {
    size_t wanted = c->n_tensors + more;
    kt_tensor *grown;

    if (wanted <= c->capacity) return KT_OK;
    grown = realloc(c->tensors, wanted * sizeof *grown);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %zu tensor entries", wanted);
    c->tensors = grown;
    c->capacity = wanted;
    return KT_OK;
}

/* Sort by name and refuse a name that two shards hold (JSON refuses it inside one). */
kt_status kt_checkpoint_finish(kt_checkpoint *c, kt_err *err) {
    if (c->n_tensors) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < c->n_tensors; i++) {
        const kt_tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s' is in both %.150s and %.150s",
                           a->name, c->shards[a->file].path, c->shards[b->file].path);
    }
    return KT_OK;
}

kt_checkpoint *kt_checkpoint_create(int n_shards) {
    kt_checkpoint *c = calloc(1, sizeof *c);

    if (!c) return NULL;
    c->shards = calloc((size_t)n_shards, sizeof *c->shards);
    if (!c->shards) {
        free(c);
        return NULL;
    }
    c->n_shards = n_shards;
    return c;
}

void kt_checkpoint_close(kt_checkpoint *c) {
    if (!c || atomic_fetch_sub(&c->references, 1) > 0) return;
    for (int i = 0; i < c->n_shards; i++) {
        kt_mapping_close(&c->shards[i].mapping);
        kt_json_destroy(c->shards[i].header);
    }
    kt_checkpoint_close(c->panels);
    kt_json_destroy(c->formats);
    kt_buffer_destroy(&c->memory);
    kt_gguf_meta_deinit(&c->meta);
    kt_arena_deinit(&c->arena);
    free(c->shards);
    free(c->tensors);
    free(c);
}

kt_status kt_checkpoint_of_memory(const char *label, const kt_tensor *tensors, size_t count,
                                  kt_buffer *memory, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = kt_checkpoint_create(1);
    int is_short = !c;

    *out = NULL;
    if (c) {
        c->memory = *memory;
        c->shards[0].path = kt_arena_strndup(&c->arena, label, strlen(label));
        c->tensors = calloc(count + 1, sizeof *c->tensors);
        is_short = !c->tensors || !c->shards[0].path;
    } else {
        kt_buffer_destroy(memory);
    }
    for (size_t i = 0; i < count && !is_short; i++) {
        c->tensors[i] = tensors[i];
        c->tensors[i].file = 0;
        c->tensors[i].name = kt_arena_strndup(&c->arena, tensors[i].name, strlen(tensors[i].name));
        is_short = !c->tensors[i].name;
        c->n_tensors++;
    }
    if (is_short || kt_checkpoint_finish(c, err) != KT_OK) {
        kt_checkpoint_close(c);
        return is_short ? kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu tensors", label, count)
                        : KT_E_FORMAT;
    }
    *out = c;
    return KT_OK;
}

kt_checkpoint *kt_checkpoint_panels(const kt_checkpoint *c) {
    return c->panels;
}

kt_quant kt_checkpoint_packed_as(const kt_checkpoint *c) {
    return c->packed_as;
}

void kt_checkpoint_retain(kt_checkpoint *c) {
    atomic_fetch_add(&c->references, 1);
}

const char *kt_checkpoint_metadata(const kt_checkpoint *c, const kt_tensor *t) {
    const kt_json *root = kt_json_root(c->shards[t->file].header);

    return kt_json_string(kt_json_get(kt_json_get(root, "__metadata__"), t->name), NULL);
}

const kt_gguf_meta *kt_checkpoint_gguf(const kt_checkpoint *c) {
    return c->is_gguf ? &c->meta : NULL;
}

size_t kt_checkpoint_count(const kt_checkpoint *c) {
    return c->n_tensors;
}

const kt_tensor *kt_checkpoint_at(const kt_checkpoint *c, size_t i) {
    return i < c->n_tensors ? &c->tensors[i] : NULL;
}

const kt_tensor *kt_checkpoint_find(const kt_checkpoint *c, const char *name) {
    kt_tensor key = {.name = name};

    if (!c->n_tensors) return NULL;
    return bsearch(&key, c->tensors, c->n_tensors, sizeof key, by_name);
}

const char *kt_checkpoint_file(const kt_checkpoint *c, int file) {
    return file >= 0 && file < c->n_shards ? c->shards[file].path : "";
}

kt_status kt_tensor_fail(const kt_checkpoint *c, const kt_tensor *t, kt_status status, kt_err *err,
                         const char *format, ...) {
    char message[KT_ERR_SIZE];
    va_list args;

    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return kt_fail(err, status, "%.200s: tensor '%.100s': %s", kt_checkpoint_file(c, t->file),
                   t->name, message);
}

kt_status kt_checkpoint_need(const kt_checkpoint *c, const char *name, int rank,
                             const int64_t *shape, const kt_tensor **out, kt_err *err) {
    const kt_tensor *t = kt_checkpoint_find(c, name);
    char found[160], wanted[160];

    *out = NULL;
    if (!t)
        return kt_fail(err, KT_E_NOT_FOUND, "%.200s%s: tensor '%.100s' is missing",
                       kt_checkpoint_file(c, 0), c->n_shards > 1 ? " and its other shards" : "",
                       name);
    if (t->rank != rank || memcmp(t->shape, shape, (size_t)rank * sizeof *shape) != 0)
        return kt_tensor_fail(c, t, KT_E_MISMATCH, err, "shape %s, %s for %s",
                              kt_shape_format(found, sizeof found, t->rank, t->shape),
                              c->is_gguf ? "the metadata asks" : "config.json asks",
                              kt_shape_format(wanted, sizeof wanted, rank, shape));
    *out = t;
    return KT_OK;
}

void kt_checkpoint_release(const kt_checkpoint *c, const kt_tensor *t, size_t offset,
                           size_t bytes) {
    const kt_mapping *m = &c->shards[t->file].mapping;
    if (!m->data) return; /* in memory: others may read the same bytes */
    if (offset <= t->bytes && bytes <= t->bytes - offset)
        kt_mapping_release(m, (size_t)(t->data - m->data) + offset, bytes);
}

void kt_checkpoint_populate(const kt_checkpoint *c, const kt_tensor *t, size_t offset,
                            size_t bytes) {
    const kt_mapping *m = &c->shards[t->file].mapping;
    if (m->data && offset <= t->bytes && bytes <= t->bytes - offset)
        kt_mapping_populate(m, (size_t)(t->data - m->data) + offset, bytes);
}
