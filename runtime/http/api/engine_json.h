/* What an engine shows of itself, as JSON for GET /machine and as labels for GET /metrics.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_JSON_H
#define KT_RUNTIME_ENGINE_JSON_H

#include "base/json.h"
#include "runtime/exec/engine_view.h"

/* Adds "kernels" and, of a model with routed experts, "experts" to an object, and has the engine
 * count rows by expert for the next ten seconds. Any thread; does not wait for a step. */
void kt_engine_write_json(const kt_engine *e, kt_json_writer *w);

/* Calls put with role="...",op="..." and so on for each kernel that runs: names of the table and of
 * the model's description, none of which needs escapes. Any thread. */
void kt_engine_put_kernels(const kt_engine *e, void (*put)(void *arg, const char *labels),
                           void *arg);

#endif
