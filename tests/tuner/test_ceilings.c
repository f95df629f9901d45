/* What probing finds out about the machine makes sense. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/support/temp.h"
#include "tuner/measure/ceilings.h"
#include "tuner/store/machine_file.h"

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

/* --- a busy minute --------------------------------------------------------------------------- */

static kt_machine_report quiet_minute(void) {
    kt_machine_report r = {.ceilings = {.stream_gbs_1t = 18.9,
                                        .stream_gbs_all = 25.3,
                                        .stream_small_gbs_1t = 16.73,
                                        .cache_knee_bytes = 128e6,
                                        .peak_scalar_gops = 7.5,
                                        .aa_noise_p95 = 0.006,
                                        .threads_all = 2}};
    r.ceilings.peak_gops[0] = 111;
    r.ceilings.peak_gops[7] = 5220;
    return r;
}

/* Each figure worse, but one peak. */
static kt_machine_report busy_minute(void) {
    kt_machine_report r = quiet_minute();
    r.ceilings.stream_gbs_1t = 12;
    r.ceilings.stream_gbs_all = 14;
    r.ceilings.stream_small_gbs_1t = 14;
    r.ceilings.cache_knee_bytes = 16e6;
    r.ceilings.peak_scalar_gops = 4;
    r.ceilings.peak_gops[0] = 60;
    r.ceilings.peak_gops[7] = 5230;
    r.ceilings.aa_noise_p95 = 0.04;
    return r;
}

Test(ceilings, a_busy_minute_replaces_only_what_it_found_better) {
    kt_machine_report before = quiet_minute(), now = busy_minute();

    cr_expect_eq(kt_ceilings_keep_best(&before.ceilings, &now.ceilings), 7);
    cr_expect_eq(now.ceilings.stream_gbs_1t, 18.9);
    cr_expect_eq(now.ceilings.stream_gbs_all, 25.3);
    cr_expect_eq(now.ceilings.stream_small_gbs_1t, 16.73);
    cr_expect_eq(now.ceilings.cache_knee_bytes, 128e6);
    cr_expect_eq(now.ceilings.peak_scalar_gops, 7.5);
    cr_expect_eq(now.ceilings.peak_gops[0], 111);
    cr_expect_eq(now.ceilings.peak_gops[7], 5230);
    cr_expect_eq(now.ceilings.aa_noise_p95, 0.006);
    /* The other way round the quiet minute wins by itself, and learns that one peak. */
    before = busy_minute(), now = quiet_minute();
    cr_expect_eq(kt_ceilings_keep_best(&before.ceilings, &now.ceilings), 1);
    cr_expect_eq(now.ceilings.peak_gops[7], 5230);
    cr_expect_eq(now.ceilings.cache_knee_bytes, 128e6);
}

/* What all cores read is no figure of another number of cores. */
Test(ceilings, streams_of_other_thread_counts_are_not_compared) {
    kt_machine_report before = quiet_minute(), now = busy_minute();

    before.ceilings.threads_all = 4;
    kt_ceilings_keep_best(&before.ceilings, &now.ceilings);
    cr_expect_eq(now.ceilings.stream_gbs_all, 14);
}

/* A table that was tuned in a quiet minute is not stale after a probe in a busy one. */
Test(ceilings, the_file_of_a_machine_keeps_its_best_figures) {
    kt_machine_report quiet = quiet_minute(), busy = busy_minute();
    char folder[256], path[1024];
    kt_topology topology;
    kt_fingerprint table, machine;
    kt_ceilings kept;
    kt_err err = {0};

    kt_temp_make(folder, sizeof folder);
    setenv("XDG_DATA_HOME", folder, 1);
    cr_assert_eq(kt_topology_probe(&topology, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_machine_keep_best(&topology, &busy), 0, "there is no file yet");
    cr_assert_eq(kt_machine_save(&topology, &quiet, path, sizeof path, &err), KT_OK, "%s",
                 err.message);
    cr_expect_eq(kt_machine_keep_best(&topology, &busy), 7);
    cr_assert_eq(kt_machine_save(&topology, &busy, path, sizeof path, &err), KT_OK, "%s",
                 err.message);
    cr_assert_eq(kt_machine_load(&topology, &kept, &err), KT_OK, "%s", err.message);
    kt_fingerprint_make(&topology, &quiet.ceilings, &table);
    kt_fingerprint_make(&topology, &kept, &machine);
    cr_expect_eq(kt_fingerprint_compare(&table, &machine, &err), KT_MATCH_SAME, "%s", err.message);
    kt_temp_remove(folder);
}
