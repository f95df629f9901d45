/* Functions of the host in the order of somebody else's CUDA stream, by cuLaunchHostFunc of the
 * driver that the process has. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_STREAM_CALL_H
#define KT_DEVICE_STREAM_CALL_H

#include <stdbool.h>

#include "kt/status.h"

/* What the driver calls, on a thread of its own: no CUDA function may be called from it. */
typedef void kt_stream_function(void *arg);

/* Is the stream's work being captured into a graph? KT_E_UNSUPPORTED: no driver, with the reason.
 * KT_E_INVALID: the driver does not know the stream. Any thread may ask. */
kt_status kt_stream_is_captured(void *stream, bool *out, kt_err *err);

/* Have f(arg) called when all that the stream was given before is done; what it is given later
 * waits for f. In a captured stream f is called at each replay instead. Errors as above. */
kt_status kt_stream_call(void *stream, kt_stream_function *f, void *arg, kt_err *err);

#endif
