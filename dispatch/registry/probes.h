/* Ceiling probes: which one of the registry, and how far ahead a read stream should ask.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_PROBES_H
#define KT_DISPATCH_PROBES_H

#include "dispatch/registry/registry.h"

/* The usable probe whose name starts with `prefix` ("peak_dpbusd", "read_stream") and has the
 * largest instruction set within `isa` (~0 = any), or NULL. */
const kt_variant *kt_probe_find(const kt_registry *registry, const char *prefix, kt_isa isa);

/* The configuration of a probe with which rate(arg, config) is largest: each of them twice, in
 * turns, the better one counts. rate returns work per time of one short call; the caller says on
 * how many threads and over which memory. */
kt_config kt_probe_best_config(const kt_variant *v,
                               double (*rate)(void *arg, const kt_config *config), void *arg);

#endif
