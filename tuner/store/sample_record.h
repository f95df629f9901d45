/* Journal records that hold samples, all kinds alike: what exports and statistics walk over.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SAMPLE_RECORD_H
#define KT_TUNER_SAMPLE_RECORD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

/* Texts and values are borrowed from the journal. */
typedef struct kt_sample_record {
    const char
        *kind; /* "rung": of a cell's contest, oracle included; "slice": part of a cell's outputs,
                         before its contest; "plan_rung": of a plan cell's contest */
    const char *cell; /* of a slice, the cell it is part of */
    const char *plan; /* plan_rung: the plan cell's word, else NULL; not terminated */
    int plan_size;    /* its bytes */
    int64_t contest;  /* -1 = none */
    int64_t rung;     /* 0 for slices */
    int64_t outputs;  /* slices: how many of the cell's n; else 0 */
    const kt_json *live, *voided, *ns; /* names; rounds; per name an array of times */
} kt_sample_record;

/* false when the record holds no samples. */
bool kt_sample_record_read(const kt_json *record, kt_sample_record *out);

/* The name of contender i, "" where there is none. */
const char *kt_sample_record_name(const kt_sample_record *r, size_t i);
bool kt_sample_record_is_voided(const kt_sample_record *r, size_t round);

/* What raced, in words that no other record uses: the cell, the plan cell, or "slice n=512 of CELL". */
#define KT_SAMPLE_CELL_BYTES 288
char *kt_sample_record_cell(const kt_sample_record *r, char *out, size_t out_bytes);

/* The contender as names of kernels are written, so that plan cells come apart like these:
 * "moe_layer{task_kib=192,tasks=4}", "layer_gain{kernels=table}". */
#define KT_SAMPLE_CONTENDER_BYTES 256
char *kt_sample_record_contender(const kt_sample_record *r, size_t i, char *out, size_t out_bytes);

#endif
