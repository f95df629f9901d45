/* AMX object code on any x86-64: instructions that this CPU does not know raise SIGILL, whose
 * handler decodes them and does what they would have done (amx_tiles.h); from the second time on
 * they are called without a signal (trap_sites.h). Where the CPU has AMX nothing is installed and
 * the same code runs on the hardware.
 *
 *     if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s", err.message);
 *     variant->gemm(&call);         // tile instructions work, in every thread, each with its own tiles
 *     cr_assert_gt(kt_amx_executed(), 0);
 *
 * A broken rule ends the program as it would on hardware, by SIGILL (#UD) or SIGSEGV (#GP), after a
 * line on standard error that names the rule; inside kt_amx_try it is reported to the caller
 * instead. Decoded are LDTILECFG, STTILECFG, TILELOADD, TILELOADDT1, TILESTORED, TILEZERO,
 * TILERELEASE, TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, TDPBF16PS and TDPFP16PS; other illegal
 * instructions stay illegal.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_AMX_EMULATOR_H
#define KT_TESTS_AMX_EMULATOR_H

#include "kt/status.h"
#include "tests/support/amx_tiles.h"

/* Make tile instructions work from now on in all threads. May be called again. Refuses hardware that
 * has AMX while the kernel does not permit it: the instructions would fault without being illegal. */
kt_status kt_amx_start(kt_err *err);

/* The same for a program that asks nobody (tests/machine): does nothing where the CPU has tiles. */
void kt_amx_emulate(void);

/* Emulate also where the CPU has tiles. Refuses a process that has been permitted to use them (by
 * kt_cpu_probe, say): in others the kernel makes them illegal, but for LDTILECFG, STTILECFG and
 * TILERELEASE, which reach the CPU's own registers; the emulator is told configurations apart. */
kt_status kt_amx_start_unpermitted(kt_err *err);
kt_amx_fault kt_amx_configure(const void *shapes); /* of this thread; 64 bytes, as of LDTILECFG */

/* What the signal's handler calls between looking at an instruction and doing it, in any thread;
 * NULL = nothing. For tests of what other threads do meanwhile. */
void kt_amx_pause(void (*pause)(void));

/* Do they run on the hardware? */
bool kt_amx_is_native(void);

/* Instructions emulated in this thread; on hardware always 1, so that "some ran" can be asserted. */
uint64_t kt_amx_executed(void);

/* Run code(arg) and return the first fault it raises; it does not continue after one. The tiles are
 * in the initial state afterwards, and unless native when it begins. Not reentrant. */
kt_amx_fault kt_amx_try(void (*code)(void *arg), void *arg);

#endif
