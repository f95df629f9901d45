/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/trap_sites.h"

#include <cpuid.h>
#include <linux/membarrier.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    MOST_SITES = 16384, /* as in the assembly below */
    STUB_BYTES = 10,
    JUMP_BYTES = 5,
    AREA_BYTES = 4096, /* as in the assembly below */
    LONGEST = 15       /* bytes of an x86 instruction */
};
enum { JUMP = 0xe9, ILLEGAL = 0x06 }; /* PUSH ES is illegal in 64-bit mode */

typedef struct site {
    const uint8_t *at;
    uint8_t code[LONGEST], bytes;
} site;

static site sites[MOST_SITES];
static _Atomic int n_sites;
static atomic_flag held = ATOMIC_FLAG_INIT;
static kt_trap_step *common_step;

extern const uint8_t kt_trap_stubs[] __attribute__((visibility("hidden")));
extern const uint8_t __executable_start[], etext[];

/* What kt_trap_enter has pushed. */
typedef struct frame {
    greg_t gregs[16]; /* in the order of <sys/ucontext.h> */
    uint64_t flags;
    uint64_t back; /* in: behind the stub's call; out: where the program goes on */
} frame;

void kt_trap_do(frame *f, uint8_t *vectors) __attribute__((visibility("hidden"), used));

/* A stub leaves the red zone alone and says by its return address which site it is of. RET drops
 * the red zone again. XRSTOR wants the header's reserved bytes zero. */
__asm__(".pushsection .text\n"
        "kt_trap_stubs:\n"
        ".rept 16384\n"
        "lea -128(%rsp), %rsp\n"
        "call kt_trap_enter\n"
        ".endr\n"
        "kt_trap_enter:\n"
        "pushfq\n"
        "push %rsp\n"
        "push %rcx\n"
        "push %rax\n"
        "push %rdx\n"
        "push %rbx\n"
        "push %rbp\n"
        "push %rsi\n"
        "push %rdi\n"
        "push %r15\n"
        "push %r14\n"
        "push %r13\n"
        "push %r12\n"
        "push %r11\n"
        "push %r10\n"
        "push %r9\n"
        "push %r8\n"
        "lea 272(%rsp), %rax\n" /* 16 registers, flags, return address, red zone */
        "mov %rax, 120(%rsp)\n"
        "mov %rsp, %rdi\n"
        "mov %rsp, %rbx\n"
        "cld\n"
        "and $-64, %rsp\n"
        "sub $4096, %rsp\n"
        "mov %rsp, %rsi\n"
        "xor %eax, %eax\n"
        "mov %rax, 512(%rsp)\n"
        "mov %rax, 520(%rsp)\n"
        "mov %rax, 528(%rsp)\n"
        "mov %rax, 536(%rsp)\n"
        "mov %rax, 544(%rsp)\n"
        "mov %rax, 552(%rsp)\n"
        "mov %rax, 560(%rsp)\n"
        "mov %rax, 568(%rsp)\n"
        "mov $0xe6, %eax\n"
        "xor %edx, %edx\n"
        "xsave64 (%rsp)\n"
        "call kt_trap_do\n"
        "mov $0xe6, %eax\n"
        "xor %edx, %edx\n"
        "xrstor64 (%rsp)\n"
        "mov %rbx, %rsp\n"
        "pop %r8\n"
        "pop %r9\n"
        "pop %r10\n"
        "pop %r11\n"
        "pop %r12\n"
        "pop %r13\n"
        "pop %r14\n"
        "pop %r15\n"
        "pop %rdi\n"
        "pop %rsi\n"
        "pop %rbp\n"
        "pop %rbx\n"
        "pop %rdx\n"
        "pop %rax\n"
        "pop %rcx\n"
        "lea 8(%rsp), %rsp\n"
        "popfq\n"
        "ret $128\n"
        ".popsection\n");

void kt_trap_do(frame *f, uint8_t *vectors) {
    const site *s = &sites[(f->back - (uintptr_t)kt_trap_stubs) / STUB_BYTES - 1];
    kt_trap_state state = {f->gregs, vectors};

    f->back = (uintptr_t)s->at + s->bytes;
    common_step(&state, s->code, (uintptr_t)s->at);
}

void kt_trap_lock(void) {
    while (atomic_flag_test_and_set_explicit(&held, memory_order_acquire)) {
    }
}

void kt_trap_unlock(void) {
    atomic_flag_clear_explicit(&held, memory_order_release);
}

bool kt_trap_is_replaced(const uint8_t *at) {
    return *at == JUMP;
}

int kt_trap_count(void) {
    return n_sites;
}

/* Every thread has the new text before this returns. */
static void all_see(void) {
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0);
}

static bool make_writable(const uint8_t *at, size_t bytes) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t from = (uintptr_t)at & ~(page - 1);
    const uintptr_t to = ((uintptr_t)at + bytes + page - 1) & ~(page - 1);

    return mprotect((void *)from, to - from, PROT_READ | PROT_WRITE | PROT_EXEC) == 0;
}

/* Can the registers be saved, the text written, and other threads told? Asked once. */
bool kt_trap_may_replace(void) {
    static _Atomic int known; /* 1 yes, 2 no */
    unsigned a, b, c, d;
    uint32_t low, high;

    if (known) return known == 1;
    known = 2;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1)) return false; /* OSXSAVE */
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(13, 7, &a, &b, &c, &d) || (low & 0xe6) != 0xe6 || a + b > AREA_BYTES)
        return false; /* without AVX-512 there is no code with tiles to run */
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED_SYNC_CORE, 0, 0) != 0 ||
        !make_writable(kt_trap_stubs, JUMP_BYTES))
        return false;
    known = 1;
    return true;
}

/* A thread that meets the instruction meanwhile meets an illegal byte, whose signal waits for the
 * lock. */
static void write_jump(const uint8_t *at, const uint8_t *target) {
    uint8_t *text = (uint8_t *)(uintptr_t)at;
    const int32_t distance = (int32_t)(target - (at + JUMP_BYTES));

    __atomic_store_n(text, ILLEGAL, __ATOMIC_SEQ_CST);
    all_see();
    memcpy(text + 1, &distance, sizeof distance);
    all_see();
    __atomic_store_n(text, JUMP, __ATOMIC_SEQ_CST);
    all_see();
}

void kt_trap_replace(const uint8_t *at, size_t bytes, kt_trap_step *step) {
    site *s;

    if (bytes < JUMP_BYTES || bytes > LONGEST || at < __executable_start || at + bytes > etext ||
        !kt_trap_may_replace())
        return;
    kt_trap_lock();
    if (n_sites < MOST_SITES && !kt_trap_is_replaced(at) && make_writable(at, JUMP_BYTES)) {
        s = &sites[n_sites];
        s->at = at;
        s->bytes = (uint8_t)bytes;
        memcpy(s->code, at, bytes);
        common_step = step;
        write_jump(at, kt_trap_stubs + STUB_BYTES * n_sites);
        n_sites++;
    }
    kt_trap_unlock();
}
