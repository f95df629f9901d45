/* SPDX-License-Identifier: Apache-2.0 */
#define ZLIB_CONST /* next_in is const */
#include "tuner/store/zipped.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#include "base/buffer.h"
#include "base/err.h"

enum { PATH_BYTES = 1024, GZIP = 16 /* beside MAX_WBITS: the format, not zlib's own */ };

kt_status kt_zipped_find(const char *path, char *out, size_t out_bytes, kt_err *err) {
    int n = snprintf(out, out_bytes, "%s" KT_ZIPPED_END, path);

    if (n < 0 || (size_t)n >= out_bytes)
        return kt_fail(err, KT_E_INVALID, "%s: path too long", path);
    if (access(path, F_OK) == 0 || access(out, F_OK) != 0) snprintf(out, out_bytes, "%s", path);
    return KT_OK;
}

static bool is_packed(const char *data, size_t size) {
    return size >= 2 && memcmp(data, "\x1f\x8b", 2) == 0;
}

/* Twice the room, and one byte for the NUL. */
static kt_status grow(char **text, size_t *room, const char *path, kt_err *err) {
    const size_t wanted = 2 * *room + 65536;
    char *more = realloc(*text, wanted + 1);

    if (!more) return kt_fail(err, KT_E_NOMEM, "%s: no memory to unpack it", path);
    *text = more;
    *room = wanted;
    return KT_OK;
}

/* All members of `from`: gzip files may be joined end to end. */
static kt_status unpack(z_stream *z, const char *path, size_t max_bytes, char **text, size_t *size,
                        kt_err *err) {
    size_t room = 0;
    int code = Z_OK;

    *size = 0;
    while (z->avail_in > 0 || code != Z_STREAM_END) {
        if (code == Z_STREAM_END && inflateReset(z) != Z_OK)
            return kt_fail(err, KT_E_INTERNAL, "%s: inflateReset", path);
        if (*size == room) KT_TRY(grow(text, &room, path, err));
        z->next_out = (Bytef *)*text + *size;
        z->avail_out = room - *size > UINT32_MAX ? UINT32_MAX : (uInt)(room - *size);
        code = inflate(z, Z_NO_FLUSH);
        *size = (size_t)((char *)z->next_out - *text);
        if (*size > max_bytes)
            return kt_fail(err, KT_E_FORMAT, "%s: over %zu bytes unpacked", path, max_bytes);
        if (code == Z_MEM_ERROR) return kt_fail(err, KT_E_NOMEM, "%s: no memory", path);
        if (code != Z_OK && code != Z_STREAM_END)
            return kt_fail(err, KT_E_FORMAT,
                           "%s: not a whole gzip file after %zu bytes of text: %s", path, *size,
                           z->msg ? z->msg : "it ends early");
    }
    (*text)[*size] = '\0';
    return KT_OK;
}

kt_status kt_zipped_read(const char *path, size_t max_bytes, char **out, size_t *size,
                         kt_err *err) {
    char found[PATH_BYTES], *data = NULL;
    z_stream z = {0};
    size_t bytes = 0;
    kt_status st;

    *out = NULL;
    KT_TRY(kt_zipped_find(path, found, sizeof found, err));
    KT_TRY(kt_file_read(found, max_bytes, &data, &bytes, err));
    if (!is_packed(data, bytes)) {
        *out = data;
        *size = bytes;
        return KT_OK;
    }
    z.next_in = (const Bytef *)data;
    z.avail_in = (uInt)bytes;
    st = bytes > UINT32_MAX ? kt_fail(err, KT_E_FORMAT, "%s: over 4 GiB packed", found)
         : inflateInit2(&z, MAX_WBITS + GZIP) != Z_OK
             ? kt_fail(err, KT_E_NOMEM, "%s: no memory to unpack it", found)
             : KT_OK;
    if (st == KT_OK) {
        st = unpack(&z, found, max_bytes, out, size, err);
        inflateEnd(&z);
    }
    free(data);
    if (st == KT_OK) return KT_OK;
    free(*out);
    *out = NULL;
    return st;
}

kt_status kt_zipped_write(const char *path, const char *text, size_t size, kt_err *err) {
    enum { DEFAULT_MEMORY = 8 };
    z_stream z = {.next_in = (const Bytef *)text, .avail_in = (uInt)size};
    char *packed;
    uLong room;
    kt_status st;

    if (size > UINT32_MAX) return kt_fail(err, KT_E_FORMAT, "%s: over 4 GiB of text", path);
    if (deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, MAX_WBITS + GZIP, DEFAULT_MEMORY,
                     Z_DEFAULT_STRATEGY) != Z_OK)
        return kt_fail(err, KT_E_NOMEM, "%s: no memory to pack it", path);
    room = deflateBound(&z, (uLong)size);
    packed = malloc(room);
    z.next_out = (Bytef *)packed;
    z.avail_out = (uInt)room;
    if (!packed)
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory to pack it", path);
    else if (room > UINT32_MAX || deflate(&z, Z_FINISH) != Z_STREAM_END)
        st = kt_fail(err, KT_E_INTERNAL, "%s: deflate left %u bytes", path, z.avail_in);
    else
        st = kt_file_write(path, packed, z.total_out, err);
    deflateEnd(&z);
    free(packed);
    return st;
}
