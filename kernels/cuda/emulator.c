/* Fibers, barriers, collectives and copies of emulator.h. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "kernels/cuda/emulator.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/cuda/emulator_stacks.h"

#if defined(__SANITIZE_ADDRESS__)
#define KT_ADDRESS_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KT_ADDRESS_SANITIZER 1
#endif
#endif

#ifdef KT_ADDRESS_SANITIZER
void __sanitizer_start_switch_fiber(void **save, const void *bottom, size_t size);
void __sanitizer_finish_switch_fiber(void *save, const void **bottom, size_t *size);
#endif

enum {
    WARP = 32,
    MAX_THREADS = 1024,
    MAX_COPIES = 512, /* of one thread, under way */
    MAX_PRODUCTS = 64,
    MAX_SHARED = 227 * 1024,
    LOOK_NS = 500000 /* for a host that pauses up to 0.2 ms between looks */
};

typedef enum fiber_state { RUNNABLE, AT_BARRIER, AT_COLLECTIVE, DONE } fiber_state;

typedef struct copy {
    const void *from;
    uint32_t at;
    int bytes, valid, group;
} copy;

/* A product of a warpgroup. */
typedef struct wide_product {
    float *d;
    uint64_t a, b;
    int n, group;
    bool is_e4m3, adds;
} wide_product;

typedef struct fiber {
    void *sp;
    fiber_state state;
    int n_copies, group;    /* the group that is open; -1 = never waited for anything */
    copy *copies;           /* [MAX_COPIES], allocated with the first */
    wide_product *products; /* [MAX_PRODUCTS], likewise */
    int n_products, product_group;
    bool is_fenced;  /* for products, since the last wait */
    uint32_t fences; /* so far, that show products what it wrote */
#ifdef KT_ADDRESS_SANITIZER
    void *fake_stack;
#endif
} fiber;

typedef struct warp {
    kt_emulator_collective *f;
    void *lane[WARP];
    int here;
    uint32_t epoch; /* collectives so far: they order the warp's lanes */
} warp;

/* Who touched a word of shared memory last. An access is ordered with another by a barrier of the
 * block (another epoch), or by a collective where both are of one warp (another warp epoch). */
typedef struct shadow {
    uint32_t write_epoch, read_epoch, write_warp_epoch, read_warp_epoch;
    uint32_t write_fences;       /* of the writer, by then */
    int16_t writer, reader;      /* -1 = nobody */
    bool many_warps, many_lanes; /* other readers in this epoch, in this warp epoch */
    bool added;                  /* the last write was a kt_shared_add: others may follow */
} shadow;

typedef struct emulator {
    const kt_launch *launch;
    kt_emulator_options options;
    int block[2], self, n_runnable, n_waiting, n_done, n_failed;
    uint32_t epoch, random;
    int *runnable;
    fiber *fiber;
    warp *warp;
    uint8_t *stacks, *shared;
    size_t n_stacks; /* at least one per thread */
    shadow *shadow;
    void *scheduler; /* its stack pointer while a fiber runs */
    char failure[256];
#ifdef KT_ADDRESS_SANITIZER
    void *fake_stack;
    const void *stack_bottom;
    size_t stack_size;
#endif
} emulator;

/* Of the model that shared libraries may use, as libkt.so has this file, too. */
#define OF_THREAD static _Thread_local __attribute__((tls_model("initial-exec")))

OF_THREAD emulator *now;

/* ---- switching ---- */

/* Saves what the ABI asks a callee to keep, then the stack pointer in *save, and goes on at `load`.
 */
void kt_emulator_switch(void **save, void *load);
__asm__(".text\n"
        ".globl kt_emulator_switch\n"
        ".type kt_emulator_switch, @function\n"
        "kt_emulator_switch:\n"
        "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
        "%r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
        "    ret\n"
        ".size kt_emulator_switch, .-kt_emulator_switch\n");

static void to_scheduler(void) {
    emulator *e = now;
    fiber *f = &e->fiber[e->self];
#ifdef KT_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(f->state == DONE ? NULL : &f->fake_stack, e->stack_bottom,
                                   e->stack_size);
