/* POST /apply-template: what a conversation becomes, as text. Takes the body of a chat.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/body_job.h"
#include "runtime/http/api/chat.h"

static bool apply(kt_app *app, const kt_json *body, kt_json_writer *w, kt_api_error *e) {
    kt_chat_call c = {.call.app = app};
    kt_model_prompt prompt = {0};

    if (!kt_chat_parse_conversation(&c, body, e) || !kt_chat_parse_tools(&c, body, e) ||
        !kt_chat_make_prompt(app, &c.request, true, &prompt, e))
        return false;
    kt_json_begin_object(w);
    kt_json_key(w, "prompt");
    kt_json_put_string_n(w, prompt.text, prompt.size);
    kt_json_end_object(w);
    kt_model_prompt_deinit(&prompt);
    return true;
}

static void handle(kt_http_exchange *x, void *app) {
    kt_body_job_start(app, x, apply);
}

const kt_route kt_route_apply_template = {
    .method = "POST", .path = "/apply-template", .handle = handle};
