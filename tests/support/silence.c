/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/silence.h"

#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"

enum { WATCHES = 0, IS_OVER, GAVE_UP };

#define LOOK_NS 10000000

static void *watch(void *arg) {
    const struct timespec time = {0, LOOK_NS};
    kt_silence *s = arg;

    while (atomic_load(&s->state) == WATCHES) {
        int expected = WATCHES;
        nanosleep(&time, NULL);
        if (kt_clock_ns() - atomic_load(&s->heard) < s->most_ns) continue;
        if (atomic_compare_exchange_strong(&s->state, &expected, GAVE_UP)) s->call(s->arg);
    }
    return NULL;
}

kt_status kt_silence_begin(kt_silence *s, int64_t most_ns, void (*call)(void *arg), void *arg,
                           kt_err *err) {
    s->call = call;
    s->arg = arg;
    s->most_ns = most_ns;
    atomic_init(&s->state, WATCHES);
    kt_silence_hear(s);
    if (pthread_create(&s->thread, NULL, watch, s) == 0) return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "no thread to watch");
}

void kt_silence_hear(kt_silence *s) {
    atomic_store(&s->heard, kt_clock_ns());
}

void kt_silence_end(kt_silence *s) {
    int expected = WATCHES;

    while (!atomic_compare_exchange_strong(&s->state, &expected, IS_OVER)) pause();
    pthread_join(s->thread, NULL);
}
