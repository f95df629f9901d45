/* The emulated device: order, errors, graphs and the loss of the device.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/clock.h"
#include "tests/support/stream_bench.h"

/* Up on one stream, the kernel on another, down on the third: right only with both waits. Without
 * `waits` a lazy device must show it. */
static int count_wrong(bench *t, bool waits) {
    kt_device_event *up, *made;
    int n_wrong = 0;

    OK(kt_device_event_make(t->d, &up, &err));
    OK(kt_device_event_make(t->d, &made, &err));
    OK(kt_device_upload(t->d, KT_STREAM_UPLOAD, t->a, t->host, sizeof t->host, &err));
    OK(kt_device_record(t->d, KT_STREAM_UPLOAD, up, &err));
    if (waits)
        OK(kt_device_wait(t->d, KT_STREAM_MAIN, up, &err));
    else
        usleep(1500);
    OK(launch(t, KT_STREAM_MAIN, t->a, t->b, 3, 0));
    OK(kt_device_record(t->d, KT_STREAM_MAIN, made, &err));
    OK(kt_device_wait(t->d, KT_STREAM_DOWNLOAD, made, &err));
    OK(kt_device_download(t->d, KT_STREAM_DOWNLOAD, t->back, t->b, sizeof t->back, &err));
    OK(kt_device_sync(t->d, NULL, &err));
    for (uint32_t i = 0; i < N; i++) n_wrong += t->back[i] != (i + 1) * 3 + 7;
    return n_wrong;
}

Test(device, streams_work_in_the_order_of_events, .timeout = 60) {
    for (int i = 0; i < 8; i++) {
        bench t;
        set_up(&t, (kt_device_options){.emulator = {.seed = (uint32_t)i, .lazy = i & 1},
                                       .threads = i & 2 ? 3 : 1});
        cr_expect_eq(count_wrong(&t, true), 0, "%d", i);
        kt_device_close(t.d);
    }
}

#ifndef __SANITIZE_THREAD__ /* to which a missing wait is a race of ours */
/* The host takes its time after the upload, which an eager stream would use. One that is lazy may,
 * too, where the machine is busy: not five times. */
Test(device, a_lazy_device_shows_a_missing_wait, .timeout = 60) {
    int n_wrong = 0;

    for (int i = 0; i < 5 && n_wrong == 0; i++) {
        bench t;
        set_up(&t, (kt_device_options){.emulator = {.lazy = true}});
        n_wrong = count_wrong(&t, false);
        kt_device_close(t.d);
    }
    cr_expect_eq(n_wrong, N);
}
#endif

/* What one lazy device makes goes to another one, which does all it was given as soon as something
 * waits for it: right only where it was told to wait for the first. */
static int hand_over(bool waits) {
    kt_device_event *made;
    int n_wrong = 0;
    bench t[2];

    for (int i = 0; i < 2; i++)
        set_up(&t[i], (kt_device_options){.emulator = {.lazy = true}, .threads = 1});
    OK(kt_device_event_make(t[0].d, &made, &err));
    OK(kt_device_wait_for(t[1].d, KT_STREAM_MAIN, t[0].d, made, &err)); /* was never recorded */
    OK(kt_device_upload(t[0].d, KT_STREAM_MAIN, t[0].a, t[0].host, sizeof t->host, &err));
    OK(launch(&t[0], KT_STREAM_MAIN, t[0].a, t[0].b, 3, 0));
    OK(kt_device_record(t[0].d, KT_STREAM_MAIN, made, &err));
    if (waits) OK(kt_device_wait_for(t[1].d, KT_STREAM_MAIN, t[0].d, made, &err));
    OK(kt_device_copy_from(t[1].d, KT_STREAM_MAIN, t[1].a, t[0].d, t[0].b, sizeof t->host, &err));
    OK(kt_device_download(t[1].d, KT_STREAM_MAIN, t[1].back, t[1].a, sizeof t->back, &err));
    OK(kt_device_sync(t[1].d, NULL, &err));
    for (uint32_t i = 0; i < N; i++) n_wrong += t[1].back[i] != (i + 1) * 3 + 7;
    OK(kt_device_sync(t[0].d, NULL, &err));
    for (int i = 0; i < 2; i++) kt_device_close(t[i].d);
    return n_wrong;
}

