/* Requests that need the JSON of their body and the tokenizer, but not the engine: parsed and
 * answered on the prepare thread. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BODY_JOB_H
#define KT_RUNTIME_BODY_JOB_H

#include "runtime/http/api/fields.h"
#include "runtime/http/app.h"
#include "runtime/http/server.h"

/* Write the answer into w and return true, or fill e. body is an object. Prepare thread. */
typedef bool kt_body_handler(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e);

/* Called by a route. A full queue is 429. */
void kt_body_job_start(kt_app *app, kt_http_exchange *x, kt_body_handler *handler);

/* Answer with the error. */
void kt_api_fail(kt_http_exchange *x, const kt_api_error *e);

/* The body's document, whose root is an object; NULL with *e. The caller's. */
kt_json_doc *kt_api_parse_body(kt_http_exchange *x, kt_api_error *e);

#endif
