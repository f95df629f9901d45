/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/serve/stop_match.h"

#include <string.h>

void kt_stops_deinit(kt_stops *s) {
    for (int i = 0; i < s->n; i++) free(s->text[i]);
    s->n = 0;
}

/* Where the first stop string begins, or size. Of two at one place either ends the text there. */
static size_t first_stop(const kt_stops *s, const char *text, size_t size) {
    size_t first = size;

    for (int i = 0; i < s->n; i++) {
        const char *at = memmem(text, size, s->text[i], s->size[i]);
        if (at && (size_t)(at - text) < first) first = (size_t)(at - text);
    }
    return first;
}

/* Length of the longest end of text that is a true prefix of a stop string. */
static size_t partial_stop(const kt_stops *s, const char *text, size_t size) {
    size_t longest = 0;

    for (int i = 0; i < s->n; i++) {
        size_t n = s->size[i] - 1 < size ? s->size[i] - 1 : size;
        while (n > longest && memcmp(text + size - n, s->text[i], n) != 0) n--;
        if (n > longest) longest = n;
    }
    return longest;
}

kt_status kt_stops_push(const kt_stops *s, kt_text *held, const char *text, size_t n, kt_text *out,
                        bool *stopped, kt_err *err) {
    size_t shown;

    *stopped = false;
    if (s->n == 0) return kt_text_append(out, text, n, err);
    KT_TRY(kt_text_append(held, text, n, err));
    if (held->size == 0) return KT_OK;
    shown = first_stop(s, held->data, held->size);
    *stopped = shown < held->size;
    if (!*stopped) shown -= partial_stop(s, held->data, held->size);
    KT_TRY(kt_text_append(out, held->data, shown, err));
    memmove(held->data, held->data + shown, held->size - shown);
    held->size -= shown;
    return KT_OK;
}
