/* Letters by flags in mapped memory, or by functions of the host.
 *
 * Why the order holds. A post of mapped memory is a kernel of its own, which goes on when the work
 * before it is done and can be seen (KT_LAUNCH_WAIT, where launches overlap). Its block stores the
 * spans, meets at a barrier, and one thread fences for the system before it stores the flag, which
 * the host loads with acquire order. An answer is a store with release order, which a thread loads
 * with acquire order before its block meets at a barrier and loads the spans; what is behind goes
 * on when that kernel has ended. A function is called in the order of the stream by the device
 * itself, when the copies before it are done.
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

enum { POST = 0, TAKE = 1 /* entries of mailbox.cu */ };

#define BUSY_LOOKS 4000   /* tens of microseconds: a layer of the device */
#define POKE_LOOKS 256    /* between two of these the device is asked how it is */
#define MOST_PAUSE 200000 /* nanoseconds */
#define SPAN 4096u        /* from the base of one round to the next */

/* Mapped on both sides. */
typedef struct flags {
    _Alignas(64) uint32_t posted;   /* by the device */
    _Alignas(64) uint32_t answered; /* by the host, like the round */
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

bool kt_mailbox_is_led(const kt_mailbox *m) {
    return m->way == KT_MAILBOX_FUNCTIONS;
}

/* ---- into the stream ---- */

/* The answer 0 is there from the beginning on. */
kt_status kt_mailbox_begin(kt_mailbox *m, kt_stream s, kt_err *err) {
    m->posts = m->answers = 0;
    m->stream = s;
    m->flags->round += SPAN;
    store(&m->flags->answered, m->flags->round);
    if (m->way == KT_MAILBOX_FUNCTIONS) return KT_OK;
    return kt_device_upload(m->device, s, m->round, &m->flags->round, sizeof m->flags->round, err);
}

/* It must wait for nothing: see mailbox.h. */
static void raise_flag(void *arg) {
    const letter *l = arg;

    store(&l->mailbox->flags->posted, l->mailbox->flags->round + l->number);
}

static size_t rows_of(size_t n) {
    return (n + KT_MAIL_THREADS - 1) / KT_MAIL_THREADS;
}

/* n units or words of a span, from byte `at` of it on, as rows. */
static void cut(const kt_mail_span *s, size_t at, size_t n, size_t unit_bytes, kt_mail_row *row) {
    for (size_t i = 0; i < n; i += KT_MAIL_THREADS) {
        const size_t left = n - i, byte = at + i * unit_bytes;
        *row++ = (kt_mail_row){.to = (uint8_t *)s->to + byte,
                               .from = (const uint8_t *)s->from + byte,
                               .n = left < KT_MAIL_THREADS ? (int32_t)left : KT_MAIL_THREADS};
    }
}

/* A span joins what the launch carries; false: it is to go by the copy engine.
 *
 * A launch carries 24 rows of 4 KiB, of which its block has half on the way at a time: it should
 * move as much in some four microseconds. A copy engine has twice or three times the rate, but the
 * stream reaches and leaves it in several microseconds. So what is more than this goes by the
 * engine, as do single bytes, and words that no unit can hold, but for a few: before the kernel
 * that raises the flag, and behind the one that waits. */
static bool carry(const kt_mailbox *m, const kt_mail_span *s, kt_mail_call *c) {
    const uintptr_t both = (uintptr_t)s->to | (uintptr_t)s->from;
    const size_t units = both % KT_MAIL_UNIT == 0 ? s->bytes / KT_MAIL_UNIT : 0;
    const size_t words = (s->bytes - units * KT_MAIL_UNIT) / 4;

    if (m->way == KT_MAILBOX_FUNCTIONS || !kt_device_about(m->device)->maps_pinned) return false;
    if (both % 4 || s->bytes % 4 || rows_of(units) > (size_t)(KT_MAIL_ROWS - c->n_rows) ||
        rows_of(words) > (size_t)(KT_MAIL_WORD_ROWS - c->n_word_rows))
        return false;
    cut(s, 0, units, KT_MAIL_UNIT, c->row + c->n_rows);
    cut(s, units * KT_MAIL_UNIT, words, 4, c->word_row + c->n_word_rows);
    c->n_rows += (int32_t)rows_of(units);
    c->n_word_rows += (int32_t)rows_of(words);
    return true;
}

/* The spans that no launch carries, by copies. */
static kt_status copy_others(kt_mailbox *m, kt_stream s, bool is_up, const kt_mail_span *span,
                             int n, kt_mail_call *c, kt_err *err) {
    for (int i = 0; i < n; i++) {
        if (carry(m, &span[i], c)) continue;
        KT_TRY(
            is_up ? kt_device_upload(m->device, s, span[i].to, span[i].from, span[i].bytes, err)
                  : kt_device_download(m->device, s, span[i].to, span[i].from, span[i].bytes, err));
    }
    return KT_OK;
}

static kt_status launch(kt_mailbox *m, kt_stream s, int entry, const kt_mail_call *call,
                        kt_err *err) {
    const kt_device_launch l = {.code = m->kernel.code,
                                .entry = entry,
                                .grid_x = 1,
                                .grid_y = 1,
                                .parameters = call,
                                .parameter_bytes = sizeof *call};
    return kt_device_run(m->device, s, &l, err);
}

static kt_status check_number(const kt_mailbox *m, const char *what, int number, int least,
                              kt_err *err) {
    if (number >= least && number <= m->most) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%s: %s %d of a mailbox, expected %d to %d",
                   kt_device_about(m->device)->name, what, number, least, m->most);
}

