/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/timer.h"

#include "base/clock.h"

kt_timer kt_timer_calibrate(void) {
    enum { BATCHES = 16, READS = 128 };
    kt_timer t = {1e9, 1e9};
    for (int b = 0; b < BATCHES; b++) {
        int64_t start = kt_clock_ns(), last = start;
        for (int i = 0; i < READS; i++) {
            int64_t now = kt_clock_ns();
            if (now > last && (double)(now - last) < t.step_ns) t.step_ns = (double)(now - last);
            last = now;
        }
        double each = (double)(last - start) / READS;
        if (each < t.read_ns) t.read_ns = each;
    }
    return t;
}