#endif
    kt_emulator_switch(&f->sp, e->scheduler);
#ifdef KT_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(f->fake_stack, &e->stack_bottom, &e->stack_size);
#endif
}

static void run_fiber(emulator *e, int i) {
    e->self = i;
#ifdef KT_ADDRESS_SANITIZER
    __sanitizer_start_switch_fiber(&e->fake_stack, kt_stack_at(e->stacks, i), KT_STACK_BYTES);
#endif
    kt_emulator_switch(&e->scheduler, e->fiber[i].sp);
#ifdef KT_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(e->fake_stack, NULL, NULL);
#endif
}

static void make_runnable(emulator *e, int i) {
    e->fiber[i].state = RUNNABLE;
    e->runnable[e->n_runnable++] = i;
}

/* The first failure is kept. The fiber that made it never runs again. */
static void give_up(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

static void give_up(const char *format, ...) {
    emulator *e = now;
    va_list args;

    if (!e->n_failed++) {
        const int n = snprintf(e->failure, sizeof e->failure,
                               "block (%d, %d), thread %d: ", e->block[0], e->block[1], e->self);
        va_start(args, format);
        vsnprintf(e->failure + n, sizeof e->failure - (size_t)n, format, args);
        va_end(args);
    }
    e->fiber[e->self].state = DONE;
    to_scheduler();
    __builtin_unreachable();
}

static void enter(void) {
    emulator *e = now;
#ifdef KT_ADDRESS_SANITIZER
    __sanitizer_finish_switch_fiber(NULL, &e->stack_bottom, &e->stack_size);
#endif
    e->launch->entry(e->launch->parameters);
    if (e->fiber[e->self].n_copies > 0 && e->options.lazy) kt_emulator_wait(0);
    e->fiber[e->self].state = DONE;
    e->n_done++;
    to_scheduler();
    __builtin_unreachable();
}

/* A stack whose first return goes to enter(), aligned as after a call. */
static void *first_stack(uint8_t *bottom) {
    void **top = (void **)(void *)(bottom + KT_STACK_BYTES);
    void (*start)(void) = enter;

    *--top = NULL;
    memcpy(--top, &start, sizeof start);
    for (int i = 0; i < 6; i++) *--top = NULL;
    return top;
}

/* ---- what threads ask for ---- */

OF_THREAD size_t parameter_bytes; /* that an entry told last */

void kt_emulator_parameters(size_t bytes) {
    parameter_bytes = bytes;
}

size_t kt_emulated_parameter_bytes(kt_emulated_entry *entry) {
    entry(NULL);
    return parameter_bytes;
}

const int32_t *kt_emulator_constant(void) {
    return now->launch->constant;
}

int kt_emulator_thread(void) {
    return now->self;
}

int kt_emulator_block(int axis) {
    return now->block[axis];
}

static void release_barrier(emulator *e) {
    e->n_waiting = 0;
    e->epoch++;
    for (int i = 0; i < e->launch->threads; i++)
        if (e->fiber[i].state == AT_BARRIER) make_runnable(e, i);
}

void kt_emulator_sync(void) {
    emulator *e = now;

    e->fiber[e->self].state = AT_BARRIER;
    if (e->n_done > 0) give_up("a barrier after %d threads of the block have ended", e->n_done);
    if (++e->n_waiting == e->launch->threads) release_barrier(e);
    to_scheduler();
}

void kt_emulator_warp(kt_emulator_collective *f, void *mine) {
    emulator *e = now;
    const int first = e->self / WARP * WARP;
    warp *w = &e->warp[e->self / WARP];

    if (w->here > 0 && w->f != f) give_up("lanes of a warp are in different collectives");
    w->f = f;
    w->lane[e->self % WARP] = mine;
    if (++w->here < WARP) {
        e->fiber[e->self].state = AT_COLLECTIVE;
        to_scheduler();
        return;
    }
    f(w->lane);
    w->here = 0;
    w->epoch++;
    for (int i = first; i < first + WARP; i++)
        if (i != e->self) make_runnable(e, i);
}

void kt_emulator_aligned(const void *p, uint32_t size) {
    if ((uintptr_t)p % size) give_up("address %p is not a multiple of %u", p, size);
}

/* ---- shared memory ---- */

static bool was_written(const emulator *e, const shadow *s, uint32_t warp_epoch) {
    if (s->writer < 0 || s->writer == e->self || s->write_epoch != e->epoch) return false;
    return s->writer / WARP != e->self / WARP || s->write_warp_epoch == warp_epoch;
}

static bool was_read(const emulator *e, const shadow *s, uint32_t warp_epoch) {
    if (s->reader < 0 || s->read_epoch != e->epoch) return false;
    if (s->many_warps || s->reader / WARP != e->self / WARP) return true;
    return s->read_warp_epoch == warp_epoch && (s->many_lanes || s->reader != e->self);
}

static void note_read(const emulator *e, shadow *s, uint32_t warp_epoch) {
    const bool is_same = s->reader >= 0 && s->read_epoch == e->epoch;
    const bool is_warp = is_same && s->reader / WARP == e->self / WARP;

    s->many_warps = is_same && (s->many_warps || !is_warp);
    s->many_lanes =
        is_warp && s->read_warp_epoch == warp_epoch && (s->many_lanes || s->reader != e->self);
    s->reader = (int16_t)e->self;
    s->read_epoch = e->epoch;
    s->read_warp_epoch = warp_epoch;
}

static void note_access(emulator *e, uint32_t word, bool writes) {
    shadow *s = &e->shadow[word];
    const uint32_t mine = e->warp[e->self / WARP].epoch;

    if (was_written(e, s, mine))
        give_up("%s shared memory at %u, which thread %d wrote since the last barrier",
                writes ? "writes" : "reads", word * 4, s->writer);
    if (writes && was_read(e, s, mine))
        give_up("writes shared memory at %u, which thread %d read since the last barrier", word * 4,
                s->reader);
    if (!writes) {
        note_read(e, s, mine);
        return;
    }
    s->writer = (int16_t)e->self;
    s->write_epoch = e->epoch;
    s->write_warp_epoch = mine;
    s->added = false;
    s->write_fences = e->fiber[e->self].fences;
}

uint8_t *kt_emulator_shared(uint32_t at, uint32_t size, bool writes) {
    emulator *e = now;

    if (at % size) give_up("offset %u of shared memory is not a multiple of %u", at, size);
    if (at > e->launch->shared_bytes || size > e->launch->shared_bytes - at)
        give_up("offset %u + %u lies behind the %zu bytes of shared memory", at, size,
                e->launch->shared_bytes);
    if (e->options.races)
        for (uint32_t word = at / 4; word < (at + size) / 4; word++) note_access(e, word, writes);
    return e->shared + at;
}

/* Additions to a word are in one piece: among themselves they are no race. */
uint32_t kt_emulator_shared_add(uint32_t at, uint32_t v) {
    emulator *e = now;
    shadow *s =
        e->options.races && at / 4 < e->launch->shared_bytes / 4 ? &e->shadow[at / 4] : NULL;
    uint32_t before, after;
    uint8_t *word;

    if (s && s->added) s->writer = -1;
    word = kt_emulator_shared(at, sizeof before, true);
    if (s) s->added = true;
    memcpy(&before, word, sizeof before);
    after = before + v;
    memcpy(word, &after, sizeof after);
    return before;
}

static void carry_out(const copy *c) {
    uint8_t *to = kt_emulator_shared(c->at, (uint32_t)c->bytes, true);
    memset(to, 0, (size_t)c->bytes);
    memcpy(to, c->from, (size_t)c->valid);
}

void kt_emulator_copy(uint32_t at, const void *from, int bytes, int valid) {
    fiber *f = &now->fiber[now->self];
    const copy c = {from, at, bytes, valid, f->group};

    if (valid != 0 && valid != bytes)
        give_up("a copy of %d bytes; 0 or %d are allowed", valid, bytes);
    if (valid) kt_emulator_aligned(from, (uint32_t)bytes);
    kt_emulator_shared(at, (uint32_t)bytes, true);
    if (!now->options.lazy) {
        carry_out(&c);
        return;
    }
    if (!f->copies) f->copies = malloc(MAX_COPIES * sizeof *f->copies);
    if (!f->copies) give_up("no memory for copies");
    if (f->n_copies == MAX_COPIES) give_up("more than %d copies under way", MAX_COPIES);
    f->copies[f->n_copies++] = c;
}

void kt_emulator_commit(void) {
    now->fiber[now->self].group++;
}

void kt_emulator_wait(int left) {
    fiber *f = &now->fiber[now->self];
    int kept = 0;

    for (int i = 0; i < f->n_copies; i++) {
        if (f->copies[i].group < f->group - left)
            carry_out(&f->copies[i]);
        else
            f->copies[kept++] = f->copies[i];
    }
    f->n_copies = kept;
}

/* ---- collectives ---- */

typedef struct shuffle {
    uint32_t value, result;
    int from;
} shuffle;

static void do_shuffle(void *const *lane) {
    for (int i = 0; i < WARP; i++) {
        shuffle *mine = lane[i];
        mine->result = ((const shuffle *)lane[mine->from & (WARP - 1)])->value;
    }
}

uint32_t kt_emulator_shuffle(uint32_t v, int from) {
    shuffle s = {v, 0, from};
    kt_emulator_warp(do_shuffle, &s);
    return s.result;
}

static void do_match(void *const *lane) {
    for (int i = 0; i < WARP; i++) {
        shuffle *mine = lane[i];
        for (int j = 0; j < WARP; j++)
            mine->result |= (uint32_t)(((const shuffle *)lane[j])->value == mine->value) << j;
    }
}

uint32_t kt_emulator_match(uint32_t v) {
    shuffle s = {v, 0, 0};
    kt_emulator_warp(do_match, &s);
    return s.result;
}

static void do_nothing(void *const *lane) {
    (void)lane;
}

void kt_emulator_pause(uint32_t ns) {
    const struct timespec time = {0, (long)ns};
    nanosleep(&time, NULL);
}

void kt_emulator_tell(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
    if (now->options.lazy) kt_emulator_pause(LOOK_NS);
}

void kt_emulator_warp_sync(void) {
    int mine = 0;
    kt_emulator_warp(do_nothing, &mine);
}

static void do_ballot(void *const *lane) {
    uint32_t bits = 0;

    for (int i = 0; i < WARP; i++) bits |= (uint32_t)(((const shuffle *)lane[i])->value != 0) << i;
    for (int i = 0; i < WARP; i++) ((shuffle *)lane[i])->result = bits;
}

uint32_t kt_emulator_ballot(int condition) {
    shuffle s = {(uint32_t)(condition != 0), 0, 0};
    kt_emulator_warp(do_ballot, &s);
    return s.result;
}

typedef struct matrices {
    uint32_t *r;
    uint8_t row[16];
} matrices;

static void do_ldmatrix(void *const *lane) {
    for (int i = 0; i < WARP; i++)
        for (int m = 0; m < 4; m++) {
            const matrices *from = lane[m * 8 + i / 4];
            memcpy(&((matrices *)lane[i])->r[m], from->row + i % 4 * 4, 4);
        }
}

/* The low half of a lane's word is of row 2 (lane % 4), the high half of the row after it. */
static void do_ldmatrix_trans(void *const *lane) {
    for (int i = 0; i < WARP; i++)
        for (int m = 0; m < 4; m++)
            for (int half = 0; half < 2; half++) {
                const matrices *from = lane[m * 8 + i % 4 * 2 + half];
                memcpy((uint8_t *)&((matrices *)lane[i])->r[m] + half * 2, from->row + i / 4 * 2,
                       2);
            }
}

void kt_emulator_ldmatrix(uint32_t *r, uint32_t at, bool turned) {
    matrices m = {.r = r};
    memcpy(m.row, kt_emulator_shared(at, 16, false), 16);
    kt_emulator_warp(turned ? do_ldmatrix_trans : do_ldmatrix, &m);
}

typedef struct product {
    void *c;
    const uint32_t *a;
    uint32_t b[2];
} product;

/* Words of row g of A and column g of B, in the order of k. */
static void gather(void *const *lane, int row, int column, uint32_t *a, uint32_t *b) {
    for (int t = 0; t < 4; t++) {
        const product *of_row = lane[row % 8 * 4 + t], *of_column = lane[column * 4 + t];
        a[t] = of_row->a[row / 8];
        a[t + 4] = of_row->a[2 + row / 8];
        b[t] = of_column->b[0];
        b[t + 4] = of_column->b[1];
    }
}

static void do_mma_bf16(void *const *lane) {
    uint32_t a[8], b[8];

    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            product *p = lane[row % 8 * 4 + column / 2];
            float *c = (float *)p->c + row / 8 * 2 + column % 2;
            gather(lane, row, column, a, b);
            for (int i = 0; i < 8; i++) {
                *c += kt_float_bits(a[i] << 16) * kt_float_bits(b[i] << 16);
                *c += kt_float_bits(a[i] & 0xffff0000u) * kt_float_bits(b[i] & 0xffff0000u);
            }
        }
}

