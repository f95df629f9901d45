/* The machine. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/plan/machine_ceilings.h"
#include "kt/probe.h"
#include "runtime/api/sized.h"

kt_status kt_machine_probe(kt_machine_info *out, kt_err *err) {
    kt_topology t;
    kt_fingerprint fingerprint;
    kt_ceilings ceilings;
    kt_machine_info info = {0};

    KT_TRY(kt_topology_probe(&t, err));
    kt_fingerprint_make(&t, NULL, &fingerprint);
    kt_machine_load(&t, &ceilings, NULL); /* zeros when nothing was measured */
    snprintf(info.brand, sizeof info.brand, "%s", t.cpu.brand);
    snprintf(info.microarch, sizeof info.microarch, "%s", t.cpu.microarch);
    kt_machine_class(&fingerprint, info.machine_class, sizeof info.machine_class);
    kt_isa_format(t.cpu.isa, info.isa, sizeof info.isa);
    info.packages = t.packages;
    info.numa_nodes = t.numa_nodes;
    info.llc_groups = t.llc_groups;
    info.cores = t.cores;
    info.pus = t.pus;
    info.usable_cores = t.usable_cores;
    info.usable_pus = t.usable_pus;
    info.memory_bytes = t.memory_bytes;
    info.available_bytes = kt_memory_available_bytes();
    info.l2_bytes = t.l2_bytes;
    info.llc_bytes = t.llc_bytes;
    info.stream_gbs_1t = ceilings.stream_gbs_1t;
    info.stream_gbs_all = ceilings.stream_gbs_all;
    return kt_sized_give(out, &info, sizeof info, "kt_machine_info", err);
}
