/* POST /v1/embeddings: no served model has them. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/server.h"

static void handle(kt_http_exchange *x, void *app) {
    (void)app;
    kt_http_fail(x, 501, "not_supported_error", NULL, "not_supported",
                 "embeddings are not supported: the model generates text");
}

const kt_route kt_route_embeddings = {.method = "POST", .path = "/v1/embeddings", .handle = handle};
