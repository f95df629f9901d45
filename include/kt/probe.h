/* The machine: processor, cores, memory, and what `kttune probe` measured.
 *
 * Threads: may be called by any thread at any time; sees the calling thread's affinity, so ask
 * before an engine is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_PROBE_H
#define KT_PROBE_H

#include "kt/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kt_machine_info {
    size_t size;            /* sizeof(kt_machine_info), set by the caller */
    char brand[64];         /* as the processor names itself */
    char microarch[32];     /* "zen4" */
    char machine_class[64]; /* "zen4-2c-24g": what tables are filed under */
    char isa[192];          /* usable instruction sets: "avx2+avx512+..." */
    int32_t packages, numa_nodes, llc_groups, cores, pus;
    int32_t usable_cores, usable_pus; /* by affinity mask and control group */
    uint64_t memory_bytes;
    uint64_t available_bytes; /* what can be taken without swapping */
    uint64_t l2_bytes, llc_bytes;
    double stream_gbs_1t, stream_gbs_all; /* measured read stream; 0 = not measured */
} kt_machine_info;

KT_API kt_status kt_machine_probe(kt_machine_info *out, kt_err *err);

#ifdef __cplusplus
}
#endif
#endif
