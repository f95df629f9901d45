/* HTTP routes: one file runtime/http/routes/<name>.c defines `const kt_route kt_route_<name>`; the
 * build writes the table. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ROUTE_H
#define KT_RUNTIME_ROUTE_H

#include <stddef.h>

typedef struct kt_route {
    const char *method, *path;
} kt_route;

extern const kt_route *const kt_builtin_routes[];
extern const size_t kt_builtin_route_count;

#endif