/* As above, the first one may be done by then where the machine is busy: not five times. */
Test(device, what_crosses_between_two_devices_is_waited_for, .timeout = 60) {
#ifndef __SANITIZE_THREAD__
    int n_wrong = 0;

    for (int i = 0; i < 5 && n_wrong == 0; i++) n_wrong = hand_over(false);
    cr_expect_eq(n_wrong, N);
#endif
    cr_expect_eq(hand_over(true), 0);
}

/* The other one goes on, with whatever is there, and the error is told by both. */
Test(device, the_loss_of_one_of_two_devices_holds_up_neither, .timeout = 60) {
    kt_device_event *made;
    bench t[2];

    set_up(&t[0], (kt_device_options){.emulator = {.lazy = true}, .fail_after = 1});
    set_up(&t[1], (kt_device_options){.emulator = {.lazy = true}});
    OK(kt_device_event_make(t[0].d, &made, &err));
    for (int i = 0; i < 2; i++) OK(launch(&t[0], KT_STREAM_MAIN, t[0].a, t[0].b, 1, 0));
    OK(kt_device_record(t[0].d, KT_STREAM_MAIN, made, &err));
    OK(kt_device_wait_for(t[1].d, KT_STREAM_MAIN, t[0].d, made, &err));
    FAILS(KT_E_INVALID, "where nothing is allocated",
          kt_device_copy_from(t[1].d, KT_STREAM_MAIN, t[1].a, t[0].d, t[1].b, 4, &err));
    FAILS(KT_E_INVALID, "where nothing is allocated",
          kt_device_copy_from(t[1].d, KT_STREAM_MAIN, t[0].a, t[0].d, t[0].b, 4, &err));
    OK(kt_device_sync(t[1].d, NULL, &err));
    FAILS(KT_E_IO, "is lost", kt_device_sync(t[0].d, NULL, &err));
    FAILS(KT_E_IO, "is lost", kt_device_wait_for(t[1].d, KT_STREAM_MAIN, t[0].d, made, &err));
    FAILS(KT_E_IO, "is lost",
          kt_device_copy_from(t[1].d, KT_STREAM_MAIN, t[1].a, t[0].d, t[0].b, 4, &err));
    for (int i = 1; i >= 0; i--) kt_device_close(t[i].d);
}

/* Of two downloads a poke has the first one done, the second comes 5 ms later; an eager stream does
 * both. Twenty times, as the stream's thread may be late where the machine is busy. */
Test(device, a_lazy_device_does_one_command_for_a_poke, .timeout = 60) {
    bench t;
    int n_early = 0;

    set_up(&t, (kt_device_options){.emulator = {.lazy = true}});
    OK(kt_device_upload(t.d, KT_STREAM_MAIN, t.a, t.host, sizeof t.host, &err));
    for (int i = 0; i < 20; i++) {
        uint32_t word[2] = {0, 0};
        int64_t begin, took;
        bool is_idle;
        OK(kt_device_sync(t.d, NULL, &err));
        begin = kt_clock_ns();
        for (int w = 0; w < 2; w++)
            OK(kt_device_download(t.d, KT_STREAM_MAIN, &word[w], t.a, 4, &err));
        OK(kt_device_poke(t.d, KT_STREAM_MAIN, &is_idle, &err));
        do {
            usleep(100);
            took = kt_clock_ns() - begin;
        } while (took < 4000000 && !__atomic_load_n(&word[1], __ATOMIC_ACQUIRE));
        n_early += took < 4000000;
        OK(kt_device_sync(t.d, NULL, &err));
        cr_expect(word[0] == 1 && word[1] == 1);
    }
    cr_expect_eq(n_early, 0);
    kt_device_close(t.d);
}

