/* POST /v1/messages: Anthropic's Messages API. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/messages_call.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_api_start(&kt_api_kind_messages, app, x);
}

const kt_route kt_route_messages_api = {
    .method = "POST", .path = "/v1/messages", .form = KT_FORM_ANTHROPIC, .handle = handle};
