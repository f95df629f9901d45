/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/affinity.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/pool.h"

/* The raw calls take any size of mask, unlike the C library's cpu_set_t of 1024 bits. */
void kt_affinity_get(kt_cpu_set *out) {
    memset(out, 0, sizeof *out);
    syscall(SYS_sched_getaffinity, 0, sizeof out->word, out->word);
}

void kt_affinity_set(const kt_cpu_set *set) {
    syscall(SYS_sched_setaffinity, 0, sizeof set->word, set->word);
}

/* A kernel list such as "0-3,8" from a file; false when there is none. */
static bool read_list(const char *path, kt_cpu_set *out) {
    FILE *f = fopen(path, "re");
    char text[4096] = "";
    char *p = text;
    bool ok;

    memset(out, 0, sizeof *out);
    if (!f) return false;
    ok = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    while (ok && *p >= '0' && *p <= '9') {
        long first = strtol(p, &p, 10);
        long last = *p == '-' ? strtol(p + 1, &p, 10) : first;
        for (long i = first; i <= last && i < KT_MAX_CPUS; i++) kt_cpu_set_add(out, (int)i);
        if (*p == ',') p++;
    }
    return ok;
}

/* Position of cpu among those hardware threads of its core that are allowed: 0 = the first. */
static int rank_in_core(const kt_cpu_set *allowed, int cpu) {
    kt_cpu_set siblings;
    char path[96];
    int rank = 0;

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_list(path, &siblings)) return 0;
    for (int i = 0; i < cpu; i++)
        rank += kt_cpu_set_has(&siblings, i) && kt_cpu_set_has(allowed, i);
    return rank;
}

static int count_cores(const kt_cpu_set *allowed) {
    int n = 0;
    for (int cpu = 0; cpu < KT_MAX_CPUS; cpu++)
        if (kt_cpu_set_has(allowed, cpu)) n += rank_in_core(allowed, cpu) == 0;
    return n;
}

void kt_affinity_choose(const kt_cpu_set *allowed, int n, int *out) {
    int filled = 0, found = 1;

    for (int rank = 0; found && filled < n; rank++) {
        found = 0;
        for (int cpu = 0; cpu < KT_MAX_CPUS && filled < n; cpu++) {
            if (!kt_cpu_set_has(allowed, cpu) || rank_in_core(allowed, cpu) != rank) continue;
            out[filled++] = cpu;
            found = 1;
        }
    }
    for (int i = filled; i < n; i++) out[i] = filled ? out[i % filled] : -1;
}

static bool shares_core(int cpu, const kt_cpu_set *with) {
    kt_cpu_set siblings;
    char path[96];

    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
    if (!read_list(path, &siblings)) return kt_cpu_set_has(with, cpu);
    for (int i = 0; i < KT_MAX_CPUS / 64; i++)
        if (siblings.word[i] & with->word[i]) return true;
    return false;
}

void kt_affinity_spare(const kt_cpu_set *allowed, int n, kt_cpu_set *out) {
    kt_cpu_set taken = {{0}}, threads = {{0}};
    int cpus[1024];
    bool any_core = false, any_thread = false;

    memset(out, 0, sizeof *out);
    if (n > (int)(sizeof cpus / sizeof *cpus)) n = (int)(sizeof cpus / sizeof *cpus);
    kt_affinity_choose(allowed, n, cpus);
    for (int i = 0; i < n; i++) kt_cpu_set_add(&taken, cpus[i]);
    for (int cpu = 0; cpu < KT_MAX_CPUS; cpu++) {
        if (!kt_cpu_set_has(allowed, cpu) || kt_cpu_set_has(&taken, cpu)) continue;
        any_thread = true;
        kt_cpu_set_add(&threads, cpu);
        if (shares_core(cpu, &taken)) continue;
        any_core = true;
        kt_cpu_set_add(out, cpu);
    }
    if (!any_core) *out = any_thread ? threads : *allowed;
}

/* Whole CPUs that one group's quota allows; INT32_MAX = no quota. */
static int quota_of(const kt_cgroup *group) {
    char path[KT_CGROUP_PATH_BYTES + 32];
    unsigned long long quota = 0, period = 0;
    uint64_t q, p;
    FILE *f;

    if (group->version == 1) {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", group->folder);
        if (!kt_cgroup_read(path, &q)) return INT32_MAX; /* -1 = none */
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", group->folder);
        if (!kt_cgroup_read(path, &p)) return INT32_MAX;
        quota = q;
        period = p;
    } else {
        snprintf(path, sizeof path, "%s/cpu.max",
                 group->folder); /* "quota period" or "max period" */
        f = fopen(path, "re");
        if (!f) return INT32_MAX;
        if (fscanf(f, "%llu %llu", &quota, &period) != 2) period = 0;
        fclose(f);
    }
    if (period == 0 || quota / period >= INT32_MAX) return INT32_MAX;
    return (int)(quota / period);
}

/* A fraction of a CPU is rounded down: a thread too many gets the whole process throttled. */
int kt_usable_cores(void) {
    kt_cpu_set allowed;
    kt_cgroup group;
    int n;

    kt_affinity_get(&allowed);
    n = count_cores(&allowed);
    for (int more = kt_cgroup_first(&group, "cpu"); more; more = kt_cgroup_parent(&group)) {
        int quota = quota_of(&group);
        if (quota < n) n = quota;
    }
    return n > 1 ? n : 1;
}
