/* Parameters of mailbox.cu. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_MAILBOX_CALLS_H
#define KT_CUDA_MAILBOX_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* The number of a letter or of an answer is *round + number: the round's words come with its first
 * copy, so that a graph that is replayed has new numbers each time. */
typedef struct kt_mail_raise {
    const uint32_t *round; /* the device's */
    uint32_t *flag;        /* the host's, mapped: becomes the letter's number */
    uint32_t number;
    int32_t zero; /* for padding */
} kt_mail_raise;

typedef struct kt_mail_wait {
    const uint32_t *round;
    const uint32_t *flag; /* the host's, mapped: waits until the answer's number is reached, */
    const uint32_t *stop; /* or until this is not 0, which ends all waits */
    uint32_t number;
    int32_t zero; /* for padding */
} kt_mail_wait;

#endif
