/* Experts of many rows on the emulated device: taken in parts or at once, rows get the same bits;
 * what is added is added to what was there. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/formats/gate_inputs.h"
#include "runtime/device/device_impl.h"
#include "runtime/device/experts_many.h"

enum { ROWS = 23, SLOTS = 2, EXPERTS = 5, N = 32, K = 64 };

typedef struct scene {
    struct kt_device_home home;
    kt_device_step step;
    kt_device_matrices gate, up, down;
    float *x, *out, *route;
    int32_t *id;
    kt_experts_many many;
} scene;

static void *on_device(scene *s, const void *data, size_t bytes) {
    void *at;
    kt_err err;

    cr_assert_eq(kt_device_alloc(s->step.device, bytes, &at, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_device_upload(s->step.device, KT_STREAM_MAIN, at, data, bytes, &err), KT_OK);
    cr_assert_eq(kt_device_sync(s->step.device, NULL, &err), KT_OK, "%s", err.message);
    return at;
}

static void make_matrices(scene *s, kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                          kt_device_matrices *out) {
    kt_gate_matrix m;
    size_t bytes;
    void *records;
    kt_err err;

    cr_assert_eq(kt_gate_matrix_create(format, n * EXPERTS, k, seed, &m, &err), KT_OK);
    cr_assert_eq(kt_device_weights_bytes(format, n * EXPERTS, k, &bytes, &err), KT_OK);
    records = aligned_alloc(16, bytes);
    cr_assert_eq(kt_device_weights_pack(&m.matrix, 0, n * EXPERTS, records, &err), KT_OK);
    *out = (kt_device_matrices){.at = on_device(s, records, bytes),
                                .bytes = bytes / EXPERTS,
                                .format = format,
                                .n = n,
                                .k = k,
                                .count = EXPERTS};
    free(records);
    kt_gate_matrix_destroy(&m);
}

static void open_scene(scene *s) {
    const kt_device_options o = {.class = "emulated", .emulator = {.seed = 3, .lazy = true}};
    float x[ROWS * K], route[ROWS * SLOTS], out[ROWS * K];
    int32_t id[ROWS * SLOTS];
    kt_err err;
    kt_rng rng;

    memset(s, 0, sizeof *s);
    s->step.home = &s->home;
    s->step.max_rows = ROWS;
    cr_assert_eq(kt_device_open(&o, &s->step.device, &err), KT_OK, "%s", err.message);
    kt_rng_seed(&rng, 7);
    for (int i = 0; i < ROWS * K; i++) x[i] = kt_rng_normal(&rng), out[i] = kt_rng_normal(&rng);
    for (int i = 0; i < ROWS * SLOTS; i++) {
        route[i] = kt_rng_uniform(&rng, 0.05f, 1);
        id[i] = i % SLOTS ? (id[i - 1] + 2) % EXPERTS : (int32_t)kt_rng_below(&rng, EXPERTS);
    }
    id[1] = id[8] = id[9] = -1;
    s->x = on_device(s, x, sizeof x);
    s->out = on_device(s, out, sizeof out);
    s->route = on_device(s, route, sizeof route);
    s->id = on_device(s, id, sizeof id);
    make_matrices(s, KT_W_BF16, N, K, 1, &s->gate);
    make_matrices(s, KT_W_BF16, N, K, 2, &s->up);
    make_matrices(s, KT_W_INT4_G32, K, N, 3, &s->down);
    cr_assert_eq(kt_experts_many_init(&s->step, &s->gate, &s->down, SLOTS, &s->many, &err), KT_OK,
                 "%s", err.message);
    cr_assert_eq(s->many.rows, ROWS);
    cr_assert_eq(kt_device_alloc(s->step.device, s->home.scratch_bytes, &s->step.scratch, &err),
                 KT_OK);
}

/* All rows, `part` of them at once. */
static void run(scene *s, int64_t part, bool accumulate, float out[ROWS * K]) {
    const kt_device_view in = {s->x, K, K}, to = {s->out, K, K};
    const kt_experts_many_call call = {&s->gate, &s->up,   &s->down, in,        to,
                                       s->id,    s->route, ROWS,     accumulate};
    kt_err err;

    s->many.rows = part;
    cr_assert_eq(kt_experts_many_put(&s->step, &s->many, &call, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_device_download(s->step.device, KT_STREAM_MAIN, out, s->out,
                                    ROWS * K * sizeof *out, &err),
                 KT_OK);
    cr_assert_eq(kt_device_sync(s->step.device, NULL, &err), KT_OK, "%s", err.message);
}

Test(experts_many, parts_give_the_same_bits_and_sums_add_up, .timeout = 60) {
    float whole[ROWS * K], parts[ROWS * K], twice[ROWS * K];
    scene s;

    open_scene(&s);
    run(&s, ROWS, false, whole);
    run(&s, 10, false, parts);
    run(&s, 10, true, twice);
    for (int i = 0; i < ROWS * K; i++) {
        cr_assert_eq(whole[i], parts[i], "row %d, column %d: %g in parts, %g at once", i / K, i % K,
                     parts[i], whole[i]);
        cr_assert_eq(twice[i], 2 * whole[i], "row %d, column %d", i / K, i % K);
    }
    for (int i = 0; i < K; i++) /* both experts of row 4 are elsewhere */
        cr_assert_eq(whole[4 * K + i], 0);
    kt_device_close(s.step.device);
}
