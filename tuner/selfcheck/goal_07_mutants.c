/* Are wrong kernels rejected before a clock runs? SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/verify/verdicts.h"

/* The plain kernel, found by name so that faults wrap what the build has. */
extern const kt_variant kt_variant_any_any_p64__scalar;

static void honest(const kt_gemm_call *call) {
    kt_variant_any_any_p64__scalar.gemm(call);
}
static float *first_of(const kt_gemm_call *call) {
    return call->c + 64 * call->panel_begin;
}
static float *last_of(const kt_gemm_call *call) {
    int64_t width = call->problem->n - 64 * call->panel_begin;
    return first_of(call) + (width < 64 ? width : 64) - 1;
}

static void raise_fault(void) {
    raise(SIGSEGV);
}
static void read_past(const kt_gemm_call *call) {
    volatile char byte;
    for (size_t i = 0; i < 1 << 20; i += 4096) byte = ((const char *)call->a)[i];
    (void)byte;
}

/* One slip each, of the kinds that kernels have. */
#define FAULT(name, before, after)               \
    static void name(const kt_gemm_call *call) { \
        kt_gemm_call x = *call;                  \
        before;                                  \
        if (x.m > 0) honest(&x);                 \
        after;                                   \
    }
FAULT(last_column_off, (void)0, *last_of(call) *= 1.01f)
FAULT(first_column_off, (void)0, *first_of(call) *= 0.99f)
FAULT(sign_lost, (void)0, *first_of(call) = fabsf(*first_of(call)) + 1)
FAULT(nan_out, (void)0, *last_of(call) = NAN)
FAULT(infinite_out, (void)0, *first_of(call) = INFINITY)
FAULT(zeroed_column, (void)0, *last_of(call) = 0)
FAULT(odd_tail_of_rows, x.m -= x.m % 4 == 3, (void)0)
FAULT(last_row_left_out, x.m -= x.m > 1, (void)0)
FAULT(only_first_row, x.m = 1, (void)0)
FAULT(last_panel_left_out, x.panel_end -= x.panel_end - x.panel_begin > 1, (void)0)
FAULT(first_panel_twice, x.panel_end = x.panel_begin + 1, (void)0)
FAULT(row_swapped, x.a = (const char *)call->a + (call->m > 1 ? call->a_stride : 0);
      x.m -= call->m > 1, (void)0)
FAULT(stride_short, x.a_stride = call->a_stride - (call->m > 1 ? 64 : 0), (void)0)
FAULT(ldc_of_n, x.ldc = call->problem->n + (call->m > 1), (void)0)
FAULT(adds_always, x.accumulate = 1, (void)0)
FAULT(never_adds, x.accumulate = 0, (void)0)
FAULT(writes_past, (void)0, call->c[call->problem->n] = 0)
FAULT(writes_before, (void)0, call->c[-1] = 1)
FAULT(writes_row_past, (void)0, call->c[call->m * call->ldc] = 1)
FAULT(shifted_out, x.c = call->c + 1, (void)0)
FAULT(crashes, (void)0, raise_fault())
FAULT(reads_past, (void)0, read_past(call))
#undef FAULT

static const struct {
    const char *name;
    void (*gemm)(const kt_gemm_call *call);
} faults[] = {
    {"last_column_off", last_column_off},
    {"first_column_off", first_column_off},
    {"sign_lost", sign_lost},
    {"nan_out", nan_out},
    {"infinite_out", infinite_out},
    {"zeroed_column", zeroed_column},
    {"odd_tail_of_rows", odd_tail_of_rows},
    {"last_row_left_out", last_row_left_out},
    {"only_first_row", only_first_row},
    {"last_panel_left_out", last_panel_left_out},
    {"first_panel_twice", first_panel_twice},
    {"row_swapped", row_swapped},
    {"stride_short", stride_short},
    {"ldc_of_n", ldc_of_n},
    {"adds_always", adds_always},
    {"never_adds", never_adds},
    {"writes_past", writes_past},
    {"writes_before", writes_before},
    {"writes_row_past", writes_row_past},
    {"shifted_out", shifted_out},
    {"crashes", crashes},
    {"reads_past", reads_past},
};
enum { N_FAULTS = sizeof faults / sizeof *faults, N_FORMATS = 3 };

/* Gate every fault on weights of one format; names of what slipped through are appended to missed. */
static kt_status gate_format(kt_check *c, kt_weight_format weights, kt_act_format acts,
                             int *rejected, char *missed, size_t missed_bytes, kt_err *err) {
    kt_problem q = {.op = KT_OP_GEMM, .weights = weights, .acts = acts, .m = 8, .n = 131, .k = 96};
    kt_gate_limits limits = {.seed = c->seed,
                             .deadline_ns = kt_clock_ns() + 60000000000,
                             .stop = c->stop,
                             .stop_arg = c->stop_arg,
                             .seconds_each = 2};
    kt_variant made[N_FAULTS];
    kt_choice choices[N_FAULTS];
    kt_gate_result results[N_FAULTS];

    for (int i = 0; i < N_FAULTS; i++) {
        made[i] = kt_variant_any_any_p64__scalar;
        made[i].name = faults[i].name;
        made[i].gemm = faults[i].gemm;
        choices[i] = (kt_choice){.variant = &made[i]};
    }
    KT_TRY(kt_gate_choices(&q, choices, N_FAULTS, &limits, results, err));
    for (int i = 0; i < N_FAULTS; i++) {
        size_t used = strlen(missed);
        *rejected += !results[i].passed;
        if (results[i].passed)
            snprintf(missed + used, missed_bytes - used, " %s/%s", faults[i].name,
                     kt_weight_format_name(weights));
    }
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    static const struct {
        kt_weight_format weights;
        kt_act_format acts;
    } formats[N_FORMATS] = {
        {KT_W_BF16, KT_A_BF16}, {KT_W_INT8_CHANNEL, KT_A_INT8_G32}, {KT_W_INT4_G32, KT_A_INT8_G32}};
    char missed[160] = "";
    int rejected = 0;

    for (int f = 0; f < N_FORMATS; f++)
        KT_TRY(gate_format(c, formats[f].weights, formats[f].acts, &rejected, missed, sizeof missed,
                           err));
    kt_check_at_least(
        c, "faulty variants rejected", 100.0 * rejected / (N_FORMATS * N_FAULTS), 100, "%",
        "%d faults in the plain GEMM of %d formats, gated, never timed;%s%s; faults in "
        "kernels' sources: ctest -R mutation",
        N_FAULTS, N_FORMATS, *missed ? " missed:" : "", missed);
    return KT_OK;
}

const kt_goal kt_goal_07_mutants = {7, "gate rejects faults", measure, false};
