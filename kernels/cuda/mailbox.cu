/* Flags of mailboxes in the host's memory: one that tells the host that what was put before is
 * there, and a wait for the host's answer. One warp, grid (1, 1): while the host works the kernel
 * that waits takes the place of a warp, and reads across the link once in a microsecond.
 *
 * Numbers are compared by their difference, so that they may run over.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_system.h"
#include "kernels/cuda/mailbox_calls.h"

#define PAUSE_NS 1000

KT_DEVICE void tell(const kt_mail_raise *p) {
    if (kt_thread() == 0) kt_system_store(p->flag, *p->round + p->number);
}

KT_DEVICE void await(const kt_mail_wait *p) {
    const uint32_t wanted = *p->round + p->number;

    if (kt_thread() > 0) return;
    while ((int32_t)(kt_system_load(p->flag) - wanted) < 0 && kt_system_load(p->stop) == 0)
        kt_pause(PAUSE_NS);
}

KT_ENTRY(mailbox_raise, kt_mail_raise, tell, 32)
KT_ENTRY(mailbox_wait, kt_mail_wait, await, 32)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(mailbox) = {
    .name = "mailbox",
    .about = "flags between a stream and the host that answers it",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .param_count = 0,
    .entry_count = 2,
    .entry = {{"mailbox_raise", mailbox_raise}, {"mailbox_wait", mailbox_wait}},
    KT_CUDA_ONE_WARP,
};
#endif
