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

static void answer_letter(const post_office *o, int i) {
    uint32_t *at = o->shared + (size_t)(i % 2) * N;

    OK(kt_mailbox_await(o->box, i, &err));
    for (int v = 0; v < N; v++) at[v] *= 3;
    kt_mailbox_answer(o->box);
}

/* Each letter is what the device made of the answer before; the answer is the letter times 3. A
 * host that leads answers meanwhile. */
static void put_letters(post_office *o, int n) {
    OK(kt_mailbox_begin(o->box, KT_STREAM_MAIN, &err));
    OK(kt_device_upload(o->t.d, KT_STREAM_MAIN, o->t.a, o->t.host, sizeof o->t.host, &err));
    for (int i = 1, letter; i <= n; i++) {
        uint32_t *at = o->shared + (size_t)(i % 2) * N;
        const kt_mail_span down = {at, o->t.b, N * sizeof *at}, up = {o->t.a, at, N * sizeof *at};
        OK(launch(&o->t, KT_STREAM_MAIN, o->t.a, o->t.b, 1, 0));
        OK(kt_mailbox_post(o->box, KT_STREAM_MAIN, &down, 1, &letter, &err));
        cr_assert_eq(letter, i);
        if (kt_mailbox_is_led(o->box)) answer_letter(o, i);
        OK(kt_mailbox_take(o->box, KT_STREAM_MAIN, i, &up, 1, &err));
    }
    OK(kt_device_download(o->t.d, KT_STREAM_MAIN, o->t.back, o->t.a, sizeof o->t.back, &err));
}

static void answer_letters(const post_office *o, int n) {
    for (int i = 1; i <= n && !kt_mailbox_is_led(o->box); i++) answer_letter(o, i);
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

/* Where the host leads a piece ends with each letter, else with the round. */
static void expect_rounds(kt_mailbox_way way, bool lazy) {
    post_office o = open_office(way, (kt_emulator_options){.lazy = lazy});
    const bool is_led = way == KT_MAILBOX_FUNCTIONS;
    int64_t pieces = 0;

    cr_expect_eq(kt_mailbox_is_led(o.box), is_led);
    for (int round = 0; round < 4; round++) {
        const int n = lazy ? 3 : round == 3 ? LETTERS : 7;
        for (uint32_t i = 0; i < N; i++) o.t.host[i] = i + 100 * (uint32_t)round;
        OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, !is_led, &err));
        put_letters(&o, n);
        OK(kt_device_gather_end(o.t.d, &err));
        answer_letters(&o, n);
        OK(kt_device_sync(o.t.d, NULL, &err));
        for (uint32_t i = 0; i < N; i++) {
            uint32_t want = o.t.host[i];
            for (int l = 0; l < n; l++) want = (want + 7) * 3;
            cr_assert_eq(o.t.back[i], want, "round %d", round);
        }
        pieces += is_led ? n + 1 : 1;
    }
    if (is_led)
        cr_expect_eq(kt_device_gather_counts(o.t.d).pieces, pieces);
    else
        expect_gathered(&o.t, pieces, lazy ? 1 : 2, 4);
    close_office(&o);
}

/* A lazy device does no command too early: bytes that the host was not told of are the old ones. */
Test(mailbox, letters_and_answers_are_in_order, .timeout = 60) {
    for (int lazy = 0; lazy < 2; lazy++) {
        expect_rounds(KT_MAILBOX_MAPPED, lazy);
        expect_rounds(KT_MAILBOX_FUNCTIONS, lazy);
    }
}

/* ---- spans ---- */

enum { SPANS = 34, ROOM = 1 << 17 /* bytes of all */ };

/* Bytes, and where they begin behind a boundary of 16, as some cases of spans: of one word and of
 * many, with words behind units, at odd words, of single bytes, and more of each kind than a launch
 * carries. */
typedef struct span_case {
    const char *about;
    size_t bytes, step, off; /* of each span, from one to the next, and of all */
    int n;
} span_case;

