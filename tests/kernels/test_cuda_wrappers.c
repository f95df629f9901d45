/* Collectives and shared memory of the emulator that attention asks for: what they do, and the
 * slips with them that must be seen. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/cuda/kt_dev.h"

enum { THREADS = 64, ADDED = 7 };

typedef struct wrap_call {
    int fault;
    uint32_t *out; /* [THREADS * 4] */
} wrap_call;

enum { SOUND, READ_EARLY, WRITE_AMONG, NO_WARP_BARRIER };

static kt_status run(kt_emulated_entry *entry, int fault, uint32_t seed, uint32_t *out,
                     kt_err *err) {
    const wrap_call call = {fault, out};
    const kt_launch l = {"wrap", entry, &call, 1, 1, THREADS, 1024, NULL};
    const kt_emulator_options options = {seed, true, true};

    memset(out, 0xff, THREADS * 4 * sizeof *out);
    return kt_emulate(&l, &options, err);
}

/* Every thread adds to one word; what each had before is a number of its own. */
static void add(const wrap_call *c) {
    if (kt_thread() == 0) kt_set_shared_u32(0, 0);
    kt_sync();
    c->out[kt_thread()] = kt_shared_add(0, ADDED);
    if (c->fault == WRITE_AMONG && kt_thread() == 40) kt_set_shared_u32(0, 1);
    if (c->fault != READ_EARLY) kt_sync();
    c->out[THREADS + kt_thread()] = kt_shared_u32(0);
}
KT_ENTRY(run_add, wrap_call, add, THREADS)

Test(cuda_wrappers, additions_are_in_one_piece) {
    uint32_t out[THREADS * 4];
    kt_err err;

    for (uint32_t seed = 1; seed <= 8; seed++) {
        bool seen[THREADS] = {false};
        cr_assert_eq(run(run_add, SOUND, seed, out, &err), KT_OK, "%s", err.message);
        for (int i = 0; i < THREADS; i++) {
            cr_assert(out[i] % ADDED == 0 && out[i] < THREADS * ADDED && !seen[out[i] / ADDED]);
            seen[out[i] / ADDED] = true;
            cr_expect_eq(out[THREADS + i], THREADS * ADDED);
        }
        cr_expect_neq(run(run_add, READ_EARLY, seed, out, &err), KT_OK);
        cr_expect_neq(run(run_add, WRITE_AMONG, seed, out, &err), KT_OK);
    }
}

/* Neighbours of a warp exchange by shared memory, and say who is odd. */
static void exchange(const wrap_call *c) {
    const int other = kt_thread() ^ 1;

    kt_set_shared_u32((uint32_t)(4 * kt_thread()), (uint32_t)kt_thread());
    if (c->fault != NO_WARP_BARRIER) kt_warp_sync();
    c->out[kt_thread()] = kt_shared_u32((uint32_t)(4 * other));
    c->out[THREADS + kt_thread()] = kt_warp_ballot(kt_lane() % 2 && kt_warp() == 1);
}
KT_ENTRY(run_exchange, wrap_call, exchange, THREADS)

Test(cuda_wrappers, a_warp_waits_for_its_lanes_and_asks_them) {
    uint32_t out[THREADS * 4];
    kt_err err;

    for (uint32_t seed = 1; seed <= 8; seed++) {
        cr_assert_eq(run(run_exchange, SOUND, seed, out, &err), KT_OK, "%s", err.message);
        for (uint32_t i = 0; i < THREADS; i++) {
            cr_expect_eq(out[i], i ^ 1);
            cr_expect_eq(out[THREADS + i], i < 32 ? 0 : 0xaaaaaaaau);
        }
        cr_expect_neq(run(run_exchange, NO_WARP_BARRIER, seed, out, &err), KT_OK);
    }
    cr_expect_eq(kt_bit_count(0xf0f1u), 9);
}

/* Four matrices of 8 by 8, element (row, column) of matrix m is 64 m + 8 row + column. */
static void turn(const wrap_call *c) {
    uint32_t r[4];

    for (int i = kt_thread(); i < 128; i += THREADS)
        kt_set_shared_u32((uint32_t)i * 4, (uint32_t)(2 * i) | (uint32_t)(2 * i + 1) << 16);
    kt_sync();
    kt_ldmatrix_trans(r, (uint32_t)kt_lane() * 16);
    for (int m = 0; m < 4; m++) c->out[kt_thread() * 4 + m] = r[m];
}
KT_ENTRY(run_turn, wrap_call, turn, THREADS)

Test(cuda_wrappers, matrices_are_turned_as_the_manual_says) {
    uint32_t out[THREADS * 4];
    kt_err err;

    cr_assert_eq(run(run_turn, SOUND, 3, out, &err), KT_OK, "%s", err.message);
    for (uint32_t lane = 0; lane < 32; lane++)
        for (uint32_t m = 0; m < 4; m++) {
            const uint32_t first = 64 * m + 8 * (2 * (lane % 4)) + lane / 4; /* row 2t, column g */
            cr_expect_eq(out[lane * 4 + m], first | (first + 8) << 16, "lane %u, matrix %u", lane,
                         m);
        }
}
