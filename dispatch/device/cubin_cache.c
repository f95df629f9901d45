/* A file: 8 bytes of magic, the key's size, the code's size, a checksum of what follows, the key,
 * the code. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cubin_cache.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "base/checksum.h"
#include "base/err.h"
#include "dispatch/device/cuda_compiler.h"

enum { MOST_BYTES = 64 << 20 };

typedef struct head {
    char magic[8];
    uint64_t key_bytes, code_bytes, checksum;
} head;

static const char magic[8] = {'k', 't', 'c', 'u', 'b', 'i', 'n', '1'};

static bool path_of(const char *folder, const char *key, size_t key_bytes, char *out,
                    size_t bytes) {
    const int n = snprintf(out, bytes, "%s/%016llx.cubin", folder,
                           (unsigned long long)kt_checksum(key, key_bytes));
    return n > 0 && (size_t)n < bytes;
}

bool kt_cubin_cache_get(const char *folder, const char *key, size_t key_bytes, uint8_t **data,
                        size_t *bytes) {
    char path[1024], *file = NULL;
    size_t size;
    bool ok;
    head h;

    *data = NULL;
    if (!path_of(folder, key, key_bytes, path, sizeof path) ||
        kt_file_read(path, MOST_BYTES, &file, &size, NULL) != KT_OK)
        return false;
    ok = size >= sizeof h;
    if (ok) memcpy(&h, file, sizeof h);
    ok = ok && memcmp(h.magic, magic, sizeof magic) == 0 && h.key_bytes == key_bytes &&
         h.code_bytes <= MOST_BYTES && size == sizeof h + key_bytes + h.code_bytes &&
         kt_checksum(file + sizeof h, size - sizeof h) == h.checksum &&
         memcmp(file + sizeof h, key, key_bytes) == 0;
    ok = ok && (*data = malloc(h.code_bytes ? h.code_bytes : 1));
    if (ok) {
        memcpy(*data, file + sizeof h + key_bytes, h.code_bytes);
        *bytes = h.code_bytes;
    }
    free(file);
    return ok;
}

kt_status kt_cubin_cache_put(const char *folder, const char *key, size_t key_bytes,
                             const uint8_t *data, size_t bytes, kt_err *err) {
    const size_t size = sizeof(head) + key_bytes + bytes;
    char path[1024], *file;
    kt_status st;
    head h;

    if (!path_of(folder, key, key_bytes, path, sizeof path))
        return kt_fail(err, KT_E_INVALID, "%s: too long for a folder of kernels", folder);
    file = malloc(size);
    if (!file) return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu bytes", path, size);
    memcpy(file + sizeof h, key, key_bytes);
    memcpy(file + sizeof h + key_bytes, data, bytes);
    h = (head){.key_bytes = key_bytes,
               .code_bytes = bytes,
               .checksum = kt_checksum(file + sizeof h, size - sizeof h)};
    memcpy(h.magic, magic, sizeof magic);
    memcpy(file, &h, sizeof h);
    st = kt_file_write(path, file, size, err);
    free(file);
    return st;
}

static kt_status make_folders(char *path, kt_err *err) {
    for (char *at = strchr(path + 1, '/');; at = strchr(at + 1, '/')) {
        if (at) *at = 0;
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return kt_fail(err, KT_E_IO, "%s: cannot make the folder: %s", path, strerror(errno));
        if (!at) return KT_OK;
        *at = '/';
    }
}

kt_status kt_cubin_folder(char *out, size_t bytes, kt_err *err) {
    const char *xdg = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = -1;

    if (xdg && xdg[0] == '/')
        n = snprintf(out, bytes, "%s/kt/cubin", xdg);
    else if (home && home[0] == '/')
        n = snprintf(out, bytes, "%s/.cache/kt/cubin", home);
    if (n < 0 || (size_t)n >= bytes)
        return kt_fail(err, KT_E_IO,
                       "no folder for compiled kernels: neither XDG_CACHE_HOME nor HOME "
                       "is an absolute path");
    return make_folders(out, err);
}
