/* The emulator of GPUs notices what a GPU would punish: small kernels, each sound and with one
 * fault. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/cuda/kt_dev.h"

enum { THREADS = 128 };

/* What a kernel is asked to do wrong; 0 = nothing. */
typedef struct fault_call {
    int fault;
    const uint32_t *in; /* [THREADS * 4] */
    uint32_t *out;      /* [THREADS] */
} fault_call;

enum fault {
    SOUND,
    NO_BARRIER,        /* reads what another warp wrote */
    NO_SECOND_BARRIER, /* overwrites what another warp reads */
    EARLY_LEAVE,       /* a thread ends before the barrier */
    SPLIT_WARP,        /* half of a warp skips a collective */
    OTHER_COLLECTIVE,  /* half of a warp is in another one */
    BEHIND_THE_END,
    CROOKED,  /* an address that is not aligned */
    NO_WAIT,  /* reads before the copy has arrived */
    SHALLOW,  /* waits for all groups but one too many */
    ODD_COPY, /* a copy of 8 bytes */
};

/* Each thread hands its number to thread THREADS - 1 - i, twice, through shared memory. */
static void exchange(const fault_call *c) {
    const int i = kt_thread(), other = THREADS - 1 - i;
    uint32_t seen;

    if (c->fault == EARLY_LEAVE && i == 3) return;
    kt_set_shared_u32((uint32_t)(4 * i + (c->fault == BEHIND_THE_END) * 4), (uint32_t)i * 3);
    if (c->fault != NO_BARRIER) kt_sync();
    seen = kt_shared_u32((uint32_t)(4 * other + (c->fault == CROOKED) * 2));
    if (c->fault != NO_SECOND_BARRIER) kt_sync();
    kt_set_shared_u32((uint32_t)(4 * i), seen + 1);
    kt_sync();
    c->out[i] = kt_shared_u32((uint32_t)(4 * other));
}
KT_ENTRY(run_exchange, fault_call, exchange, THREADS)

static void collect(const fault_call *c) {
    const int i = kt_thread();
    float sum = (float)i;

    if (c->fault == SPLIT_WARP && kt_lane() < 16) return;
    if (c->fault == OTHER_COLLECTIVE && kt_lane() < 16) {
        uint32_t r[4];
        kt_ldmatrix(r, 0);
    }
    sum = kt_warp_sum(sum);
    c->out[i] = (uint32_t)sum;
}
KT_ENTRY(run_collect, fault_call, collect, THREADS)

/* Two groups of copies; the first is read after waiting for it alone. */
static void copy(const fault_call *c) {
    const int i = kt_thread();

    kt_copy16((uint32_t)(16 * i), c->in + 4 * i, c->fault == ODD_COPY ? 8 : 16);
    kt_copy_commit();
    kt_copy16((uint32_t)(16 * (THREADS + i)), c->in, 0);
    kt_copy_commit();
    if (c->fault != NO_WAIT) KT_COPY_WAIT(1 + (c->fault == SHALLOW));
    kt_sync();
    c->out[i] = kt_shared_u32((uint32_t)(16 * (THREADS - 1 - i))) +
                kt_shared_u32((uint32_t)(16 * (THREADS - 1 - i) + 12));
    KT_COPY_WAIT(0);
    kt_sync();
    if (kt_shared_u32((uint32_t)(16 * (THREADS + i) + 4)) != 0) c->out[i] = 0;
}
KT_ENTRY(run_copy, fault_call, copy, THREADS)

/* Is the kernel with this fault seen to be wrong, by the emulator or by its results? */
static bool is_seen(kt_emulated_entry *entry, const char *name, int fault, uint32_t seed,
                    const uint32_t *want, size_t shared, kt_err *err) {
    static uint32_t in[THREADS * 4];
    uint32_t out[THREADS];
    const fault_call call = {fault, in, out};
    const kt_launch launch = {name, entry, &call, 2, 1, THREADS, shared, NULL};
    const kt_emulator_options options = {seed, true, true};
    kt_status st;

    for (int i = 0; i < THREADS * 4; i++) in[i] = (uint32_t)i;
    memset(out, 0xff, sizeof out);
    *err = (kt_err){KT_OK, "the results are wrong"};
    st = kt_emulate(&launch, &options, err);
    return st != KT_OK || memcmp(out, want, sizeof out) != 0;
}

/* One thread writes, one of another warp reads: sometimes in this order, sometimes in the other. */
static void pass_on(const fault_call *c) {
    if (kt_thread() == 0) kt_set_shared_u32(0, 1);
    if (c->fault != NO_BARRIER) kt_sync();
    if (kt_thread() == 32) c->out[0] = kt_shared_u32(0);
}
KT_ENTRY(run_pass_on, fault_call, pass_on, THREADS)

/* Races are errors of their own, whatever came out. */
Test(cuda_emulator, races_are_seen_in_every_order) {
    uint32_t want[THREADS];
    bool first = false, second = false;
    kt_err err;

    memset(want, 0xff, sizeof want);
    want[0] = 1;
    for (uint32_t seed = 1; seed <= 16; seed++) {
        cr_expect(!is_seen(run_pass_on, "pass_on", SOUND, seed, want, 64, &err), "%s", err.message);
        cr_expect(is_seen(run_pass_on, "pass_on", NO_BARRIER, seed, want, 64, &err));
        first = first || strstr(err.message, "thread 0 wrote since the last barrier");
        second = second || strstr(err.message, "thread 32 read since the last barrier");
        cr_expect_not_null(strstr(err.message, "since the last barrier"), "seed %u: %s", seed,
                           err.message);
    }
    cr_expect(first && second, "one order never came");
}

