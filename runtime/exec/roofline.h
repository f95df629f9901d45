/* The ceilings of this machine for the threads of a pool. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ROOFLINE_H
#define KT_RUNTIME_ROOFLINE_H

#include "base/pool.h"
#include "dispatch/registry/registry.h"
#include "runtime/exec/engine.h"

/* Read stream and peaks by the registry's KT_OP_PROBE variants, all threads at once. */
kt_status kt_roofline_measure(const kt_registry *registry, kt_pool *pool, kt_roofline *out,
                              kt_err *err);

#endif
