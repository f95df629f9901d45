/* Letters by flags in mapped memory, or by functions of the host.
 *
 * Why the order holds. A post of mapped memory is a kernel of its own: the stream starts it when
 * the copies before it are done, and it fences for the system before it stores the flag, which the
 * host loads with acquire order. An answer is a store with release order, which the waiting warp
 * loads with acquire order; the copies behind start when that kernel has ended. Functions are
 * called in the order of the stream by the device itself.
 *
 * The flags lie in lines of their own: what the host writes is never beside what the device writes.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/device/mailbox.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/err.h"
#include "dispatch/device/device_kernel.h"
#include "kernels/cuda/mailbox_calls.h"

enum { RAISE = 0, WAIT = 1 /* entries of mailbox.cu */ };

#define BUSY_LOOKS 4000   /* tens of microseconds: a layer of the device */
#define POKE_LOOKS 256    /* between two of these the device is asked how it is */
#define MOST_PAUSE 200000 /* nanoseconds */
#define SPAN 4096u        /* from the base of one round to the next */

/* Mapped on both sides. */
typedef struct flags {
    _Alignas(64) uint32_t posted;   /* by the device */
    _Alignas(64) uint32_t answered; /* by the host, like the rest */
    _Alignas(64) uint32_t stop;
    _Alignas(64) uint32_t round;
} flags;

static uint32_t load(const uint32_t *flag) {
    return __atomic_load_n(flag, __ATOMIC_ACQUIRE);
}

static void store(uint32_t *flag, uint32_t value) {
    __atomic_store_n(flag, value, __ATOMIC_RELEASE);
}

/* What a function of the host is told. */
typedef struct letter {
    kt_mailbox *mailbox;
    uint32_t number;
} letter;

struct kt_mailbox {
    kt_device *device;
    kt_mailbox_way way;
    kt_device_kernel kernel; /* of mapped flags */
    flags *flags;
    uint32_t *round;  /* the device's */
    kt_stream stream; /* of this round */
    int most, posts, answers;
    letter *letters; /* [most + 1] */
};

kt_status kt_mailbox_way_wanted(kt_mailbox_way *out, kt_err *err) {
    static const char *const words[] = {"off", "mapped", "functions"};
    const char *word = getenv("KT_MAILBOX");

    *out = KT_MAILBOX_MAPPED;
    if (!word || !*word) return KT_OK;
    for (int i = 0; i < 3; i++)
        if (strcmp(word, words[i]) == 0) {
            *out = (kt_mailbox_way)i;
            return KT_OK;
        }
    return kt_fail(err, KT_E_INVALID, "KT_MAILBOX is '%.40s', expected mapped, functions or off",
                   word);
}

/* ---- life ---- */

static kt_status set_up(kt_mailbox *m, kt_err *err) {
    void *at;

    KT_TRY(kt_device_host_alloc(m->device, sizeof *m->flags, &at, err));
    memset(at, 0, sizeof *m->flags);
    m->flags = at;
    for (int i = 0; i <= m->most; i++) m->letters[i] = (letter){m, (uint32_t)i};
    if (m->way == KT_MAILBOX_FUNCTIONS) return KT_OK;
    KT_TRY(kt_device_alloc(m->device, sizeof *m->round, &at, err));
    m->round = at;
    return kt_device_kernel_named(m->device, "mailbox", NULL, 0, &m->kernel, err);
}

kt_status kt_mailbox_create(kt_device *d, kt_mailbox_way way, int most, kt_mailbox **out,
                            kt_err *err) {
    kt_mailbox *m = calloc(1, sizeof *m);
    kt_status st;

    *out = NULL;
    if (most < 1 || most > KT_MAILBOX_MOST) {
        free(m);
        return kt_fail(err, KT_E_INVALID, "%s: a mailbox for %d letters, expected 1 to %d",
                       kt_device_about(d)->name, most, KT_MAILBOX_MOST);
    }
    if (m) m->letters = calloc((size_t)most + 1, sizeof *m->letters);
    if (!m || !m->letters) {
        kt_mailbox_destroy(m);
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for a mailbox of %d letters",
                       kt_device_about(d)->name, most);
    }
    m->device = d;
    m->way = way;
    m->most = most;
    st = set_up(m, err);
    if (st != KT_OK) {
        kt_device_host_free(d, m->flags);
        kt_device_free(d, m->round);
        kt_mailbox_destroy(m);
        return st;
    }
    *out = m;
    return KT_OK;
}

void kt_mailbox_destroy(kt_mailbox *m) {
    if (!m) return;
    free(m->letters);
    free(m);
}

/* ---- into the stream ---- */

