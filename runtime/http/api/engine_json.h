/* What an engine shows of itself, as JSON for GET /machine. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_JSON_H
#define KT_RUNTIME_ENGINE_JSON_H

#include "base/json.h"
#include "runtime/exec/engine_view.h"

/* Adds "kernels" and, of a model with routed experts, "experts" to an object, and has the engine
 * count rows by expert for the next ten seconds. Any thread; does not wait for a step. */
void kt_engine_write_json(const kt_engine *e, kt_json_writer *w);

#endif
