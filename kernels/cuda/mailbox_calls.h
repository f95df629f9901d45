/* Parameters of mailbox.cu. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_MAILBOX_CALLS_H
#define KT_CUDA_MAILBOX_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

enum {
    KT_MAIL_THREADS = 256,
    KT_MAIL_ROWS = 24,     /* that a launch carries, of units, */
    KT_MAIL_WORD_ROWS = 4, /* and of words */
    KT_MAIL_UNIT = 16      /* bytes */
};

/* Up to KT_MAIL_THREADS units, aligned to their size, or words, side by side: one for each thread
 * that copies them. */
typedef struct kt_mail_row {
    void *to;
    const void *from;
    int32_t n;
    int32_t zero; /* for padding */
} kt_mail_row;

/* The number of a letter or of an answer is *round + number: the round's words come with its first
 * copy, so that a graph that is replayed has new numbers each time. Rows that are not used are of
 * length 0. */
typedef struct kt_mail_call {
    const uint32_t *round; /* the device's */
    uint32_t *flag;        /* the host's, mapped: becomes the letter's number, or is waited for */
    uint32_t number;
    int32_t n_rows, n_word_rows;
    int32_t zero; /* for padding */
    kt_mail_row row[KT_MAIL_ROWS], word_row[KT_MAIL_WORD_ROWS];
} kt_mail_call;

#endif
