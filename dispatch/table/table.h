/* The dispatch table: what the tuner decided, bound to a machine. Text (JSON, one row a line).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_TABLE_H
#define KT_DISPATCH_TABLE_H

#include <stdbool.h>

#include "dispatch/topology/topology.h"
#include "kt/problem.h"
#include "kt/table.h"
#include "kt/variant.h"

/* 2: problems have members (down, act, v, window) that a reader of 1 would take for nothing, and
 * rows of two problems for rows of one; rows say their class of bits and the best of the others.
 * Files of 1 are read as rows without any of these. */
#define KT_TABLE_SCHEMA "2.0"
#define KT_TABLE_RUNNERS 3
#define KT_TABLE_OTHERS 6
#define KT_BITS_BYTES 32

/* One decision: for this problem (m = the bucket's rows) on this many threads, this variant. */
typedef struct kt_table_row {
    kt_problem problem;
    int threads;
    char variant[64], config[96];    /* names, as kt_config_format writes */
    int32_t version;                 /* of the variant when it was tuned */
    double time_ns, ci_low, ci_high; /* p25 of one call; interval relative to it */
    int rounds;
    char default_variant[64], default_config[96];
    double default_ns;
    char status[20]; /* "tuned", "default" (kept after a race), "imported" */
    int n_runners;
    struct {
        char variant[64], config[96];
        double time_ns;
    } runner[KT_TABLE_RUNNERS];
    double error;             /* relative RMS against the double reference at the gate */
    char bits[KT_BITS_BYTES]; /* class of the variant (kt_variant.bits); "" = not known */
    int n_others;             /* classes that took part in the race besides, fastest first */
    struct {
        char bits[KT_BITS_BYTES], variant[64], config[96]; /* the class and its fastest contender */
        int32_t version;
        double time_ns; /* beside the winner's in the same race */
    } other[KT_TABLE_OTHERS];
} kt_table_row;

/* A plan cell: a decision about a whole expert layer instead of one kernel. */
typedef struct kt_table_plan {
    char
        cell[16]; /* "moe_layer": how calls are cut; "threads"; "spin"; "layer_gain": the tuned rows
                         against the defaults, in the layer as it is served */
    int64_t tokens;   /* of a call */
    char routing[40]; /* "zipf:0.6" */
    double imbalance; /* that this routing gave: most rows of an expert over the mean; 0 = none */
    double predicted; /* layer_gain: default over tuned time by the rows; 0 = none */
    kt_table_row
        row; /* of the experts' problem, m = tokens; config and default_config are the choice
                         as text, variant and default_variant repeat the cell, version 0 */
} kt_table_plan;

/* A decision about a device beside the CPU. cell "kernel": variant is a kernel of kernels/cuda,
 * config its build constants but the format, problem.m the rows of a call (of experts: tokens), and
 * threads 1. "cpu_gpu_split" and "prefill_offload" are about both sides; their config is the choice
 * as text (dispatch/plan/plan_device.h), threads those of the CPU. Rows of the device "emulated"
 * hold what a pretended clock said. */
typedef struct kt_table_device_row {
    char device[128], target[8]; /* kt_device_facts: name, and the target that code is made for */
    int driver, mhz; /* when it was measured: CUDA's version as 13000, the clock; or 0 */
    char cell[16];
    kt_table_row row;
} kt_table_device_row;

/* Rows are kept in the order of kt_table_key_order and change through kt_table_put only; plans
 * in the order of cell, the row's key and routing, through kt_table_put_plan. */
struct kt_table {
    kt_fingerprint fingerprint;
    char build[96];     /* compiler and project version */
    char workload[64];  /* model or workload name the cells came from */
    char created[32];   /* ISO 8601 */
    uint64_t shape_id;  /* of that model (dispatch/model/resolve.h); 0 = not known */
    kt_table_row *rows; /* owned */
    size_t n_rows, capacity;
    kt_table_plan *plans; /* owned */
    size_t n_plans;
    kt_table_device_row *device_rows; /* owned; by device, target, cell and key */
    size_t n_device_rows;
};

/* Deterministic text with a checksum, written atomically. */
kt_status kt_table_save(const kt_table *table, const char *path, kt_err *err);
kt_status kt_table_create(kt_table **out, kt_err *err); /* empty */
/* Copy row in, replacing a row of the same key (problem with m, threads). Numbers are rounded to
 * what the file holds: times to 0.1 ns, interval and error to 4 decimals and digits. Refuses a row
 * that makes no sense, naming the field. */
kt_status kt_table_put(kt_table *table, const kt_table_row *row, kt_err *err);
/* A time whose half interval is wider than this says little: the machine was busy while it was
 * taken. */
#define KT_ROW_WIDE 0.10
/* Half the interval, relative to the time. */
double kt_row_half_interval(const kt_table_row *row);
/* Is the interval wide? Such a row is no decision: it is not counted as one and is raced again.
 * It is told by the figures, so that tables and journals of any age are judged alike. */
bool kt_row_is_undecided(const kt_table_row *row);
/* "undecided", or the row's own status. */
const char *kt_row_status(const kt_table_row *row);
/* An undecided row whose interval does not exclude its default: the default is the safer choice. */
bool kt_row_is_doubtful(const kt_table_row *row);

/* Row of exactly this key, or NULL. */
const kt_table_row *kt_table_find(const kt_table *table, const kt_problem *problem, int threads);

/* The same for plan cells: of one key are those of one cell, problem, threads, tokens and
 * routing. */
kt_status kt_table_put_plan(kt_table *table, const kt_table_plan *plan, kt_err *err);
const kt_table_plan *kt_table_find_plan(const kt_table *table, const kt_table_plan *key);

/* Of one key are rows of one device, target, cell, problem with m, and threads. */
kt_status kt_table_put_device_row(kt_table *table, const kt_table_device_row *row, kt_err *err);
const kt_table_device_row *kt_table_find_device_row(const kt_table *table,
                                                    const kt_table_device_row *key);

/* Order of rows: problem without m, then threads, then m. Zero = same key. A down format that is
 * the weights' own counts as none (kt_problem.down), a value size that is the head's as 0
 * (kt_problem.v). */
int kt_table_key_order(const kt_problem *a, int a_threads, const kt_problem *b, int b_threads);
/* Do both have the same weights, so that they share packed bytes? (All but m.) */
bool kt_same_weights(const kt_problem *a, const kt_problem *b);
/* The format of the down projection, whether it is spelled out or not. */
kt_weight_format kt_problem_down(const kt_problem *p);

/* The m buckets of autotuning cells: ascending, last = 4096. */
extern const int32_t kt_m_buckets[];
extern const int kt_m_bucket_count;

#endif
