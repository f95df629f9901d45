/* Ends a wait that would last for ever: a thread that calls a function when nothing has been heard
 * for too long. For programs whose own thread may be held up where nothing can be done about it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_SILENCE_H
#define KT_TESTS_SILENCE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "kt/status.h"

/* Placed by the caller, who does not move it. */
typedef struct kt_silence {
    void (*call)(void *arg); /* on the thread that watches; must not return */
    void *arg;
    int64_t most_ns;
    pthread_t thread;
    _Atomic int64_t heard;
    atomic_int state;
} kt_silence;

/* KT_E_NOMEM: no thread. */
kt_status kt_silence_begin(kt_silence *s, int64_t most_ns, void (*call)(void *arg), void *arg,
                           kt_err *err);
void kt_silence_hear(kt_silence *s); /* any thread */
/* Where the function has been called this does not return. */
void kt_silence_end(kt_silence *s);

#endif
