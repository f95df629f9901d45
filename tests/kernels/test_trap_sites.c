/* Instructions that trapped once and are calls from then on: what the program has in its registers,
 * and threads that meet them meanwhile. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "base/rng.h"
#include "tests/support/amx_emulator.h"
#include "tests/support/skip.h"
#include "tests/support/trap_sites.h"

/* All that a program has; as the assembly below knows it. */
typedef struct picture {
    uint64_t gregs[15]; /* RAX, RBX, RCX, RDX, RSI, RDI, RBP, R8 to R15 */
    uint64_t flags, masks[8], red_zone[16];
    uint8_t vectors[32][64];
} picture;

/* cross: all from `in`, TILEZERO tmm1, all to `out`. zero_often: 64 of them, each replaced by
 * itself. subtract_often: 512 times halves[0] -= halves[1], likewise. load_at_rsp: tile 0 from
 * where RSP points meanwhile; the stack goes on below. */
void kt_test_cross(const picture *in, picture *out);
void kt_test_zero_often(void);
void kt_test_subtract_often(uint16_t halves[2][32]);
void kt_test_load_at_rsp(const void *tile);

#define VECTORS \
    "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31\n"
#define TILEZERO_1 ".byte 0xc4, 0xe2, 0x7b, 0x49, 0xc8\n"
__asm__(".pushsection .text\n"
        ".globl kt_test_cross, kt_test_zero_often, kt_test_subtract_often, kt_test_load_at_rsp\n"
        "kt_test_cross:\n"
        "push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n push %rsi\n"
        "mov %rdi, %rax\n"
        ".irp n,0,1,2,3,4,5,6,7\n kmovq 128+8*\\n(%rax), %k\\n\n .endr\n"
        ".irp n," VECTORS "vmovdqu64 320+64*\\n(%rax), %zmm\\n\n .endr\n"
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
        "mov 192+8*\\n(%rax), %rcx\n mov %rcx, -128+8*\\n(%rsp)\n .endr\n"
        "lea -128(%rsp), %rsp\n push 120(%rax)\n popfq\n lea 128(%rsp), %rsp\n"
        "mov 8(%rax), %rbx\n mov 16(%rax), %rcx\n mov 24(%rax), %rdx\n mov 32(%rax), %rsi\n"
        "mov 40(%rax), %rdi\n mov 48(%rax), %rbp\n mov 56(%rax), %r8\n mov 64(%rax), %r9\n"
        "mov 72(%rax), %r10\n mov 80(%rax), %r11\n mov 88(%rax), %r12\n mov 96(%rax), %r13\n"
        "mov 104(%rax), %r14\n mov 112(%rax), %r15\n mov 0(%rax), %rax\n" TILEZERO_1
        "xchg %rax, (%rsp)\n" /* out for RAX */
        "mov %rbx, 8(%rax)\n mov %rcx, 16(%rax)\n mov %rdx, 24(%rax)\n mov %rsi, 32(%rax)\n"
        "mov %rdi, 40(%rax)\n mov %rbp, 48(%rax)\n mov %r8, 56(%rax)\n mov %r9, 64(%rax)\n"
        "mov %r10, 72(%rax)\n mov %r11, 80(%rax)\n mov %r12, 88(%rax)\n mov %r13, 96(%rax)\n"
        "mov %r14, 104(%rax)\n mov %r15, 112(%rax)\n mov (%rsp), %rcx\n mov %rcx, 0(%rax)\n"
        ".irp n,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15\n"
        "mov -128+8*\\n(%rsp), %rcx\n mov %rcx, 192+8*\\n(%rax)\n .endr\n"
        "lea -128(%rsp), %rsp\n pushfq\n pop 120(%rax)\n lea 128(%rsp), %rsp\n"
        ".irp n,0,1,2,3,4,5,6,7\n kmovq %k\\n, 128+8*\\n(%rax)\n .endr\n"
        ".irp n," VECTORS "vmovdqu64 %zmm\\n, 320+64*\\n(%rax)\n .endr\n"
        "cld\n pop %rsi\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n"
        "kt_test_zero_often:\n"
        ".rept 64\n" TILEZERO_1 "nop\n .endr\n" /* a trap each */
        "ret\n"
        "kt_test_subtract_often:\n"
        "vmovdqu64 (%rdi), %zmm0\n vmovdqu64 64(%rdi), %zmm1\n"
        ".rept 512\n .byte 0x62, 0xf5, 0x7c, 0x48, 0x5c, 0xc1\n nop\n .endr\n" /* VSUBPH */
        "vmovdqu64 %zmm0, (%rdi)\n vzeroupper\n ret\n"
        "kt_test_load_at_rsp:\n"
        "mov %rsp, %rdx\n mov %rdi, %rsp\n mov $64, %eax\n"
        ".byte 0xc4, 0xe2, 0x7b, 0x4b, 0x04, 0x04\n" /* TILELOADD tmm0, [rsp + rax] */
        "mov %rdx, %rsp\n ret\n"
        ".popsection\n");

/* Tiles 0 and 1 are 16 rows of 64 bytes. */
static void configure(void) {
    static const uint8_t shapes[64] = {[0] = 1, [16] = 64, [18] = 64, [48] = 16, [49] = 16};
    cr_assert_eq(kt_amx_configure(shapes).kind, KT_AMX_FINE);
}

static void store(uint8_t tile[1024]) {
    __asm__ volatile(".byte 0xc4, 0xe2, 0x7a, 0x4b, 0x04, 0x37" /* TILESTORED [rdi + rsi], tmm0 */
                     :
                     : "D"(tile), "S"((int64_t)64)
                     : "memory");
}

