/* Behind the metadata, little-endian:
 *   tensor: string name | u32 dimensions | u64 size of each | u32 type | u64 offset
 * The data section starts at the next multiple of general.alignment; offsets count from there.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/gguf_tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/formats/format.h"

enum { least_entry = 8 + 1 + 4 + 8 + 4 + 8, default_alignment = 32, type_i32 = 26 };

typedef struct cursor {
    const uint8_t *at;
    size_t left;
} cursor;

/* The next `bytes` bytes as a little-endian number. */
static kt_status take(cursor *c, size_t bytes, uint64_t *out, kt_err *err) {
    *out = 0;
    if (bytes > c->left)
        return kt_fail(err, KT_E_FORMAT, "the list of tensors is cut off: %zu bytes left, need %zu",
                       c->left, bytes);
    for (size_t i = bytes; i-- > 0;) *out = *out << 8 | c->at[i];
    c->at += bytes;
    c->left -= bytes;
    return KT_OK;
}

static kt_status read_name(cursor *c, kt_gguf_tensor *t, kt_err *err) {
    uint64_t n = 0;

    KT_TRY(take(c, 8, &n, err));
    if (n < 1 || n > KT_GGUF_NAME || n > c->left)
        return kt_fail(err, KT_E_FORMAT, "a tensor name of %llu bytes, expected 1 to %d",
                       (unsigned long long)n, KT_GGUF_NAME);
    memcpy(t->name, c->at, (size_t)n);
    if (strlen(t->name) != n)
        return kt_fail(err, KT_E_FORMAT, "tensor name '%s' has a zero byte in it", t->name);
    c->at += n;
    c->left -= (size_t)n;
    return KT_OK;
}

/* No format has six weights to the byte: more elements than that cannot lie in the file, and fewer
 * cannot overflow. */
static kt_status read_sizes(cursor *c, size_t file_bytes, kt_gguf_tensor *t, kt_err *err) {
    uint64_t rank = 0, elements = 1, size = 0;

    KT_TRY(take(c, 4, &rank, err));
    if (rank < 1 || rank > KT_GGUF_RANK)
        return kt_fail(err, KT_E_FORMAT, "tensor '%s' has %llu dimensions, expected 1 to %d",
                       t->name, (unsigned long long)rank, KT_GGUF_RANK);
    t->rank = (int)rank;
    for (int i = 0; i < KT_GGUF_RANK; i++) {
        t->size[i] = 1;
        if (i >= t->rank) continue;
        KT_TRY(take(c, 8, &size, err));
        if (size < 1 || kt_mul_overflow(elements, size, &elements) || elements / 6 > file_bytes)
            return kt_fail(err, KT_E_FORMAT, "tensor '%s': dimension %d is %llu in a file of %zu",
                           t->name, i, (unsigned long long)size, file_bytes);
        t->size[i] = (int64_t)size;
    }
    return KT_OK;
}

static kt_status refuse_type(const kt_gguf_tensor *t, uint64_t type, kt_err *err) {
    char known[400] = "";
    size_t used = 0;

    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const char *name = kt_builtin_formats[i]->ggml_name;
        if (name && used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, "%s, ", name);
    }
    return kt_fail(err, KT_E_UNSUPPORTED, "tensor '%s' is of ggml type %llu, expected %sor I32",
                   t->name, (unsigned long long)type, known);
}

static kt_status read_format(cursor *c, kt_gguf_tensor *t, kt_err *err) {
    uint64_t type = 0;
    size_t scales;
    int64_t rows = t->size[1] * t->size[2] * t->size[3];

    KT_TRY(take(c, 4, &type, err));
    for (size_t i = 0; i < kt_builtin_format_count; i++) {
        const kt_format *f = kt_builtin_formats[i];
        if (f->ggml_name && f->ggml_type == type) t->format = f->id;
    }
    t->has_integers = type == type_i32;
    if (t->has_integers) {
        t->bytes = (size_t)(rows * t->size[0]) * sizeof(int32_t);
        return KT_OK;
    }
    if (t->format == KT_W_NONE) return refuse_type(t, type, err);
    if (kt_format_sizes(kt_format_find(t->format), rows, t->size[0], &t->bytes, &scales, err) !=
        KT_OK)
        return kt_fail_prefix(err, KT_E_FORMAT, "tensor '%s'", t->name);
    return KT_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const kt_gguf_tensor *)a)->name, ((const kt_gguf_tensor *)b)->name);
}

