/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/amx_emulator.h"

#include <cpuid.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include "base/cpu.h"
#include "base/err.h"
#include "tests/support/half_emulator.h"
#include "tests/support/trap_sites.h"

/* Tests have one process each; the handler needs its state where a signal finds it. */
static _Thread_local kt_amx_state tiles;
static _Thread_local uint64_t executed;
static _Thread_local sigjmp_buf *attempt; /* set inside kt_amx_try */
static _Thread_local kt_amx_fault attempt_fault;
static bool installed, native;
static void (*pause_before)(void);

/* --- decoding ------------------------------------------------------------------------------ */

/* A VEX instruction of map 0F38 with W = 0 and L = 0, and its operand. */
typedef struct decoded {
    uint8_t opcode, prefix; /* prefix: 0 none, 1 = 66, 2 = F3, 3 = F2 */
    bool is_memory, has_sib;
    unsigned reg, rm, vvvv; /* with their VEX bits: 0 to 15 */
    uint64_t base, index;   /* address without the index, and the index scaled */
    size_t bytes;
} decoded;

static uint64_t greg(const greg_t *gregs, unsigned number) {
    static const int place[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    return (uint64_t)gregs[place[number & 15]];
}

static uint64_t displacement(const uint8_t *p, int size) {
    int32_t d = 0;
    if (size == 1) d = (int8_t)*p;
    if (size == 4) memcpy(&d, p, 4);
    return (uint64_t)(int64_t)d;
}

/* ModRM, SIB and displacement of the instruction `code`, which stands at `at`; x and b are the (not
 * inverted) VEX bits. */
static void decode_address(decoded *d, const uint8_t *code, uint64_t at, unsigned x, unsigned b,
                           const greg_t *gregs) {
    const uint8_t *p = code + 4;
    unsigned mod = *p >> 6, rm = *p & 7, sib_base = rm;
    int size = mod == 1 ? 1 : mod == 2 ? 4 : 0;
    bool no_base = false;

    p++;
    d->has_sib = rm == 4;
    if (d->has_sib) {
        unsigned index = (unsigned)(*p >> 3 & 7) | x << 3;
        sib_base = *p & 7;
        if (index != 4) d->index = greg(gregs, index) << (*p >> 6); /* RSP means none */
        p++;
    }
    if (mod == 0 && sib_base == 5) size = 4, no_base = true;
    d->bytes = (size_t)(p - code) + (size_t)size;
    d->base = displacement(p, size);
    if (!no_base) d->base += greg(gregs, sib_base | b << 3);
    if (no_base && !d->has_sib) d->base += at + d->bytes; /* RIP relative */
}

static bool decode(const uint8_t *p, uint64_t at, const greg_t *gregs, decoded *d) {
    unsigned r, x, b;

    *d = (decoded){0};
    if (p[0] != 0xc4 || (p[1] & 31) != 2 || (p[2] & 0x84)) return false;
    r = !(p[1] & 0x80), x = !(p[1] & 0x40), b = !(p[1] & 0x20);
    d->vvvv = (unsigned)(~p[2] >> 3 & 15);
    d->prefix = p[2] & 3;
    d->opcode = p[3];
    if (d->opcode != 0x49 && d->opcode != 0x4b && d->opcode != 0x5c && d->opcode != 0x5e)
        return false;
    d->reg = (unsigned)(p[4] >> 3 & 7) | r << 3;
    d->rm = (unsigned)(p[4] & 7) | b << 3;
    d->is_memory = p[4] >> 6 != 3;
    d->bytes = 5;
    if (d->is_memory) decode_address(d, p, at, x, b, gregs);
    return true;
}

/* --- execution ----------------------------------------------------------------------------- */

static kt_amx_kind illegal(kt_amx_fault *why, const char *what) {
    why->kind = KT_AMX_UD;
    snprintf(why->reason, sizeof why->reason, "%s", what);
    return KT_AMX_UD;
}

/* Opcode 49: configuration, TILERELEASE, TILEZERO. */
static kt_amx_kind execute_49(const decoded *d, kt_amx_fault *why) {
    if (d->vvvv) return illegal(why, "VEX.vvvv is used");
    if (d->is_memory) {
        uint64_t address = d->base + d->index;
        if (d->reg != 0 || d->prefix > 1) return illegal(why, "opcode 49 with this ModRM");
        if (d->prefix == 0)
            return kt_amx_load_config(&tiles, (const void *)(uintptr_t)address, why);
        kt_amx_store_config(&tiles, (void *)(uintptr_t)address);
        return KT_AMX_FINE;
    }
    if (d->prefix == 0 && d->reg == 0 && d->rm == 0) {
        kt_amx_release(&tiles);
        return KT_AMX_FINE;
    }
    if (d->prefix == 3 && d->rm == 0) return kt_amx_zero(&tiles, d->reg, why);
    return illegal(why, "opcode 49 with this ModRM");
}

/* Opcode 4B: loads and stores. */
static kt_amx_kind execute_4b(const decoded *d, kt_amx_fault *why) {
    if (d->vvvv) return illegal(why, "VEX.vvvv is used");
    if (!d->is_memory || !d->has_sib || d->prefix == 0)
        return illegal(why, "a tile transfer needs a SIB byte");
    if (d->prefix == 2) return kt_amx_store(&tiles, d->reg, d->base, d->index, why);
    return kt_amx_load(&tiles, d->reg, d->base, d->index, why);
}

static kt_amx_kind execute(const decoded *d, kt_amx_fault *why) {
    static const kt_amx_signs signs[4] = {KT_AMX_UU, KT_AMX_US, KT_AMX_SU, KT_AMX_SS};

    if (d->opcode == 0x49) return execute_49(d, why);
    if (d->opcode == 0x4b) return execute_4b(d, why);
    if (d->is_memory) return illegal(why, "a product takes three tiles");
    if (d->opcode == 0x5e)
        return kt_amx_dot_int8(&tiles, signs[d->prefix], d->reg, d->rm, d->vvvv, why);
    if (d->prefix == 2) return kt_amx_dot_bf16(&tiles, d->reg, d->rm, d->vvvv, why);
    if (d->prefix == 3) return kt_amx_dot_fp16(&tiles, d->reg, d->rm, d->vvvv, why);
    return illegal(why, "opcode 5C with this prefix");
}

/* --- signals ------------------------------------------------------------------------------- */

/* The default action once the handler returns and the instruction is met again. */
static void give_up(int signal_number) {
    struct sigaction plain = {.sa_handler = SIG_DFL};
    sigaction(signal_number, &plain, NULL);
    if (signal_number == SIGSEGV) raise(SIGSEGV);
}

static void report(const kt_amx_fault *fault) {
    char line[160];
    int n = snprintf(line, sizeof line, "amx: #%s: %s\n", fault->kind == KT_AMX_UD ? "UD" : "GP",
                     fault->reason);
    if (n > 0 && write(STDERR_FILENO, line, (size_t)n) < 0) return;
}

/* In a program's own registers, without a signal. */
static void step(kt_trap_state *state, const uint8_t *code, uint64_t at) {
    kt_amx_fault fault = {KT_AMX_UD, ""};
    decoded d;
    int number;

    if (kt_half_is(code)) {
        kt_half_do(code, state->vectors);
        return;
    }
    if (decode(code, at, state->gregs, &d) && execute(&d, &fault) == KT_AMX_FINE) {
        executed++;
        return;
    }
    if (attempt) {
        attempt_fault = fault;
        siglongjmp(*attempt, 1);
    }
    report(&fault);
    number = fault.kind == KT_AMX_GP ? SIGSEGV : SIGILL;
    signal(number, SIG_DFL);
    raise(number);
}

/* The area of XSAVE in a signal's frame; NULL where it has no more than SSE. */
static uint8_t *vectors_of(const ucontext_t *u) {
    uint8_t *area = (uint8_t *)u->uc_mcontext.fpregs;
    uint32_t magic;

    memcpy(&magic, area + 464, sizeof magic); /* FP_XSTATE_MAGIC1 */
    return magic == 0x46505853u ? area : NULL;
}

typedef enum met { IS_OTHER, IS_REPLACED, IS_HALVES, IS_TILES } met;

/* What stands at `at`, while no other thread replaces it: halves as a copy, since one may before
 * they are done. */
static met look(const uint8_t *at, const greg_t *gregs, decoded *d, uint8_t halves[KT_HALF_BYTES]) {
    met what = IS_OTHER;

    kt_trap_lock();
    if (kt_trap_is_replaced(at))
        what = IS_REPLACED;
    else if (kt_half_is(at))
        what = IS_HALVES, memcpy(halves, at, KT_HALF_BYTES);
    else if (!native && decode(at, (uintptr_t)at, gregs, d))
        what = IS_TILES;
    kt_trap_unlock();
    return what;
}

/* Do instructions from the interrupted one on as long as they are ours: a signal costs more than
 * most of them. Returns how many; one that faults is left where it is. */
static int run_on(ucontext_t *u, kt_amx_fault *fault) {
    greg_t *gregs = u->uc_mcontext.gregs;
    uint8_t halves[KT_HALF_BYTES];
    decoded d;

    for (int n = 0;; n++) {
        const uint8_t *at = (const uint8_t *)(uintptr_t)gregs[REG_RIP];
        const met what = look(at, gregs, &d, halves);
        if (pause_before) pause_before();
        if (what == IS_REPLACED) return n + 1; /* by another thread, or by a turn before */
        if (what == IS_HALVES && vectors_of(u))
            kt_half_do(halves, vectors_of(u)), d.bytes = KT_HALF_BYTES;
        else if (what == IS_TILES && execute(&d, fault) == KT_AMX_FINE)
            executed++;
        else
            return n;
        gregs[REG_RIP] += (greg_t)d.bytes;
        kt_trap_replace(at, d.bytes, step);
    }
}

static void on_illegal(int number, siginfo_t *info, void *context) {
    kt_amx_fault fault = {KT_AMX_UD, ""};

    (void)info;
    if (run_on(context, &fault) > 0) return;
    if (!native && !attempt && fault.reason[0]) report(&fault);
    if (attempt) {
        attempt_fault = fault;
        siglongjmp(*attempt, 1);
    }
    give_up(fault.kind == KT_AMX_GP ? SIGSEGV : number);
}

/* Hardware #GP has no address; the kernel reports it as SI_KERNEL. */
static void on_segfault(int number, siginfo_t *info, void *context) {
    (void)context;
    if (attempt) {
        attempt_fault.kind = info->si_code == SI_KERNEL ? KT_AMX_GP : KT_AMX_FAULT;
        siglongjmp(*attempt, 1);
    }
    give_up(number);
}

kt_amx_fault kt_amx_try(void (*code)(void *arg), void *arg) {
    struct sigaction ours = {.sa_sigaction = on_segfault, .sa_flags = SA_SIGINFO}, segv, ill;
    sigjmp_buf here;

    sigaction(SIGSEGV, &ours, &segv);
    ours.sa_sigaction = on_illegal;
    sigaction(SIGILL, &ours, &ill);
    memset(&attempt_fault, 0, sizeof attempt_fault);
    if (!native) kt_amx_release(&tiles);
    if (sigsetjmp(here, 1) == 0) {
        attempt = &here;
        code(arg);
    }
    attempt = NULL;
    sigaction(SIGSEGV, &segv, NULL);
    sigaction(SIGILL, &ill, NULL);
    if (native)
        __asm__ volatile(".byte 0xc4, 0xe2, 0x78, 0x49, 0xc0"); /* TILERELEASE */
    else
        kt_amx_release(&tiles);
    return attempt_fault;
}

/* Does the CPU have tiles, permitted or not? */
static bool cpu_has_tiles(void) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 24 & 1;
}

