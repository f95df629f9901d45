/* machine.json: what `kttune probe` measured, kept in the user's cache so that tuning and serving
 * need not measure again. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_MACHINE_FILE_H
#define KT_TUNER_MACHINE_FILE_H

#include "dispatch/plan/machine_ceilings.h"
#include "tuner/measure/ceilings.h"

/* The text of machine.json: class, fingerprint with ceilings, timer, pages, bandwidth curve, topology.
 * No host or user names. Returns malloc'd text (owned by the caller) or NULL when memory is short. */
char *kt_machine_text(const kt_topology *topology, const kt_machine_report *report, size_t *size);

/* Write the file atomically into that place. */
kt_status kt_machine_save(const kt_topology *topology, const kt_machine_report *report, char *path,
                          size_t path_bytes, kt_err *err);

/* Replace what an earlier probe of this machine, kept in its file, found better: other work on the
 * machine only makes figures worse. Streams and peaks: the larger. Noise: the smaller. The cache
 * knee: of the probe that read memory faster. Returns how many figures were replaced; 0 where there
 * is no such file. */
int kt_machine_keep_best(const kt_topology *topology, kt_machine_report *report);
int kt_ceilings_keep_best(const kt_ceilings *before, kt_ceilings *now);

#endif
