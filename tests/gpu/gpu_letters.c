/* Letters to the host and answers (dispatch/device/mailbox.h), and what a driver does while it
 * calls functions of the host. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/device/mailbox.h"
#include "tests/gpu/gpu_check.h"
#include "tests/support/silence.h"

#define MS INT64_C(1000000)
#define LONGEST_SILENCE (5000 * MS)

static void sleep_ns(long ns) {
    const struct timespec time = {0, ns};
    nanosleep(&time, NULL);
}

/* ---- the watch ---- */

/* What is being measured. */
typedef struct watched {
    gpu_check *c;
    const char *name;
    kt_silence silence;
} watched;

static void give_up(void *arg) {
    const watched *w = arg;

    gpu_check_row(w->c, w->name, 0, -1, "us", false, "no answer within 5 s");
    _exit(gpu_check_end(w->c, KT_OK, NULL));
}

static kt_status begin_watch(watched *w, gpu_check *c, const char *name, kt_err *err) {
    w->c = c;
    w->name = name;
    return kt_silence_begin(&w->silence, LONGEST_SILENCE, give_up, w, err);
}

/* ---- letters and answers ---- */

enum { ROUNDS = 3, MOST_LETTERS = 100, MOST_BYTES = 96 << 10 };

/* Bytes go both ways with each letter and its answer, in spans or by copies beside it. */
typedef struct letter_case {
    const char *name;
    kt_mailbox_way way;
    size_t bytes;
    bool by_copies;
} letter_case;

static const letter_case letter_cases[] = {
    {"a letter and its answer", KT_MAILBOX_MAPPED, 4, false},
    {"a letter and its answer, 16 KiB each", KT_MAILBOX_MAPPED, 16 << 10, false},
    {"16 KiB each by the copy engine", KT_MAILBOX_MAPPED, 16 << 10, true},
    {"a letter and its answer, 96 KiB each", KT_MAILBOX_MAPPED, MOST_BYTES, false},
    {"96 KiB each by the copy engine", KT_MAILBOX_MAPPED, MOST_BYTES, true},
    {"a letter and its answer by a function of the host", KT_MAILBOX_FUNCTIONS, 4, false}};

typedef struct letters {
    gpu_check *c;
    const letter_case *of;
    kt_mailbox *box;
    uint32_t *here; /* what goes round: the host adds one to its first and its last word */
    void *there;
    int n, n_wrong;
    uint32_t value;
    double us;
    watched watch;
} letters;

static kt_status answer_letter(letters *l, int i, kt_err *err) {
    uint32_t *last = l->here + l->of->bytes / sizeof *l->here - 1;

    KT_TRY(kt_mailbox_await(l->box, i, err));
    l->n_wrong += *l->here != l->value || *last != l->value;
    l->value++;
    *l->here = *last = l->value;
    kt_mailbox_answer(l->box);
    kt_silence_hear(&l->watch.silence);
    return KT_OK;
}

/* Where the host leads it answers each letter before it puts what is behind. */
static kt_status put_letter(letters *l, int i, kt_err *err) {
    const kt_mail_span down = {l->here, l->there, l->of->bytes};
    const kt_mail_span up = {l->there, l->here, l->of->bytes};
    const int n = l->of->by_copies ? 0 : 1;
    const kt_stream s = KT_STREAM_MAIN;
    int letter;

    if (!n) KT_TRY(kt_device_download(l->c->d, s, down.to, down.from, down.bytes, err));
    KT_TRY(kt_mailbox_post(l->box, s, &down, n, &letter, err));
    if (kt_mailbox_is_led(l->box)) KT_TRY(answer_letter(l, i, err));
    KT_TRY(kt_mailbox_take(l->box, s, i, &up, n, err));
    return n ? KT_OK : kt_device_upload(l->c->d, s, up.to, up.from, up.bytes, err);
}

