/* POST /v1/responses/input_tokens: the tokens of a prompt. Takes the body of /v1/responses.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/body_job.h"
#include "runtime/http/api/responses_call.h"

static bool count(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    kt_json_doc *doc;
    int64_t n;
    bool ok;

    if (!kt_responses_translate(body, &doc, e)) return false;
    ok = kt_chat_count(app, kt_json_root(doc), &n, e);
    if (ok) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "object", "response.input_tokens");
        kt_json_add_int(w, "input_tokens", n);
        kt_json_end_object(w);
    } else {
        kt_responses_rename(e);
    }
    kt_json_destroy(doc);
    return ok;
}

static void handle(kt_http_exchange *x, void *app) {
    kt_body_job_start(app, x, count);
}

const kt_route kt_route_input_tokens = {.method = "POST",
                                        .path = "/v1/responses/input_tokens",
                                        .form = KT_FORM_RESPONSES,
                                        .handle = handle};
