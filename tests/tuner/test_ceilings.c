/* What probing finds out about the machine makes sense. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "base/cpu.h"
#include "tuner/measure/ceilings.h"

/* Samples are kept to 0.1 ns: measured in another unit two different ones became equal, the noise 0, and
 * every gain certain. */
Test(ceilings, a_quick_probe_measures_speeds_and_a_noise_above_nought, .timeout = 180) {
    kt_machine_report report;
    kt_topology topology;
    kt_registry *registry;
    kt_cpu cpu;
    kt_err err;

    kt_cpu_probe(&cpu);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, cpu.isa, &registry, &err),
        KT_OK);
    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_ceilings_measure(registry, &topology, true, &report, &err), KT_OK, "%s",
                 err.message);
    cr_expect(report.ceilings.stream_gbs_1t > 0.5 && report.ceilings.stream_gbs_1t < 1000, "%g",
              report.ceilings.stream_gbs_1t);
    cr_expect_gt(report.ceilings.peak_scalar_gops, 0);
    cr_expect(report.ceilings.aa_noise_p95 > 0 && report.ceilings.aa_noise_p95 < 10, "%g",
              report.ceilings.aa_noise_p95);
    kt_registry_destroy(registry);
}
