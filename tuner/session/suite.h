/* Bench suites: how good the kernels are, as fractions of what the machine and others can do,
 * measured in the same run. A suite is a table of rows in a file of its own (line_suite.c,
 * cpu_suite.c).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SUITE_H
#define KT_TUNER_SUITE_H

#include <stdbool.h>

#include "base/pool.h"
#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "kernels/router/router_select.h"
#include "tuner/measure/stats.h"

#define KT_SUITE_ROWS 112

/* A core may have spells, of a tenth of a second to seconds, in which a kernel runs at 0.8 of
 * its speed and the ceilings do not; and some pages are slower than others. So all rows are
 * measured one after the other, then all again, each time for a short while in a new process on
 * freshly mapped weights. Six times: the least and the largest of six enclose their median with
 * 97 %. */
#define KT_SUITE_PLACEMENTS 6

/* What a row measures. */
typedef enum kt_suite_kind {
    KT_ROW_EXPERTS = 0, /* an expert layer as a fraction of a ceiling */
    KT_ROW_DENSE,       /* a dense GEMM against the best library */
    KT_ROW_SHAPES,    /* the worst of all dense shapes of Qwen3-30B-A3B against the best library */
    KT_ROW_SCALING,   /* an expert layer on two threads against one */
    KT_ROW_NEIGHBOUR, /* an expert layer on all cores while another process is busy */
    KT_ROW_MODEL,     /* whole layers, by `kt bench --synthetic` in a process of its own */
    KT_ROW_ACCURACY,  /* the error of a dense GEMM */
    KT_ROW_KEPT, /* what keeps something of a sequence (attention ...) as a fraction of a ceiling */
    KT_ROW_ROWS, /* norms and routers as a fraction of a ceiling */
    KT_ROW_KINDS
} kt_suite_kind;

/* What an expert row, or one of KEPT or ROWS, is a fraction of. */
typedef enum kt_suite_ceiling {
    KT_OF_STREAM, /* packed bytes per time over the read stream */
    KT_OF_PEAK, /* operations per time over the peak of the best multiply-add for the activations */
    KT_OF_ROOFLINE, /* the larger of both times over the time */
    KT_OF_COPY      /* of NORM: the time of copying the rows over the time */
} kt_suite_ceiling;

/* Which figure of a model or accuracy row. */
typedef enum kt_suite_figure {
    KT_MODEL_PREFILL_OF_PEAK,
    KT_MODEL_DECODE_OF_STREAM,
    KT_MODEL_PREFILL_SCALING, /* two threads over one */
    KT_MODEL_DECODE_WAITING,  /* share of the threads' time: barriers and tails of phases */
    KT_ERROR_TO_WEIGHTS,      /* with encoded activations, against the dequantised weights */
    /* The same against the original weights, over the error of the dequantised ones. */
    KT_ERROR_OVER_FORMAT
} kt_suite_figure;

/* A fused expert layer (or, of DENSE and ACCURACY, a GEMM of `intermediate` outputs and `hidden`
 * inputs) of random weights, cold, in 2 MiB pages. */
typedef struct kt_suite_spec {
    const char *name;
    kt_weight_format weights;
    kt_suite_ceiling of;
    int64_t hidden, intermediate, experts, topk;
    int64_t m;             /* rows of each active expert, or */
    int64_t spread_tokens; /* so many tokens, spread evenly over all experts */
    double bar;            /* 0 = for information */
    kt_suite_kind kind;
    kt_suite_figure figure;
    int threads;     /* 0 = as the user says */
    kt_isa only;     /* 0 = all; else nothing beyond these instructions */
    bool at_most;    /* the bar is an upper one */
    kt_problem kept; /* of KEPT: all of it; m rows at the end of the context, cold. Of ROWS, too */
    kt_norm_kind norm;   /* of ROWS that are norms */
    kt_router_rule rule; /* of ROWS that are routers */
} kt_suite_spec;

typedef struct kt_suite {
    const char *name;
    const char *about; /* one line */
    const kt_suite_spec *specs;
    int n_specs; /* <= KT_SUITE_ROWS */
    double seconds_per_row;
} kt_suite;

extern const kt_suite kt_suite_line, kt_suite_cpu;
const kt_suite *kt_suite_find(const char *name); /* NULL = unknown */

typedef struct kt_suite_row {
    char name[40], unit[40];
    kt_suite_kind kind;
    double measured;    /* median over the placements, each the median of its paired fractions */
    double bar;         /* 0 = for information */
    kt_interval spread; /* 95 %, of measured: what another placement may say */
    double placement[KT_SUITE_PLACEMENTS]; /* their figures, in order of time */
    int n_placements;                      /* 0 = a row that is measured once */
    double least_ns[2]; /* of the ceiling (or the other side) and the kernel, over all rounds */
    double least_times; /* the figure by these: without whatever disturbs either */
    double rate;    /* of the kernel: GB/s of weights, or Gop/s; of ACCURACY its error, percent */
    double ceiling; /* in the same unit, in the same rounds; of ACCURACY the format's error */
    bool is_gbs;    /* which of both */
    char contender[176];
    int rounds;
    bool at_most; /* the bar is an upper one */
    /* Three states: ok (it ran and kept its bar, if any), skipped (this machine cannot, or a
     * library hangs: no failure), and neither: a miss, or a failure of ours with a note. */
    bool skipped, ok;
    char detail[224]; /* of SHAPES: the figure of every shape and m; else "" */
    char note[128];   /* why it did not run; "" = it did */
} kt_suite_row;

typedef struct kt_suite_options {
    int threads;
    double
        seconds; /* of timing, for all rows; 0 = the suite's. Choosing the variants comes on top */
    uint64_t seed;
    size_t rotation;  /* bytes that take turns in rows of ROWS and KEPT; 0 = KT_SUITE_ROTATION */
    double row_limit; /* seconds until a row is given up as hanging; 0 = two minutes */
    const char *rows; /* only those whose name matches this glob; NULL = all */
    const char *kt;   /* the runtime's program; NULL = the one beside this program */
    bool (*stop)(void *arg); /* may be NULL */
    void *stop_arg;
} kt_suite_options;

/* Run the rows in order, KT_SUITE_PLACEMENTS times. The first time the fastest correct variant
 * is raced for; then, and on each further placement, kernel and ceilings take turns over the
 * same memory. A row that cannot run says why. Refuses a glob that matches no row. After a stop
 * rows hold what they have. */
kt_status kt_suite_run(const kt_suite *suite, const kt_registry *registry,
                       const kt_fingerprint *machine, const kt_suite_options *options,
                       kt_suite_row rows[KT_SUITE_ROWS], int *n_rows, kt_err *err);

#endif
