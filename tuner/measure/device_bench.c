/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/device_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/cuda/hold_calls.h"
#include "tuner/measure/synthetic.h"

enum { MOST_COPIES = 16 };
static const uint32_t most_looks = 1u << 22; /* about 4 s of looks over a link, then it goes on */

/* ---- memory ---- */

static bool is_gemm(const kt_device_bench *b) {
    return b->job.op == KT_OP_GEMM;
}

/* Records of one drawn matrix [n, k], owned by the caller. */
static kt_status draw_records(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                              uint8_t **out, size_t *bytes, kt_err *err) {
    kt_synthetic s = {0};
    kt_status st;

    *out = NULL;
    KT_TRY(kt_device_weights_bytes(format, n, k, bytes, err));
    KT_TRY(kt_synthetic_create(format, n, k, seed, &s, err));
    *out = aligned_alloc(64, (*bytes + 63) / 64 * 64);
    st = *out ? kt_device_weights_pack(&s.matrix, 0, n, *out, err)
              : kt_fail(err, KT_E_NOMEM, "no memory for %zu bytes of weights", *bytes);
    kt_synthetic_destroy(&s);
    if (st != KT_OK) free(*out), *out = NULL;
    return st;
}

/* `count` matrices like the drawn one. */
static kt_status fill_weights(kt_device_bench *b, kt_weight_format format, int64_t n, int64_t k,
                              int64_t count, uint64_t seed, uint8_t **at, kt_err *err) {
    uint8_t *records;
    size_t bytes;
    kt_status st;

    KT_TRY(draw_records(format, n, k, seed, &records, &bytes, err));
    st = kt_device_alloc(b->d, bytes * (size_t)count, (void **)at, err);
    if (st == KT_OK) st = kt_device_upload(b->d, KT_STREAM_MAIN, *at, records, bytes, err);
    for (int64_t i = 1; i < count && st == KT_OK; i++)
        st = kt_device_copy(b->d, KT_STREAM_MAIN, *at + (size_t)i * bytes, *at, bytes, err);
    if (st == KT_OK) st = kt_device_sync(b->d, NULL, err);
    free(records);
    return st;
}

static kt_status take_weights(kt_device_bench *b, size_t rotation, uint64_t seed, kt_err *err) {
    const kt_device_job *j = &b->job;
    const size_t up = kt_device_row_bytes(j->weights, j->k) * (size_t)(j->n * j->experts);
    const size_t down =
        is_gemm(b) ? 0 : kt_device_row_bytes(j->down, j->n) * (size_t)(j->k * j->experts);
    const size_t all = is_gemm(b) ? up : 2 * up + down;
    const size_t copies = rotation / all + (rotation % all > 0);

    b->copies = copies < 1 ? 1 : copies > MOST_COPIES ? MOST_COPIES : (int)copies;
    b->gate_copy = up, b->down_copy = down;
    KT_TRY(fill_weights(b, j->weights, j->n, j->k, j->experts * b->copies, seed, &b->gate, err));
    if (is_gemm(b)) return KT_OK;
    KT_TRY(fill_weights(b, j->weights, j->n, j->k, j->experts * b->copies, seed + 1, &b->up, err));
    return fill_weights(b, j->down, j->k, j->n, j->experts * b->copies, seed + 2, &b->down, err);
}

/* Each row's experts are neighbours from a drawn one on; each copy has others. */
static kt_status take_routing(kt_device_bench *b, uint64_t seed, kt_err *err) {
    const int64_t slots = b->rows * b->job.topk, all = slots * b->copies;
    int32_t *id = malloc((size_t)all * sizeof *id);
    float *route = malloc((size_t)slots * sizeof *route);
    kt_status st = KT_OK;
    kt_rng rng;

    if (!id || !route) st = kt_fail(err, KT_E_NOMEM, "no memory for the routing of a trial");
    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < all && st == KT_OK; i++)
        id[i] = i % b->job.topk ? (int32_t)((id[i - 1] + 1) % b->job.experts)
                                : (int32_t)kt_rng_below(&rng, (uint32_t)b->job.experts);
    for (int64_t i = 0; i < slots && st == KT_OK; i++) route[i] = 1 / (float)b->job.topk;
    if (st == KT_OK) st = kt_device_alloc(b->d, (size_t)all * sizeof *id, (void **)&b->id, err);
    if (st == KT_OK)
        st = kt_device_alloc(b->d, (size_t)slots * sizeof *route, (void **)&b->route, err);
    if (st == KT_OK)
        st = kt_device_upload(b->d, KT_STREAM_MAIN, b->id, id, (size_t)all * sizeof *id, err);
    if (st == KT_OK)
        st = kt_device_upload(b->d, KT_STREAM_MAIN, b->route, route, (size_t)slots * sizeof *route,
                              err);
    if (st == KT_OK) st = kt_device_sync(b->d, NULL, err);
    free(id), free(route);
    return st;
}

