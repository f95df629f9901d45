/* Letters between a stream and the host, on the emulated device: order, spans, rounds, errors.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdlib.h>
#include <unistd.h>

#include "dispatch/device/mailbox.h"
#include "tests/support/stream_bench.h"

enum { LETTERS = 200 }; /* more commands than a stream has room for */

typedef struct post_office {
    bench t;
    kt_mailbox *box;
    uint32_t *shared; /* [LETTERS][N], the host's */
} post_office;

/* Each letter is what the device made of the answer before; the answer is the letter times 3. */
static void put_letters(post_office *o, int n) {
    OK(kt_mailbox_begin(o->box, KT_STREAM_MAIN, &err));
    OK(kt_device_upload(o->t.d, KT_STREAM_MAIN, o->t.a, o->t.host, sizeof o->t.host, &err));
    for (int i = 1, letter; i <= n; i++) {
        uint32_t *at = o->shared + (size_t)(i % 2) * N;
        OK(launch(&o->t, KT_STREAM_MAIN, o->t.a, o->t.b, 1, 0));
        OK(kt_device_download(o->t.d, KT_STREAM_MAIN, at, o->t.b, N * sizeof *at, &err));
        OK(kt_mailbox_post(o->box, KT_STREAM_MAIN, &letter, &err));
        cr_assert_eq(letter, i);
        OK(kt_mailbox_take(o->box, KT_STREAM_MAIN, i, &err));
        OK(kt_device_upload(o->t.d, KT_STREAM_MAIN, o->t.a, at, N * sizeof *at, &err));
    }
    OK(kt_device_download(o->t.d, KT_STREAM_MAIN, o->t.back, o->t.a, sizeof o->t.back, &err));
}

static void answer_letters(post_office *o, int n) {
    for (int i = 1; i <= n; i++) {
        uint32_t *at = o->shared + (size_t)(i % 2) * N;
        OK(kt_mailbox_await(o->box, i, &err));
        for (int v = 0; v < N; v++) at[v] *= 3;
        kt_mailbox_answer(o->box);
    }
}

static post_office open_office(kt_mailbox_way way, kt_emulator_options how) {
    post_office o;

    set_up(&o.t, (kt_device_options){.emulator = how});
    OK(kt_mailbox_create(o.t.d, way, LETTERS, &o.box, &err));
    OK(kt_device_host_alloc(o.t.d, 2 * N * sizeof *o.shared, (void **)&o.shared, &err));
    return o;
}

static void close_office(post_office *o) {
    kt_device_close(o->t.d);
    kt_mailbox_destroy(o->box);
}

static void expect_rounds(kt_mailbox_way way, bool lazy) {
    post_office o = open_office(way, (kt_emulator_options){.lazy = lazy});

    for (int round = 0; round < 4; round++) {
        const int n = lazy ? 3 : round == 3 ? LETTERS : 7;
        for (uint32_t i = 0; i < N; i++) o.t.host[i] = i + 100 * (uint32_t)round;
        OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, true, &err));
        put_letters(&o, n);
        OK(kt_device_gather_end(o.t.d, &err));
        answer_letters(&o, n);
        OK(kt_device_sync(o.t.d, NULL, &err));
        for (uint32_t i = 0; i < N; i++) {
            uint32_t want = o.t.host[i];
            for (int l = 0; l < n; l++) want = (want + 7) * 3;
            cr_assert_eq(o.t.back[i], want, "round %d", round);
        }
    }
    expect_gathered(&o.t, 4, lazy ? 1 : 2, 4);
    close_office(&o);
}

/* A lazy device does no command too early: bytes that the host was not told of are the old ones. */
Test(mailbox, letters_and_answers_are_in_order, .timeout = 60) {
    for (int lazy = 0; lazy < 2; lazy++) {
        expect_rounds(KT_MAILBOX_MAPPED, lazy);
        expect_rounds(KT_MAILBOX_FUNCTIONS, lazy);
    }
}

