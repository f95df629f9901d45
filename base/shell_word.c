/* SPDX-License-Identifier: Apache-2.0 */
#include "base/shell_word.h"

#include <string.h>

char *kt_shell_word(const char *word, char *out, size_t out_bytes) {
    static const char plain[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-/:=,+@%";
    const size_t size = strlen(word);
    size_t n = 0;

    if (size > 0 && size < out_bytes && strspn(word, plain) == size) {
        memcpy(out, word, size + 1);
        return out;
    }
    out[n++] = '\'';
    for (; *word && n + 6 < out_bytes; word++) { /* the longest piece, the last quote and the end */
        if (*word == '\'') {
            memcpy(out + n, "'\\''", 4);
            n += 4;
        } else
            out[n++] = *word;
    }
    out[n++] = '\'';
    out[n] = '\0';
    return out;
}