/* After 5 ms of two clocks, never sooner: an eager stream would not take as long five times. */
Test(device, a_lazy_stream_goes_on_by_itself_when_the_host_watches, .timeout = 60) {
    kt_device *d = open_with((kt_device_options){.emulator = {.lazy = true}});
    _Atomic uint32_t *flag;
    uint32_t one = 1;
    void *p;

    OK(kt_device_host_alloc(d, 4, &p, &err));
    flag = p;
    for (int i = 0; i < 5; i++) {
        const int64_t since = kt_clock_ns();
        atomic_store(flag, 0);
        OK(kt_device_upload(d, KT_STREAM_MAIN, p, &one, 4, &err));
        while (atomic_load(flag) == 0) continue;
        cr_expect_geq(kt_clock_ns() - since, 4900000, "an eager stream");
        OK(kt_device_sync(d, NULL, &err));
    }
    kt_device_host_free(d, p);
    kt_device_close(d);
}

Test(device, many_commands_wait_for_room, .timeout = 60) {
    bench t;

    set_up(&t, (kt_device_options){.emulator = {.lazy = true}});
    OK(kt_device_upload(t.d, KT_STREAM_MAIN, t.a, t.host, sizeof t.host, &err));
    for (int i = 0; i < 300; i++) {
        OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 1, 0));
        OK(kt_device_copy(t.d, KT_STREAM_MAIN, t.a, t.b, sizeof t.host, &err));
    }
    OK(kt_device_download(t.d, KT_STREAM_MAIN, t.back, t.a, sizeof t.back, &err));
    OK(kt_device_sync(t.d, NULL, &err));
    for (uint32_t i = 0; i < N; i++) cr_assert_eq(t.back[i], i + 1 + 2100);
    kt_device_close(t.d);
}

Test(device, events_tell_times_and_whether_they_passed, .timeout = 60) {
    kt_device_event *a, *b;
    double ms;
    bool did;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    OK(kt_device_event_make(t.d, &a, &err));
    OK(kt_device_event_make(t.d, &b, &err));
    OK(kt_device_passed(t.d, a, &did, &err));
    cr_expect(did);
    OK(kt_device_sync(t.d, a, &err));
    FAILS(KT_E_INVALID, "never recorded", kt_device_elapsed(t.d, a, b, &ms, &err));
    OK(kt_device_record(t.d, KT_STREAM_MAIN, a, &err));
    OK(kt_device_clear(t.d, KT_STREAM_MAIN, t.a, sizeof t.host, &err));
    OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 1, 0));
    OK(kt_device_record(t.d, KT_STREAM_MAIN, b, &err));
    OK(kt_device_sync(t.d, b, &err));
    OK(kt_device_passed(t.d, b, &did, &err));
    cr_expect(did);
    OK(kt_device_elapsed(t.d, a, b, &ms, &err));
    cr_expect(ms > 0 && ms < 10000, "%g", ms);
    kt_device_close(t.d);
}

typedef struct slow_function {
    atomic_bool has_begun, has_ended;
} slow_function;

static void take_time(void *arg) {
    slow_function *f = arg;

    atomic_store(&f->has_begun, true);
    usleep(20000);
    atomic_store(&f->has_ended, true);
}

