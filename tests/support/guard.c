/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/guard_page.h"

/* Live blocks; tests run one at a time in their own process, so a plain table will do. */
static kt_guard live[4096];

void *kt_guard_alloc(size_t size, size_t align, int fill) {
    kt_err err = {0};
    size_t slot = 0;

    while (slot < sizeof live / sizeof *live && live[slot].data) slot++;
    if (slot == sizeof live / sizeof *live ||
        kt_guard_create(size, align, (unsigned char)fill, &live[slot], &err) != KT_OK) {
        fprintf(stderr, "kt_guard_alloc: %s\n", err.message);
        abort();
    }
    return live[slot].data;
}

void kt_guard_free(void *p) {
    if (!p) return;
    for (size_t i = 0; i < sizeof live / sizeof *live; i++)
        if (live[i].data == p) {
            kt_guard_destroy(&live[i]);
            return;
        }
    fprintf(stderr, "kt_guard_free: %p is not a guarded block\n", p);
    abort();
}

const char *kt_shared_path(const char *relative, char *out, size_t out_bytes) {
    const char *root = getenv("KT_SHARED");
    snprintf(out, out_bytes, "%s/tests/%s", KT_BUILD_DIR, relative);
    if (access(out, R_OK) == 0) return out;
    if (root)
        snprintf(out, out_bytes, "%s/%s", root, relative);
    else
        snprintf(out, out_bytes, "%s/../shared/%s", KT_SOURCE_DIR, relative);
    return access(out, R_OK) == 0 ? out : NULL;
}
