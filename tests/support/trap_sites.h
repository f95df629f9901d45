/* Instructions that trap, made to jump: a signal costs some 9 us, thousands of times what most
 * emulated instructions do. The first time that one is met it is emulated by the signal's handler,
 * which then puts a jump in its place; from then on the program calls the emulator as a function
 * that keeps all registers.
 *
 * Only the program's own text is changed, and only where the kernel lets it be written and can make
 * all threads see the change (membarrier); elsewhere every instruction goes on trapping, which is
 * slow and right.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_TRAP_SITES_H
#define KT_TESTS_TRAP_SITES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/ucontext.h>

/* What an instruction may read and write. */
typedef struct kt_trap_state {
    greg_t *gregs;    /* REG_R8 to REG_RSP of <sys/ucontext.h>; others are not there */
    uint8_t *vectors; /* an area of XSAVE in its standard form, components 1, 2, 5, 6 and 7 */
} kt_trap_state;

/* Do the instruction `code`, which stands at `at` in the program. Called in place of a signal, by
 * any thread. */
typedef void kt_trap_step(kt_trap_state *state, const uint8_t *code, uint64_t at);

/* From the handler of the signal, after the instruction at `at` (bytes long) was done there: let it
 * call `step` from now on. The same step for all. Does nothing where that cannot be. */
void kt_trap_replace(const uint8_t *at, size_t bytes, kt_trap_step *step);

/* Hold what stands in the program's text still while a handler decodes it. Not recursive. */
void kt_trap_lock(void);
void kt_trap_unlock(void);

/* Under the lock: was it replaced meanwhile, so that the program need only be resumed at `at`? */
bool kt_trap_is_replaced(const uint8_t *at);

/* Can this machine replace any? */
bool kt_trap_may_replace(void);

/* How many this process has replaced. */
int kt_trap_count(void);

#endif
