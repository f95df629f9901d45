/* What a trial needs from an op; private to tuner/measure. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TRIAL_OPS_H
#define KT_TUNER_TRIAL_OPS_H

#include "tuner/measure/disturbance.h"
#include "tuner/measure/trial.h"

typedef struct kt_trial_ops {
    /* Make t->state; set t->units. All contenders' banks are there. */
    kt_status (*create)(kt_trial *t, kt_err *err);
    void (*destroy)(kt_trial *t);               /* accepts a state that was never made */
    void (*select)(kt_trial *t, int contender); /* outside the timed part */
    void (*call)(kt_trial *t);                  /* one call of the selected contender, next slots */
} kt_trial_ops;

extern const kt_trial_ops kt_trial_moe;
extern const kt_trial_ops kt_trial_gemm;
extern const kt_trial_ops kt_trial_sequence;
extern const kt_trial_ops kt_trial_attn;
extern const kt_trial_ops kt_trial_rows;

struct kt_trial {
    kt_trial_setup setup;
    const kt_trial_ops *ops;
    void *state; /* owned through ops */
    double units;
    kt_disturbance disturbance;
    double longest_ns; /* of the samples so far, warm-up included */
    struct kt_trial_entry {
        kt_cold_bank *bank; /* borrowed; NULL = the op has no packed weights */
        int64_t calls;      /* per sample; 0 = never run */
        double sample_ns;   /* wall time of the last sample */
    } * entry;              /* [n_choices], owned */
};

/* A choice map whose every m leads to one choice. */
static inline void kt_choice_map_single(kt_choice_map *map, const kt_choice *choice) {
    map->count = 1;
    map->choice[0] = *choice;
}

#endif
