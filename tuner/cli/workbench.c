/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/workbench.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/store/machine_file.h"

/* Ceilings of an earlier probe, or of a quick one now. A file that cannot be used is made again. */
static kt_status find_ceilings(kt_workbench *b, bool measure, kt_ceilings *out, kt_err *err) {
    kt_machine_report report;
    char path[1024];
    kt_err why;
    kt_status st = kt_machine_load(&b->topology, out, err);

    if (st == KT_OK && out->stream_gbs_1t > 0) return KT_OK;
    memset(out, 0, sizeof *out);
    if (!measure) return KT_OK;
    KT_TRY(kt_ceilings_measure(b->registry, &b->topology, true, &report, err));
    *out = report.ceilings;
    b->probed_now = true;
    /* a disk that cannot be written costs the next run its seconds, not this one its result */
    if (kt_machine_save(&b->topology, &report, path, sizeof path, &why) != KT_OK)
        fprintf(stderr, "kttune: the probe is not kept: %s\n", why.message);
    return KT_OK;
}

kt_status kt_workbench_init(kt_workbench *b, bool measure, kt_err *err) {
    kt_ceilings ceilings;
    kt_status st;

    memset(b, 0, sizeof *b);
    KT_TRY(kt_topology_probe(&b->topology, err));
    KT_TRY(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, b->topology.cpu.isa,
                              &b->registry, err));
    st = find_ceilings(b, measure, &ceilings, err);
    if (st != KT_OK) {
        kt_workbench_deinit(b);
        return st;
    }
    kt_fingerprint_make(&b->topology, &ceilings, &b->machine);
    kt_machine_class(&b->machine, b->class_name, sizeof b->class_name);
    return KT_OK;
}

void kt_workbench_deinit(kt_workbench *b) {
    kt_registry_destroy(b->registry);
    memset(b, 0, sizeof *b);
}