void kt_emulator_mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    product p = {c, a, {b0, b1}};
    kt_emulator_warp(do_mma_bf16, &p);
}

static void do_mma_s8(void *const *lane) {
    uint32_t a[8], b[8];

    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            product *p = lane[row % 8 * 4 + column / 2];
            int32_t *c = (int32_t *)p->c + row / 8 * 2 + column % 2;
            gather(lane, row, column, a, b);
            for (int i = 0; i < 8; i++) *c = kt_dot4(a[i], b[i], *c);
        }
}

void kt_emulator_mma_s8(int32_t *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    product p = {c, a, {b0, b1}};
    kt_emulator_warp(do_mma_s8, &p);
}

static void do_mma_e4m3(void *const *lane) {
    uint32_t a[8], b[8];

    for (int row = 0; row < 16; row++)
        for (int column = 0; column < 8; column++) {
            product *p = lane[row % 8 * 4 + column / 2];
            float *c = (float *)p->c + row / 8 * 2 + column % 2;
            gather(lane, row, column, a, b);
            for (int i = 0; i < 32; i++)
                *c += kt_f8e4m3_to_f32((uint8_t)(a[i / 4] >> i % 4 * 8)) *
                      kt_f8e4m3_to_f32((uint8_t)(b[i / 4] >> i % 4 * 8));
        }
}

