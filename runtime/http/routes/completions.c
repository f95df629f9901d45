/* POST /v1/completions. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/completion.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_api_start(&kt_api_kind_completion, app, x);
}

const kt_route kt_route_completions = {
    .method = "POST", .path = "/v1/completions", .handle = handle};
