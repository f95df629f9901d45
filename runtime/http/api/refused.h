/* Parameters that a route does not have. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_REFUSED_H
#define KT_RUNTIME_REFUSED_H

#include "runtime/http/api/fields.h"

/* Routes, as bits. */
typedef enum kt_api_on {
    KT_ON_CHAT = 1,      /* /v1/chat/completions */
    KT_ON_TEXT = 2,      /* /v1/completions */
    KT_ON_MESSAGES = 4,  /* /v1/messages */
    KT_ON_RESPONSES = 8, /* /v1/responses */
    KT_ON_ALL = 15
} kt_api_on;

/* False with 400 unsupported_parameter for the first one that is known elsewhere, would change the
 * answer and is not built here, unless its value says that it is off. */
bool kt_api_check_refused(const kt_json *body, kt_api_on route, kt_api_error *e);

/* False with 400 unknown_parameter for a name that is neither refused, nor one of taken[n], nor a
 * label or hint, which have no effect. */
bool kt_api_check_known(const kt_json *body, kt_api_on route, const char *const *taken, size_t n,
                        kt_api_error *e);

#endif
