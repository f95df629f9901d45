/* Reading safetensors. The file is hostile until proven otherwise: nothing of the header is used as
 * an offset or a size before it was checked against the bytes that are there.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "base/numeric.h"
#include "dispatch/model/checkpoint_impl.h"
#include "dispatch/model/mistakes.h"
#include "dispatch/model/packed.h"

#define MAX_HEADER_BYTES 100000000u /* the format's own limit */
#define MAX_INDEX_BYTES 100000000u
#define MAX_PATH_BYTES 4096
#define INDEX_NAME "model.safetensors.index.json"

static kt_status read_shape(const kt_json *array, const char *name, kt_tensor *t,
                            uint64_t *elements, kt_err *err) {
    size_t rank = kt_json_length(array);

    if (kt_json_type_of(array) != KT_JSON_ARRAY || rank > KT_TENSOR_MAX_RANK)
        return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': shape is not a list of at most %d sizes",
                       name, KT_TENSOR_MAX_RANK);
    t->rank = (int)rank;
    *elements = 1;
    for (size_t i = 0; i < rank; i++) {
        const kt_json *item = kt_json_at(array, i);
        int64_t size = kt_json_int(item, -1);
        if (!kt_json_is_integer(item) || size < 0)
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': shape[%zu] is not a size", name, i);
        if (kt_mul_overflow(*elements, (uint64_t)size, elements))
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': the shape overflows", name);
        t->shape[i] = size;
    }
    return KT_OK;
}

/* Read one entry of the header. data_bytes is what follows the header in the file. */
static kt_status read_tensor(const kt_json *entry, const char *name, uint64_t data_bytes,
                             kt_tensor *t, uint64_t *begin, kt_err *err) {
    const char *dtype = kt_json_string(kt_json_get(entry, "dtype"), NULL);
    const kt_json *offsets = kt_json_get(entry, "data_offsets");
    uint64_t elements = 0, bytes = 0;
    int64_t first = kt_json_int(kt_json_at(offsets, 0), -1);
    int64_t last = kt_json_int(kt_json_at(offsets, 1), -1);
    int known = 0;

    if (!dtype) return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': no dtype", name);
    while (known < KT_DTYPE_COUNT && strcmp(kt_dtype_name((kt_dtype)known), dtype) != 0) known++;
    if (known == KT_DTYPE_COUNT)
        return kt_fail(err, KT_E_UNSUPPORTED, "tensor '%.100s': dtype '%.20s' is not known", name,
                       dtype);
    t->dtype = (kt_dtype)known;
    KT_TRY(read_shape(kt_json_get(entry, "shape"), name, t, &elements, err));
    if (kt_mul_overflow(elements, kt_dtype_bytes((kt_dtype)known), &bytes))
        return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': the shape overflows", name);
    if (kt_json_length(offsets) != 2 || first < 0 || last < first)
        return kt_fail(err, KT_E_FORMAT, "tensor '%.100s': data_offsets are not [begin, end]",
                       name);
    if ((uint64_t)last > data_bytes)
        return kt_fail(err, KT_E_FORMAT,
                       "tensor '%.100s' ends at byte %lld of the data, the file holds %llu "
                       "(truncated?)",
                       name, (long long)last, (unsigned long long)data_bytes);
    if ((uint64_t)(last - first) != bytes) {
        char shape[160];
        return kt_fail(
            err, KT_E_FORMAT, "tensor '%.100s': data_offsets span %lld bytes, %s %s needs %llu",
            name, (long long)(last - first), dtype,
            kt_shape_format(shape, sizeof shape, t->rank, t->shape), (unsigned long long)bytes);
    }
    t->bytes = (size_t)bytes;
    *begin = (uint64_t)first;
    return KT_OK;
}

static int by_address(const void *a, const void *b) {
    const kt_tensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones before their neighbour */
}

