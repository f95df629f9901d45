/* GET /version. SPDX-License-Identifier: Apache-2.0 */
#include "kt/version.h"
#include "runtime/http/model_card.h"

static void handle(kt_http_exchange *x, void *app) {
    kt_json_writer w = {0};
    (void)app;

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "version", KT_VERSION);
    kt_json_end_object(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_version = {.method = "GET", .path = "/version", .handle = handle};
