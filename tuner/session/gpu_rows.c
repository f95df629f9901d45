/* How each kind of row of a device is measured. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/formats/format.h"
#include "tuner/session/gpu_suite_impl.h"
#include "tuner/space/device_prior.h"

enum { SMALL_N = 32, SMALL_K = 64, SMALL_EXPERTS = 4, SMALL_TOPK = 2, SMALL_ROWS = 12 };
/* Of the free memory, for weights; rows and what kernels leave between them take the rest. */
static const double weight_share = 0.7;

/* A kernel at its work, as a side of rounds. */
typedef struct bench_work {
    kt_device_bench bench;
    double operations; /* of a call */
} bench_work;

/* ---- layers ---- */

static int64_t at_least(kt_weight_format format, int64_t size) {
    const int64_t block = kt_format_find(format)->block;
    return block > size ? block : size;
}

/* The row's layer, or a small one of the same format. */
static kt_problem problem_of(const kt_gpu_lab *lab, const kt_gpu_spec *spec,
                             kt_weight_format weights) {
    kt_problem p = {.op = spec->experts ? KT_OP_MOE_FFN : KT_OP_GEMM,
                    .weights = weights,
                    .m = spec->rows,
                    .n = spec->n,
                    .k = spec->k,
                    .experts = spec->experts,
                    .topk = spec->topk};

    if (!lab->o->is_small) return p;
    p.n = at_least(weights, SMALL_N);
    p.k = at_least(weights, SMALL_K);
    if (p.experts) p.experts = SMALL_EXPERTS, p.topk = SMALL_TOPK;
    if (p.m > SMALL_ROWS) p.m = SMALL_ROWS;
    return p;
}

static double layer_bytes(const kt_problem *p) {
    const size_t up = kt_device_row_bytes(p->weights, p->k),
                 down = kt_device_row_bytes(p->weights, p->n);

    if (p->op == KT_OP_GEMM) return (double)p->n * (double)up;
    return (double)p->experts * (2 * (double)p->n * (double)up + (double)p->k * (double)down);
}

/* Fewer experts where there is no memory for all of them, which the row says. */
static kt_status fit(const kt_gpu_lab *lab, kt_problem *p, kt_suite_row *row, kt_err *err) {
    const int64_t all = p->experts;
    uint64_t left = 0;

    KT_TRY(kt_device_memory(lab->seat.d, &left, NULL, err));
    while (layer_bytes(p) > weight_share * (double)left && p->experts / 2 >= p->topk)
        p->experts /= 2;
    if (p->experts < all)
        snprintf(row->detail, sizeof row->detail,
                 "%lld of %lld experts: the device has no memory for more", (long long)p->experts,
                 (long long)all);
    return KT_OK;
}

static kt_status put_bench(void *arg, int call, kt_err *err) {
    bench_work *w = arg;
    return kt_device_bench_put(&w->bench, call, err);
}

/* The choice, ready to run. Races come before: one that loses the device takes another. */
static kt_status take_kernel(kt_gpu_lab *lab, const kt_problem *p, const kt_device_choice *choice,
                             bench_work *w, kt_gpu_side *side, kt_err *err) {
    const kt_device_job job = kt_device_job_of(p, false);
    const double slots = p->op == KT_OP_GEMM ? 1 : 3 * (double)p->topk;
    int local;

    w->operations = 2 * (double)p->m * slots * (double)p->n * (double)p->k;
    KT_TRY(kt_device_bench_open(lab->seat.d, &job, p->m, kt_gpu_lab_rotation(lab), lab->o->seed,
                                &w->bench, err));
    *side = (kt_gpu_side){.put = put_bench,
                          .arg = w,
                          .pretended_ns = kt_device_prior_ns(
                              choice, &job, p->m, kt_device_about(lab->seat.d)->multiprocessors)};
    return kt_device_bench_take(&w->bench, choice, &local, err);
}

/* "moe_decode warps=4,tiles=1, best of 24 (2 fell out)" */
static void name_choice(const kt_gpu_kept *k, char out[128]) {
    char config[72];
    const size_t n =
        (size_t)snprintf(out, 128, "%.24s %s, best of %d", k->choice.kernel->name,
                         kt_device_config_format(&k->choice, config, sizeof config), k->n_raced);

    if (k->n_dropped && n < 128) snprintf(out + n, 128 - n, " (%d fell out)", k->n_dropped);
}