/* As a driver may do: what must not wait for its end must not be done with the device. */
Test(device, a_function_of_the_host_holds_up_the_calls_of_its_thread, .timeout = 60) {
    kt_device_event *e;
    bool did;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    OK(kt_device_event_make(t.d, &e, &err));
    OK(kt_device_record(t.d, KT_STREAM_DOWNLOAD, e, &err));
    for (int i = 0; i < 3; i++) {
        slow_function f = {false, false};
        OK(kt_device_call(t.d, KT_STREAM_MAIN, take_time, &f, &err));
        while (!atomic_load(&f.has_begun)) usleep(100);
        if (i == 0) OK(kt_device_poke(t.d, KT_STREAM_MAIN, &did, &err));
        if (i == 1) OK(kt_device_passed(t.d, e, &did, &err));
        if (i == 2) OK(kt_device_clear(t.d, KT_STREAM_UPLOAD, t.a, sizeof t.host, &err));
        cr_expect(atomic_load(&f.has_ended), "call %d", i);
        OK(kt_device_sync(t.d, NULL, &err));
    }
    kt_device_close(t.d);
}

Test(device, memory_has_a_limit_and_ends) {
    kt_device *d = open_with((kt_device_options){.memory_bytes = 4096});
    uint64_t left, all;
    uint8_t byte = 0, *p, *q;

    OK(kt_device_alloc(d, 0, (void **)&p, &err));
    cr_expect_null(p);
    OK(kt_device_alloc(d, 1000, (void **)&p, &err));
    cr_expect_eq((uintptr_t)p % 256, 0);
    FAILS(KT_E_NOMEM, "no memory for 3073 bytes: 3072 of 4096 are free",
          kt_device_alloc(d, 3073, (void **)&q, &err));
    cr_expect_null(q);
    FAILS(KT_E_NOMEM, "are free", kt_device_alloc(d, SIZE_MAX, (void **)&q, &err));
    OK(kt_device_alloc(d, 3072, (void **)&q, &err));
    OK(kt_device_memory(d, &left, &all, &err));
    cr_expect(left == 0 && all == 4096);
    kt_device_free(d, p);
    OK(kt_device_memory(d, &left, NULL, &err));
    cr_expect_eq(left, 1024);
    FAILS(KT_E_INVALID, "where nothing is allocated",
          kt_device_upload(d, KT_STREAM_MAIN, p, &byte, 1, &err));
    FAILS(KT_E_INVALID, "2 bytes at byte 3071 of the block of 3072 bytes",
          kt_device_download(d, KT_STREAM_MAIN, &byte, q + 3071, 2, &err));
    FAILS(KT_E_INVALID, "the device's own memory",
          kt_device_upload(d, KT_STREAM_MAIN, q, q + 100, 1, &err));
    FAILS(KT_E_INVALID, "a clear of 1 bytes", kt_device_clear(d, KT_STREAM_MAIN, &byte, 1, &err));
    FAILS(KT_E_INVALID, "stream 3, expected 0 to 2",
          kt_device_clear(d, KT_STREAM_COUNT, q, 1, &err));
    OK(kt_device_sync(d, NULL, &err)); /* none of these was fatal */
    kt_device_close(d);
}

Test(device, memory_that_is_pinned_is_both_sides) {
    static uint32_t around[N + 1], *there = around + 1;
    bench t;

    set_up(&t, (kt_device_options){.threads = 3});
    for (uint32_t i = 0; i < N; i++) there[i] = i;
    FAILS(KT_E_INVALID, "is memory of the host", launch(&t, KT_STREAM_MAIN, there, t.b, 1, 0));
    OK(kt_device_pin(t.d, there, N * sizeof *there, &err));
    FAILS(KT_E_INVALID, "of which some are known", kt_device_pin(t.d, there + 9, 4, &err));
    FAILS(KT_E_INVALID, "of which some are known", kt_device_pin(t.d, there - 1, 8, &err));
    OK(launch(&t, KT_STREAM_MAIN, there, there, 1, 0)); /* each block once, by three threads */
    OK(kt_device_sync(t.d, NULL, &err));
    for (uint32_t i = 0; i < N; i++) cr_assert_eq(there[i], i + 7);
    kt_device_unpin(t.d, there);
    FAILS(KT_E_INVALID, "is memory of the host", launch(&t, KT_STREAM_MAIN, there, t.b, 1, 0));
    kt_device_close(t.d);
}