void kt_emulator_mma_e4m3(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    product p = {c, a, {b0, b1}};
    kt_emulator_warp(do_mma_e4m3, &p);
}

/* ---- products of warpgroups ---- */

void kt_emulator_proxy(void) {
    now->fiber[now->self].fences++;
}

void kt_emulator_wgmma_fence(void) {
    now->fiber[now->self].is_fenced = true;
}

void kt_emulator_wgmma_commit(void) {
    now->fiber[now->self].product_group++;
}

/* 32 bytes of a row of an operand: 16 bfloat16 or 32 E4M3. */
static void wide_row(uint64_t operand, int row, bool is_e4m3, float *out) {
    const uint32_t start = (uint32_t)(operand & 0x3fff) << 4, step = operand >> 32 & 0x3fff;

    if (operand >> 62 != 1) give_up("a descriptor of rows that are not turned by 128 bytes");
    for (int chunk = 0; chunk < 2; chunk++) {
        const uint32_t flat = start + (uint32_t)row / 8 * (step << 4) + (uint32_t)row % 8 * 128 +
                              (uint32_t)chunk * 16;
        const uint32_t at = flat ^ (flat >> 7 & 7) << 4;
        const uint8_t *from = kt_emulator_shared(at, 16, false);
        const shadow *s = &now->shadow[at / 4];
        if (now->options.races && s->writer >= 0 && now->fiber[s->writer].fences == s->write_fences)
            give_up("a product reads shared memory at %u, which thread %d wrote without a fence",
                    at, s->writer);
        for (int i = 0; is_e4m3 && i < 16; i++) out[chunk * 16 + i] = kt_f8e4m3_to_f32(from[i]);
        for (int i = 0; !is_e4m3 && i < 8; i++) {
            uint16_t bits;
            memcpy(&bits, from + 2 * i, 2);
            out[chunk * 8 + i] = kt_float_bits((uint32_t)bits << 16);
        }
    }
}

