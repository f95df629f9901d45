/* What all headers of the public API share: linkage, versions, memory, the stop flag.
 *
 * Rules of the whole API:
 *
 * Errors    Fallible functions return kt_status and write a message into `err`, which may be NULL.
 *           On an error outputs are NULL or unchanged, unless the function says otherwise.
 * Owned     What kt_x_create, _load or _open gives belongs to the caller, who ends it with
 *           kt_x_destroy; that accepts NULL. Memory that a function hands over is freed by kt_free.
 * Borrowed  Pointers that are passed in are borrowed during the call, unless the function says
 *           otherwise; `const char *` results belong to the object that they were asked of.
 * Threads   Each header says which objects several threads may use at once.
 * Growth    A structure whose first member is `size` gets sizeof that structure there before a call
 *           (its init function, where it has one, does that): newer libraries fill or read no more
 *           than that. All other structures are zeroed before their members are set; what they
 *           are belongs to KT_ABI_VERSION.
 * Library   Nothing here prints, exits or has global state: a process may hold several engines.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_API_H
#define KT_API_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "kt/version.h"

#ifdef __cplusplus
extern "C" {
#endif

/* KT_ABI_VERSION of the library that runs. A program that was compiled with another one must not
 * go on. Thread-safe. */
KT_API int kt_abi_version(void);
/* KT_VERSION of the library that runs. Static storage; thread-safe. */
KT_API const char *kt_version(void);

/* Give back memory that a function of this API handed over ("owned; kt_free"). Accepts NULL. */
KT_API void kt_free(void *memory);

/* A flag by which any thread ends what another one runs. */
typedef struct kt_stop kt_stop;

KT_API kt_status kt_stop_create(kt_stop **out, kt_err *err);
KT_API void kt_stop_destroy(kt_stop *stop); /* not while anything may still read it */
/* Raise the flag, or lower it for the next use. From any thread, and in signal handlers. */
KT_API void kt_stop_set(kt_stop *stop, bool is_raised);
KT_API bool kt_stop_is_set(const kt_stop *stop);

#ifdef __cplusplus
}
#endif
#endif
