/* The AMX emulator against plain references, and every rule whose violation faults. On hardware with AMX
 * the same tests check the hardware. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <immintrin.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rng.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

/* --- an assembler: one instruction and a return --------------------------------------------- */

enum { NONE, P66, PF3, PF2 };                                       /* the VEX prefix field */
enum { CONFIG = 0x49, MEMORY = 0x4b, HALVES = 0x5c, BYTES = 0x5e }; /* opcodes */

static _Thread_local uint8_t *page;

static void execute(const uint8_t *code, size_t n, const void *rdi, int64_t rsi) {
    typedef void entry(const void *, int64_t);
    entry *go;

    if (!page)
        page = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1,
                    0);
    cr_assert_neq(page, MAP_FAILED);
    memcpy(page, code, n);
    page[n] = 0xc3;
    memcpy(&go, &page, sizeof go);
    go(rdi, rsi);
}

static uint8_t vex2(unsigned vvvv, unsigned prefix) {
    return (uint8_t)((~vvvv & 15) << 3 | prefix);
}

static uint8_t vex1(unsigned reg, unsigned rm) {
    return (uint8_t)((reg & 8 ? 0 : 0x80) | 0x40 | (rm & 8 ? 0 : 0x20) | 2);
}

static void product(unsigned opcode, unsigned prefix, unsigned c, unsigned a, unsigned b) {
    const uint8_t code[] = {0xc4, vex1(c, a), vex2(b, prefix), (uint8_t)opcode,
                            (uint8_t)(0xc0 | (c & 7) << 3 | (a & 7))};
    execute(code, sizeof code, NULL, 0);
}

static void zero(unsigned t) {
    const uint8_t code[] = {0xc4, vex1(t, 0), vex2(0, PF2), CONFIG, (uint8_t)(0xc0 | (t & 7) << 3)};
    execute(code, sizeof code, NULL, 0);
}

static void release(void) {
    const uint8_t code[] = {0xc4, 0xe2, 0x78, CONFIG, 0xc0};
    execute(code, sizeof code, NULL, 0);
}

static void configuration(unsigned prefix, const void *config) { /* (%rdi) */
    const uint8_t code[] = {0xc4, 0xe2, vex2(0, prefix), CONFIG, 0x07};
    execute(code, sizeof code, config, 0);
}

static void transfer(unsigned prefix, unsigned t, const void *base,
                     int64_t stride) { /* (%rdi,%rsi) */
    const uint8_t code[] = {0xc4, vex1(t, 0), vex2(0, prefix), MEMORY, (uint8_t)((t & 7) << 3 | 4),
                            0x37};
    execute(code, sizeof code, base, stride);
}

static void load(unsigned t, const void *base, int64_t stride) {
    transfer(PF2, t, base, stride);
}

static void store(unsigned t, void *base, int64_t stride) {
    transfer(PF3, t, base, stride);
}

/* --- shapes --------------------------------------------------------------------------------- */

typedef struct config {
    uint8_t byte[64];
} config;

static void shape(config *c, int t, int rows, int row_bytes) {
    c->byte[0] = 1;
    c->byte[16 + 2 * t] = (uint8_t)row_bytes;
    c->byte[17 + 2 * t] = (uint8_t)(row_bytes >> 8);
    c->byte[48 + t] = (uint8_t)rows;
}

/* c = tile 0 [m, n], a = tile 1 [m, depth], b = tile 2 [depth, n], in elements of four bytes */
static config product_shapes(int m, int n, int depth) {
    config c = {{0}};
    shape(&c, 0, m, 4 * n);
    shape(&c, 1, m, 4 * depth);
    shape(&c, 2, depth, 4 * n);
    return c;
}

static void start(void) {
    kt_err err = {0};
    if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s", err.message);
}

static void fill(kt_rng *rng, void *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) ((uint8_t *)bytes)[i] = (uint8_t)kt_rng_u64(rng);
}

/* --- products ------------------------------------------------------------------------------- */

typedef struct operands {
    int m, n, depth;
    unsigned opcode, prefix;
    uint8_t a[16][64], b[16][64];
    uint32_t c[16][16];
} operands;