/* The warp's 16 rows; lane[i] hands in what its lane issued. */
static void carry_out_product(const wide_product *const *lane) {
    const int first = now->self / WARP % 4 * 16;
    const bool is_e4m3 = lane[0]->is_e4m3;
    float a[16][32], b[32];

    for (int i = 1; i < WARP; i++)
        if (lane[i]->a != lane[0]->a || lane[i]->b != lane[0]->b)
            give_up("lanes of a warp name different operands");
    for (int row = 0; row < 16; row++) wide_row(lane[0]->a, first + row, is_e4m3, a[row]);
    for (int column = 0; column < lane[0]->n; column++) {
        wide_row(lane[0]->b, column, is_e4m3, b);
        for (int row = 0; row < 16; row++) {
            float *d =
                lane[row % 8 * 4 + column % 8 / 2]->d + column / 8 * 4 + row / 8 * 2 + column % 2;
            if (!lane[0]->adds) *d = 0;
            for (int k = 0; k < (is_e4m3 ? 32 : 16); k++) *d += a[row][k] * b[k];
        }
    }
}

static void do_product(void *const *lane) {
    const wide_product *all[WARP];
    for (int i = 0; i < WARP; i++) all[i] = lane[i];
    carry_out_product(all);
}

void kt_emulator_wgmma(float *d, uint64_t a, uint64_t b, int n, bool is_e4m3, bool adds) {
    fiber *f = &now->fiber[now->self];
    wide_product p = {d, a, b, n, f->product_group, is_e4m3, adds};

    if (!f->is_fenced) give_up("a product of a warpgroup without a fence since the last wait");
    if (!now->options.lazy) {
        kt_emulator_warp(do_product, &p);
        return;
    }
    if (!f->products) f->products = malloc(MAX_PRODUCTS * sizeof *f->products);
    if (!f->products) give_up("no memory for products");
    if (f->n_products == MAX_PRODUCTS) give_up("more than %d products under way", MAX_PRODUCTS);
    f->products[f->n_products++] = p;
}