Test(device, launches_are_checked) {
    kt_config three = {{3}}, two = {{2}};
    const kt_device_code *code, *again;
    scale_call p = {.n = 0};
    kt_device_launch l;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    FAILS(KT_E_UNSUPPORTED, "scale: three is too many",
          kt_device_code_of(t.d, &kernel, &three, &code, &err));
    OK(kt_device_code_of(t.d, &kernel, &two, &code, &err));
    cr_expect_neq(code, t.code);
    OK(kt_device_code_of(t.d, &kernel, &two, &again, &err));
    cr_expect_eq(code, again);
    l = (kt_device_launch){.code = code,
                           .entry = 1,
                           .grid_x = 1,
                           .grid_y = 1,
                           .parameters = &p,
                           .parameter_bytes = sizeof p};
    FAILS(KT_E_INVALID, "entry 1, it has 1", kt_device_run(t.d, KT_STREAM_MAIN, &l, &err));
    l.entry = 0, l.grid_y = 65536;
    FAILS(KT_E_INVALID, "1 x 65536 blocks", kt_device_run(t.d, KT_STREAM_MAIN, &l, &err));
    l.grid_y = 1, l.shared_bytes = 200000;
    FAILS(KT_E_INVALID, "a block of sm_80 has at most",
          kt_device_run(t.d, KT_STREAM_MAIN, &l, &err));
    l.shared_bytes = 0, l.parameter_bytes = sizeof p - 4;
    FAILS(KT_E_INVALID, "28 bytes of parameters, it takes 32",
          kt_device_run(t.d, KT_STREAM_MAIN, &l, &err));
    FAILS(KT_E_INVALID, "run_scale: the parameter at byte 0, ",
          launch(&t, KT_STREAM_MAIN, t.host, t.b, 1, 0));
    l.parameter_bytes = sizeof p, l.grid_x = 0; /* nothing to do */
    OK(kt_device_run(t.d, KT_STREAM_MAIN, &l, &err));
    OK(kt_device_sync(t.d, NULL, &err));
    kt_device_close(t.d);
}

Test(device, a_kernel_that_breaks_a_rule_ends_the_device, .timeout = 60) {
    for (int n = 1; n <= 3; n += 2) {
        void *p;
        bench t;
        set_up(&t, (kt_device_options){.threads = n});
        OK(kt_device_clear(t.d, KT_STREAM_MAIN, t.a, sizeof t.host, &err));
        OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 1, 1));
        FAILS(KT_E_INVALID, "emulated: the device is lost: run_scale: block (0, 0), thread 5",
              kt_device_sync(t.d, NULL, &err));
        FAILS(KT_E_INVALID, "thread 5", kt_device_alloc(t.d, 1, &p, &err));
        FAILS(KT_E_INVALID, "thread 5", launch(&t, KT_STREAM_UPLOAD, t.a, t.b, 1, 0));
        FAILS(KT_E_INVALID, "thread 5", kt_device_sync(t.d, NULL, &err));
        kt_device_close(t.d);
    }
}

Test(device, writes_beside_a_block_end_the_device, .timeout = 60) {
    void *p;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    OK(kt_device_clear(t.d, KT_STREAM_MAIN, t.a, sizeof t.host, &err));
    OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 1, 2));
    FAILS(KT_E_INVALID, "beside the block of 1024 bytes", kt_device_sync(t.d, NULL, &err));
    kt_device_close(t.d);
    set_up(&t, (kt_device_options){.threads = 1});
    kt_device_free(t.d, t.a);
    kt_device_free(t.d, t.a);
    FAILS(KT_E_INVALID, "where nothing is allocated", kt_device_alloc(t.d, 1, &p, &err));
    kt_device_close(t.d);
}

