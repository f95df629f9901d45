/* POST /v1/messages/count_tokens: the tokens of a prompt. Takes the body of /v1/messages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/body_job.h"
#include "runtime/http/api/messages_call.h"

static bool count(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    kt_json_doc *doc;
    int64_t n;
    bool ok;

    if (!kt_messages_translate(body, false, &doc, e)) return false;
    ok = kt_chat_count(app, kt_json_root(doc), &n, e);
    if (ok) {
        kt_json_begin_object(w);
        kt_json_add_int(w, "input_tokens", n);
        kt_json_end_object(w);
    }
    kt_json_destroy(doc);
    return ok;
}

static void handle(kt_http_exchange *x, void *app) {
    kt_body_job_start(app, x, count);
}

const kt_route kt_route_count_tokens = {.method = "POST",
                                        .path = "/v1/messages/count_tokens",
                                        .form = KT_FORM_ANTHROPIC,
                                        .handle = handle};