static kt_status run_round(letters *l, kt_err *err) {
    const bool is_led = kt_mailbox_is_led(l->box);
    int64_t begin = kt_clock_ns();

    KT_TRY(kt_device_gather_begin(l->c->d, KT_STREAM_MAIN, !is_led, err));
    KT_TRY(kt_mailbox_begin(l->box, KT_STREAM_MAIN, err));
    for (int i = 1; i <= l->n; i++) KT_TRY(put_letter(l, i, err));
    KT_TRY(kt_device_gather_end(l->c->d, err));
    if (!is_led) begin = kt_clock_ns();
    for (int i = 1; i <= l->n && !is_led; i++) KT_TRY(answer_letter(l, i, err));
    KT_TRY(kt_device_sync(l->c->d, NULL, err));
    l->us = (double)(kt_clock_ns() - begin) * 1e-3 / l->n; /* the last round is replayed */
    return KT_OK;
}

static kt_status run_rounds(letters *l, kt_err *err) {
    KT_TRY(kt_device_clear(l->c->d, KT_STREAM_MAIN, l->there, l->of->bytes, err));
    for (int round = 0; round < ROUNDS; round++) KT_TRY(run_round(l, err));
    return KT_OK;
}

static kt_status measure_letters(gpu_check *c, const letter_case *of, void *here, void *there,
                                 kt_err *err) {
    const bool is_gpu = strcmp(kt_device_about(c->d)->class, "cuda") == 0;
    letters l = {.c = c, .of = of, .here = here, .there = there, .n = is_gpu ? MOST_LETTERS : 8};
    kt_status st;

    KT_TRY(begin_watch(&l.watch, c, of->name, err));
    st = kt_mailbox_create(c->d, of->way, l.n, &l.box, err);
    if (st == KT_OK) {
        st = run_rounds(&l, err);
        kt_mailbox_stop(l.box);
        kt_device_gather_end(c->d, NULL);
        if (kt_device_sync(c->d, NULL, NULL) == KT_OK) kt_mailbox_destroy(l.box);
    }
    kt_silence_end(&l.watch.silence);
    if (st == KT_OK)
        gpu_check_row(c, of->name, l.us, -1, "us", l.n_wrong == 0,
                      l.n_wrong ? "of wrong order" : "");
    return st;
}

/* ---- functions of the host ---- */

enum { CALL_MS = 50, GIVE_UP_MS = 1000 };

/* Ends when it is released, or when its time is over: nothing can be held up for ever. */
typedef struct held_function {
    atomic_bool has_begun, is_released;
    _Atomic int64_t until;
} held_function;

typedef struct functions {
    gpu_check *c;
    held_function *f;
    uint32_t *here;
    const void *there;
    int64_t took; /* by the call that may be held up */
    bool is_idle; /* said of the stream that was asked for */
} functions;

static void wait_until_released(void *arg) {
    held_function *f = arg;

    atomic_store(&f->has_begun, true);
    while (!atomic_load(&f->is_released) && kt_clock_ns() < atomic_load(&f->until)) sleep_ns(20000);
}

static void set_function(held_function *f, bool is_released, int ms) {
    atomic_store(&f->has_begun, false);
    atomic_store(&f->is_released, is_released);
    atomic_store(&f->until, kt_clock_ns() + ms * MS);
}

static kt_status ask_meanwhile(functions *t, kt_stream asked, kt_err *err) {
    const int64_t begin = kt_clock_ns();

    set_function(t->f, false, CALL_MS);
    KT_TRY(kt_device_call(t->c->d, KT_STREAM_MAIN, wait_until_released, t->f, err));
    while (!atomic_load(&t->f->has_begun) && kt_clock_ns() - begin < LONGEST_SILENCE)
        sleep_ns(20000);
    t->took = -kt_clock_ns();
    KT_TRY(kt_device_poke(t->c->d, asked, &t->is_idle, err));
    t->took += kt_clock_ns();
    return kt_device_sync(t->c->d, NULL, err);
}

