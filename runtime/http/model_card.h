/* JSON answers that several routes share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MODEL_CARD_H
#define KT_RUNTIME_MODEL_CARD_H

#include "base/json.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"

/* The "model" object of the API. */
void kt_model_card_write(const kt_app *app, kt_json_writer *w);

/* Answer with what w holds, and release w. */
void kt_http_reply_writer(kt_http_exchange *x, int status, kt_json_writer *w);

#endif
