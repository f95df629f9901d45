/* Letters and answers of mailboxes (dispatch/device/mailbox.h), each with the bytes that belong to
 * it: a post copies parts of the device's memory to the host's, mapped, and then tells the host by
 * a flag; a take waits for the host's flag and then copies parts of the host's memory to the
 * device's. No copy engine takes part, which a stream reaches and leaves in microseconds.
 *
 * One block, grid (1, 1), so that a barrier is all the order that there is between its threads. The
 * host has cut the parts into rows of one unit a thread, which no thread has to look for. A read
 * across the link takes about a microsecond: a thread has AHEAD of them on the way, and words
 * beside them, before it stores the first, 48 KiB of the block together.
 *
 * The thread that waits reads the flag again as soon as it has the last one's answer, a microsecond
 * each, which is some 64 MB/s of the link. The pause between two reads is far below that: it costs
 * a twentieth of the time that is lost by a flag that comes just behind a read, and leaves the core
 * to others under the emulator.
 *
 * Numbers are compared by their difference, so that they may run over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_system.h"
#include "kernels/cuda/mailbox_calls.h"

#define AHEAD 12 /* rows, of which KT_MAIL_ROWS is a multiple */
#define PAUSE_NS 100

/* Addresses as numbers: those of rows that there are not are formed, but never used. */
KT_DEVICE const void *from_at(const kt_mail_row *row, int bytes) {
    return (const void *)((uint64_t)row->from + (uint64_t)(kt_thread() * bytes));
}

KT_DEVICE void *to_at(const kt_mail_row *row, int bytes) {
    return (void *)((uint64_t)row->to + (uint64_t)(kt_thread() * bytes));
}

KT_DEVICE void carry_rows(const kt_mail_row *row) {
    kt_u128 v[AHEAD];

    KT_UNROLL
    for (int i = 0; i < AHEAD; i++)
        v[i] = kt_link_load16(from_at(&row[i], KT_MAIL_UNIT), kt_thread() < row[i].n);
    KT_UNROLL
    for (int i = 0; i < AHEAD; i++)
        if (kt_thread() < row[i].n) kt_link_store16(to_at(&row[i], KT_MAIL_UNIT), v[i]);
}

KT_DEVICE void carry(const kt_mail_call *p) {
    uint32_t v[KT_MAIL_WORD_ROWS];

    KT_UNROLL
    for (int i = 0; i < KT_MAIL_WORD_ROWS; i++)
        v[i] = kt_link_load4(from_at(&p->word_row[i], 4), kt_thread() < p->word_row[i].n);
    KT_ROLLED
    for (int first = 0; first < p->n_rows; first += AHEAD) carry_rows(&p->row[first]);
    KT_UNROLL
    for (int i = 0; i < KT_MAIL_WORD_ROWS; i++)
        if (kt_thread() < p->word_row[i].n) kt_link_store4(to_at(&p->word_row[i], 4), v[i]);
}

KT_DEVICE void post(const kt_mail_call *p) {
    const uint32_t number = *p->round + p->number;

    carry(p);
    kt_sync(); /* what all threads stored is before the flag */
    if (kt_thread() == 0) kt_system_store(p->flag, number);
}

KT_DEVICE void take(const kt_mail_call *p) {
    if (kt_thread() == 0) {
        const uint32_t wanted = *p->round + p->number;
        while ((int32_t)(kt_system_load(p->flag) - wanted) < 0) kt_pause(PAUSE_NS);
    }
    kt_sync(); /* what all threads load is behind the flag */
    carry(p);
}

KT_ENTRY(mailbox_post, kt_mail_call, post, KT_MAIL_THREADS)
KT_ENTRY(mailbox_take, kt_mail_call, take, KT_MAIL_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static int threads(const kt_config *config) {
    (void)config;
    return KT_MAIL_THREADS;
}

KT_CUDA_KERNEL(mailbox) = {
    .name = "mailbox",
    .about = "letters of a stream to the host and its answers, with their bytes",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .param_count = 0,
    .entry_count = 2,
    .entry = {{"mailbox_post", mailbox_post}, {"mailbox_take", mailbox_take}},
    .refuse = kt_cuda_refuse_none,
    .threads = threads,
    .shared_bytes = kt_cuda_nothing_shared,
};
#endif
