/* What /metrics says. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_METRICS_H
#define KT_RUNTIME_METRICS_H

#include "runtime/http/app.h"
#include "runtime/token/text.h"

/* The page, into out->data, which the caller frees. Any thread; the app must be ready. */
kt_status kt_metrics_write(kt_app *app, kt_text *out, kt_err *err);

#endif
