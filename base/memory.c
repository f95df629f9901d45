/* How much memory is there to take without swapping. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cgroup.h"

/* The number after `key` in a file of "key value" lines, or fallback. */
static uint64_t read_key(const char *path, const char *key, uint64_t fallback) {
    FILE *f = fopen(path, "re");
    size_t n = strlen(key);
    char line[256];

    if (!f) return fallback;
    while (fgets(line, sizeof line, f)) {
        if (strncmp(line, key, n) != 0 || (line[n] != ' ' && line[n] != ':')) continue;
        fallback = strtoull(line + n + 1, NULL, 10);
        break;
    }
    fclose(f);
    return fallback;
}

/* What one level of a control group leaves: limit - use + its page cache, which the kernel gives
 * back under pressure. UINT64_MAX = unlimited. */
static uint64_t left_in_group(const char *folder, int version) {
    char path[KT_CGROUP_PATH_BYTES + 64];
    uint64_t limit, used, cache;

    snprintf(path, sizeof path, "%s/%s", folder,
             version == 2 ? "memory.max" : "memory.limit_in_bytes");
    if (!kt_cgroup_read(path, &limit)) return UINT64_MAX; /* absent, or the word "max" */
    snprintf(path, sizeof path, "%s/%s", folder,
             version == 2 ? "memory.current" : "memory.usage_in_bytes");
    if (!kt_cgroup_read(path, &used)) return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    cache = read_key(path, version == 2 ? "inactive_file" : "total_inactive_file", 0) +
            read_key(path, version == 2 ? "active_file" : "total_active_file", 0);
    if (cache > used) cache = used;
    used -= cache;
    return limit > used ? limit - used : 0;
}

uint64_t kt_memory_available_bytes(void) {
    uint64_t kib = read_key("/proc/meminfo", "MemAvailable", UINT64_MAX / 1024);
    uint64_t best = kib * 1024;
    kt_cgroup group;

    for (int more = kt_cgroup_first(&group, "memory"); more; more = kt_cgroup_parent(&group)) {
        uint64_t left = left_in_group(group.folder, group.version);
        if (left < best) best = left;
    }
    return best;
}