/* The tensors of one shard must tile its data: no gap, no overlap, no rest. */
static kt_status check_tiling(kt_tensor *tensors, size_t count, const uint8_t *data,
                              const uint8_t *end, kt_err *err) {
    const uint8_t *next = data;

    qsort(tensors, count, sizeof *tensors, by_address);
    for (size_t i = 0; i < count; i++) {
        const kt_tensor *t = &tensors[i];
        if (t->data < next)
            return kt_fail(err, KT_E_FORMAT, "tensors '%.100s' and '%.100s' overlap",
                           i ? tensors[i - 1].name : "", t->name);
        if (t->data > next)
            return kt_fail(err, KT_E_FORMAT, "%td bytes before tensor '%.100s' belong to none",
                           t->data - next, t->name);
        next += t->bytes;
    }
    if (next != end)
        return kt_fail(err, KT_E_FORMAT, "%td bytes after the last tensor belong to none",
                       end - next);
    return KT_OK;
}

static kt_status read_entries(kt_checkpoint *c, const kt_json *root, int file, const uint8_t *data,
                              uint64_t data_bytes, kt_err *err) {
    size_t first = c->n_tensors;

    if (kt_json_type_of(root) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "the header is not a JSON object");
    KT_TRY(kt_checkpoint_reserve(c, kt_json_length(root), err));
    for (size_t i = 0; i < kt_json_length(root); i++) {
        const char *name;
        size_t name_size;
        const kt_json *entry = kt_json_member(root, i, &name, &name_size);
        kt_tensor t = {.file = file};
        uint64_t begin = 0;

        if (strcmp(name, "__metadata__") == 0) continue;
        if (strlen(name) != name_size)
            return kt_fail(err, KT_E_FORMAT, "a tensor name holds a NUL byte");
        KT_TRY(read_tensor(entry, name, data_bytes, &t, &begin, err));
        t.data = data + begin;
        t.name = kt_arena_strndup(&c->arena, name, name_size);
        if (!t.name) return kt_fail(err, KT_E_NOMEM, "no memory for tensor names");
        c->tensors[c->n_tensors++] = t;
    }
    return check_tiling(c->tensors + first, c->n_tensors - first, data, data + data_bytes, err);
}

/* Map c->shards[file].path and add its tensors. */
static kt_status read_shard(kt_checkpoint *c, int file, kt_err *err) {
    kt_shard *s = &c->shards[file];
    kt_json_limits limits = {.max_bytes = MAX_HEADER_BYTES, .max_depth = 4};
    kt_json_doc *doc = NULL;
    uint64_t header = 0;
    kt_status st = kt_mapping_open(s->path, &s->mapping, err);

    if (st != KT_OK) return st;
    if (c->keeps_headers) kt_mapping_prefer_large(&s->mapping);
    if (s->mapping.bytes < 8) {
        st = kt_fail(err, KT_E_FORMAT, "%zu bytes are too few for a safetensors file (truncated?)",
                     s->mapping.bytes);
        goto done;
    }
    if (kt_model_mistake(s->mapping.data, s->mapping.bytes)) {
        st = kt_fail(err, KT_E_FORMAT, "%s, expected safetensors",
                     kt_model_mistake(s->mapping.data, s->mapping.bytes));
        goto done;
    }
    for (int i = 0; i < 8; i++) header |= (uint64_t)s->mapping.data[i] << (8 * i);
    if (header > MAX_HEADER_BYTES || header > s->mapping.bytes - 8) {
        st = kt_fail(err, KT_E_FORMAT,
                     "the header should have %llu bytes, the file has %zu and the limit is %u "
                     "(truncated, or not safetensors?)",
                     (unsigned long long)header, s->mapping.bytes, MAX_HEADER_BYTES);
        goto done;
    }
    st = kt_json_parse((const char *)s->mapping.data + 8, (size_t)header, &limits, &doc, err);
    if (st != KT_OK) {
        st = kt_fail_prefix(err, st, "header");
        goto done;
    }
    st = read_entries(c, kt_json_root(doc), file, s->mapping.data + 8 + header,
                      s->mapping.bytes - 8 - header, err);
    if (st == KT_OK && c->keeps_headers) {
        s->header = doc;
        return KT_OK;
    }
done:
    kt_json_destroy(doc);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", s->path);
}

