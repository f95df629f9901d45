/* Reading safetensors. The file is hostile until proven otherwise: nothing of the header is used as
 * an offset or a size before it was checked against the bytes that are there.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/safetensors.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "base/numeric.h"
#include "dispatch/model/mistakes.h"

#define MAX_HEADER_BYTES 100000000u /* the format's own limit */
#define MAX_INDEX_BYTES 100000000u
#define MAX_PATH_BYTES 4096
#define INDEX_NAME "model.safetensors.index.json"

typedef struct shard {
    char *path;
    kt_mapping mapping;
} shard;

struct kt_checkpoint {
    kt_arena arena; /* names and paths */
    shard *shards;
    int n_shards;
    kt_tensor *tensors; /* sorted by name once all shards are read */
    size_t n_tensors, capacity;
    kt_buffer memory; /* instead of a shard's mapping */
};

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
static char *format_shape(char *text, size_t size, int rank, const int64_t *shape) {
    size_t used = (size_t)snprintf(text, size, "[");

    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "",
                                 (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, "]");
    return text;
}

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
    while (known < KT_DTYPE_COUNT && strcmp(dtypes[known].name, dtype) != 0) known++;
    if (known == KT_DTYPE_COUNT)
        return kt_fail(err, KT_E_UNSUPPORTED, "tensor '%.100s': dtype '%.20s' is not known", name,
                       dtype);
    t->dtype = (kt_dtype)known;
    KT_TRY(read_shape(kt_json_get(entry, "shape"), name, t, &elements, err));
    if (kt_mul_overflow(elements, dtypes[known].bytes, &bytes))
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
            format_shape(shape, sizeof shape, t->rank, t->shape), (unsigned long long)bytes);
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

static int by_name(const void *a, const void *b) {
    return strcmp(((const kt_tensor *)a)->name, ((const kt_tensor *)b)->name);
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

static kt_status reserve(kt_checkpoint *c, size_t more, kt_err *err) {
    size_t wanted = c->n_tensors + more;
    kt_tensor *grown;

    if (wanted <= c->capacity) return KT_OK;
    grown = realloc(c->tensors, wanted * sizeof *grown);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %zu tensor entries", wanted);
    c->tensors = grown;
    c->capacity = wanted;
    return KT_OK;
}

static kt_status read_entries(kt_checkpoint *c, const kt_json *root, int file, const uint8_t *data,
                              uint64_t data_bytes, kt_err *err) {
    size_t first = c->n_tensors;

    if (kt_json_type_of(root) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "the header is not a JSON object");
    KT_TRY(reserve(c, kt_json_length(root), err));
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
    shard *s = &c->shards[file];
    kt_json_limits limits = {.max_bytes = MAX_HEADER_BYTES, .max_depth = 4};
    kt_json_doc *doc = NULL;
    uint64_t header = 0;
    kt_status st = kt_mapping_open(s->path, &s->mapping, err);

    if (st != KT_OK) return st;
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
done:
    kt_json_destroy(doc);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%.200s", s->path);
}

/* Sort by name and refuse a name that two shards hold (JSON refuses it inside one). */
static kt_status finish(kt_checkpoint *c, kt_err *err) {
    if (c->n_tensors) qsort(c->tensors, c->n_tensors, sizeof *c->tensors, by_name);
    for (size_t i = 1; i < c->n_tensors; i++) {
        const kt_tensor *a = &c->tensors[i - 1], *b = &c->tensors[i];
        if (strcmp(a->name, b->name) == 0)
            return kt_fail(err, KT_E_FORMAT, "tensor '%.100s' is in both %.150s and %.150s",
                           a->name, c->shards[a->file].path, c->shards[b->file].path);
    }
    return KT_OK;
}

static kt_checkpoint *create(int n_shards) {
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
    if (!c) return;
    for (int i = 0; i < c->n_shards; i++) kt_mapping_close(&c->shards[i].mapping);
    kt_buffer_destroy(&c->memory);
    kt_arena_deinit(&c->arena);
    free(c->shards);
    free(c->tensors);
    free(c);
}

kt_status kt_checkpoint_of_memory(const char *label, const kt_tensor *tensors, size_t count,
                                  kt_buffer *memory, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = create(1);
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
    if (is_short || finish(c, err) != KT_OK) {
        kt_checkpoint_close(c);
        return is_short ? kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu tensors", label, count)
                        : KT_E_FORMAT;
    }
    *out = c;
    return KT_OK;
}

kt_status kt_checkpoint_open_file(const char *path, kt_checkpoint **out, kt_err *err) {
    kt_checkpoint *c = create(1);
    kt_status st = KT_OK;

    *out = NULL;
    if (c) c->shards[0].path = kt_arena_strndup(&c->arena, path, strlen(path));
    if (!c || !c->shards[0].path) st = kt_fail(err, KT_E_NOMEM, "%s: no memory", path);
    if (st == KT_OK) st = read_shard(c, 0, err);
    if (st == KT_OK) st = finish(c, err);
    if (st != KT_OK) {
        kt_checkpoint_close(c);
        return st;
    }
    *out = c;
    return KT_OK;
}

/* The index comes from outside too: only plain file names of its own folder are followed. */
static int is_plain_name(const char *name, size_t size) {
    return size > 0 && strlen(name) == size && !strchr(name, '/') && !strchr(name, '\\') &&
           name[0] != '.';
}

static int by_string(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* The distinct file names of the index's weight_map, sorted, into files (room for one per entry). */
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
    return finish(c, err);
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
    const kt_json *map;
    kt_status st = kt_file_read(index_path, MAX_INDEX_BYTES, &text, &size, err);

    if (st != KT_OK) return st;
    st = kt_json_parse(text, size, NULL, &doc, err);
    if (st != KT_OK) goto done;
    map = kt_json_get(kt_json_root(doc), "weight_map");
    if (kt_json_type_of(map) != KT_JSON_OBJECT || kt_json_length(map) == 0) {
        st = kt_fail(err, KT_E_FORMAT, "no weight_map");
        goto done;
    }
    files = calloc(kt_json_length(map), sizeof *files);
    st = files ? list_files(map, files, &n_files, err) : kt_fail(err, KT_E_NOMEM, "no memory");
    if (st != KT_OK) goto done;
    c = create(n_files);
    st = c ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory");
    is_shard = st == KT_OK; /* whose messages name it */
    if (st == KT_OK) st = read_shards(c, folder, files, err);
    is_shard = is_shard && st != KT_OK;
    if (st == KT_OK) st = check_index(c, map, err);
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
    KT_TRY(check_weights(folder, path, err));
    return kt_checkpoint_open_file(path, out, err);
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
        return kt_tensor_fail(c, t, KT_E_MISMATCH, err, "shape %s, config.json asks for %s",
                              format_shape(found, sizeof found, t->rank, t->shape),
                              format_shape(wanted, sizeof wanted, rank, shape));
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