static void start(void) {
    kt_err err = {0};
    cr_assert_eq(kt_amx_start_unpermitted(&err), KT_OK, "%s", err.message);
    configure();
}

/* Arithmetic flags and that of direction; the others as they are. */
static uint64_t flags_of(uint64_t random) {
    const uint64_t ours = 0xcd5;
    return (__builtin_ia32_readeflags_u64() & ~ours) | (random & ours);
}

/* The first crossing traps, later ones are a call: neither leaves a trace. */
Test(trap_sites, a_replaced_instruction_keeps_all_registers) {
    kt_rng rng;
    picture in, out;
    int before;

    start();
    before = kt_trap_count();
    kt_skip_without_isa(KT_ISA_AVX512, "a replaced instruction");
    kt_rng_seed(&rng, 5);
    for (int trial = 0; trial < 20; trial++) {
        for (size_t i = 0; i < sizeof in / 8; i++) {
            const uint64_t r = kt_rng_u64(&rng);
            memcpy((uint8_t *)&in + 8 * i, &r, 8);
        }
        in.flags = flags_of(in.flags);
        memset(&out, 0, sizeof out);
        kt_test_cross(&in, &out);
        cr_assert_arr_eq(&out, &in, sizeof in, "crossing %d", trial);
    }
    if (kt_trap_may_replace())
        cr_expect_eq(kt_trap_count(), before + 1, "%d are replaced", kt_trap_count() - before);
}

Test(trap_sites, a_replaced_instruction_knows_the_stack_pointer) {
    enum { STACK = 1 << 18 };
    static uint8_t stack[STACK + 1024] __attribute__((aligned(64)));
    uint8_t got[1024];
    kt_rng rng;

    start();
    kt_skip_without_isa(KT_ISA_AVX512, "a replaced instruction"); /* elsewhere none is */
    kt_rng_seed(&rng, 6);
    for (int trial = 0; trial < 3; trial++) {
        for (int i = 0; i < 1024; i++) stack[STACK + i] = (uint8_t)kt_rng_u64(&rng);
        kt_test_load_at_rsp(stack + STACK);
        store(got);
        cr_assert_arr_eq(got, stack + STACK, 1024, "load %d", trial);
    }
}

static void *zero_many_times(void *together) {
    const uint64_t before = kt_amx_executed();

    configure();
    pthread_barrier_wait(together);
    for (int i = 0; i < 200; i++) kt_test_zero_often();
    return (void *)(uintptr_t)(kt_amx_executed() - before);
}

Test(trap_sites, threads_meet_instructions_while_they_are_replaced) {
    enum { THREADS = 8 };
    pthread_t thread[THREADS];
    pthread_barrier_t together;

    start();
    pthread_barrier_init(&together, NULL, THREADS);
    for (int t = 0; t < THREADS; t++)
        cr_assert_eq(pthread_create(&thread[t], NULL, zero_many_times, &together), 0);
    for (int t = 0; t < THREADS; t++) {
        void *executed;
        pthread_join(thread[t], &executed);
        cr_expect_eq((uintptr_t)executed, 200 * 64, "thread %d: %zu", t,
                     (size_t)(uintptr_t)executed);
    }
    pthread_barrier_destroy(&together);
}

/* halves[0] is 512 times 1 less than 0 unless one subtraction is lost or goes elsewhere. */
static int wrong_halves(void) {
    uint16_t halves[2][32];
    int wrong = 0;

    for (int i = 0; i < 32; i++) halves[0][i] = 0, halves[1][i] = 0x3c00; /* 1 */
    kt_test_subtract_often(halves);
    for (int i = 0; i < 32; i++) wrong += halves[0][i] != 0xe000; /* -512 */
    return wrong;
}

static sem_t may_go, has_gone;

static void *subtract(void *wrong) {
    sem_wait(&may_go);
    *(int *)wrong = wrong_halves();
    sem_post(&has_gone);
    return NULL;
}

/* It does, and replaces, all of them. */
static void let_the_other_go_first(void) {
    kt_amx_pause(NULL);
    sem_post(&may_go);
    sem_wait(&has_gone);
}

Test(trap_sites, halves_are_done_as_they_were_met) {
    int wrong = -1;
    pthread_t other;

    start();
    kt_skip_without_isa(KT_ISA_AVX512, "halves");
    sem_init(&may_go, 0, 0);
    sem_init(&has_gone, 0, 0);
    cr_assert_eq(pthread_create(&other, NULL, subtract, &wrong), 0);
    kt_amx_pause(let_the_other_go_first);
    cr_expect_eq(wrong_halves(), 0, "numbers of the thread that met them first");
    sem_post(&may_go); /* where nothing traps */
    pthread_join(other, NULL);
    cr_expect_eq(wrong, 0, "%d numbers of the thread that replaced them", wrong);
}

/* The signal of a thread may come after another one replaced the instruction; what is there then is
 * a jump, which the thread needs only be resumed at. */
Test(trap_sites, a_thread_that_comes_too_late_is_resumed) {
    const greg_t where = (greg_t)(uintptr_t)kt_test_zero_often;
    ucontext_t late = {0};
    struct sigaction ours, after;

    start();
    if (!kt_trap_may_replace()) cr_skip_test("nothing is replaced here");
    kt_test_zero_often();
    late.uc_mcontext.gregs[REG_RIP] = where;
    cr_assert_eq(sigaction(SIGILL, NULL, &ours), 0);
    ours.sa_sigaction(SIGILL, NULL, &late);
    cr_expect_eq(late.uc_mcontext.gregs[REG_RIP], where);
    cr_assert_eq(sigaction(SIGILL, NULL, &after), 0);
    cr_expect(after.sa_sigaction == ours.sa_sigaction, "it is taken for a fault");
}