/* Through tiles 0, 1, 2 and back. The buffers have rows of 64 bytes; unused columns are not zero. */
static void multiply(void *arg) {
    operands *o = arg;
    config shapes = product_shapes(o->m, o->n, o->depth);

    configuration(NONE, &shapes);
    load(0, o->c, 64);
    load(1, o->a, 64);
    load(2, o->b, 64);
    product(o->opcode, o->prefix, 0, 1, 2);
    store(0, o->c, 64);
}

static int byte_value(uint8_t byte, int is_signed) {
    return is_signed ? (int8_t)byte : byte;
}

static void reference_bytes(operands *o) {
    const int a_signed = o->prefix == PF2 || o->prefix == PF3;
    const int b_signed = o->prefix == PF2 || o->prefix == P66;
    for (int m = 0; m < o->m; m++)
        for (int n = 0; n < o->n; n++)
            for (int k = 0; k < 4 * o->depth; k++)
                o->c[m][n] += (uint32_t)(byte_value(o->a[m][k], a_signed) *
                                         byte_value(o->b[k / 4][4 * n + k % 4], b_signed));
}

Test(amx, byte_products_match_all_sign_rules) {
    kt_rng rng;
    start();
    kt_rng_seed(&rng, 1);
    for (int trial = 0; trial < 200; trial++) {
        operands o = {.opcode = BYTES, .prefix = (unsigned)trial & 3}, want;
        kt_amx_fault fault;

        o.m = trial < 8 ? 16 : 1 + (int)kt_rng_below(&rng, 16);
        o.n = trial < 8 ? 16 : 1 + (int)kt_rng_below(&rng, 16);
        o.depth = trial < 8 ? 16 : 1 + (int)kt_rng_below(&rng, 16);
        fill(&rng, o.a, sizeof o.a);
        fill(&rng, o.b, sizeof o.b);
        fill(&rng, o.c, sizeof o.c); /* sums that wrap */
        if (trial < 4) memset(o.a, 0x80, sizeof o.a), memset(o.b, 0x80, sizeof o.b);
        want = o;
        reference_bytes(&want);
        fault = kt_amx_try(multiply, &o);
        cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
        cr_assert_arr_eq(o.c, want.c, sizeof o.c, "prefix %u, %dx%dx%d", o.prefix, o.m, o.n,
                         o.depth);
    }
}

/* One multiply-add and one addition with denormals treated as zero, by this CPU. */
__attribute__((target("fma"))) static float fused(float a, float b, float c) {
    return _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a), _mm_set_ss(b), _mm_set_ss(c)));
}