/* ---- figures ---- */

static double median(const double *x, int n) {
    return kt_quantile(x, n, 0.5);
}

/* The figure is the median of the fractions of rounds. */
static void settle(kt_suite_row *row, const double *fraction, int rounds) {
    row->spread = kt_median_interval(fraction, rounds, 0.95);
    row->measured = median(fraction, rounds);
    row->rounds = rounds;
}

static kt_status measure_copy(kt_gpu_lab *lab, kt_suite_row *row, kt_err *err) {
    double rate[KT_GPU_ROUNDS], bytes;
    kt_gpu_side side;
    int rounds;

    KT_TRY(kt_gpu_lab_copies(lab, &side, &bytes, err));
    KT_TRY(kt_gpu_lab_rounds(lab, &side, 1, &rounds, err));
    for (int i = 0; i < rounds; i++) rate[i] = bytes / side.ns[i];
    settle(row, rate, rounds);
    row->rate = row->ceiling = row->measured;
    snprintf(row->contender, sizeof row->contender, "copies of the driver");
    return KT_OK;
}

/* ---- peaks ---- */

static kt_lt_kind kind_of(kt_weight_format weights) {
    return weights == KT_W_FP8_B128       ? KT_LT_E4M3
           : weights == KT_W_INT8_CHANNEL ? KT_LT_INT8
                                          : KT_LT_BF16;
}

static kt_status measure_peak(kt_gpu_lab *lab, kt_lt_kind kind, kt_suite_row *row, kt_err *err) {
    double rate[KT_GPU_ROUNDS];
    kt_gpu_product p;
    kt_gpu_side side = {.put = kt_gpu_product_put, .arg = &p};
    kt_status st;
    int rounds;

    KT_TRY(kt_gpu_product_large(lab, kind, &p, err));
    st = kt_gpu_lab_rounds(lab, &side, 1, &rounds, err);
    for (int i = 0; i < rounds && st == KT_OK; i++) rate[i] = p.operations / side.ns[i] / 1e3;
    kt_gpu_product_drop(lab, &p);
    KT_TRY(st);
    settle(row, rate, rounds);
    row->rate = row->ceiling = lab->peak[kind] = row->measured * 1e3;
    snprintf(row->contender, sizeof row->contender, "%s, %s", kt_lt_name(lab->lt),
             kt_lt_kind_name(kind));
    return KT_OK;
}

/* A peak whose row has not run: by a short measurement. */
static kt_status need_peak(kt_gpu_lab *lab, kt_lt_kind kind, kt_err *err) {
    kt_suite_row aside;
    const int64_t end = lab->row_end_ns;
    kt_status st = KT_OK;

    lab->row_end_ns = 0; /* as few rounds as there may be */
    if (lab->peak[kind] == 0) st = measure_peak(lab, kind, &aside, err);
    lab->row_end_ns = end;
    return st;
}

/* ---- of copies ---- */

static kt_status compare_with_copies(kt_gpu_lab *lab, bench_work *w, kt_gpu_side *side,
                                     kt_suite_row *row, kt_err *err) {
    double rate[KT_GPU_ROUNDS], ceiling[KT_GPU_ROUNDS], fraction[KT_GPU_ROUNDS], copied;
    int rounds;

    KT_TRY(kt_gpu_lab_copies(lab, &side[1], &copied, err));
    KT_TRY(kt_gpu_lab_rounds(lab, side, 2, &rounds, err));
    for (int i = 0; i < rounds; i++) {
        rate[i] = kt_device_bench_bytes(&w->bench, side[0].calls) / side[0].ns[i];
        ceiling[i] = copied / side[1].ns[i];
        fraction[i] = rate[i] / ceiling[i];
    }
    settle(row, fraction, rounds);
    row->rate = median(rate, rounds);
    row->ceiling = median(ceiling, rounds);
    return KT_OK;
}