/* How many of the oldest products a lane waits for. */
typedef struct wide_wait {
    fiber *f;
    int n;
} wide_wait;

static void do_wait(void *const *lane) {
    const wide_product *all[WARP];
    const int n = ((const wide_wait *)lane[0])->n;

    for (int p = 0; p < n; p++) {
        for (int i = 0; i < WARP; i++) {
            const wide_wait *w = lane[i];
            if (w->n != n) give_up("lanes of a warp wait for different products");
            all[i] = &w->f->products[p];
        }
        carry_out_product(all);
    }
}

void kt_emulator_wgmma_wait(int left) {
    fiber *f = &now->fiber[now->self];
    wide_wait w = {f, 0};

    while (w.n < f->n_products && f->products[w.n].group < f->product_group - left) w.n++;
    kt_emulator_warp(do_wait, &w);
    f->n_products -= w.n;
    if (f->n_products)
        memmove(f->products, f->products + w.n, (size_t)f->n_products * sizeof *f->products);
    f->is_fenced = false;
}

/* ---- blocks ---- */

static uint32_t draw(emulator *e, uint32_t below) {
    e->random ^= e->random << 13;
    e->random ^= e->random >> 17;
    e->random ^= e->random << 5;
    return e->random % below;
}

static void run_block(emulator *e) {
    const int threads = e->launch->threads;

    e->n_runnable = e->n_waiting = e->n_done = 0;
    e->epoch = 1;
    memset(e->shared, 0xff, e->launch->shared_bytes);
    for (size_t i = 0; e->options.races && i < e->launch->shared_bytes / 4; i++)
        e->shadow[i] = (shadow){.writer = -1, .reader = -1};
    for (int i = 0; i < threads / WARP; i++) e->warp[i].here = 0;
    for (int i = 0; i < threads; i++) {
        e->fiber[i].sp = first_stack(kt_stack_at(e->stacks, i));
        e->fiber[i].n_copies = e->fiber[i].group = 0;
        e->fiber[i].n_products = e->fiber[i].product_group = 0;
        e->fiber[i].is_fenced = false;
        e->fiber[i].fences = 0;
        make_runnable(e, i);
    }
    while (e->n_runnable > 0 && !e->n_failed) {
        const uint32_t at = draw(e, (uint32_t)e->n_runnable);
        const int i = e->runnable[at];
        e->runnable[at] = e->runnable[--e->n_runnable];
        run_fiber(e, i);
    }
    if (e->n_failed || e->n_done == threads) return;
    for (e->self = 0; e->fiber[e->self].state == DONE;) e->self++;
    e->n_failed++;
    snprintf(e->failure, sizeof e->failure,
             "block (%d, %d), thread %d: waits for ever at a %s (%d of %d threads have ended)",
             e->block[0], e->block[1], e->self,
             e->fiber[e->self].state == AT_BARRIER ? "barrier" : "collective of its warp",
             e->n_done, threads);
}