static float wide(const uint8_t *row, int i, unsigned prefix) {
    uint16_t h;
    uint32_t bits;
    float f;

    memcpy(&h, row + 2 * i, 2);
    if (prefix == PF2) { /* half precision, from its definition */
        int exponent = h >> 10 & 31, fraction = h & 1023;
        f = exponent == 31  ? (fraction ? NAN : INFINITY)
            : exponent == 0 ? ldexpf((float)fraction, -24)
                            : ldexpf((float)(1024 + fraction), exponent - 25);
        return h >> 15 ? -f : f;
    }
    bits = (uint32_t)h << 16;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void reference_halves(operands *o) {
    const unsigned saved = _mm_getcsr();
    float wide_a[16][32], wide_b[16][32];

    for (int r = 0; r < 16; r++)
        for (int i = 0; i < 32; i++) {
            wide_a[r][i] = wide(o->a[r], i, o->prefix);
            wide_b[r][i] = wide(o->b[r], i, o->prefix);
        }
    _mm_setcsr(0x1f80 | 0x8040); /* all masked, to nearest, FTZ and DAZ */
    for (int m = 0; m < o->m; m++)
        for (int n = 0; n < o->n; n++) {
            volatile float sum;
            float even = 0, odd = 0, old;
            for (int k = 0; k < o->depth; k++) {
                even = fused(wide_a[m][2 * k], wide_b[k][2 * n], even);
                odd = fused(wide_a[m][2 * k + 1], wide_b[k][2 * n + 1], odd);
            }
            memcpy(&old, &o->c[m][n], 4);
            sum = even + odd;
            old += sum;
            memcpy(&o->c[m][n], &old, 4);
        }
    _mm_setcsr(saved);
}

/* Half floats whose exponents lie around a point, so that sums cancel or products underflow. */
static void fill_halves(kt_rng *rng, void *bytes, size_t n, unsigned prefix, int centre) {
    uint16_t *h = bytes;
    for (size_t i = 0; i < n / 2; i++) {
        uint16_t random = (uint16_t)kt_rng_u64(rng);
        int exponent = centre + (int)kt_rng_below(rng, 5) - 2;
        if (kt_rng_below(rng, 16) == 0) exponent = 0; /* a denormal */
        h[i] = prefix == PF3 ? (uint16_t)((random & 0x807f) | (exponent & 255) << 7)
                             : (uint16_t)((random & 0x83ff) | (exponent & 31) << 10);
    }
}

static void check_halves(operands *o) {
    operands want = *o;
    kt_amx_fault fault;

    reference_halves(&want);
    fault = kt_amx_try(multiply, o);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    for (int m = 0; m < o->m; m++)
        for (int n = 0; n < o->n; n++) {
            float got, expected;
            memcpy(&got, &o->c[m][n], 4);
            memcpy(&expected, &want.c[m][n], 4);
            if (isnan(got) && isnan(expected)) continue;
            cr_assert_eq(o->c[m][n], want.c[m][n], "%s [%d, %d]: %a, want %a",
                         o->prefix == PF3 ? "bf16" : "fp16", m, n, got, expected);
        }
}

Test(amx, half_products_round_and_flush_like_the_manual) {
    static const int centres[] = {127, 127, 64, 63, 62, 2, 190, 250};
    kt_rng rng;

    start();
    if (!__builtin_cpu_supports("fma")) cr_skip_test("no FMA to compare with");
    kt_rng_seed(&rng, 2);
    for (int trial = 0; trial < 400; trial++) {
        kt_amx_plain_products = trial % 5 == 0; /* what the emulator does without AVX-512 */
        operands o = {.m = 1 + (int)kt_rng_below(&rng, 16),
                      .n = 1 + (int)kt_rng_below(&rng, 16),
                      .depth = 1 + (int)kt_rng_below(&rng, 16),
                      .opcode = HALVES,
                      .prefix = trial % 4 == 3 && !kt_amx_is_native() ? PF2 : PF3};
        int centre = o.prefix == PF2 ? trial % 28 + 2 : centres[trial / 4 % 8];
        fill_halves(&rng, o.a, sizeof o.a, o.prefix, centre);
        fill_halves(&rng, o.b, sizeof o.b, o.prefix, centre);
        for (int i = 0; i < 256; i++) {
            float old = kt_rng_normal(&rng) * ldexpf(1, 2 * (centre - 127));
            if (i % 7 == 0) old *= 0x1p-24f;
            memcpy(&o.c[i / 16][i % 16], &old, 4);
        }
        check_halves(&o);
    }
}

/* The manual's order, seen: even inputs, odd inputs, then both, then the old value. */
Test(amx, bf16_sums_go_in_the_manual_s_order) {
    operands o = {.m = 1, .n = 1, .depth = 2, .opcode = HALVES, .prefix = PF3};
    const uint16_t one = 0x3f80, big = 0x4b80 /* 2^24 */, minus_big = 0xcb80;
    const uint16_t a[4] = {big, one, minus_big, one};
    const uint16_t ones[2] = {one, one};
    kt_amx_fault fault;

    start();
    memcpy(o.a[0], a, sizeof a);
    memcpy(o.b[0], ones, sizeof ones);
    memcpy(o.b[1], ones, sizeof ones);
    fault = kt_amx_try(multiply, &o);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    cr_assert_eq(o.c[0][0], 0x40000000u, "2^24 - 2^24 and 1 + 1 make 2; pairwise they make 1 or 0");
}

/* --- loads, stores, configuration ----------------------------------------------------------- */

typedef struct transfers {
    uint8_t from[16 * 100], to[16 * 72];
    config shapes, read_back;
    int64_t from_stride, to_stride;
    int from_at, to_at;
} transfers;

static void copy_through_tile_7(void *arg) {
    transfers *x = arg;
    configuration(NONE, &x->shapes);
    load(7, x->from + x->from_at, x->from_stride);
    store(7, x->to + x->to_at, x->to_stride);
    configuration(P66, &x->read_back);
}

Test(amx, transfers_move_rows_by_any_stride_and_nothing_else) {
    static const int64_t strides[] = {100, 64, 4, 0, -100};
    kt_rng rng;
    start();
    kt_rng_seed(&rng, 3);
    for (int trial = 0; trial < 60; trial++) {
        transfers x = {.from_stride = strides[trial % 5], .to_stride = 72};
        int rows = 1 + (int)kt_rng_below(&rng, 16), bytes = 4 * (1 + (int)kt_rng_below(&rng, 16));
        uint8_t want[sizeof x.to];
        kt_amx_fault fault;

        fill(&rng, x.from, sizeof x.from);
        memset(x.to, 0xa5, sizeof x.to);
        memcpy(want, x.to, sizeof want);
        shape(&x.shapes, 7, rows, bytes);
        if (x.from_stride < 0) x.from_at = 100 * (rows - 1);
        for (int r = 0; r < rows; r++)
            memcpy(want + 72 * r, x.from + x.from_at + r * x.from_stride, (size_t)bytes);
        fault = kt_amx_try(copy_through_tile_7, &x);
        cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
        cr_assert_arr_eq(x.to, want, sizeof want);
        cr_assert_arr_eq(&x.read_back, &x.shapes, sizeof x.shapes);
    }
}

/* What lies outside a tile's shape reads as zero: a tile made smaller, then larger by another. */
static void start_at_row_2(void *arg) {
    transfers *x = arg;
    config shapes = {{0}};
    shape(&shapes, 7, 4, 16);
    shapes.byte[1] = 2;
    configuration(NONE, &shapes);
    load(7, x->from, 16);
    configuration(P66, &x->read_back);
    store(7, x->to, 16);
}

Test(amx, a_start_row_skips_rows_once) {
    transfers x = {.from_stride = 16};
    kt_amx_fault fault;
    start();
    memset(x.from, 7, sizeof x.from);
    fault = kt_amx_try(start_at_row_2, &x);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    cr_assert_eq(x.read_back.byte[1], 0, "the load resets it");
    cr_assert_eq(x.to[0], 0);
    cr_assert_eq(x.to[31], 0);
    cr_assert_eq(x.to[32], 7);
    cr_assert_eq(x.to[63], 7);
}

static void zero_and_release(void *arg) {
    transfers *x = arg;
    configuration(NONE, &x->shapes);
    load(7, x->from, 64);
    zero(7);
    store(7, x->to, 64);
    release();
    memset(&x->read_back, 0xff, sizeof x->read_back);
    configuration(P66, &x->read_back);
}

Test(amx, zero_clears_a_tile_and_release_the_configuration) {
    transfers x = {.from_stride = 64};
    const config none = {{0}};
    uint8_t zeros[64] = {0};
    kt_amx_fault fault;
    start();
    memset(x.from, 7, sizeof x.from);
    memset(x.to, 7, sizeof x.to);
    shape(&x.shapes, 7, 1, 64);
    fault = kt_amx_try(zero_and_release, &x);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    cr_assert_arr_eq(x.to, zeros, sizeof zeros);
    cr_assert_arr_eq(&x.read_back, &none, sizeof none);
}

/* Operands that the kernels' own statements do not use: bases that need their own encodings, scales,
 * displacements, no index. */
__attribute__((target("amx-tile"))) static void many_addresses(void *arg) {
    uint8_t *buffer = arg;
    static const config shapes = {{1, [30] = 4, [55] = 1}};
    __asm__ volatile("ldtilecfg %0" ::"m"(shapes) : "memory"); /* relative to RIP */
    __asm__ volatile(
        "mov %0, %%r13; tileloadd (%%r13), %%tmm7; tilestored %%tmm7, 128(%%r13)" ::"r"(buffer)
        : "r13", "memory");
    __asm__ volatile(
        "mov %0, %%r12; tileloadd 4(%%r12), %%tmm7; tilestored %%tmm7, 132(%%r12)" ::"r"(buffer)
        : "r12", "memory");
    __asm__ volatile("mov %0, %%r9; xor %%r14, %%r14; tileloaddt1 8(%%r9,%%r14,8), %%tmm7;"
                     "tilestored %%tmm7, 0x88(%%r9,%%r14,2)" ::"r"(buffer)
                     : "r9", "r14", "memory");
    __asm__ volatile("mov %0, %%rcx; lea -1000(%%rcx), %%rdx; tileloadd 1012(%%rdx), %%tmm7;"
                     "tilestored %%tmm7, 140(%%rcx)" ::"r"(buffer)
                     : "rcx", "rdx", "memory");
}

Test(amx, addresses_decode_in_every_form) {
    uint8_t buffer[256];
    kt_amx_fault fault;
    start();
    for (int i = 0; i < 256; i++) buffer[i] = (uint8_t)i;
    fault = kt_amx_try(many_addresses, buffer);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    for (int i = 0; i < 16; i++)
        cr_assert_eq(buffer[128 + i], i, "byte %d: %d", i, buffer[128 + i]);
    cr_assert_eq(buffer[144], 144);
}

/* --- faults --------------------------------------------------------------------------------- */

typedef struct violation {
    const char *reason; /* what the emulator says */
    kt_amx_kind kind;
    int rows[3], row_bytes[3]; /* tiles 0 to 2 */
    int at, value;             /* a byte of the configuration to spoil */
    uint8_t code[6];           /* what to run then; length by opcode */
    uint64_t base;
} violation;

#define FITS       \
    {4, 4, 4}, {   \
        16, 16, 16 \
    }
#define DOT(c, a, b) \
    { 0xc4, 0xe2, (uint8_t)((~(b)&15) << 3 | PF2), BYTES, 0xc0 | (c) << 3 | (a) }
#define LOAD_0 \
    { 0xc4, 0xe2, 0x7b, MEMORY, 0x04, 0x37 }
#define STORE_0 \
    { 0xc4, 0xe2, 0x7a, MEMORY, 0x04, 0x37 }

static const violation violations[] = {
    {"palette 2", KT_AMX_GP, FITS, 0, 2, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 2, 1, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 15, 1, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 32, 4, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 47, 4, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 56, 1, {0}, 0},
    {"reserved", KT_AMX_GP, FITS, 63, 1, {0}, 0},
    {"65 bytes", KT_AMX_GP, {4, 4, 4}, {16, 65, 16}, 0, 1, {0}, 0},
    {"272 bytes", KT_AMX_GP, FITS, 17, 1, {0}, 0},
    {"17 rows", KT_AMX_GP, {4, 4, 17}, {16, 16, 16}, 0, 1, {0}, 0},
    {"0 rows of 16", KT_AMX_GP, {4, 0, 4}, {16, 16, 16}, 0, 1, {0}, 0},
    {"4 rows of 0", KT_AMX_GP, {4, 4, 4}, {16, 0, 16}, 0, 1, {0}, 0},
    {"not configured", KT_AMX_UD, FITS, 0, 0, DOT(0, 1, 2), 0},
    {"not configured", KT_AMX_UD, FITS, 0, 0, LOAD_0, 0},
    {"not configured", KT_AMX_UD, FITS, 0, 0, STORE_0, 0},
    {"not configured", KT_AMX_UD, FITS, 0, 0, {0xc4, 0xe2, 0x7b, CONFIG, 0xc0}, 0}, /* TILEZERO */
    {"not distinct", KT_AMX_UD, FITS, 0, 1, DOT(0, 0, 2), 0},
    {"not distinct", KT_AMX_UD, FITS, 0, 1, DOT(0, 1, 0), 0},
    {"not distinct", KT_AMX_UD, FITS, 0, 1, DOT(0, 1, 1), 0},
    {"tile 3 has no rows", KT_AMX_UD, FITS, 0, 1, DOT(3, 1, 2), 0},
    {"tile 3 has no rows", KT_AMX_UD, FITS, 0, 1, DOT(0, 3, 2), 0},
    {"tile 3 has no rows", KT_AMX_UD, FITS, 0, 1, DOT(0, 1, 3), 0},
    {"tile 9 does not exist", KT_AMX_UD, FITS, 0, 1, DOT(0, 1, 9), 0},
    {"tile 8 does not exist", KT_AMX_UD, FITS, 0, 1, {0xc4, 0x62, 0x6b, BYTES, 0xc1}, 0},
    {"tile 9 does not exist", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xc2, 0x6b, BYTES, 0xc1}, 0},
    {"tile 8 does not exist", KT_AMX_UD, FITS, 0, 1, {0xc4, 0x62, 0x7b, MEMORY, 0x04, 0x37}, 0},
    {"tile 0: rows of 15", KT_AMX_UD, {4, 4, 4}, {15, 16, 16}, 0, 1, DOT(0, 1, 2), 0},
    {"tile 1: rows of 18", KT_AMX_UD, {4, 4, 4}, {16, 18, 16}, 0, 1, DOT(0, 1, 2), 0},
    {"tile 2: rows of 17", KT_AMX_UD, {4, 4, 4}, {16, 16, 17}, 0, 1, DOT(0, 1, 2), 0},
    {"tile 0: rows of 15", KT_AMX_UD, {4, 4, 4}, {15, 16, 16}, 0, 1, LOAD_0, 0},
    {"tile 0: rows of 15", KT_AMX_UD, {4, 4, 4}, {15, 16, 16}, 0, 1, STORE_0, 0},
    {"start row 4 of 4", KT_AMX_UD, FITS, 1, 4, LOAD_0, 0},
    {"5 rows of sums for 4", KT_AMX_UD, {5, 4, 4}, {16, 16, 16}, 0, 1, DOT(0, 1, 2), 0},
    {"20 bytes of sums", KT_AMX_UD, {4, 4, 4}, {20, 16, 16}, 0, 1, DOT(0, 1, 2), 0},
    {"depth 4 meets depth 5", KT_AMX_UD, {4, 4, 5}, {16, 16, 16}, 0, 1, DOT(0, 1, 2), 0},
    {"SIB", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x7b, MEMORY, 0x07}, 0},
    {"VEX.vvvv", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x73, MEMORY, 0x04, 0x37}, 0},
    {"VEX.vvvv", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x73, CONFIG, 0xc0}, 0},
    {"three tiles", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x6b, BYTES, 0x07}, 0},
    {"ModRM", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x7b, CONFIG, 0xc1}, 0},
    {"prefix", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x68, HALVES, 0xc1}, 0},
    {"canonical", KT_AMX_GP, FITS, 0, 1, LOAD_0, 1ull << 47},
    {"canonical", KT_AMX_GP, FITS, 0, 1, STORE_0, 1ull << 63},
    {"", KT_AMX_UD, FITS, 0, 1, {0x0f, 0x0b}, 0},                    /* UD2 */
    {"", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0x7f, BYTES, 0xc1}, 0}, /* VEX.L */
    {"", KT_AMX_UD, FITS, 0, 1, {0xc4, 0xe2, 0xeb, BYTES, 0xc1}, 0}, /* VEX.W */
};

