/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/device_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/cuda/device_weights.h"
#include "tuner/measure/synthetic.h"

/* FEW_LISTS: of a copy for calls of few rows. DRAWN_WEIGHTS: of a matrix, in whole blocks of rows;
 * DRAWN_INPUTS: of a call's rows. More would take seconds to draw, and no other time to compute. */
enum {
    MOST_COPIES = 64,
    FEW_LISTS = 8,
    DRAWN_WEIGHTS = 1 << 21,
    DRAWN_INPUTS = 1 << 18,
    ROW_BLOCK = 128
};

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

static int64_t drawn_rows(int64_t n, int64_t k) {
    const int64_t rows = DRAWN_WEIGHTS / k / ROW_BLOCK * ROW_BLOCK;
    return n < rows || n <= ROW_BLOCK ? n : rows > ROW_BLOCK ? rows : ROW_BLOCK;
}

/* Memory of `all` bytes that begins with `done` bytes of the host's: what is there is doubled until
 * it is full. */
static kt_status put_repeated(kt_device_bench *b, const void *data, size_t done, size_t all,
                              void **out, kt_err *err) {
    KT_TRY(kt_device_alloc(b->d, all, out, err));
    KT_TRY(kt_device_upload(b->d, KT_STREAM_MAIN, *out, data, done, err));
    while (done < all) {
        const size_t more = done < all - done ? done : all - done;
        KT_TRY(kt_device_copy(b->d, KT_STREAM_MAIN, (uint8_t *)*out + done, *out, more, err));
        done += more;
    }
    return kt_device_sync(b->d, NULL, err);
}

/* `count` matrices of rows like the drawn ones. */
static kt_status fill_weights(kt_device_bench *b, kt_weight_format format, int64_t n, int64_t k,
                              int64_t count, uint64_t seed, uint8_t **at, kt_err *err) {
    uint8_t *records;
    size_t matrix, drawn;
    kt_status st;

    KT_TRY(kt_device_weights_bytes(format, n, k, &matrix, err));
    KT_TRY(draw_records(format, drawn_rows(n, k), k, seed, &records, &drawn, err));
    st = put_repeated(b, records, drawn, matrix * (size_t)count, (void **)at, err);
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

/* Each row's experts are neighbours from a drawn one on. A single row's go round through all. */
static void draw_list(const kt_device_bench *b, int list, kt_rng *rng, int32_t *id) {
    const int64_t topk = b->job.topk, experts = b->job.experts;

    for (int64_t i = 0; i < b->rows * topk; i++)
        id[i] = i % topk ? (int32_t)((id[i - 1] + 1) % experts)
                         : (int32_t)kt_rng_below(rng, (uint64_t)experts);
    for (int64_t i = 0; i < topk && b->rows == 1; i++)
        id[i] = (int32_t)((list / b->copies * topk + i) % experts);
}

static int16_t count_used(const kt_device_bench *b, const int32_t *id, bool *seen) {
    int16_t n = 0;

    memset(seen, 0, (size_t)b->job.experts * sizeof *seen);
    for (int64_t i = 0; i < b->rows * b->job.topk; i++)
        if (!seen[id[i]]) seen[id[i]] = true, n++;
    return n;
}

static kt_status put_routing(kt_device_bench *b, const int32_t *id, const float *route,
                             kt_err *err) {
    const size_t slots = (size_t)(b->rows * b->job.topk), all = slots * (size_t)b->n_lists;

    KT_TRY(kt_device_alloc(b->d, all * sizeof *id, (void **)&b->id, err));
    KT_TRY(kt_device_alloc(b->d, slots * sizeof *route, (void **)&b->route, err));
    KT_TRY(kt_device_upload(b->d, KT_STREAM_MAIN, b->id, id, all * sizeof *id, err));
    KT_TRY(kt_device_upload(b->d, KT_STREAM_MAIN, b->route, route, slots * sizeof *route, err));
    return kt_device_sync(b->d, NULL, err);
}

static kt_status take_routing(kt_device_bench *b, uint64_t seed, kt_err *err) {
    const int64_t slots = b->rows * b->job.topk;
    int32_t *id;
    float *route = malloc((size_t)slots * sizeof *route);
    bool *seen = malloc((size_t)b->job.experts * sizeof *seen);
    kt_status st = KT_OK;
    kt_rng rng;

    b->n_lists = b->copies * (b->rows <= KT_DEVICE_FEW ? FEW_LISTS : 1);
    id = malloc((size_t)(slots * b->n_lists) * sizeof *id);
    if (!id || !route || !seen)
        st = kt_fail(err, KT_E_NOMEM, "no memory for the routing of a trial");
    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < slots && st == KT_OK; i++) route[i] = 1 / (float)b->job.topk;
    for (int l = 0; l < b->n_lists && st == KT_OK; l++) {
        draw_list(b, l, &rng, id + l * slots);
        b->used[l] = count_used(b, id + l * slots, seen);
    }
    if (st == KT_OK) st = put_routing(b, id, route, err);
    free(id), free(route), free(seen);
    return st;
}

static int64_t outputs(const kt_device_bench *b) {
    return is_gemm(b) ? b->job.n : b->job.k;
}

static kt_status take_rows(kt_device_bench *b, uint64_t seed, kt_err *err) {
    const size_t count = (size_t)(b->rows * b->job.k);
    const size_t drawn = count < DRAWN_INPUTS ? count : DRAWN_INPUTS;
    float *x = malloc(drawn * sizeof *x);
    kt_status st;

    if (!x) return kt_fail(err, KT_E_NOMEM, "no memory for the rows of a trial");
    kt_synthetic_rows(x, drawn, seed);
    st = put_repeated(b, x, drawn * sizeof *x, count * sizeof *x, (void **)&b->x, err);
    free(x);
    KT_TRY(st);
    return kt_device_alloc(b->d, (size_t)(b->rows * outputs(b)) * sizeof *b->out, (void **)&b->out,
                           err);
}

static kt_status open_all(kt_device_bench *b, size_t rotation, uint64_t seed, kt_err *err) {
    KT_TRY(take_weights(b, rotation, seed, err));
    KT_TRY(take_rows(b, seed + 3, err));
    if (!is_gemm(b)) KT_TRY(take_routing(b, seed + 4, err));
    return kt_device_clock_start(b->d, &b->clock, err);
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
    kt_device_clock_stop(&b->clock);
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
                                  .id = b->id + call % b->n_lists * b->rows * j->topk,
                                  .route = b->route,
                                  .rows = b->rows,
                                  .scratch = b->scratch},
        err);
}

/* ---- the stopwatch ---- */

double kt_device_bench_bytes(const kt_device_bench *b, int n) {
    const double expert = (double)(2 * b->gate_copy + b->down_copy) / (double)b->job.experts;
    double used = 0;

    if (is_gemm(b)) return (double)b->gate_copy;
    for (int i = 0; i < n; i++) used += b->used[i % b->n_lists];
    return used / n * expert;
}

static kt_status put_call(void *arg, int call, kt_err *err) {
    return kt_device_bench_put(arg, call, err);
}

kt_status kt_device_bench_time(kt_device_bench *b, int n, double *ns, kt_err *err) {
    return kt_device_clock_time(&b->clock, put_call, b, n, ns, err);
}

kt_status kt_device_bench_out(kt_device_bench *b, float *out, kt_err *err) {
    KT_TRY(kt_device_download(b->d, KT_STREAM_MAIN, out, b->out,
                              (size_t)(b->rows * outputs(b)) * sizeof *out, err));
    return kt_device_sync(b->d, NULL, err);
}
