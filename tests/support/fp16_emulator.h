/* The three AVX512-FP16 instructions of the kernels over opened tiles, for CPUs that lack them:
 * VMULPH, VSUBPH and VFMADD213PH of whole 512-bit registers. Part of the AMX emulator
 * (amx_emulator.h), whose signal handler calls it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FP16_EMULATOR_H
#define KT_TESTS_FP16_EMULATOR_H

#include <stdbool.h>
#include <stdint.h>

enum { KT_FP16_BYTES = 6 }; /* of each of the three */

/* Is it one of them? Reads up to six bytes. */
bool kt_fp16_is(const uint8_t *code);

/* Do it on an area of XSAVE in its standard form, as signal frames have one. Only where the CPU has
 * AVX-512. */
void kt_fp16_do(const uint8_t *code, uint8_t *area);

#endif