static uint8_t buffer[1024];

static void violate(void *arg) {
    const violation *v = arg;
    config shapes = {{0}};
    const void *base = v->base ? (const void *)(uintptr_t)v->base : buffer;

    for (int t = 0; t < 3; t++) shape(&shapes, t, v->rows[t], v->row_bytes[t]);
    shapes.byte[v->at] = (uint8_t)v->value;
    configuration(NONE, &shapes);
    if (v->code[0]) execute(v->code, sizeof v->code, base, 16);
}

Test(amx, every_broken_rule_faults_with_its_name) {
    start();
    for (size_t i = 0; i < sizeof violations / sizeof *violations; i++) {
        violation v = violations[i];
        kt_amx_fault fault = kt_amx_try(violate, &v);
        cr_assert_eq(fault.kind, v.kind, "rule %zu (%s): fault %d %s", i, v.reason, fault.kind,
                     fault.reason);
        if (!kt_amx_is_native())
            cr_assert_not_null(strstr(fault.reason, v.reason), "rule %zu: '%s', want '%s'", i,
                               fault.reason, v.reason);
    }
    if (!kt_amx_is_native()) cr_assert_gt(kt_amx_executed(), 20);
}

static void in_order(void *arg) {
    operands o = {.m = 4, .n = 4, .depth = 4, .opcode = BYTES, .prefix = PF2};
    (void)arg;
    multiply(&o);
}

