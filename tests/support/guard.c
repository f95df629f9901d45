/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/guard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Live blocks; tests run one at a time in their own process, so a plain table will do. */
static struct {
    char *data, *base;
    size_t mapped;
} live[4096];

static const size_t page = 4096;

void *kt_guard_alloc(size_t size, size_t align, int fill) {
    size_t body = (size + align - 1) / align * align;
    size_t pages = (body + page - 1) / page + 1;
    size_t mapped = (pages + 1) * page;
    char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *end = base + pages * page;
    size_t slot = 0;

    while (slot < sizeof live / sizeof *live && live[slot].data) slot++;
    if (base == MAP_FAILED || slot == sizeof live / sizeof *live ||
        mprotect(end, page, PROT_NONE) != 0) {
        perror("kt_guard_alloc");
        abort();
    }
    memset(base, fill, pages * page);
    live[slot].data = end - body;
    live[slot].base = base;
    live[slot].mapped = mapped;
    return end - body;
}

void kt_guard_free(void *p) {
    if (!p) return;
    for (size_t i = 0; i < sizeof live / sizeof *live; i++) {
        if (live[i].data != p) continue;
        munmap(live[i].base, live[i].mapped);
        live[i].data = NULL;
        return;
    }
    fprintf(stderr, "kt_guard_free: %p is not a guarded block\n", p);
    abort();
}

const char *kt_shared_path(const char *relative, char *out, size_t out_bytes) {
    const char *root = getenv("KT_SHARED");
    if (root)
        snprintf(out, out_bytes, "%s/%s", root, relative);
    else
        snprintf(out, out_bytes, "%s/../shared/%s", KT_SOURCE_DIR, relative);
    return access(out, R_OK) == 0 ? out : NULL;
}