/* Whoever waits is told, nobody waits for ever. */
Test(device, a_lost_device_tells_all_who_wait, .timeout = 60) {
    for (int lazy = 0; lazy < 2; lazy++) {
        kt_device_event *e;
        kt_status st = KT_OK;
        int n = 0;
        bench t;
        set_up(&t, (kt_device_options){.fail_after = 3, .emulator = {.lazy = lazy}});
        OK(kt_device_event_make(t.d, &e, &err));
        OK(kt_device_clear(t.d, KT_STREAM_MAIN, t.a, sizeof t.host, &err));
        for (; n < 10 && st == KT_OK; n++) {
            st = launch(&t, KT_STREAM_MAIN, t.a, t.b, 1, 0);
            if (st == KT_OK) st = kt_device_record(t.d, KT_STREAM_MAIN, e, &err);
            if (st == KT_OK) st = kt_device_wait(t.d, KT_STREAM_DOWNLOAD, e, &err);
            if (st == KT_OK && n == 2) OK(kt_device_sync(t.d, NULL, &err));
        }
        cr_expect(n >= 4, "%d", n);
        FAILS(KT_E_IO, "run_scale: it fell off the bus", kt_device_sync(t.d, NULL, &err));
        FAILS(KT_E_IO, "run_scale: it fell off the bus", kt_device_sync(t.d, e, &err));
        kt_device_close(t.d);
    }
}

Test(device, a_graph_is_put_again_and_again, .timeout = 60) {
    for (int i = 0; i < 4; i++) {
        kt_device_event *fork, *join;
        kt_device_graph *g;
        uint32_t *c;
        bench t;
        set_up(&t, (kt_device_options){.emulator = {.seed = (uint32_t)i, .lazy = i & 1}});
        OK(kt_device_alloc(t.d, sizeof t.host, (void **)&c, &err));
        OK(kt_device_event_make(t.d, &fork, &err));
        OK(kt_device_event_make(t.d, &join, &err));
        OK(kt_device_capture_begin(t.d, KT_STREAM_MAIN, &err));
        FAILS(KT_E_INVALID, "while a graph is captured", kt_device_sync(t.d, NULL, &err));
        FAILS(KT_E_INVALID, "a capture was begun",
              kt_device_capture_begin(t.d, KT_STREAM_MAIN, &err));
        OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 2, 0)); /* b = 2 a + 7 */
        OK(kt_device_record(t.d, KT_STREAM_MAIN, fork, &err));
        OK(kt_device_wait(t.d, KT_STREAM_UPLOAD, fork, &err));
        OK(launch(&t, KT_STREAM_UPLOAD, t.b, c, 1, 0)); /* beside it: c = b + 7 */
        OK(kt_device_record(t.d, KT_STREAM_UPLOAD, join, &err));
        OK(kt_device_wait(t.d, KT_STREAM_MAIN, join, &err));
        OK(kt_device_copy(t.d, KT_STREAM_MAIN, t.a, c, sizeof t.host, &err));
        OK(kt_device_capture_end(t.d, &g, &err));
        FAILS(KT_E_INVALID, "means nothing outside", kt_device_sync(t.d, join, &err));
        OK(kt_device_upload(t.d, KT_STREAM_MAIN, t.a, t.host, sizeof t.host, &err));
        for (int r = 0; r < 3; r++) OK(kt_device_replay(t.d, KT_STREAM_MAIN, g, &err));
        OK(kt_device_download(t.d, KT_STREAM_MAIN, t.back, t.a, sizeof t.back, &err));
        OK(kt_device_sync(t.d, NULL, &err));
        for (uint32_t v = 0; v < N; v++) cr_assert_eq(t.back[v], (v + 1) * 8 + 14 * 7);
        if (i & 2) kt_device_graph_free(t.d, g);
        OK(kt_device_record(t.d, KT_STREAM_MAIN, join,
                            &err)); /* outside it means something again */
        OK(kt_device_sync(t.d, join, &err));
        kt_device_close(t.d);
    }
}