static kt_status measure_of_copy(kt_gpu_lab *lab, const kt_gpu_spec *spec, kt_suite_row *row,
                                 kt_err *err) {
    kt_problem p = problem_of(lab, spec, spec->weights);
    bench_work w = {.bench = {.d = NULL}};
    const kt_gpu_kept *kept;
    kt_gpu_side side[2];
    kt_status st;

    if (p.op == KT_OP_MOE_FFN) KT_TRY(fit(lab, &p, row, err));
    KT_TRY(kt_gpu_lab_pick(lab, &p, &kept, err));
    name_choice(kept, row->contender);
    st = take_kernel(lab, &p, &kept->choice, &w, &side[0], err);
    if (st == KT_OK) st = compare_with_copies(lab, &w, side, row, err);
    kt_device_bench_close(&w.bench);
    return st;
}

/* ---- prefill ---- */

/* What a layer's time is held against: sides behind the kernel's own. */
typedef struct products {
    kt_gpu_product part[2];
    double scale; /* of the time of all parts, for the layer's operations */
    int n;
} products;

static kt_status make_products(kt_gpu_lab *lab, const kt_problem *p, const bench_work *w,
                               products *out, kt_err *err) {
    const int64_t all = p->m * p->topk;

    *out = (products){.scale = 1, .n = 1};
    if (p->weights == KT_W_FP8_B128) {
        KT_TRY(kt_gpu_product_large(lab, KT_LT_E4M3, &out->part[0], err));
        out->scale = w->operations / out->part[0].operations;
        return KT_OK;
    }
    KT_TRY(kt_gpu_product_make(lab, KT_LT_BF16, all, 2 * p->n, p->k, &out->part[0], err));
    out->n = 2;
    return kt_gpu_product_make(lab, KT_LT_BF16, all, p->k, p->n, &out->part[1], err);
}

static kt_status compare_with_products(kt_gpu_lab *lab, const bench_work *w, products *of,
                                       kt_gpu_side *side, kt_suite_row *row, kt_err *err) {
    const double bytes = kt_device_bench_bytes(&w->bench, 1);
    double fraction[KT_GPU_ROUNDS], ceiling[KT_GPU_ROUNDS], product[KT_GPU_ROUNDS],
        read[KT_GPU_ROUNDS], copied;
    int rounds;

    KT_TRY(kt_gpu_lab_copies(lab, &side[1], &copied, err));
    for (int i = 0; i < of->n; i++)
        side[2 + i] = (kt_gpu_side){.put = kt_gpu_product_put, .arg = &of->part[i]};
    KT_TRY(kt_gpu_lab_rounds(lab, side, 2 + of->n, &rounds, err));
    for (int i = 0; i < rounds; i++) {
        product[i] = of->scale * (side[2].ns[i] + (of->n > 1 ? side[3].ns[i] : 0));
        read[i] = bytes / copied * side[1].ns[i];
        ceiling[i] = product[i] > read[i] ? product[i] : read[i];
        fraction[i] = ceiling[i] / side[0].ns[i];
    }
    settle(row, fraction, rounds);
    row->rate = w->operations / median(side[0].ns, rounds);
    row->ceiling = w->operations / median(ceiling, rounds);
    snprintf(row->detail, sizeof row->detail,
             "%.1f us; products of %s %.1f us, weights at the rate of copies %.1f us",
             median(side[0].ns, rounds) / 1e3, kt_lt_name(lab->lt), median(product, rounds) / 1e3,
             median(read, rounds) / 1e3);
    return KT_OK;
}

static kt_status measure_of_products(kt_gpu_lab *lab, const kt_gpu_spec *spec, kt_suite_row *row,
                                     kt_err *err) {
    const kt_problem p = problem_of(lab, spec, spec->weights);
    bench_work w = {.bench = {.d = NULL}};
    products of = {.n = 0};
    const kt_gpu_kept *kept;
    kt_gpu_side side[4];
    kt_status st;

    if (!lab->lt && lab->was_library_asked) /* before a race that would be for nothing */
        return kt_fail(err, KT_E_UNSUPPORTED, "%s", lab->no_library.message);
    KT_TRY(kt_gpu_lab_pick(lab, &p, &kept, err));
    name_choice(kept, row->contender);
    row->bar = kt_gpu_bar_of(spec, kept->choice.kernel);
    st = take_kernel(lab, &p, &kept->choice, &w, &side[0], err);
    if (st == KT_OK) st = make_products(lab, &p, &w, &of, err);
    if (st == KT_OK) st = compare_with_products(lab, &w, &of, side, row, err);
    for (int i = 0; i < 2; i++) kt_gpu_product_drop(lab, &of.part[i]);
    kt_device_bench_close(&w.bench);
    return st;
}

