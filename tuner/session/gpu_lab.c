/* What rows of a device share: the device, its copies, cuBLASLt, the stopwatch.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "dispatch/device/cuda_driver.h"
#include "dispatch/device/nvml.h"
#include "tuner/session/gpu_suite_impl.h"
#include "tuner/space/device_prior.h"

enum {
    MOST_CALLS = 50,
    LEAST_ROUNDS = 5,
    PRETENDED_ROUNDS = 3,
    LARGE = 8192, /* rows, outputs and inputs of the product that peaks are measured by */
    SMALL_LARGE = 64,
    WAY_CALLS = 3,
    PATTERN = 250112, /* bytes of random numbers, which repeat; no row begins like another one */
    MOST_RACED = 48,
    PRETENDED_RACED = 2
};
static const double call_target_ns = 200e3, pretended_copy_ns_per_byte = 1 / 1500.0;
/* A race may take this part of what is left of a row's time. */
static const double race_share = 0.6;
/* More than four times the largest cache of the GPUs that are known; both places of a copy. */
static const size_t copy_bytes = (size_t)256 << 20, small_copy_bytes = (size_t)1 << 16;

/* ---- the device ---- */

/* What figures depend on besides the code. */
static void look(const kt_gpu_lab *lab, kt_gpu_facts *facts) {
    const kt_device_facts *f = kt_device_about(lab->seat.d);
    char why[256];
    kt_gpus gpus;
    kt_nvml *n;

    *facts = (kt_gpu_facts){.multiprocessors = f->multiprocessors, .memory_bytes = f->memory_bytes};
    snprintf(facts->device, sizeof facts->device, "%s", f->name);
    snprintf(facts->class, sizeof facts->class, "%s", f->class);
    snprintf(facts->target, sizeof facts->target, "%s", f->target->name);
    if (lab->lt) snprintf(facts->library, sizeof facts->library, "%s", kt_lt_name(lab->lt));
    if (strcmp(f->class, "cuda") != 0) return;
    kt_gpus_probe(&gpus);
    facts->driver = gpus.driver;
    n = f->ordinal < gpus.n ? kt_nvml_start(why, sizeof why) : NULL;
    if (!n) return;
    facts->mhz = kt_nvml_look(n, gpus.gpu[f->ordinal].bus).most_sm_mhz;
    if (facts->mhz < 0) facts->mhz = 0;
    kt_nvml_stop(n);
}

/* Asked for once: what is not there is not there later, either. */
static kt_status need_library(kt_gpu_lab *lab, kt_err *err) {
    if (!lab->was_library_asked) kt_lt_start(lab->seat.d, &lab->lt, &lab->no_library);
    lab->was_library_asked = true;
    if (lab->lt) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%s", lab->no_library.message);
}

kt_status kt_gpu_lab_begin(const kt_gpu_options *o, bool needs_library, kt_gpu_lab *lab,
                           kt_gpu_facts *facts, kt_err *err) {
    *lab = (kt_gpu_lab){.o = o, .seat = {.options = o->device}};
    KT_TRY(kt_device_open(o->device, &lab->seat.d, err));
    if (needs_library) need_library(lab, NULL);
    look(lab, facts);
    return KT_OK;
}

bool kt_gpu_lab_is_spoilt(kt_gpu_lab *lab) {
    return !lab->seat.d || lab->seat.n_lost > 0 || kt_device_sync(lab->seat.d, NULL, NULL) != KT_OK;
}

/* A race lost the device and took another one: what belonged to the first ended with it. */
static void forget_device(kt_gpu_lab *lab) {
    lab->clock = (kt_device_clock){.d = NULL};
    lab->copy_from = lab->copy_to = NULL;
    lab->copy_bytes = 0;
    lab->lt = NULL;
    lab->was_library_asked = false;
    memset(lab->is_checked, 0, sizeof lab->is_checked);
}

/* ---- races ---- */

static bool is_same(const kt_problem *a, const kt_problem *b) {
    return a->op == b->op && a->weights == b->weights && a->m == b->m && a->n == b->n &&
           a->k == b->k && a->experts == b->experts && a->topk == b->topk;
}

static void note_dropped(void *arg, const char *what) {
    kt_gpu_lab *lab = arg;
    if (!*lab->first_out) snprintf(lab->first_out, sizeof lab->first_out, "%s", what);
}

static const kt_gpu_kept *find_kept(const kt_gpu_lab *lab, const kt_problem *problem) {
    for (int i = 0; i < lab->n_kept; i++)
        if (is_same(&lab->kept[i].problem, problem)) return &lab->kept[i];
    return NULL;
}

/* A job that no kernel is for is no failure; that none of them does it is one. */
static kt_status explain(const kt_gpu_lab *lab, kt_status st, int n_raced, const kt_err *why,
                         kt_err *err) {
    return kt_fail(err, n_raced ? KT_E_INTERNAL : st, "%.60s%s%s", why->message,
                   *lab->first_out ? "; out: " : "", lab->first_out);
}