static kt_status open_file(const char *path, bool keeps_headers, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = kt_checkpoint_create(1);
    kt_status st = KT_OK;

    *out = NULL;
    if (c) c->keeps_headers = keeps_headers;
    if (c) c->shards[0].path = kt_arena_strndup(&c->arena, path, strlen(path));
    if (!c || !c->shards[0].path) st = kt_fail(err, KT_E_NOMEM, "%s: no memory", path);
    if (st == KT_OK) st = read_shard(c, 0, err);
    if (st == KT_OK) st = kt_checkpoint_finish(c, err);
    if (st != KT_OK) {
        kt_checkpoint_close(c);
        return st;
    }
    *out = c;
    return KT_OK;
}

kt_status kt_checkpoint_open_file(const char *path, kt_checkpoint **out, kt_err *err) {
    return open_file(path, false, out, err);
}

kt_status kt_checkpoint_open_panels(const char *path, kt_checkpoint **out, kt_err *err) {
    return open_file(path, true, out, err);
}

/* The index comes from outside too: only plain file names of its own folder are followed. */
static int is_plain_name(const char *name, size_t size) {
    return size > 0 && strlen(name) == size && !strchr(name, '/') && !strchr(name, '\\') &&
           name[0] != '.';
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the index's weight_map, sorted, into files (room for one per
 * entry). */
static kt_status list_files(const kt_json *map, const char **files, int *n_files, kt_err *err) {
    size_t n = kt_json_length(map);
    int kept = 0;

    for (size_t i = 0; i < n; i++) {
        const char *key;
        size_t size = 0;
        const char *file = kt_json_string(kt_json_member(map, i, &key, NULL), &size);
        if (!file || !is_plain_name(file, size))
            return kt_fail(err, KT_E_FORMAT,
                           "weight_map['%.100s'] is not the name of a file in the same folder",
                           key);
        files[i] = file;
    }
    qsort(files, n, sizeof *files, by_string);
    for (size_t i = 0; i < n; i++)
        if (i == 0 || strcmp(files[i], files[kept - 1]) != 0) files[kept++] = files[i];
    *n_files = kept;
    return KT_OK;
}

static kt_status read_shards(kt_checkpoint *c, const char *folder, const char *const *files,
                             kt_err *err) {
    char path[MAX_PATH_BYTES];

    for (int i = 0; i < c->n_shards; i++) {
        int size = snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        kt_status st;
        if (size < 0 || (size_t)size >= sizeof path)
            return kt_fail(err, KT_E_INVALID, "%.200s: path too long", folder);
        c->shards[i].path = kt_arena_strndup(&c->arena, path, (size_t)size);
        if (!c->shards[i].path) return kt_fail(err, KT_E_NOMEM, "%.200s: no memory", folder);
        st = read_shard(c, i, err);
        if (st == KT_E_NOT_FOUND || st == KT_E_IO)
            return kt_fail_prefix(err, st, "shard %d of %d that %s lists", i + 1, c->n_shards,
                                  INDEX_NAME);
        if (st != KT_OK) return st;
    }
    return kt_checkpoint_finish(c, err);
}

/* Every tensor the index names must be in the shard it names. */
static kt_status check_index(const kt_checkpoint *c, const kt_json *map, kt_err *err) {
    for (size_t i = 0; i < kt_json_length(map); i++) {
        const char *name, *file = kt_json_string(kt_json_member(map, i, &name, NULL), NULL);
        const kt_tensor *t = kt_checkpoint_find(c, name);
        const char *found = t ? strrchr(c->shards[t->file].path, '/') + 1 : "no shard";
        if (strcmp(found, file) != 0)
            return kt_fail(err, KT_E_MISMATCH, "tensor '%.100s' should be in %.100s, is in %.100s",
                           name, file, found);
    }
    return KT_OK;
}

