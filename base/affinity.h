/* Which logical CPUs this process may use, and which of them to give to threads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_AFFINITY_H
#define KT_BASE_AFFINITY_H

#include <stdbool.h>
#include <stdint.h>

#define KT_MAX_CPUS 4096

typedef struct kt_cpu_set {
    uint64_t word[KT_MAX_CPUS / 64];
} kt_cpu_set;

static inline bool kt_cpu_set_has(const kt_cpu_set *set, int cpu) {
    return cpu >= 0 && cpu < KT_MAX_CPUS && (set->word[cpu / 64] >> (cpu % 64) & 1);
}
static inline void kt_cpu_set_add(kt_cpu_set *set, int cpu) {
    if (cpu >= 0 && cpu < KT_MAX_CPUS) set->word[cpu / 64] |= (uint64_t)1 << (cpu % 64);
}
/* Affinity of the calling thread. Setting may fail silently, e.g. in a sandbox: placement is an
 * optimisation. Getting yields an empty set on failure. */
void kt_affinity_get(kt_cpu_set *out);
void kt_affinity_set(const kt_cpu_set *set);

/* Up to n CPUs of `allowed`, distinct cores first, then their other hardware threads, then from the
 * start again; out[n]. An empty set yields -1s (leave the thread alone). */
void kt_affinity_choose(const kt_cpu_set *allowed, int n, int *out);

/* What is left of `allowed` for threads that should not disturb a pool of n threads on the CPUs of
 * kt_affinity_choose: cores that it leaves alone, or else other hardware threads of its cores, or
 * else all. */
void kt_affinity_spare(const kt_cpu_set *allowed, int n, kt_cpu_set *out);

#endif