kt_status kt_gpu_lab_pick(kt_gpu_lab *lab, const kt_problem *problem, const kt_gpu_kept **out,
                          kt_err *err) {
    const kt_device_job job = kt_device_job_of(problem, false);
    const int n_lost = lab->seat.n_lost;
    const int64_t now = kt_clock_ns();
    const kt_device_race race = {.seat = &lab->seat,
                                 .problem = *problem,
                                 .is_pretended = lab->o->is_pretended,
                                 .most = lab->o->is_small ? PRETENDED_RACED : MOST_RACED,
                                 .threads = lab->o->threads,
                                 .rotation = kt_gpu_lab_rotation(lab),
                                 .seed = lab->o->seed,
                                 .deadline_ns =
                                     now + (int64_t)(race_share * (double)(lab->row_end_ns - now)),
                                 .dropped = note_dropped,
                                 .arg = lab};
    kt_device_verdict verdict;
    kt_err why = {KT_OK, ""};
    kt_gpu_kept *k;
    kt_status st;

    *out = find_kept(lab, problem);
    if (*out) return KT_OK;
    lab->first_out[0] = 0;
    st = kt_device_race_run(&race, &verdict, &why);
    if (lab->seat.n_lost > n_lost) forget_device(lab);
    if (st != KT_OK) return explain(lab, st, verdict.n_contenders, &why, err);
    k = &lab->kept[lab->n_kept];
    *k = (kt_gpu_kept){
        .problem = *problem, .n_raced = verdict.n_contenders, .n_dropped = verdict.n_dropped};
    KT_TRY(kt_device_choice_parse(verdict.row.variant, verdict.row.config, &job, &k->choice, err));
    lab->n_kept++;
    *out = k;
    return KT_OK;
}

/* ---- rounds ---- */

/* Whatever makes code or memory does so now; then how many calls a sample is of. */
static kt_status warm_up(kt_gpu_lab *lab, kt_gpu_side *side, kt_err *err) {
    double once = 0;

    KT_TRY(side->put(side->arg, 0, err));
    KT_TRY(kt_device_sync(lab->seat.d, NULL, err));
    side->calls = 1;
    if (lab->o->is_pretended) return KT_OK;
    if (!lab->clock.d) KT_TRY(kt_device_clock_start(lab->seat.d, &lab->clock, err));
    KT_TRY(kt_device_clock_time(&lab->clock, side->put, side->arg, 1, &once, err));
    side->calls = (int)(call_target_ns / (once + 1)) + 1;
    if (side->calls > MOST_CALLS) side->calls = MOST_CALLS;
    return KT_OK;
}

kt_status kt_gpu_lab_rounds(kt_gpu_lab *lab, kt_gpu_side *side, int n, int *rounds, kt_err *err) {
    const int most = lab->o->is_pretended ? PRETENDED_ROUNDS : KT_GPU_ROUNDS;

    *rounds = 0;
    for (int i = 0; i < n; i++) KT_TRY(warm_up(lab, &side[i], err));
    while (*rounds < most && (*rounds < LEAST_ROUNDS || kt_clock_ns() < lab->row_end_ns)) {
        for (int i = 0; i < n; i++) {
            double *ns = &side[i].ns[*rounds];
            *ns = side[i].pretended_ns;
            if (lab->o->is_pretended) continue;
            KT_TRY(kt_device_clock_time(&lab->clock, side[i].put, side[i].arg, side[i].calls, ns,
                                        err));
        }
        ++*rounds;
    }
    return KT_OK;
}

/* ---- copies ---- */

static kt_status put_copy(void *arg, int call, kt_err *err) {
    const kt_gpu_lab *lab = arg;
    (void)call;

    return kt_device_copy(lab->seat.d, KT_STREAM_MAIN, lab->copy_to, lab->copy_from,
                          lab->copy_bytes, err);
}

kt_status kt_gpu_lab_copies(kt_gpu_lab *lab, kt_gpu_side *out, double *bytes, kt_err *err) {
    const size_t wanted = lab->o->is_small ? small_copy_bytes : copy_bytes;

    if (!lab->copy_from) KT_TRY(kt_device_alloc(lab->seat.d, wanted, &lab->copy_from, err));
    if (!lab->copy_to) KT_TRY(kt_device_alloc(lab->seat.d, wanted, &lab->copy_to, err));
    if (!lab->copy_bytes)
        KT_TRY(kt_device_clear(lab->seat.d, KT_STREAM_MAIN, lab->copy_from, wanted, err));
    lab->copy_bytes = wanted;
    *bytes = 2 * (double)wanted;
    *out = (kt_gpu_side){
        .put = put_copy, .arg = lab, .pretended_ns = *bytes * pretended_copy_ns_per_byte};
    return KT_OK;
}

/* ---- products of cuBLASLt ---- */

