/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/temp.h"

#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    abort();
}

void kt_temp_make(char *out, size_t out_bytes) {
    const char *root = getenv("TMPDIR");

    /* In memory if we can: tests that save thousands of tables would wait for the disk. */
    if (!root) root = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
    snprintf(out, out_bytes, "%s/kt-test-XXXXXX", root);
    if (!mkdtemp(out)) fail(out);
}

static int remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw) {
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

void kt_temp_remove(const char *folder) {
    if (nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0) perror(folder);
}

void kt_temp_write(const char *folder, const char *name, const void *data, size_t size) {
    char path[PATH_MAX];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "wb");
    if (!f || (size && fwrite(data, 1, size, f) != size) || fclose(f) != 0) fail(path);
}
