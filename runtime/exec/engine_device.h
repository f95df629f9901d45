/* The engine's part beside the CPU: which device, what it runs, what it holds.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_DEVICE_H
#define KT_RUNTIME_ENGINE_DEVICE_H

#include "runtime/exec/engine_impl.h"

/* After the plan is made: with a device named in the options, open it and place the model's nodes
 * and experts; e->placement and e->plan.away are set then. Nothing is loaded. */
kt_status kt_engine_place(kt_engine *e, const kt_engine_options *o, kt_err *err);
/* What the devices hold, after they are loaded: one sentence for each. */
void kt_engine_device_line(const kt_engine *e, char *out, size_t out_bytes);
bool kt_engine_cache_is_away(const kt_engine *e);
/* No more pages and slots than the device has memory for, where it keeps any. */
void kt_engine_fit_pool(const kt_engine *e, kt_kv_plan *pool);
/* After the step is laid out, while the checkpoint is open. */
kt_status kt_engine_load_device(kt_engine *e, const kt_engine_options *o,
                                const kt_checkpoint *importance, kt_err *err);
/* After the pools are made. */
kt_status kt_engine_keep_on_device(kt_engine *e, kt_err *err);
/* After that: pages of the host's memory behind those of the device, where it keeps all; else a
 * warning. */
kt_status kt_engine_add_tier(kt_engine *e, size_t bytes, kt_err *err);
void kt_engine_close_device(kt_engine *e);

#endif
