/* Growing arrays of the tokenizer. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TEXT_H
#define KT_RUNTIME_TEXT_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

/* Bytes, and token ids. Zero-initialise; free(data). */
typedef struct kt_text {
    char *data;
    size_t size, capacity;
} kt_text;

typedef struct kt_ids {
    int32_t *data;
    size_t size, capacity;
} kt_ids;

/* Make room for `more` further items of item_size bytes; doubles, so that appending is linear. */
static inline kt_status kt_grow(void **data, size_t size, size_t *capacity, size_t more,
                                size_t item_size, kt_err *err) {
    size_t want = *capacity ? *capacity : 64;
    void *grown;

    if (more <= *capacity - size) return KT_OK;
    if (more > SIZE_MAX / 4 / item_size - size) {
        return kt_fail(err, KT_E_NOMEM, "%zu more items of %zu bytes", more, item_size);
    }
    while (want - size < more) want *= 2;
    grown = realloc(*data, want * item_size);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for %zu bytes", want * item_size);
    *data = grown;
    *capacity = want;
    return KT_OK;
}

static inline kt_status kt_text_reserve(kt_text *t, size_t more, kt_err *err) {
    void *data = t->data;
    kt_status st = kt_grow(&data, t->size, &t->capacity, more, 1, err);
    t->data = data;
    return st;
}

static inline kt_status kt_text_append(kt_text *t, const char *s, size_t n, kt_err *err) {
    KT_TRY(kt_text_reserve(t, n, err));
    if (n) memcpy(t->data + t->size, s, n);
    t->size += n;
    return KT_OK;
}

static inline kt_status kt_ids_reserve(kt_ids *ids, size_t more, kt_err *err) {
    void *data = ids->data;
    kt_status st = kt_grow(&data, ids->size, &ids->capacity, more, sizeof *ids->data, err);
    ids->data = data;
    return st;
}

static inline kt_status kt_ids_append(kt_ids *ids, int32_t id, kt_err *err) {
    if (ids->size == ids->capacity) KT_TRY(kt_ids_reserve(ids, 1, err));
    ids->data[ids->size++] = id;
    return KT_OK;
}

#endif
