/* The public options of a load as the engine's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_API_OPTIONS_H
#define KT_RUNTIME_API_OPTIONS_H

#include "runtime/exec/engine.h"

/* Check what a caller asks for. `known` receives the options as this library knows them, which
 * *out then points into; out->log stays NULL. */
kt_status kt_model_options_take(const kt_model_options *from, kt_model_options *known,
                                kt_engine_options *out, kt_err *err);

#endif