Test(device, a_capture_must_be_whole) {
    kt_device_event *before, *inside;
    kt_device_graph *g;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    OK(kt_device_event_make(t.d, &before, &err));
    OK(kt_device_event_make(t.d, &inside, &err));
    FAILS(KT_E_INVALID, "no capture was begun", kt_device_capture_end(t.d, &g, &err));
    OK(kt_device_record(t.d, KT_STREAM_UPLOAD, before, &err));
    OK(kt_device_capture_begin(t.d, KT_STREAM_MAIN, &err));
    FAILS(KT_E_INVALID, "from before the capture",
          kt_device_wait(t.d, KT_STREAM_MAIN, before, &err));
    FAILS(KT_E_INVALID, "failed before it ended", kt_device_capture_end(t.d, &g, &err));
    cr_expect_null(g);
    OK(kt_device_capture_begin(t.d, KT_STREAM_MAIN, &err));
    OK(kt_device_record(t.d, KT_STREAM_MAIN, inside, &err));
    OK(kt_device_wait(t.d, KT_STREAM_UPLOAD, inside, &err));
    OK(kt_device_clear(t.d, KT_STREAM_UPLOAD, t.a, 4, &err));
    FAILS(KT_E_INVALID, "before its stream 0 waited for stream 1",
          kt_device_capture_end(t.d, &g, &err));
    cr_expect_null(g);
    OK(kt_device_capture_begin(t.d, KT_STREAM_MAIN, &err));
    kt_device_close(t.d); /* in the middle of it */
}

/* ---- pieces that repeat ---- */

/* b = a * factor + 7, and back; what the host reads must be this call's. */
static void put_piece(bench *t, int factor, uint32_t *to) {
    OK(kt_device_upload(t->d, KT_STREAM_MAIN, t->a, t->host, sizeof t->host, &err));
    OK(kt_device_clear(t->d, KT_STREAM_MAIN, t->b, sizeof t->host, &err));
    OK(launch(t, KT_STREAM_MAIN, t->a, t->b, factor, 0));
    OK(kt_device_download(t->d, KT_STREAM_MAIN, to, t->b, sizeof t->host, &err));
}

static void expect_scaled(const bench *t, const uint32_t *got, int factor, int round) {
    for (uint32_t i = 0; i < N; i++)
        cr_assert_eq(got[i], t->host[i] * (uint32_t)factor + 7, "round %d, %u", round, i);
}

/* The bytes behind the addresses are new each time; so is, now and then, a parameter, an address or
 * a size: then no graph of before may run. */
Test(device, what_repeats_is_replayed_and_nothing_else_is, .timeout = 60) {
    for (int lazy = 0; lazy < 2; lazy++) {
        bench t;
        uint32_t other[N] = {0};
        set_up(&t, (kt_device_options){.emulator = {.lazy = lazy}});
        for (int round = 0; round < 6; round++) {
            const int factor = round == 3 ? 5 : 2;
            for (uint32_t i = 0; i < N; i++) t.host[i] = i + 1000 * (uint32_t)round;
            OK(kt_device_gather_begin(t.d, KT_STREAM_MAIN, false, &err));
            put_piece(&t, factor, round == 4 ? other : t.back);
            cr_expect(round || t.back[0] == 0, "nothing runs before somebody waits");
            OK(kt_device_sync(t.d, NULL, &err));
            OK(kt_device_gather_end(t.d, &err));
            expect_scaled(&t, round == 4 ? other : t.back, factor, round);
        }
        /* 0 as it is, 1 captured, 2 replayed, 3 and 4 as they are, 5 replayed */
        expect_gathered(&t, 6, 1, 3);
        kt_device_close(t.d);
    }
}

