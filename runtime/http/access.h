/* Who may use the server: API keys, names of the host, origins of web pages. No I/O.
 *
 * A web page that a user of this machine looks at can send requests to a local server, with its own
 * origin or, by a name that it lets point to 127.0.0.1, with its own host. So without a key only
 * loopback hosts are answered, and only loopback origins, the page of the server itself, and
 * programs that are no browsers. A key keeps pages out by itself; then any host and origin will do,
 * unless origins were listed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ACCESS_H
#define KT_RUNTIME_ACCESS_H

#include <stdbool.h>

#include "kt/status.h"
#include "runtime/http/http_parse.h"

typedef struct kt_access kt_access; /* constant after creation: any number of threads */

/* keys: one a line, spaces around and empty lines left out; hosts and origins: lists with commas,
 * "*" for all. Each may be NULL or empty. An origin is "https://name" or "https://name:port"; a
 * host is a name or an address, with a port or for every port. KT_E_INVALID names an origin without
 * a scheme. */
kt_status kt_access_create(const char *keys, const char *hosts, const char *origins,
                           kt_access **out, kt_err *err);
void kt_access_destroy(kt_access *a); /* accepts NULL */

bool kt_access_wants_key(const kt_access *a);
/* The request has one of the keys, in Authorization (Bearer) or X-Api-Key, or none is wanted. The
 * time depends on the length of what was given only. */
bool kt_access_has_key(const kt_access *a, const kt_http_head *head);
bool kt_access_host(const kt_access *a, const char *host);
/* host: that of the same request, already accepted: a page of this server may call it. */
bool kt_access_origin(const kt_access *a, const char *origin, const char *host);

#endif