/* ---- over BF16 ---- */

/* The bar is for GPUs whose INT8 tensor cores are so much faster: by the peaks of cuBLASLt. */
static void decide_bar(kt_gpu_lab *lab, const char *other, kt_suite_row *row) {
    kt_err why = {KT_OK, ""};
    double int8, bf16;

    if (need_peak(lab, KT_LT_BF16, &why) != KT_OK || need_peak(lab, KT_LT_INT8, &why) != KT_OK) {
        row->bar = 0;
        snprintf(row->detail, sizeof row->detail, "over %s; no bar, as peaks are unknown: %.50s",
                 other, why.message);
        return;
    }
    int8 = lab->peak[KT_LT_INT8];
    bf16 = lab->peak[KT_LT_BF16];
    row->bar = kt_gpu_bar_over_bf16(row->bar, int8, bf16);
    snprintf(row->detail, sizeof row->detail,
             "over %.100s; peaks of INT8 and BF16 %d and %d Top/s, %d %%%s", other,
             (int)(int8 / 1e3), (int)(bf16 / 1e3), (int)(100 * int8 / bf16),
             row->bar > 0 ? "" : ": no bar");
}

static kt_status compare(kt_gpu_lab *lab, const bench_work *w, kt_gpu_side *side, kt_suite_row *row,
                         kt_err *err) {
    double fraction[KT_GPU_ROUNDS];
    int rounds;

    KT_TRY(kt_gpu_lab_rounds(lab, side, 2, &rounds, err));
    for (int i = 0; i < rounds; i++) fraction[i] = side[1].ns[i] / side[0].ns[i];
    settle(row, fraction, rounds);
    row->rate = w->operations / median(side[0].ns, rounds);
    row->ceiling = w->operations / median(side[1].ns, rounds);
    return KT_OK;
}

static kt_status measure_over_bf16(kt_gpu_lab *lab, const kt_gpu_spec *spec, kt_suite_row *row,
                                   kt_err *err) {
    const kt_problem p = problem_of(lab, spec, spec->weights),
                     other = problem_of(lab, spec, KT_W_BF16);
    bench_work w = {.bench = {.d = NULL}}, bf16 = w;
    const kt_gpu_kept *kept, *of_bf16;
    kt_gpu_side side[2];
    char name[128];
    kt_status st;

    KT_TRY(kt_gpu_lab_pick(lab, &other, &of_bf16, err));
    KT_TRY(kt_gpu_lab_pick(lab, &p, &kept, err));
    name_choice(kept, row->contender);
    name_choice(of_bf16, name);
    st = take_kernel(lab, &other, &of_bf16->choice, &bf16, &side[1], err);
    if (st == KT_OK) st = take_kernel(lab, &p, &kept->choice, &w, &side[0], err);
    if (st == KT_OK) st = compare(lab, &w, side, row, err);
    kt_device_bench_close(&w.bench);
    kt_device_bench_close(&bf16.bench);
    KT_TRY(st);
    decide_bar(lab, name, row);
    return KT_OK;
}

kt_status kt_gpu_row_measure(kt_gpu_lab *lab, const kt_gpu_spec *spec, kt_suite_row *row,
                             kt_err *err) {
    switch (spec->kind) {
    case KT_GPU_COPY: return measure_copy(lab, row, err);
    case KT_GPU_PEAK: return measure_peak(lab, kind_of(spec->weights), row, err);
    case KT_GPU_OF_COPY: return measure_of_copy(lab, spec, row, err);
    case KT_GPU_OF_PRODUCTS: return measure_of_products(lab, spec, row, err);
    case KT_GPU_OVER_BF16: return measure_over_bf16(lab, spec, row, err);
    }
    return kt_fail(err, KT_E_INTERNAL, "row %s is of no kind", spec->name);
}