static void check(kt_emulated_entry *entry, const char *name, const int *faults, int n,
                  const uint32_t *want, size_t shared) {
    kt_err err;

    for (uint32_t seed = 1; seed <= 8; seed++) {
        cr_expect(!is_seen(entry, name, SOUND, seed, want, shared, &err), "%s, seed %u: %s", name,
                  seed, err.message);
        for (int i = 0; i < n; i++)
            cr_expect(is_seen(entry, name, faults[i], seed, want, shared, &err),
                      "%s: fault %d was not seen with seed %u", name, faults[i], seed);
    }
}

Test(cuda_emulator, barriers_and_shared_memory) {
    static const int faults[] = {NO_BARRIER, NO_SECOND_BARRIER, EARLY_LEAVE, BEHIND_THE_END,
                                 CROOKED};
    uint32_t want[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) want[i] = i * 3 + 1;
    check(run_exchange, "exchange", faults, 5, want, 4 * THREADS);
}

Test(cuda_emulator, collectives_of_a_warp) {
    static const int faults[] = {SPLIT_WARP, OTHER_COLLECTIVE};
    uint32_t want[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) want[i] = 32 * (i / 32 * 32) + 31 * 16;
    check(run_collect, "collect", faults, 2, want, 1024);
}

Test(cuda_emulator, copies_behind_the_back) {
    static const int faults[] = {NO_WAIT, SHALLOW, ODD_COPY};
    uint32_t want[THREADS];

    for (uint32_t i = 0; i < THREADS; i++) want[i] = 8 * (THREADS - 1 - i) + 3;
    check(run_copy, "copy", faults, 3, want, 32 * THREADS);
}

Test(cuda_emulator, messages_name_the_place) {
    uint32_t want[THREADS] = {0};
    kt_err err;

    cr_assert(is_seen(run_exchange, "exchange", BEHIND_THE_END, 1, want, 4 * THREADS, &err));
    cr_expect_str_eq(err.message,
                     "exchange: block (0, 0), thread 127: offset 512 + 4 lies behind the 512 bytes "
                     "of shared memory");
    cr_assert(is_seen(run_collect, "collect", SPLIT_WARP, 1, want, 1024, &err));
    cr_expect_not_null(strstr(err.message, "waits for ever at a collective of its warp"), "%s",
                       err.message);
}

Test(cuda_emulator, impossible_blocks_are_refused) {
    const kt_emulator_options options = {1, false, false};
    const fault_call call = {0};
    kt_launch l = {"collect", run_collect, &call, 1, 1, 33, 0, NULL};
    kt_err err;

    cr_expect_eq(kt_emulate(&l, &options, &err), KT_E_INVALID);
    cr_expect_not_null(strstr(err.message, "33 threads"), "%s", err.message);
    l.threads = 32;
    l.shared_bytes = 228 * 1024;
    cr_expect_eq(kt_emulate(&l, &options, &err), KT_E_INVALID);
    cr_expect_not_null(strstr(err.message, "233472 bytes"), "%s", err.message);
}

/* ---- fragments: the products of a warp against the definition ---- */

typedef struct mma_call {
    uint16_t a[16 * 16], b[8 * 16]; /* bfloat16, or pairs of signed bytes */
    float c[16 * 8];
    int32_t i[16 * 8];
} mma_call;

static uint32_t word_of(const uint16_t *m, int row, int word) {
    return m[row * 16 + 2 * word] | (uint32_t)m[row * 16 + 2 * word + 1] << 16;
}

static void multiply(const mma_call *p) {
    mma_call *call = (mma_call *)(uintptr_t)p;
    const int g = kt_lane() / 4, t = kt_lane() % 4;
    const uint32_t a[4] = {word_of(p->a, g, t), word_of(p->a, g + 8, t), word_of(p->a, g, t + 4),
                           word_of(p->a, g + 8, t + 4)};
    const uint32_t b0 = word_of(p->b, g, t), b1 = word_of(p->b, g, t + 4);
    int32_t i[4] = {0};
    float c[4] = {0};

    kt_mma_bf16(c, a, b0, b1);
    kt_mma_s8(i, a, b0, b1);
    for (int j = 0; j < 4; j++) {
        const int at = (g + j / 2 * 8) * 8 + 2 * t + j % 2;
        call->c[at] = c[j];
        call->i[at] = i[j];
    }
}
KT_ENTRY(run_multiply, mma_call, multiply, 32)

Test(cuda_emulator, tensor_cores_multiply_as_defined) {
    static mma_call call;
    const kt_launch l = {"multiply", run_multiply, &call, 1, 1, 32, 0, NULL};
    const kt_emulator_options options = {7, true, true};
    kt_err err;

    for (int i = 0; i < 16 * 16; i++) /* small numbers: exact in float */
        call.a[i] = (uint16_t)kt_emulator_bf16((float)(i * 7 % 23 - 11) / 4);
    for (int i = 0; i < 8 * 16; i++)
        call.b[i] = (uint16_t)kt_emulator_bf16((float)(i * 5 % 19 - 9));
    cr_assert_eq(kt_emulate(&l, &options, &err), KT_OK, "%s", err.message);
    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            int32_t whole = 0;
            float sum = 0;
            for (int k = 0; k < 16; k++) {
                const uint16_t a = call.a[row * 16 + k], b = call.b[column * 16 + k];
                sum += kt_float_bits((uint32_t)a << 16) * kt_float_bits((uint32_t)b << 16);
                whole += (int8_t)a * (int8_t)b + (int8_t)(a >> 8) * (int8_t)(b >> 8);
            }
            cr_expect_eq(call.c[row * 8 + column], sum, "(%d, %d)", row, column);
            cr_expect_eq(call.i[row * 8 + column], whole, "(%d, %d)", row, column);
        }
}