Test(amx, the_unspoiled_instructions_do_not_fault) {
    kt_amx_fault fault;
    start();
    fault = kt_amx_try(in_order, NULL);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
}

/* Rows end at an inaccessible page: one row more or one byte more faults. */
static void read_up_to(void *arg) {
    config shapes = {{0}};
    const char *guarded = arg;
    shape(&shapes, 0, 4, guarded[0]);
    configuration(NONE, &shapes);
    load(0, guarded, 16);
}

Test(amx, loads_stop_at_the_shape) {
    char *guarded;
    kt_amx_fault fault;
    start();
    guarded = kt_guard_alloc(64, 16, 0);
    guarded[0] = 16;
    fault = kt_amx_try(read_up_to, guarded);
    cr_assert_eq(fault.kind, KT_AMX_FINE, "%s", fault.reason);
    guarded[0] = 20;
    fault = kt_amx_try(read_up_to, guarded);
#if !defined(__SANITIZE_ADDRESS__)
    cr_assert_eq(fault.kind, KT_AMX_FAULT, "fault %d %s", fault.kind, fault.reason);
#endif
    kt_guard_free(guarded);
}

/* --- threads, and the end of the program ----------------------------------------------------- */

static void *multiply_often(void *arg) {
    kt_rng rng;
    int which = *(int *)arg, bad = 0;

    kt_rng_seed(&rng, (uint64_t)which);
    for (int trial = 0; trial < 200; trial++) {
        operands o = {.m = 3 + which, .n = 5, .depth = 7 - which, .opcode = BYTES, .prefix = PF2};
        operands want;
        fill(&rng, o.a, sizeof o.a);
        fill(&rng, o.b, sizeof o.b);
        want = o;
        reference_bytes(&want);
        multiply(&o);
        bad += memcmp(o.c, want.c, sizeof o.c) != 0;
    }
    *(int *)arg = bad;
    return NULL;
}

