/* GET /metrics. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/http/metrics.h"
#include "runtime/http/server.h"

static void handle(kt_http_exchange *x, void *arg) {
    kt_app *app = arg;
    kt_text page = {0};
    char header[80];

    if (kt_metrics_write(app, &page, NULL) != KT_OK) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the answer");
        return;
    }
    snprintf(header, sizeof header, "Process-Start-Time-Unix: %lld\r\n", (long long)app->created_s);
    kt_http_reply(x, 200, header, "text/plain; version=0.0.4; charset=utf-8", page.data, page.size);
    free(page.data);
}

const kt_route kt_route_metrics_page = {.method = "GET", .path = "/metrics", .handle = handle};
