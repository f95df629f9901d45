/* The decision of one cell of a device: gate, race by halving, a last duel with the default.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_RACE_H
#define KT_TUNER_DEVICE_RACE_H

#include "dispatch/table/table.h"
#include "tuner/measure/device_bench.h"

/* The device of a run. Lost, it is opened once more, and the choice that lost it is out. */
typedef struct kt_device_seat {
    const kt_device_options *options; /* borrowed */
    kt_device *d;
    int n_lost;
} kt_device_seat;

/* Who fell out of a race, for people: "moe_tiles bm=128,...: 320 bytes a thread spill". */
typedef void kt_device_dropped_fn(void *arg, const char *what);

typedef struct kt_device_race {
    kt_device_seat *seat;
    kt_problem problem; /* m = rows of a call, of experts tokens */
    bool is_exact;
    bool is_pretended; /* times are kt_device_prior_ns: where the device has no clock worth it */
    int most;          /* contenders: the best by kt_device_prior_ns; 0 = all */
    int threads;       /* of the host, that compile them */
    size_t rotation;   /* bytes of weights */
    uint64_t seed;
    int64_t deadline_ns;     /* kt_clock_ns; half of the time is for compiling, a sixth for the
                                gate; who has not passed by then takes no part */
    bool (*stop)(void *arg); /* asked between samples; may be NULL, as the next */
    kt_device_dropped_fn *dropped;
    void *arg;
} kt_device_race;

typedef struct kt_device_verdict {
    kt_table_row row;                      /* as a kt_table_device_row holds it */
    int n_contenders, n_dropped, n_voided; /* rounds in which the default's time drifted by 2 % */
} kt_device_verdict;

/* Everyone passes the gate first, spills are out (but for the default's), and so is whoever does
 * not compile or start. Rounds of all, each between two calls of the default, by whose drift they
 * are corrected, or void over 2 %: 3, then a third of them 10, then five 30. The winner meets the
 * default in 15 more, in turn, and takes its place only if it is faster by more than twice the
 * median deviation. KT_E_UNSUPPORTED: nothing can do the job there. KT_E_CANCELLED: stop said so.
 * KT_E_NOT_FOUND: the device is gone and does not open again. */
kt_status kt_device_race_run(const kt_device_race *race, kt_device_verdict *out, kt_err *err);

#endif
