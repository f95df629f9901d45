/* HTTP routes: one file runtime/http/routes/<name>.c defines `const kt_route kt_route_<name>`; the
 * build writes the table. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ROUTE_H
#define KT_RUNTIME_ROUTE_H

#include <stdbool.h>
#include <stddef.h>

struct kt_http_exchange;

/* Whose form errors, pings and the end of a stream have. */
typedef enum kt_route_form {
    KT_FORM_OPENAI,
    KT_FORM_RESPONSES, /* OpenAI's too, but events have names and no [DONE] comes behind them */
    KT_FORM_ANTHROPIC
} kt_route_form;

typedef struct kt_route {
    const char *method; /* "GET" also answers HEAD */
    /* Exact, or a prefix when it ends with '*'. "/v1/x" is also found as "/x". */
    const char *path;
    bool is_public; /* answered without an API key */
    kt_route_form form;
    /* Called on the event thread: must not block. Answers through server.h, now or, after
     * kt_http_keep, later from any thread. app is what the server was created with. */
    void (*handle)(struct kt_http_exchange *x, void *app);
} kt_route;

extern const kt_route *const kt_builtin_routes[];
extern const size_t kt_builtin_route_count;

#endif
