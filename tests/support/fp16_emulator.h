/* The three AVX512-FP16 instructions of the kernels over opened tiles, for CPUs that lack them:
 * VMULPH, VSUBPH and VFMADD213PH of whole 512-bit registers. Part of the AMX emulator
 * (amx_emulator.h), whose signal handler calls it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FP16_EMULATOR_H
#define KT_TESTS_FP16_EMULATOR_H

#include <stdbool.h>
#include <ucontext.h>

/* Do the instruction at which a program was interrupted and move on behind it; false when it is
 * another. Only where the CPU has AVX-512. */
bool kt_fp16_step(ucontext_t *u);

#endif
