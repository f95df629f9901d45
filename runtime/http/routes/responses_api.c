/* POST /v1/responses: OpenAI's Responses API, without a memory of its own.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/responses_call.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_api_start(&kt_api_kind_responses, app, x);
}

const kt_route kt_route_responses_api = {
    .method = "POST", .path = "/v1/responses", .form = KT_FORM_RESPONSES, .handle = handle};