static int64_t outputs(const kt_device_bench *b) {
    return is_gemm(b) ? b->job.n : b->job.k;
}

static kt_status take_rows(kt_device_bench *b, uint64_t seed, kt_err *err) {
    const size_t count = (size_t)(b->rows * b->job.k);
    float *x = malloc(count * sizeof *x);
    kt_status st;

    if (!x) return kt_fail(err, KT_E_NOMEM, "no memory for the rows of a trial");
    kt_synthetic_rows(x, count, seed);
    st = kt_device_alloc(b->d, count * sizeof *x, (void **)&b->x, err);
    if (st == KT_OK)
        st = kt_device_alloc(b->d, (size_t)(b->rows * outputs(b)) * sizeof *x, (void **)&b->out,
                             err);
    if (st == KT_OK) st = kt_device_upload(b->d, KT_STREAM_MAIN, b->x, x, count * sizeof *x, err);
    if (st == KT_OK) st = kt_device_sync(b->d, NULL, err);
    free(x);
    return st;
}

static kt_status open_all(kt_device_bench *b, size_t rotation, uint64_t seed, kt_err *err) {
    KT_TRY(take_weights(b, rotation, seed, err));
    KT_TRY(take_rows(b, seed + 3, err));
    if (!is_gemm(b)) KT_TRY(take_routing(b, seed + 4, err));
    KT_TRY(kt_device_host_alloc(b->d, sizeof *b->go, (void **)&b->go, err));
    KT_TRY(kt_device_event_make(b->d, &b->from, err));
    KT_TRY(kt_device_event_make(b->d, &b->to, err));
    return kt_device_kernel_named(b->d, "hold", NULL, 0, &b->hold, err);
}

kt_status kt_device_bench_open(kt_device *d, const kt_device_job *job, int64_t rows,
                               size_t rotation, uint64_t seed, kt_device_bench *out, kt_err *err) {
    kt_status st;

    *out = (kt_device_bench){.d = d, .job = *job, .rows = rows};
    st = open_all(out, rotation, seed, err);
    if (st != KT_OK) kt_device_bench_close(out);
    return st;
}

void kt_device_bench_close(kt_device_bench *b) {
    void *const all[] = {b->gate, b->up, b->down, b->x, b->out, b->route, b->id, b->scratch};

    if (!b->d) return;
    kt_device_sync(b->d, NULL, NULL);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) kt_device_free(b->d, all[i]);
    if (b->go) kt_device_host_free(b->d, b->go);
    memset(b, 0, sizeof *b);
}

/* ---- choices ---- */

static kt_device_matrices matrices(const uint8_t *at, kt_weight_format format, int64_t n, int64_t k,
                                   int64_t count) {
    return (kt_device_matrices){.at = at,
                                .bytes = kt_device_row_bytes(format, k) * (size_t)n,
                                .format = format,
                                .n = n,
                                .k = k,
                                .count = count};
}

static kt_status make_code(kt_device_bench *b, const kt_device_ladder *ladder, size_t *scratch,
                           kt_err *err) {
    const kt_device_job *j = &b->job;
    const kt_device_matrices up = matrices(b->gate, j->weights, j->n, j->k, j->experts);

    if (is_gemm(b)) {
        KT_TRY(kt_device_gemm_make(b->d, &up, ladder, b->rows, &b->gemm, err));
        *scratch = kt_device_gemm_scratch(&b->gemm, b->rows);
        return KT_OK;
    }
    b->experts = (kt_device_experts){.gate = up,
                                     .up = matrices(b->up, j->weights, j->n, j->k, j->experts),
                                     .down = matrices(b->down, j->down, j->k, j->n, j->experts),
                                     .slots = j->topk};
    KT_TRY(kt_device_experts_make(b->d, ladder, b->rows, &b->experts, err));
    *scratch = kt_device_experts_scratch(&b->experts);
    return KT_OK;
}