static const span_case span_cases[] = {{"a word", 4, 16, 0, 1},
                                       {"a unit", 16, 16, 0, 1},
                                       {"units and words", 5016 + 12, 5056, 0, 3},
                                       {"words of odd places", 1000, 1024, 4, 2},
                                       {"more words than a launch carries", 3000, 3008, 4, 2},
                                       {"bytes", 7, 16, 1, 3},
                                       {"a unit and bytes", 18, 32, 0, 3},
                                       {"nothing", 0, 16, 0, 2},
                                       {"a row and a unit", 4096 + 16, 4128, 0, 1},
                                       {"more than one pass of a block", 50000, 50016, 0, 1},
                                       {"as many rows as a launch carries", 49152, 49152, 0, 2},
                                       {"one row more", 49168, 49168, 0, 2},
                                       {"more spans than a launch carries", 48, 64, 0, SPANS},
                                       {"the same of words", 20, 32, 4, SPANS}};

static size_t spans_of(const span_case *c, uint8_t *to, const uint8_t *from, kt_mail_span *out) {
    for (int i = 0; i < c->n; i++) {
        const size_t at = c->off + (size_t)i * c->step;
        out[i] = (kt_mail_span){to + at, from + at, c->bytes};
    }
    return c->off + (size_t)c->n * c->step;
}

/* Is to what from is where a span lies, and `else_` elsewhere? */
static int count_strays(const span_case *c, const uint8_t *to, const uint8_t *from, uint8_t else_,
                        size_t end) {
    int n_wrong = 0;

    for (size_t i = 0; i < end; i++) {
        const bool is_in = i >= c->off && (i - c->off) % c->step < c->bytes &&
                           (i - c->off) / c->step < (size_t)c->n;
        n_wrong += to[i] != (is_in ? from[i] : else_);
    }
    return n_wrong;
}

static void check_spans(const span_case *c, kt_mailbox_way way, bool lazy) {
    post_office o = open_office(way, (kt_emulator_options){.lazy = lazy});
    static uint8_t made[ROOM], back[ROOM];
    uint8_t *down, *up, *there, *behind;
    kt_mail_span first[SPANS], second[SPANS];
    size_t end;
    int letter;

    OK(kt_device_host_alloc(o.t.d, ROOM, (void **)&down, &err));
    OK(kt_device_host_alloc(o.t.d, ROOM, (void **)&up, &err));
    OK(kt_device_alloc(o.t.d, ROOM, (void **)&there, &err));
    OK(kt_device_alloc(o.t.d, ROOM, (void **)&behind, &err));
    for (size_t i = 0; i < ROOM; i++) made[i] = (uint8_t)(i * 7 + i / 251);
    memset(down, 0x11, ROOM);
    memset(up, 0x22, ROOM);
    end = spans_of(c, down, there, first);
    spans_of(c, behind, up, second);
    OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
    OK(kt_device_clear(o.t.d, KT_STREAM_MAIN, behind, ROOM, &err));
    OK(kt_device_upload(o.t.d, KT_STREAM_MAIN, there, made, ROOM, &err));
    OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, first, c->n, &letter, &err));
    OK(kt_mailbox_await(o.box, letter, &err));
    cr_expect_eq(count_strays(c, down, made, 0x11, end), 0, "%s: down", c->about);
    for (size_t i = 0; i < end; i++) up[i] = (uint8_t)(down[i] + 1);
    kt_mailbox_answer(o.box);
    OK(kt_mailbox_take(o.box, KT_STREAM_MAIN, 1, second, c->n, &err));
    OK(kt_device_download(o.t.d, KT_STREAM_MAIN, back, behind, ROOM, &err));
    OK(kt_device_sync(o.t.d, NULL, &err));
    cr_expect_eq(count_strays(c, back, up, 0, end), 0, "%s: up", c->about);
    close_office(&o);
}

