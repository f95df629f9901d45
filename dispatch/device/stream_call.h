/* The host in the order of somebody else's CUDA stream, by the driver that the process has:
 * functions of the host, or words of mapped memory that the stream writes and waits for.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_STREAM_CALL_H
#define KT_DEVICE_STREAM_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

/* What the driver calls, on a thread of its own: no CUDA function may be called from it. */
typedef void kt_stream_function(void *arg);

/* Is the stream's work being captured into a graph? KT_E_UNSUPPORTED: no driver, with the reason.
 * KT_E_INVALID: the driver does not know the stream. Any thread may ask. */
kt_status kt_stream_is_captured(void *stream, bool *out, kt_err *err);

/* Have f(arg) called when all that the stream was given before is done; what it is given later
 * waits for f. In a captured stream f is called at each replay instead. Errors as above. */
kt_status kt_stream_call(void *stream, kt_stream_function *f, void *arg, kt_err *err);

/* ---- words ---- */

/* Memory of the host that streams can write and wait for; zeroed. */
typedef struct kt_stream_memory {
    void *data;
    void *context; /* the caller's, which it belongs to */
} kt_stream_memory;

/* In the context that is current for the calling thread; also while a stream is captured.
 * KT_E_UNSUPPORTED: the driver has no such words, or no context is current. */
kt_status kt_stream_memory_take(size_t bytes, kt_stream_memory *out, kt_err *err);
/* Any thread. Nothing that the streams were given may use it any more. Accepts a zeroed one. */
void kt_stream_memory_free(kt_stream_memory *m);

/* When all that the stream was given before is done, and seen by the host, *word becomes value. */
kt_status kt_stream_write(void *stream, uint32_t *word, uint32_t value, kt_err *err);
/* What the stream is given later waits until *word is value, which the host stores with release
 * order. */
kt_status kt_stream_wait(void *stream, const uint32_t *word, uint32_t value, kt_err *err);

#endif
