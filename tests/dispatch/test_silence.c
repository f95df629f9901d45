/* The watch that ends waits of tests on devices. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/silence.h"

#define MS INT64_C(1000000)

static void end_program(void *arg) {
    _exit(*(const int *)arg);
}

static void fail_program(void *arg) {
    (void)arg;
    _exit(1);
}

static void wait_ms(long ms) {
    const struct timespec time = {0, ms * 1000000};
    nanosleep(&time, NULL);
}

Test(silence, ends_what_waits_for_ever, .exit_code = 7, .timeout = 60) {
    int code = 7;
    kt_silence s;

    cr_assert_eq(kt_silence_begin(&s, 50 * MS, end_program, &code, NULL), KT_OK);
    for (;;) pause();
}

/* Also where the one who waited comes back at last. */
Test(silence, lets_nobody_go_on_behind_it, .exit_code = 7, .timeout = 60) {
    int code = 7;
    kt_silence s;

    cr_assert_eq(kt_silence_begin(&s, 20 * MS, end_program, &code, NULL), KT_OK);
    while (atomic_load(&s.state) == 0) wait_ms(1);
    kt_silence_end(&s);
    _exit(1);
}

/* For three times as long as it may be silent. */
Test(silence, is_quiet_while_something_is_heard, .timeout = 60) {
    const int64_t begin = kt_clock_ns();
    kt_silence s;

    cr_assert_eq(kt_silence_begin(&s, 400 * MS, fail_program, NULL, NULL), KT_OK);
    while (kt_clock_ns() - begin < 1200 * MS) {
        wait_ms(5);
        kt_silence_hear(&s);
    }
    kt_silence_end(&s);
    wait_ms(500); /* it is over */
}
