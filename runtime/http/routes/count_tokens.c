/* POST /v1/messages/count_tokens: the tokens of a prompt. Takes the body of /v1/messages.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/body_job.h"
#include "runtime/http/api/messages_call.h"

static bool count(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    kt_chat_call c = {.call.app = app};
    kt_model_prompt prompt = {0};
    const kt_json *chat;
    kt_json_doc *doc;
    bool ok;

    if (!kt_messages_translate(body, false, &doc, e)) return false;
    chat = kt_json_root(doc);
    ok = kt_api_parse_model(app, chat, e) && kt_chat_parse_conversation(&c, chat, e) &&
         kt_chat_parse_tools(&c, chat, e) &&
         kt_chat_make_prompt(app, &c.request, false, &prompt, e);
    if (ok) {
        kt_json_begin_object(w);
        kt_json_add_int(w, "input_tokens", (int64_t)prompt.n_ids);
        kt_json_end_object(w);
    }
    kt_model_prompt_deinit(&prompt);
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