/* A copy before each function, as letters have. */
static kt_status put_functions(functions *t, int n, kt_err *err) {
    for (int i = 0; i < n; i++) {
        KT_TRY(
            kt_device_download(t->c->d, KT_STREAM_MAIN, t->here, t->there, sizeof *t->here, err));
        KT_TRY(kt_device_call(t->c->d, KT_STREAM_MAIN, wait_until_released, t->f, err));
    }
    return KT_OK;
}

static kt_status launch_functions(functions *t, int n, kt_err *err) {
    kt_device_graph *graph;
    kt_status st;

    KT_TRY(kt_device_capture_begin(t->c->d, KT_STREAM_MAIN, err));
    st = put_functions(t, n, err);
    if (st != KT_OK) kt_device_capture_end(t->c->d, &graph, NULL);
    if (st == KT_OK) st = kt_device_capture_end(t->c->d, &graph, err);
    for (int i = 0; i < 2 && st == KT_OK; i++) { /* first with functions that end at once */
        set_function(t->f, i == 0, GIVE_UP_MS);
        t->took = -kt_clock_ns();
        st = kt_device_replay(t->c->d, KT_STREAM_MAIN, graph, err);
        t->took += kt_clock_ns();
        atomic_store(&t->f->is_released, true);
        if (st == KT_OK) st = kt_device_sync(t->c->d, NULL, err);
    }
    return st;
}

static kt_status measure_asking(functions *t, const char *name, kt_stream asked, kt_err *err) {
    const char *note = "";
    watched w;
    kt_status st;

    KT_TRY(begin_watch(&w, t->c, name, err));
    st = ask_meanwhile(t, asked, err);
    kt_silence_end(&w.silence);
    if (st != KT_OK) return st;
    if (t->took > CALL_MS / 2 * MS)
        note = "held up until it had ended";
    else if (t->is_idle && asked == KT_STREAM_MAIN)
        note = "said to be idle";
    gpu_check_row(t->c, name, (double)t->took * 1e-3, -1, "us", true, note);
    return KT_OK;
}

static kt_status measure_launch(functions *t, int n, kt_err *err) {
    char name[64];
    watched w;
    kt_status st;

    snprintf(name, sizeof name, "launching a graph of %d functions that wait", n);
    KT_TRY(begin_watch(&w, t->c, name, err));
    st = launch_functions(t, n, err);
    kt_silence_end(&w.silence);
    if (st != KT_OK) return st;
    gpu_check_row(t->c, name, (double)t->took * 1e-3, -1, "us", true,
                  t->took > GIVE_UP_MS / 2 * MS ? "held up until they gave up, after 1 s" : "");
    return KT_OK;
}

static kt_status measure_functions(gpu_check *c, uint32_t *here, const void *there, kt_err *err) {
    static const int counts[] = {4, 16, 64, 256};
    static held_function f; /* stays where an error leaves functions behind */
    functions t = {.c = c, .f = &f, .here = here, .there = there};

    KT_TRY(measure_asking(&t, "asking for a stream while its function of the host runs",
                          KT_STREAM_MAIN, err));
    KT_TRY(measure_asking(&t, "asking for another stream meanwhile", KT_STREAM_UPLOAD, err));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        KT_TRY(measure_launch(&t, counts[i], err));
    return KT_OK;
}

/* ---- all of it ---- */

kt_status gpu_check_letters(gpu_check *c, kt_err *err) {
    void *here, *there;

    KT_TRY(kt_device_host_alloc(c->d, MOST_BYTES, &here, err));
    KT_TRY(kt_device_alloc(c->d, MOST_BYTES, &there, err));
    for (size_t i = 0; i < sizeof letter_cases / sizeof *letter_cases; i++)
        KT_TRY(measure_letters(c, &letter_cases[i], here, there, err));
    return measure_functions(c, here, there, err);
}