/* Where the data section starts, and how tensors are aligned in it. */
static kt_status find_data(const kt_gguf_meta *m, const cursor *c, size_t *begin, uint64_t *step,
                           kt_err *err) {
    int64_t alignment = kt_gguf_int(m, "general.alignment", default_alignment);
    uint64_t at = (uint64_t)(c->at - m->bytes);

    if (alignment < 8 || alignment > 1 << 20 || (alignment & (alignment - 1)))
        return kt_fail(err, KT_E_FORMAT, "general.alignment is %lld, expected a power of two",
                       (long long)alignment);
    *step = (uint64_t)alignment;
    at = (at + *step - 1) / *step * *step;
    *begin = at < m->n_bytes ? (size_t)at : m->n_bytes;
    return KT_OK;
}

static kt_status place(const kt_gguf_meta *m, size_t begin, uint64_t step, uint64_t offset,
                       kt_gguf_tensor *t, kt_err *err) {
    size_t room = m->n_bytes - begin;

    if (offset % step != 0 || offset > room || t->bytes > room - offset)
        return kt_fail(err, KT_E_FORMAT,
                       "tensor '%s': %zu bytes at offset %llu, the file holds %zu bytes of data",
                       t->name, t->bytes, (unsigned long long)offset, room);
    t->data = m->bytes + begin + offset;
    return KT_OK;
}

static kt_status read_all(const kt_gguf_meta *m, kt_gguf_tensor *list, uint64_t *offset,
                          kt_err *err) {
    cursor c = {m->bytes + m->tensors_offset, m->n_bytes - m->tensors_offset};
    size_t n = (size_t)m->n_tensors, begin;
    uint64_t step;

    for (size_t i = 0; i < n; i++) {
        KT_TRY(read_name(&c, &list[i], err));
        KT_TRY(read_sizes(&c, m->n_bytes, &list[i], err));
        KT_TRY(read_format(&c, &list[i], err));
        KT_TRY(take(&c, 8, &offset[i], err));
    }
    KT_TRY(find_data(m, &c, &begin, &step, err));
    for (size_t i = 0; i < n; i++) KT_TRY(place(m, begin, step, offset[i], &list[i], err));
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(list[i - 1].name, list[i].name) == 0)
            return kt_fail(err, KT_E_FORMAT, "tensor '%s' occurs twice", list[i].name);
    return KT_OK;
}

kt_status kt_gguf_tensors_read(const kt_gguf_meta *m, kt_gguf_tensor **out, size_t *count,
                               kt_err *err) {
    kt_gguf_tensor *list;
    uint64_t *offset;
    kt_status st;

    *out = NULL;
    *count = 0;
    if (m->n_tensors > (m->n_bytes - m->tensors_offset) / least_entry)
        return kt_fail(err, KT_E_FORMAT, "%llu tensors in a file of %zu bytes",
                       (unsigned long long)m->n_tensors, m->n_bytes);
    list = calloc((size_t)m->n_tensors + 1, sizeof *list);
    offset = calloc((size_t)m->n_tensors + 1, sizeof *offset);
    st = list && offset ? read_all(m, list, offset, err)
                        : kt_fail(err, KT_E_NOMEM, "no memory for the list of tensors");
    free(offset);
    if (st != KT_OK) {
        free(list);
        return st;
    }
    *out = list;
    *count = (size_t)m->n_tensors;
    return KT_OK;
}

const kt_gguf_tensor *kt_gguf_tensor_find(const kt_gguf_tensor *list, size_t count,
                                          const char *name) {
    size_t low = 0, high = count;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(list[middle].name, name);
        if (order == 0) return &list[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

kt_matrix kt_gguf_matrix(const kt_gguf_tensor *t, int64_t index) {
    size_t bytes = t->bytes / (size_t)(t->size[2] * t->size[3]);

    return (kt_matrix){.format = t->format,
                       .n = t->size[1],
                       .k = t->size[0],
                       .data = t->data + (size_t)index * bytes};
}

kt_status kt_gguf_experts_find(const kt_gguf_tensor *list, size_t count, int64_t layer,
                               kt_gguf_experts *out, kt_err *err) {
    static const char *const roles[] = {"gate", "up", "down"};
    const kt_gguf_tensor *found[3];
    char name[64];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "blk.%lld.ffn_%s_exps.weight", (long long)layer, roles[i]);
        found[i] = kt_gguf_tensor_find(list, count, name);
        if (!found[i]) return kt_fail(err, KT_E_NOT_FOUND, "no tensor '%s'", name);
    }
    *out = (kt_gguf_experts){found[0], found[1], found[2]};
    if (out->gate->format == out->up->format) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "'%s' is %s and '%s' is %s, expected one format for both",
                   out->gate->name, kt_weight_format_name(out->gate->format), out->up->name,
                   kt_weight_format_name(out->up->format));
}