Test(mailbox, spans_of_any_size_go_along, .timeout = 60) {
    for (size_t i = 0; i < sizeof span_cases / sizeof *span_cases; i++) {
        check_spans(&span_cases[i], KT_MAILBOX_MAPPED, i % 2);
        check_spans(&span_cases[i], KT_MAILBOX_FUNCTIONS, i % 2);
    }
}

/* Two commands are no graph: a letter with its spans, behind the copy that begins the round. What
 * is too much for a launch, or of single bytes, goes by copies beside it. */
Test(mailbox, a_small_letter_is_one_command, .timeout = 60) {
    static const struct {
        size_t bytes;
        bool is_one;
    } cases[] = {{16, true}, {49152, true}, {49168, false}, {6, false}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.seed = 1});
        uint8_t *here, *there;
        int letter;
        OK(kt_device_host_alloc(o.t.d, ROOM, (void **)&here, &err));
        OK(kt_device_alloc(o.t.d, ROOM, (void **)&there, &err));
        for (int round = 0; round < 3; round++) {
            kt_mail_span two[] = {{here, there, cases[i].bytes},
                                  {here + ROOM / 2, there + ROOM / 2, cases[i].bytes}};
            OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, false, &err));
            OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
            OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, two, 2, &letter, &err));
            OK(kt_device_gather_end(o.t.d, &err));
            OK(kt_mailbox_await(o.box, letter, &err));
            OK(kt_device_sync(o.t.d, NULL, &err));
        }
        expect_gathered(&o.t, 3, !cases[i].is_one, cases[i].is_one ? 0 : 2);
        close_office(&o);
    }
}

/* The answer 0, of no part of the host, has always come, also behind a round that was stopped. */
Test(mailbox, what_no_answer_is_needed_for_is_taken_at_once, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.seed = 1});

    for (int round = 0; round < 3; round++) {
        const kt_mail_span up = {o.t.a, o.shared, N * sizeof *o.shared};
        for (int i = 0; i < N; i++) o.shared[i] = (uint32_t)(i + round);
        OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
        OK(kt_mailbox_take(o.box, KT_STREAM_MAIN, 0, &up, 1, &err));
        OK(kt_device_download(o.t.d, KT_STREAM_MAIN, o.t.back, o.t.a, sizeof o.t.back, &err));
        OK(kt_device_sync(o.t.d, NULL, &err));
        cr_expect_arr_eq(o.t.back, o.shared, sizeof o.t.back);
        if (round == 1) kt_mailbox_stop(o.box);
    }
    close_office(&o);
}

/* The device finds what was answered, not what was there before. */
Test(mailbox, an_answer_is_waited_for, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.seed = 1});

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

/* Whatever the driver holds up while a function of the host runs, it ends: what is behind an answer
 * is not even put before the host has given it. */
Test(mailbox, no_function_of_the_host_waits_for_the_host, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_FUNCTIONS, (kt_emulator_options){.seed = 1});

    for (int round = 0; round < 3; round++) {
        bool is_idle = false;
        OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, round > 0, &err));
        OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
        for (int i = 1, letter; i <= LETTERS; i++)
            OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, NULL, 0, &letter, &err));
        OK(kt_device_gather_end(o.t.d, &err));
        while (!is_idle) OK(kt_device_poke(o.t.d, KT_STREAM_MAIN, &is_idle, &err));
        OK(kt_device_sync(o.t.d, NULL, &err));
        OK(kt_mailbox_await(o.box, LETTERS, &err));
        OK(kt_mailbox_take(o.box, KT_STREAM_MAIN, 0, NULL, 0, &err));
        FAILS(KT_E_INVALID, "answer 1 of a mailbox that the host leads, expected at most 0",
              kt_mailbox_take(o.box, KT_STREAM_MAIN, 1, NULL, 0, &err));
        kt_mailbox_answer(o.box);
        OK(kt_mailbox_take(o.box, KT_STREAM_MAIN, 1, NULL, 0, &err));
        FAILS(KT_E_INVALID, "answer 2 of a mailbox that the host leads, expected at most 1",
              kt_mailbox_take(o.box, KT_STREAM_MAIN, 2, NULL, 0, &err));
        kt_mailbox_stop(o.box);
        OK(kt_mailbox_take(o.box, KT_STREAM_MAIN, 2, NULL, 0, &err));
    }
    close_office(&o);
}