static bool install(void) {
    struct sigaction ours = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    return installed || (installed = sigaction(SIGILL, &ours, NULL) == 0);
}

void kt_amx_emulate(void) {
    if (!cpu_has_tiles()) install();
}

kt_status kt_amx_start(kt_err *err) {
    kt_cpu cpu;

    if (installed) return KT_OK;
    kt_cpu_probe(&cpu);
    native = cpu.isa_hardware & (KT_ISA_AMXINT8 | KT_ISA_AMXBF16);
    if (!native && cpu_has_tiles())
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "this CPU has AMX, but the kernel does not permit it");
    if (!native && !install()) return kt_fail(err, KT_E_INTERNAL, "no handler for SIGILL");
    installed = true;
    return KT_OK;
}

kt_status kt_amx_start_unpermitted(kt_err *err) {
    enum { ARCH_GET_XCOMP_PERM_ = 0x1022, XFEATURE_XTILEDATA_ = 18 };
    uint64_t permitted = 0;

    if (cpu_has_tiles() && !syscall(SYS_arch_prctl, ARCH_GET_XCOMP_PERM_, &permitted) &&
        permitted >> XFEATURE_XTILEDATA_ & 1)
        return kt_fail(err, KT_E_UNSUPPORTED, "this process may use the CPU's tiles");
    if (!install()) return kt_fail(err, KT_E_INTERNAL, "no handler for SIGILL");
    return KT_OK;
}

kt_amx_fault kt_amx_configure(const void *shapes) {
    kt_amx_fault fault = {KT_AMX_FINE, ""};
    kt_amx_load_config(&tiles, shapes, &fault);
    return fault;
}

void kt_amx_pause(void (*pause)(void)) {
    pause_before = pause;
}

bool kt_amx_is_native(void) {
    return native;
}

uint64_t kt_amx_executed(void) {
    return native ? 1 : executed;
}