static void note_spills(const kt_device_kernel *k, int *most) {
    for (int i = 0; i < k->kernel->entry_count; i++) {
        int registers = 0, local = 0;
        kt_device_code_facts(k->code, i, &registers, &local);
        if (local > *most) *most = local;
    }
}

kt_status kt_device_bench_take(kt_device_bench *b, const kt_device_choice *choice, int *local_bytes,
                               kt_err *err) {
    const kt_device_ladder ladder = {.n = 1, .choice = {*choice}, .most = {INT64_MAX}};
    size_t scratch = 0;

    KT_TRY(make_code(b, &ladder, &scratch, err));
    *local_bytes = 0;
    note_spills(is_gemm(b) ? &b->gemm.kernel[0] : &b->experts.gate_up[0], local_bytes);
    if (!is_gemm(b)) note_spills(&b->experts.put_down[0], local_bytes);
    if (scratch <= b->scratch_bytes) return KT_OK;
    KT_TRY(kt_device_sync(b->d, NULL, err));
    kt_device_free(b->d, b->scratch);
    b->scratch = NULL;
    b->scratch_bytes = 0;
    KT_TRY(kt_device_alloc(b->d, scratch, &b->scratch, err));
    b->scratch_bytes = scratch;
    return KT_OK;
}

kt_status kt_device_bench_put(kt_device_bench *b, int call, kt_err *err) {
    const kt_device_job *j = &b->job;
    const size_t copy = (size_t)(call % b->copies);

    if (is_gemm(b)) {
        const kt_device_gemm_call c = {.x = b->x,
                                       .y = b->out,
                                       .ldx = j->k,
                                       .ldy = j->n,
                                       .rows = b->rows,
                                       .scratch = b->scratch};
        b->gemm.w.at = b->gate + copy * b->gate_copy;
        return kt_device_gemm_put(b->d, &b->gemm, &c, err);
    }
    return kt_device_experts_put_of(
        b->d, &b->experts, b->gate + copy * b->gate_copy, b->up + copy * b->gate_copy,
        b->down + copy * b->down_copy,
        &(kt_device_experts_call){.in = {b->x, j->k, j->k},
                                  .out = {b->out, j->k, j->k},
                                  .id = b->id + (int64_t)copy * b->rows * j->topk,
                                  .route = b->route,
                                  .rows = b->rows,
                                  .scratch = b->scratch},
        err);
}

/* ---- the stopwatch ---- */

kt_status kt_device_bench_time(kt_device_bench *b, int n, double *ns, kt_err *err) {
    const kt_hold hold = {b->go, most_looks, 0};
    kt_status st;
    double ms = 0;

    *(volatile uint32_t *)b->go = 0;
    st = kt_device_kernel_run(b->d, &b->hold, 0, 1, 1, 0, &hold, sizeof hold, err);
    if (st == KT_OK) st = kt_device_record(b->d, KT_STREAM_MAIN, b->from, err);
    for (int i = 0; i < n && st == KT_OK; i++) st = kt_device_bench_put(b, i, err);
    if (st == KT_OK) st = kt_device_record(b->d, KT_STREAM_MAIN, b->to, err);
    *(volatile uint32_t *)b->go = 1;
    KT_TRY(st);
    KT_TRY(kt_device_sync(b->d, b->to, err));
    KT_TRY(kt_device_elapsed(b->d, b->from, b->to, &ms, err));
    *ns = ms * 1e6 / n;
    return KT_OK;
}

kt_status kt_device_bench_out(kt_device_bench *b, float *out, kt_err *err) {
    KT_TRY(kt_device_download(b->d, KT_STREAM_MAIN, out, b->out,
                              (size_t)(b->rows * outputs(b)) * sizeof *out, err));
    return kt_device_sync(b->d, NULL, err);
}