kt_status kt_mailbox_post(kt_mailbox *m, kt_stream s, const kt_mail_span *span, int n, int *number,
                          kt_err *err) {
    kt_mail_call call = {
        .round = m->round, .flag = &m->flags->posted, .number = (uint32_t)m->posts + 1};

    *number = ++m->posts;
    KT_TRY(check_number(m, "letter", m->posts, 1, err));
    KT_TRY(copy_others(m, s, false, span, n, &call, err));
    if (m->way == KT_MAILBOX_FUNCTIONS)
        return kt_device_call(m->device, s, raise_flag, &m->letters[m->posts], err);
    return launch(m, s, POST, &call, err);
}

kt_status kt_mailbox_take(kt_mailbox *m, kt_stream s, int answer, const kt_mail_span *span, int n,
                          kt_err *err) {
    const kt_mail_call empty = {
        .round = m->round, .flag = &m->flags->answered, .number = (uint32_t)answer};
    kt_mail_call call = empty, again = empty;

    KT_TRY(check_number(m, "answer", answer, 0, err));
    if (kt_mailbox_is_led(m) && answer > m->answers)
        return kt_fail(err, KT_E_INVALID,
                       "%s: answer %d of a mailbox that the host leads, expected at most %d, the "
                       "last that it has given",
                       kt_device_about(m->device)->name, answer, m->answers);
    for (int i = 0; i < n; i++) carry(m, &span[i], &call);
    if (!kt_mailbox_is_led(m)) KT_TRY(launch(m, s, TAKE, &call, err));
    return copy_others(m, s, true, span, n, &again, err);
}

/* ---- on the host ---- */

static bool is_there(const kt_mailbox *m, int number) {
    return (int32_t)(load(&m->flags->posted) - (m->flags->round + (uint32_t)number)) >= 0;
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

    if (kt_mailbox_is_led(m) && !is_there(m, number)) KT_TRY(ask_device(m, number, err));
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

/* All answers that the round may have have come. */
void kt_mailbox_stop(kt_mailbox *m) {
    m->answers = KT_MAILBOX_MOST;
    store(&m->flags->answered, m->flags->round + KT_MAILBOX_MOST);
}
