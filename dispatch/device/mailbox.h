/* Letters between a stream of a device and the host, so that both compute at the same time and
 * neither starts the other: the stream posts what it has made and goes on, the host works on it and
 * answers, and the stream takes the answer where it needs it.
 *
 *   stream:  post 1 and its bytes | work | take 1 and its bytes | work | post 2 | ...
 *   host:    await 1 | work | answer (1) | await 2 | ...
 *
 * The bytes are spans of memory that go along: with a letter from the device's memory to the
 * host's, with an answer the other way. The host's must be of kt_device_host_alloc, or known to the
 * device by kt_device_pin. Spans of one call go in any order and at the same time.
 *
 * Order. What was put into the stream before a post, and the spans of the post, have been done, and
 * their bytes are seen by the host, when await of that number returns. What the host's thread wrote
 * before an answer is what the spans of a take of that number find, and is seen by all that the
 * stream was given behind it. Nothing else is promised: memory that the host writes must not be
 * what work before the next letter reads, and the other way round. Spans of a post are read where
 * the post stands in the stream, not before.
 *
 * A round is what one step or one graph does; its letters and answers are numbered from 1, in the
 * order of the calls. Numbers of earlier rounds count for none of this one: every round has a base
 * of its own, which goes to the device by a copy, so that the same commands, replayed by a graph,
 * are a new round. All work of a round must be done before the next one begins.
 *
 * Two ways:
 * - Mapped: the device's kernels move small spans themselves, raise flags in mapped memory and wait
 *   for the host's (mailbox.cu). The stream may be given a whole round at once.
 * - By functions of the host (kt_device_call), where kernels cannot do that. A driver may hold up
 *   any call of the host's thread while such a function runs, also the launch of the graph that it
 *   is in, so that none may ever wait for that thread: it tells of a letter and does nothing else.
 *   Nothing in the stream waits for an answer. The host leads (kt_mailbox_is_led): it puts a take,
 *   and what is behind it, when it has given the answer.
 *
 * One host thread posts, awaits and answers.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_MAILBOX_H
#define KT_DEVICE_MAILBOX_H

#include "dispatch/device/device.h"

typedef enum kt_mailbox_way {
    KT_MAILBOX_NONE = 0,
    KT_MAILBOX_MAPPED,
    KT_MAILBOX_FUNCTIONS
} kt_mailbox_way;

enum { KT_MAILBOX_MOST = 4095 /* letters or answers of a round */ };

/* Memory that goes along with a letter or an answer. */
typedef struct kt_mail_span {
    void *to;
    const void *from;
    size_t bytes;
} kt_mail_span;

typedef struct kt_mailbox kt_mailbox;

/* What KT_MAILBOX of the environment asks for: "mapped" (also where it is not set), "functions" or
 * "off". KT_E_INVALID: another word. */
kt_status kt_mailbox_way_wanted(kt_mailbox_way *out, kt_err *err);

/* Memory and code of the device that live as long as it. most: letters, or answers, of a round, at
 * most KT_MAILBOX_MOST. */
kt_status kt_mailbox_create(kt_device *d, kt_mailbox_way way, int most, kt_mailbox **out,
                            kt_err *err);
void kt_mailbox_destroy(kt_mailbox *m); /* accepts NULL; also after its device was closed */

/* Must the host answer before a take is put? */
bool kt_mailbox_is_led(const kt_mailbox *m);

/* ---- into the stream ---- */

kt_status kt_mailbox_begin(kt_mailbox *m, kt_stream s, kt_err *err);
/* span: [n], copied by the call. *letter is its number. */
kt_status kt_mailbox_post(kt_mailbox *m, kt_stream s, const kt_mail_span *span, int n, int *letter,
                          kt_err *err);
/* answer: its number; 0 = one that has always come. KT_E_INVALID also where the host leads and has
 * not given it. */
kt_status kt_mailbox_take(kt_mailbox *m, kt_stream s, int answer, const kt_mail_span *span, int n,
                          kt_err *err);

/* ---- on the host ---- */

/* Wait for a letter; first busily, then with pauses of up to 0.2 ms. Where the host leads, what is
 * kept of the stream (kt_device_gather_begin) is put before. KT_E_INTERNAL: the device has done all
 * that it was given and there is none. Other errors are the device's. */
kt_status kt_mailbox_await(kt_mailbox *m, int letter, kt_err *err);
void kt_mailbox_answer(kt_mailbox *m);
/* No more answers will come: takes of this round go on at once, with whatever is there. To be
 * called before the host waits for a device that it will not answer. */
void kt_mailbox_stop(kt_mailbox *m);

#endif