/* The device finds what was answered, not what was there before. */
Test(mailbox, an_answer_is_waited_for, .timeout = 60) {
    for (int way = KT_MAILBOX_MAPPED; way <= KT_MAILBOX_FUNCTIONS; way++) {
        post_office o = open_office((kt_mailbox_way)way, (kt_emulator_options){.seed = 1});
        for (int round = 0; round < 3; round++) {
            bool is_idle = false;
            put_letters(&o, 1);
            OK(kt_mailbox_await(o.box, 1, &err));
            for (int i = 0; i < 30 && !is_idle; i++) {
                usleep(300);
                OK(kt_device_poke(o.t.d, KT_STREAM_MAIN, &is_idle, &err));
            }
            cr_expect(!is_idle, "it does not wait");
            for (int v = 0; v < N; v++) o.shared[N + v] = (uint32_t)round;
            kt_mailbox_answer(o.box);
            OK(kt_device_sync(o.t.d, NULL, &err));
            for (uint32_t i = 0; i < N; i++) cr_assert_eq(o.t.back[i], (uint32_t)round);
        }
        close_office(&o);
    }
}

Test(mailbox, a_host_that_gives_up_leaves_nobody_waiting, .timeout = 60) {
    for (int way = KT_MAILBOX_MAPPED; way <= KT_MAILBOX_FUNCTIONS; way++) {
        post_office o = open_office((kt_mailbox_way)way, (kt_emulator_options){.seed = 1});
        put_letters(&o, 2);
        OK(kt_mailbox_await(o.box, 1, &err));
        kt_mailbox_stop(o.box);
        OK(kt_device_sync(o.t.d, NULL, &err));
        put_letters(&o, 2); /* and the next round is as if nothing had been */
        answer_letters(&o, 2);
        OK(kt_device_sync(o.t.d, NULL, &err));
        cr_expect_eq(o.t.back[0], ((o.t.host[0] + 7) * 3 + 7) * 3);
        close_office(&o);
    }
}

Test(mailbox, a_letter_that_cannot_come_is_an_error, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.lazy = true});
    kt_mailbox *none;
    int letter;

    put_letters(&o, 1);
    answer_letters(&o, 1);
    FAILS(KT_E_INTERNAL, "letter 2 has not come: the last was 1", kt_mailbox_await(o.box, 2, &err));
    for (int i = 1; i < LETTERS; i++) OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, &letter, &err));
    FAILS(KT_E_INVALID, "letter 201 of a mailbox, expected 1 to 200",
          kt_mailbox_post(o.box, KT_STREAM_MAIN, &letter, &err));
    FAILS(KT_E_INVALID, "a mailbox for 5000 letters",
          kt_mailbox_create(o.t.d, KT_MAILBOX_MAPPED, 5000, &none, &err));
    cr_expect_null(none);
    close_office(&o);
    o.t.d = open_with((kt_device_options){.fail_after = 1});
    OK(kt_mailbox_create(o.t.d, KT_MAILBOX_MAPPED, 4, &o.box, &err));
    OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
    for (int i = 0; i < 2; i++) OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, &letter, &err));
    FAILS(KT_E_IO, "mailbox_raise: it fell off the bus", kt_mailbox_await(o.box, 2, &err));
    close_office(&o);
}

Test(mailbox, the_way_of_mailboxes_is_a_word) {
    kt_mailbox_way way;

    unsetenv("KT_MAILBOX");
    OK(kt_mailbox_way_wanted(&way, &err));
    cr_expect_eq(way, KT_MAILBOX_MAPPED);
    setenv("KT_MAILBOX", "functions", 1);
    OK(kt_mailbox_way_wanted(&way, &err));
    cr_expect_eq(way, KT_MAILBOX_FUNCTIONS);
    setenv("KT_MAILBOX", "off", 1);
    OK(kt_mailbox_way_wanted(&way, &err));
    cr_expect_eq(way, KT_MAILBOX_NONE);
    setenv("KT_MAILBOX", "pigeon", 1);
    FAILS(KT_E_INVALID, "KT_MAILBOX is 'pigeon'", kt_mailbox_way_wanted(&way, &err));
}
