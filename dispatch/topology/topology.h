/* The machine: packages, NUMA nodes, caches, cores, memory, measured ceilings; its fingerprint.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_TOPOLOGY_H
#define KT_DISPATCH_TOPOLOGY_H

#include "base/cpu.h"
#include "base/json.h"
#include "kt/status.h"

#define KT_MAX_NODES 64

typedef struct kt_topology {
    kt_cpu cpu;
    int packages, numa_nodes, llc_groups, cores, pus; /* of the machine, as hwloc sees it */
    int usable_cores, usable_pus; /* in the calling thread's affinity mask and the cgroup quota */
    uint64_t memory_bytes;
    uint64_t node_memory_bytes[KT_MAX_NODES];
    size_t l2_bytes, llc_bytes; /* per core, per LLC group */
    char kernel[64];            /* operating system release */
    char thp[16];               /* transparent huge page mode: "always", "madvise", "never" */
} kt_topology;

kt_status kt_topology_probe(kt_topology *out, kt_err *err);

/* One logical CPU per usable core, LLC group by LLC group, for kt_pool_options.cpus. Like the probe,
 * it sees the affinity of the calling thread: ask before pinning. Writes at most max entries, returns
 * how many. */
int kt_topology_core_cpus(int *cpus, int max);

/* The memory node of each of these cores, in the same order: the number that kt_buffer_create takes. */
int kt_topology_core_nodes(int *nodes, int max);

/* How the first n_threads cores of that list fall to memory nodes: node numbers and threads of each, in the
 * order of the list. Returns how many nodes, at most max; 0 when a node's cores do not lie together, so that
 * threads cannot be numbered node by node. */
int kt_topology_share_threads(const int *core_nodes, int n_threads, int *nodes, int *threads,
                              int max);

/* Measured ceilings (kttune probe); zero = not measured. Filled by the tuner, stored in tables. */
typedef struct kt_ceilings {
    double stream_gbs_1t, stream_gbs_all; /* read stream from memory, 2 MiB pages */
    double stream_small_gbs_1t;           /* the same from 4 KiB pages */
    double cache_knee_bytes;              /* footprint from which reads come from memory */
    double peak_gops[KT_ISA_COUNT]; /* one core, by KT_ISA_* bit: the ISA's own MAC instruction,
                                             2 operations per multiply-add */
    double peak_scalar_gops;
    double aa_noise_p95; /* relative: 0.016 = 1.6 % */
    int threads_all;
} kt_ceilings;

/* What a table is bound to. Hard fields refuse the table's rows, soft ones only warn. */
typedef struct kt_fingerprint {
    char vendor[13], microarch[24];
    int family, model, stepping;
    kt_isa isa;
    int usable_cores, numa_nodes;
    uint64_t memory_bytes;
    kt_ceilings ceilings;
} kt_fingerprint;

void kt_fingerprint_make(const kt_topology *topology, const kt_ceilings *ceilings,
                         kt_fingerprint *out);
void kt_fingerprint_write(const kt_fingerprint *f, kt_json_writer *w);
kt_status kt_fingerprint_read(const kt_json *object, const char *where, kt_fingerprint *out,
                              kt_err *err);

typedef enum kt_match { KT_MATCH_SAME, KT_MATCH_SOFT, KT_MATCH_OTHER } kt_match;

/* Compare a table's fingerprint with this machine's. why receives the first differing field with
 * both values (for KT_MATCH_SOFT and KT_MATCH_OTHER). Hard are ISA bits that the machine lacks, the
 * vendor, and another part (microarch, unless numbers and ISA are equal). Soft are further ISA
 * bits, cores, nodes, memory, ceilings (over 15 %) and, last of all, family, model and stepping. */
kt_match kt_fingerprint_compare(const kt_fingerprint *table, const kt_fingerprint *machine,
                                kt_err *why);

/* Folder name of the machine class: "<microarch>-<cores>c-<memory>g", e.g. "zen4-2c-24g". */
void kt_machine_class(const kt_fingerprint *f, char *out, size_t out_bytes);

#endif
