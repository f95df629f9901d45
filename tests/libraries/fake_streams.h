/* Streams of a pretended CUDA driver, for tests that link it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TEST_FAKE_STREAMS_H
#define KT_TEST_FAKE_STREAMS_H

#include <stddef.h>

typedef struct fake_stream fake_stream;

fake_stream *fake_stream_make(void); /* at most 16 */
void fake_stream_copy(fake_stream *s, void *to, const void *from, size_t bytes);
void fake_stream_hold(fake_stream *s, int is_held);  /* do nothing of what comes, or go on */
void fake_stream_capture(fake_stream *s, int is_on); /* one graph a stream, begun anew */
void fake_stream_replay(fake_stream *s);
void fake_stream_sync(fake_stream *s);
void fake_stream_end(fake_stream *s);

/* This thread has a CUDA context, or none; and blocks of mapped memory that there are. */
void fake_streams_enter(int is_inside);
int fake_streams_blocks(void);

#endif