Test(mailbox, a_host_that_gives_up_leaves_nobody_waiting, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.seed = 1});

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

/* Graphs of pieces that were not wanted any more, and of one that cannot be captured, while the
 * device waits for an answer that the host gives behind them. */
Test(mailbox, a_host_that_puts_pieces_waits_for_no_answer_of_its_own, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.seed = 1});
    kt_device_event *e;

    OK(kt_device_event_make(o.t.d, &e, &err));
    OK(kt_mailbox_begin(o.box, KT_STREAM_UPLOAD, &err));
    OK(kt_mailbox_take(o.box, KT_STREAM_UPLOAD, 1, NULL, 0, &err));
    OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, true, &err));
    for (size_t i = 1; i <= 600; i++) { /* 512 of them are remembered */
        OK(kt_device_clear(o.t.d, KT_STREAM_MAIN, o.t.b, i, &err));
        OK(kt_device_record(o.t.d, KT_STREAM_MAIN, e, &err));
    }
    OK(kt_device_clear(o.t.d, KT_STREAM_MAIN, o.t.b, 4, &err));
    OK(launch(&o.t, KT_STREAM_MAIN, o.t.host, o.t.b, 1, 0));
    FAILS(KT_E_UNSUPPORTED, "is memory of the host",
          kt_device_record(o.t.d, KT_STREAM_MAIN, e, &err));
    kt_mailbox_answer(o.box);
    OK(kt_device_sync(o.t.d, NULL, &err));
    OK(kt_device_gather_begin(o.t.d, KT_STREAM_MAIN, true, &err));
    cr_expect_eq(kt_device_gather_counts(o.t.d).kept, 511, "the one that was refused has a place");
    close_office(&o);
}

Test(mailbox, a_letter_that_cannot_come_is_an_error, .timeout = 60) {
    post_office o = open_office(KT_MAILBOX_MAPPED, (kt_emulator_options){.lazy = true});
    kt_mailbox *none;
    int letter;

    put_letters(&o, 1);
    answer_letters(&o, 1);
    FAILS(KT_E_INTERNAL, "letter 2 has not come: the last was 1", kt_mailbox_await(o.box, 2, &err));
    for (int i = 1; i < LETTERS; i++)
        OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, NULL, 0, &letter, &err));
    FAILS(KT_E_INVALID, "letter 201 of a mailbox, expected 1 to 200",
          kt_mailbox_post(o.box, KT_STREAM_MAIN, NULL, 0, &letter, &err));
    FAILS(KT_E_INVALID, "answer 201 of a mailbox, expected 0 to 200",
          kt_mailbox_take(o.box, KT_STREAM_MAIN, 201, NULL, 0, &err));
    FAILS(KT_E_INVALID, "a mailbox for 5000 letters",
          kt_mailbox_create(o.t.d, KT_MAILBOX_MAPPED, 5000, &none, &err));
    cr_expect_null(none);
    close_office(&o);
    o.t.d = open_with((kt_device_options){.fail_after = 1});
    OK(kt_mailbox_create(o.t.d, KT_MAILBOX_MAPPED, 4, &o.box, &err));
    OK(kt_mailbox_begin(o.box, KT_STREAM_MAIN, &err));
    for (int i = 0; i < 2; i++) OK(kt_mailbox_post(o.box, KT_STREAM_MAIN, NULL, 0, &letter, &err));
    FAILS(KT_E_IO, "mailbox_post: it fell off the bus", kt_mailbox_await(o.box, 2, &err));
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