Test(amx, each_thread_has_its_own_tiles) {
    pthread_t thread[4];
    int word[4];
    start();
    for (int i = 0; i < 4; i++) {
        word[i] = i;
        cr_assert_eq(pthread_create(&thread[i], NULL, multiply_often, &word[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        cr_assert_eq(word[i], 0, "thread %d: %d wrong products", i, word[i]);
    }
}

Test(amx, a_broken_rule_outside_of_an_attempt_ends_the_program, .signal = SIGILL) {
    start();
    zero(0);
}

Test(amx, a_general_protection_fault_ends_the_program_too, .signal = SIGSEGV) {
    config shapes = {{2}};
    start();
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would report the hardware's */
    configuration(NONE, &shapes);
}

/* --- numbers of 16 bits ---------------------------------------------------------------------- */

/* A double -> half, to nearest even, by its definition. */
static uint16_t half_of(double x) {
    int exponent;
    double step, whole;

    if (x == 0) return signbit(x) ? 0x8000 : 0;
    frexp(x, &exponent);
    step = ldexp(1, (exponent < -13 ? -13 : exponent) - 11);
    whole = nearbyint(x / step) * step;
    frexp(whole, &exponent);
    if (fabs(whole) >= 65536) return x < 0 ? 0xfc00 : 0x7c00;
    if (fabs(whole) < 0x1p-14) return (uint16_t)(fabs(whole) * 0x1p24) | (x < 0 ? 0x8000 : 0);
    return (uint16_t)((x < 0 ? 0x8000 : 0) | (exponent + 14) << 10 |
                      ((int)(fabs(whole) * ldexp(1, 11 - exponent)) & 1023));
}

static double value_of(uint16_t h) {
    uint8_t bytes[2];
    memcpy(bytes, &h, 2);
    return wide(bytes, 0, PF2);
}

/* Three registers of which two are above 15, and one beside them that must not change. */
__attribute__((target("avx512f"))) static void three_halves(const uint16_t *a, const uint16_t *b,
                                                            uint16_t out[3][32], uint8_t *beside) {
    __asm__ volatile("vmovdqu64 (%0), %%zmm9; vmovdqu64 (%1), %%zmm18; vmovdqu64 (%1), %%zmm24;"
                     "vmulph %%zmm18, %%zmm9, %%zmm27; vmovdqu64 %%zmm27, (%2);"
                     "vsubph %%zmm18, %%zmm9, %%zmm3; vmovdqu64 %%zmm3, 64(%2);"
                     "vfmadd213ph %%zmm9, %%zmm18, %%zmm24; vmovdqu64 %%zmm24, 128(%2);"
                     "vmovdqu64 %%zmm18, (%3)" ::"r"(a),
                     "r"(b), "r"(out), "r"(beside)
                     : "zmm3", "zmm9", "zmm18", "zmm24", "zmm27", "memory");
}

/* Products, differences, and b * b + a, of halves of all sizes: subnormal ones, and sums whose
 * exact value lies just beside the middle of two halves. */
Test(amx, fp16_instructions_round_once) {
    kt_rng rng;

    start();
    kt_skip_without_isa(KT_ISA_AVX512, "registers of 512 bits");
    kt_rng_seed(&rng, 4);
    for (int trial = 0; trial < 300; trial++) {
        uint16_t a[32], b[32], out[3][32], beside[32];
        for (int i = 0; i < 32; i++) {
            a[i] = (uint16_t)(kt_rng_u64(&rng) & 0xbfff); /* finite, below 2 */
            b[i] = (uint16_t)(kt_rng_u64(&rng) & 0xbfff);
            if (trial % 3 == 0) a[i] &= 0x83ff;
        }
        a[0] = 0x3c00, b[0] = 0x0001; /* 1 and the least: lost, but not by a tie */
        a[1] = 0x3c01, b[1] = 0x2400; /* 1 + 2^-10 and 2^-6 squared */
        three_halves(a, b, out, (uint8_t *)beside);
        cr_assert_arr_eq(beside, b, sizeof b);
        for (int i = 0; i < 32; i++) {
            const double x = value_of(a[i]), y = value_of(b[i]);
            cr_assert_eq(out[0][i], half_of(x * y), "%a * %a = %04x", x, y, out[0][i]);
            cr_assert(out[1][i] == half_of(x - y), "%a - %a = %04x", x, y, out[1][i]);
            cr_assert(out[2][i] == half_of(y * y + x), "%a ^ 2 + %a = %04x", y, x, out[2][i]);
        }
    }
}

__attribute__((target("avx512f"))) static void two_floats(const uint32_t *high, const uint32_t *low,
                                                          uint16_t out[32]) {
    __asm__ volatile("vmovdqu64 (%0), %%zmm7; vmovdqu64 (%1), %%zmm21;"
                     "vcvtne2ps2bf16 %%zmm21, %%zmm7, %%zmm30; vmovdqu64 %%zmm30, (%2)" ::"r"(high),
                     "r"(low), "r"(out)
                     : "zmm7", "zmm21", "zmm30", "memory");
}

/* Ties go to even, subnormal numbers to zero, a quiet bit comes to NaN; carries reach infinity. */
Test(amx, floats_become_bfloat16_by_the_manual) {
    static const struct {
        uint32_t from;
        uint16_t to;
    } known[16] = {{0, 0},
                   {0x80000000, 0x8000},
                   {0x3f800000, 0x3f80},
                   {0x3f808000, 0x3f80}, /* a tie, down */
                   {0x3f818000, 0x3f82}, /* a tie, up */
                   {0x3f808001, 0x3f81},
                   {0xbf817fff, 0xbf81},
                   {0x007fffff, 0},
                   {0x80400000, 0x8000},
                   {0x00800000, 0x0080},
                   {0x7f7f8000, 0x7f80},
                   {0xff7fffff, 0xff80},
                   {0x7f800000, 0x7f80},
                   {0xff800000, 0xff80},
                   {0x7f800001, 0x7fc0},
                   {0xffa10000, 0xffe1}};
    uint32_t first[16], second[16];
    uint16_t out[32];

    start();
    kt_skip_without_isa(KT_ISA_AVX512, "registers of 512 bits");
    for (int i = 0; i < 16; i++) first[i] = known[i].from, second[15 - i] = known[i].from;
    two_floats(first, second, out);
    for (int i = 0; i < 16; i++) {
        cr_assert_eq(out[16 + i], known[i].to, "%08x: %04x, expected %04x", known[i].from,
                     out[16 + i], known[i].to);
        cr_assert_eq(out[15 - i], known[i].to, "%08x: %04x, expected %04x", known[i].from,
                     out[15 - i], known[i].to);
    }
}
