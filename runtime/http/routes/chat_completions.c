/* POST /v1/chat/completions. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/chat.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_api_start(&kt_api_kind_chat, app, x);
}

const kt_route kt_route_chat_completions = {
    .method = "POST", .path = "/v1/chat/completions", .handle = handle};