static kt_status open_sharded(const char *folder, const char *index_path, kt_checkpoint **out,
                              kt_err *err) {
    kt_checkpoint *c = NULL;
    kt_json_doc *doc = NULL;
    const char **files = NULL;
    char *text = NULL;
    size_t size = 0;
    int n_files = 0, is_shard = 0;
    const kt_json *map, *packed;
    kt_status st = kt_file_read(index_path, MAX_INDEX_BYTES, &text, &size, err);

    if (st != KT_OK) return st;
    st = kt_json_parse(text, size, NULL, &doc, err);
    if (st != KT_OK) goto done;
    map = kt_json_get(kt_json_root(doc), "weight_map");
    packed = kt_json_get(kt_json_get(kt_json_root(doc), "metadata"), "kt_packed");
    if (kt_json_type_of(map) != KT_JSON_OBJECT || kt_json_length(map) == 0) {
        st = kt_fail(err, KT_E_FORMAT, "no weight_map");
        goto done;
    }
    files = calloc(kt_json_length(map), sizeof *files);
    st = files ? list_files(map, files, &n_files, err) : kt_fail(err, KT_E_NOMEM, "no memory");
    if (st != KT_OK) goto done;
    c = kt_checkpoint_create(n_files);
    st = c ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory");
    is_shard = st == KT_OK; /* whose messages name it */
    if (c) c->keeps_headers = packed != NULL;
    if (st == KT_OK) st = read_shards(c, folder, files, err);
    is_shard = is_shard && st != KT_OK;
    if (st == KT_OK) st = check_index(c, map, err);
    if (st == KT_OK && packed) {
        kt_checkpoint *panels = c;
        c = NULL;
        st = kt_packed_open(folder, index_path, packed, panels, &c, err);
    }
done:
    if (st == KT_OK)
        *out = c;
    else {
        kt_checkpoint_close(c);
        if (!is_shard) st = kt_fail_prefix(err, st, "%.200s", index_path);
    }
    kt_json_destroy(doc);
    free(files);
    free(text);
    return st;
}

/* Neither an index nor the one file: what is there instead? */
static kt_status check_weights(const char *folder, const char *path, kt_err *err) {
    char name[256];
    FILE *probe = fopen(path, "rb");
    int n;

    if (probe) {
        fclose(probe);
        return KT_OK;
    }
    n = kt_model_count_files(folder, ".safetensors", name, sizeof name);
    if (n > 0)
        return kt_fail(err, KT_E_NOT_FOUND,
                       "%.200s: " INDEX_NAME " is missing, though %d safetensors file%s there "
                       "(%.80s); download it too",
                       folder, n, n == 1 ? " is" : "s are", name);
    n = kt_model_count_files(folder, ".bin", name, sizeof name);
    return kt_fail(err, KT_E_NOT_FOUND, "%.200s: no weights%s%.80s, expected model.safetensors",
                   folder, n > 0 ? ", only " : "", name);
}

/* The file itself, or the only GGUF (or the first of its parts) of a folder without safetensors. */
static int find_gguf(const char *path, char *out, size_t out_bytes) {
    char name[256];
    int n;

    if (kt_model_is_gguf(path)) return snprintf(out, out_bytes, "%s", path) < (int)out_bytes;
    n = kt_model_count_files(path, ".gguf", name, sizeof name);
    if (n < 1 || (n > 1 && !strstr(name, "-00001-of-"))) return 0;
    return snprintf(out, out_bytes, "%s/%s", path, name) < (int)out_bytes;
}

kt_status kt_checkpoint_open(const char *folder, kt_checkpoint **out, kt_err *err) {
    char path[MAX_PATH_BYTES];
    FILE *probe;

    *out = NULL;
    if (strlen(folder) + sizeof "/" INDEX_NAME > sizeof path)
        return kt_fail(err, KT_E_INVALID, "%.200s: path too long", folder);
    snprintf(path, sizeof path, "%s/" INDEX_NAME, folder);
    probe = fopen(path, "rb");
    if (probe) {
        fclose(probe);
        return open_sharded(folder, path, out, err);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (access(path, F_OK) != 0 && find_gguf(folder, path, sizeof path))
        return kt_checkpoint_open_gguf(path, out, err);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    KT_TRY(check_weights(folder, path, err));
    return kt_checkpoint_open_file(path, out, err);
}