Test(device, an_eager_piece_is_captured_at_once_or_refused, .timeout = 60) {
    kt_device_event *before;
    bench t;

    set_up(&t, (kt_device_options){.threads = 1});
    OK(kt_device_event_make(t.d, &before, &err));
    for (int round = 0; round < 2; round++) {
        OK(kt_device_gather_begin(t.d, KT_STREAM_MAIN, true, &err));
        put_piece(&t, 3, t.back);
        OK(kt_device_gather_end(t.d, &err));
        OK(kt_device_sync(t.d, NULL, &err));
        expect_scaled(&t, t.back, 3, round);
    }
    expect_gathered(&t, 2, 1, 2);
    memset(t.back, 0, sizeof t.back);
    OK(kt_device_gather_begin(t.d, KT_STREAM_MAIN, true, &err));
    put_piece(&t, 4, t.back);
    OK(launch(&t, KT_STREAM_MAIN, t.host, t.b, 1, 0)); /* found when it is captured */
    FAILS(KT_E_UNSUPPORTED, "is memory of the host", kt_device_gather_end(t.d, &err));
    OK(kt_device_sync(t.d, NULL, &err));
    cr_expect_eq(t.back[0], 0, "nothing of it was put");
    FAILS(KT_E_INVALID, "stream 3", kt_device_gather_begin(t.d, KT_STREAM_COUNT, true, &err));
    kt_device_close(t.d);
}

/* An event of the stream, memory that is freed and work of another stream that waits. */
Test(device, kept_commands_are_put_before_what_depends_on_them, .timeout = 60) {
    kt_device_event *e;
    bool is_idle = false;
    bench t;

    set_up(&t, (kt_device_options){.emulator = {.lazy = true}});
    OK(kt_device_event_make(t.d, &e, &err));
    OK(kt_device_gather_begin(t.d, KT_STREAM_MAIN, false, &err));
    OK(kt_device_upload(t.d, KT_STREAM_MAIN, t.a, t.host, sizeof t.host, &err));
    OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 2, 0));
    OK(kt_device_record(t.d, KT_STREAM_MAIN, e, &err));
    OK(kt_device_wait(t.d, KT_STREAM_DOWNLOAD, e, &err));
    OK(kt_device_download(t.d, KT_STREAM_DOWNLOAD, t.back, t.b, sizeof t.back, &err));
    OK(kt_device_sync(t.d, NULL, &err));
    expect_scaled(&t, t.back, 2, 0);
    OK(launch(&t, KT_STREAM_MAIN, t.a, t.b, 3, 0));
    OK(kt_device_download(t.d, KT_STREAM_MAIN, t.back, t.b, sizeof t.back, &err));
    kt_device_free(t.d, t.a);
    OK(kt_device_sync(t.d, NULL, &err));
    expect_scaled(&t, t.back, 3, 1);
    OK(kt_device_clear(t.d, KT_STREAM_MAIN, t.b, sizeof t.back, &err));
    while (!is_idle) OK(kt_device_poke(t.d, KT_STREAM_MAIN, &is_idle, &err));
    kt_device_close(t.d);
}

Test(device, options_are_checked) {
    kt_device_options o = {.class = "tpu"};
    kt_device *d;

    FAILS(KT_E_INVALID, "device 'tpu'", kt_device_open(&o, &d, &err));
    o = (kt_device_options){.class = "emulated", .ordinal = 1};
    FAILS(KT_E_NOT_FOUND, "there is only 0", kt_device_open(&o, &d, &err));
    o = (kt_device_options){.class = "emulated", .target = "70"};
    FAILS(KT_E_INVALID, "target '70'", kt_device_open(&o, &d, &err));
    o = (kt_device_options){.class = "emulated", .threads = 1000};
    FAILS(KT_E_INVALID, "1000 threads", kt_device_open(&o, &d, &err));
    cr_expect_null(d);
    d = open_with((kt_device_options){.target = "90a", .memory_bytes = 4096});
    cr_expect_str_eq(kt_device_about(d)->class, "emulated");
    cr_expect_str_eq(kt_device_about(d)->target->name, "90a");
    cr_expect_eq(kt_device_about(d)->free_bytes, 4096);
    kt_device_close(d);
    kt_device_close(NULL);
}