static void release(emulator *e) {
    for (int i = 0; e->fiber && i < e->launch->threads; i++) {
        free(e->fiber[i].copies);
        free(e->fiber[i].products);
    }
    if (e->stacks) kt_stacks_give(e->stacks, e->n_stacks);
    free(e->fiber);
    free(e->warp);
    free(e->runnable);
    free(e->shared);
    free(e->shadow);
}

static kt_status prepare(emulator *e, kt_err *err) {
    const kt_launch *l = e->launch;
    const size_t n = (size_t)l->threads;

    if (l->threads < WARP || l->threads % WARP || l->threads > MAX_THREADS)
        return kt_fail(err, KT_E_INVALID,
                       "%s: %d threads a block, expected a multiple of 32 up to %d", l->name,
                       l->threads, MAX_THREADS);
    if (l->shared_bytes > MAX_SHARED)
        return kt_fail(err, KT_E_INVALID, "%s: %zu bytes of shared memory, at most %d exist",
                       l->name, l->shared_bytes, MAX_SHARED);
    e->fiber = calloc(n, sizeof *e->fiber);
    e->warp = calloc(n / WARP, sizeof *e->warp);
    e->runnable = calloc(n, sizeof *e->runnable);
    e->shared = aligned_alloc(1024, (l->shared_bytes + 1024) / 1024 * 1024);
    e->shadow = e->options.races ? malloc((l->shared_bytes / 4 + 1) * sizeof *e->shadow) : NULL;
    e->stacks = kt_stacks_take(n, &e->n_stacks);
    if (!e->fiber || !e->warp || !e->runnable || !e->shared || !e->stacks ||
        (e->options.races && !e->shadow))
        return kt_fail(err, KT_E_NOMEM, "%s: no memory for %d emulated threads", l->name,
                       l->threads);
    return KT_OK;
}

kt_status kt_emulate_part(const kt_launch *launch, const kt_emulator_options *options, int part,
                          int parts, kt_err *err) {
    emulator e = {.launch = launch, .options = *options, .random = options->seed * 2654435761u | 1};
    emulator *before = now;
    kt_status st = prepare(&e, err);

    now = &e;
    for (int y = 0; st == KT_OK && y < launch->grid_y; y++)
        for (int x = 0; st == KT_OK && x < launch->grid_x; x++) {
            const int64_t block = (int64_t)y * launch->grid_x + x;
            if (block % parts != part) continue;
            e.block[0] = x;
            e.block[1] = y;
            run_block(&e);
            if (e.n_failed) st = kt_fail(err, KT_E_INVALID, "%s: %s", launch->name, e.failure);
        }
    now = before;
    release(&e);
    return st;
}

kt_status kt_emulate(const kt_launch *launch, const kt_emulator_options *options, kt_err *err) {
    return kt_emulate_part(launch, options, 0, 1, err);
}