static bool has_come(uint32_t flag, uint32_t wanted) {
    return (int32_t)(flag - wanted) >= 0;
}

kt_status kt_mailbox_begin(kt_mailbox *m, kt_stream s, kt_err *err) {
    m->posts = m->answers = 0;
    m->stream = s;
    m->flags->round += SPAN;
    store(&m->flags->stop, 0);
    if (m->way == KT_MAILBOX_FUNCTIONS) return KT_OK;
    return kt_device_upload(m->device, s, m->round, &m->flags->round, sizeof m->flags->round, err);
}

static void raise_flag(void *arg) {
    const letter *l = arg;

    store(&l->mailbox->flags->posted, l->mailbox->flags->round + l->number);
}

static void wait_for_answer(void *arg) {
    const letter *l = arg;
    flags *f = l->mailbox->flags;
    struct timespec pause = {0, 1000};

    while (!has_come(load(&f->answered), f->round + l->number) && !load(&f->stop)) {
        nanosleep(&pause, NULL);
        if (pause.tv_nsec < MOST_PAUSE) pause.tv_nsec += pause.tv_nsec / 2;
    }
}

static kt_status launch(kt_mailbox *m, kt_stream s, int entry, const void *parameters,
                        size_t parameter_bytes, kt_err *err) {
    const kt_device_launch l = {.code = m->kernel.code,
                                .entry = entry,
                                .grid_x = 1,
                                .grid_y = 1,
                                .parameters = parameters,
                                .parameter_bytes = parameter_bytes};
    return kt_device_run(m->device, s, &l, err);
}

static kt_status check_number(const kt_mailbox *m, int number, kt_err *err) {
    if (number >= 1 && number <= m->most) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%s: letter %d of a mailbox, expected 1 to %d",
                   kt_device_about(m->device)->name, number, m->most);
}

kt_status kt_mailbox_post(kt_mailbox *m, kt_stream s, int *number, kt_err *err) {
    const kt_mail_raise call = {
        .round = m->round, .flag = &m->flags->posted, .number = (uint32_t)m->posts + 1};

    *number = ++m->posts;
    KT_TRY(check_number(m, m->posts, err));
    if (m->way == KT_MAILBOX_FUNCTIONS)
        return kt_device_call(m->device, s, raise_flag, &m->letters[m->posts], err);
    return launch(m, s, RAISE, &call, sizeof call, err);
}

kt_status kt_mailbox_take(kt_mailbox *m, kt_stream s, int answer, kt_err *err) {
    const kt_mail_wait call = {.round = m->round,
                               .flag = &m->flags->answered,
                               .stop = &m->flags->stop,
                               .number = (uint32_t)answer};

    KT_TRY(check_number(m, answer, err));
    if (m->way == KT_MAILBOX_FUNCTIONS)
        return kt_device_call(m->device, s, wait_for_answer, &m->letters[answer], err);
    return launch(m, s, WAIT, &call, sizeof call, err);
}

/* ---- on the host ---- */

static bool is_there(const kt_mailbox *m, int number) {
    return has_come(load(&m->flags->posted), m->flags->round + (uint32_t)number);
}

/* Also where the device is idle the letter may have come since it was looked for. */
static kt_status ask_device(const kt_mailbox *m, int number, kt_err *err) {
    bool is_idle;

    KT_TRY(kt_device_poke(m->device, m->stream, &is_idle, err));
    if (!is_idle || is_there(m, number)) return KT_OK;
    return kt_fail(err, KT_E_INTERNAL,
                   "%s: it has done all that it was given, and letter %d has not come: the last "
                   "was %d",
                   kt_device_about(m->device)->name, number,
                   (int)(load(&m->flags->posted) - m->flags->round));
}

kt_status kt_mailbox_await(kt_mailbox *m, int number, kt_err *err) {
    struct timespec pause = {0, 1000};

    for (int64_t looks = 1; !is_there(m, number); looks++) {
        if (looks % POKE_LOOKS == 0 || looks > BUSY_LOOKS) KT_TRY(ask_device(m, number, err));
        if (looks <= BUSY_LOOKS) {
            __builtin_ia32_pause();
        } else {
            nanosleep(&pause, NULL);
            if (pause.tv_nsec < MOST_PAUSE) pause.tv_nsec += pause.tv_nsec / 2;
        }
    }
    return KT_OK;
}

void kt_mailbox_answer(kt_mailbox *m) {
    store(&m->flags->answered, m->flags->round + (uint32_t)++m->answers);
}

void kt_mailbox_stop(kt_mailbox *m) {
    store(&m->flags->stop, 1);
}