static void draw_pattern(kt_lt_kind kind, uint64_t seed, uint8_t *out) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (size_t i = 0; i < PATTERN; i += kt_lt_in_bytes(kind)) {
        if (kind == KT_LT_INT8) {
            out[i] = (uint8_t)kt_rng_below(&rng, 256);
        } else if (kind == KT_LT_E4M3) {
            out[i] = kt_f32_to_f8e4m3(kt_rng_normal(&rng));
        } else {
            const uint16_t half = kt_f32_to_bf16(kt_rng_normal(&rng));
            memcpy(out + i, &half, sizeof half);
        }
    }
}

/* Random numbers: a GPU is faster, and cooler, where they are all the same. */
static kt_status fill(kt_gpu_lab *lab, kt_lt_kind kind, uint64_t seed, size_t bytes, void **out,
                      kt_err *err) {
    size_t done = bytes < PATTERN ? bytes : PATTERN;
    uint8_t *pattern = malloc(PATTERN);
    kt_status st;

    if (!pattern) return kt_fail(err, KT_E_NOMEM, "no memory for random numbers");
    draw_pattern(kind, seed, pattern);
    st = kt_device_alloc(lab->seat.d, bytes, out, err);
    if (st == KT_OK) st = kt_device_upload(lab->seat.d, KT_STREAM_MAIN, *out, pattern, done, err);
    while (done < bytes && st == KT_OK) {
        const size_t more = done < bytes - done ? done : bytes - done;
        st = kt_device_copy(lab->seat.d, KT_STREAM_MAIN, (uint8_t *)*out + done, *out, more, err);
        done += more;
    }
    if (st == KT_OK) st = kt_device_sync(lab->seat.d, NULL, err);
    free(pattern);
    return st;
}

kt_status kt_gpu_product_put(void *arg, int call, kt_err *err) {
    const kt_gpu_product *p = arg;
    (void)call;

    return kt_lt_product_put(p->product, p->way, p->a, p->w, p->c, err);
}

/* A way that fails is left out, as long as the device is well. */
static kt_status choose_way(kt_gpu_lab *lab, kt_lt_kind kind, kt_gpu_product *p, kt_err *err) {
    double best = 0;
    int way = -1;

    if (!lab->clock.d) KT_TRY(kt_device_clock_start(lab->seat.d, &lab->clock, err));
    for (p->way = 0; p->way < kt_lt_product_ways(p->product); p->way++) {
        double ns = 0;
        kt_status st = kt_gpu_product_put(p, 0, err);
        KT_TRY(kt_device_sync(lab->seat.d, NULL, err));
        if (st == KT_OK)
            st = kt_device_clock_time(&lab->clock, kt_gpu_product_put, p, WAY_CALLS, &ns, err);
        if (st != KT_OK || (way >= 0 && ns >= best)) continue;
        best = ns;
        way = p->way;
    }
    p->way = way;
    if (way >= 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%s: no way to a product of %s runs", kt_lt_name(lab->lt),
                   kt_lt_kind_name(kind));
}

static kt_status make(kt_gpu_lab *lab, kt_lt_kind kind, int64_t m, int64_t n, int64_t k,
                      kt_gpu_product *p, kt_err *err) {
    const size_t in = kt_lt_in_bytes(kind);

    if (!lab->is_checked[kind]) KT_TRY(kt_lt_check(lab->lt, kind, err));
    lab->is_checked[kind] = true;
    p->operations = 2 * (double)m * (double)n * (double)k;
    KT_TRY(kt_lt_product_make(lab->lt, kind, m, n, k, &p->product, err));
    KT_TRY(fill(lab, kind, lab->o->seed, (size_t)(m * k) * in, &p->a, err));
    KT_TRY(fill(lab, kind, lab->o->seed + 1, (size_t)(n * k) * in, &p->w, err));
    KT_TRY(kt_device_alloc(lab->seat.d, (size_t)(m * n) * kt_lt_out_bytes(kind), &p->c, err));
    return choose_way(lab, kind, p, err);
}

kt_status kt_gpu_product_make(kt_gpu_lab *lab, kt_lt_kind kind, int64_t m, int64_t n, int64_t k,
                              kt_gpu_product *out, kt_err *err) {
    kt_status st;

    *out = (kt_gpu_product){.product = NULL};
    KT_TRY(need_library(lab, err));
    st = make(lab, kind, m, n, k, out, err);
    if (st != KT_OK) kt_gpu_product_drop(lab, out);
    return st;
}

void kt_gpu_product_drop(kt_gpu_lab *lab, kt_gpu_product *p) {
    kt_device_free(lab->seat.d, p->a);
    kt_device_free(lab->seat.d, p->w);
    kt_device_free(lab->seat.d, p->c);
    kt_lt_product_drop(p->product);
    *p = (kt_gpu_product){.product = NULL};
}

kt_status kt_gpu_product_large(kt_gpu_lab *lab, kt_lt_kind kind, kt_gpu_product *out, kt_err *err) {
    const int64_t size = lab->o->is_small ? SMALL_LARGE : LARGE;

    return kt_gpu_product_make(lab, kind, size, size, size, out, err);
}
