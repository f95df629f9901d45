/* A client of one chat server: requests over plain HTTP, answers event by event.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHAT_LINK_H
#define KT_RUNTIME_CHAT_LINK_H

#include <stdbool.h>
#include <stddef.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/client/sse_client.h"

typedef struct kt_chat_link {
    kt_target target;
    char path[256];           /* what goes before "/chat/completions", e.g. "/v1" */
    const char *key;          /* borrowed; NULL = none */
    bool (*is_stopped)(void); /* asked ten times a second; NULL = never */
} kt_chat_link;

/* http://HOST[:PORT][/PATH], PATH being /v1 when there is none. KT_E_INVALID for anything else. */
kt_status kt_chat_link_init(kt_chat_link *l, const char *url, kt_err *err);

/* Called for each event of the stream. */
typedef void kt_chat_link_sink(void *arg, const kt_json *event);

/* POST body to path + what and hand over the events of the answer, until [DONE]. KT_E_CANCELLED
 * when is_stopped said so; KT_E_IO when the server cannot be reached or leaves; KT_E_INVALID with
 * the server's message for an error. */
kt_status kt_chat_link_post(const kt_chat_link *l, const char *what, const char *body, size_t size,
                            kt_chat_link_sink *sink, void *arg, kt_err *err);

#endif
