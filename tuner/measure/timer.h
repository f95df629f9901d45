/* What reading the clock costs. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TIMER_H
#define KT_TUNER_TIMER_H

typedef struct kt_timer {
    double read_ns; /* one kt_clock_ns call */
    double step_ns; /* smallest difference seen between two reads */
} kt_timer;

/* About 0.1 ms. Samples of 100 us keep the clock's share under 0.1 % when read_ns < 50. */
kt_timer kt_timer_calibrate(void);

#endif
