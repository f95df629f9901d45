/* Instructions on numbers of 16 bits in the kernels over opened tiles, for CPUs that lack them:
 * VMULPH, VSUBPH, VFMADD213PH and VCVTNE2PS2BF16 of whole 512-bit registers. Part of the AMX
 * emulator (amx_emulator.h), whose signal handler calls it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_HALF_EMULATOR_H
#define KT_TESTS_HALF_EMULATOR_H

#include <stdbool.h>
#include <stdint.h>

enum { KT_HALF_BYTES = 6 }; /* of each of them */

/* Is it one of them? Reads up to six bytes. */
bool kt_half_is(const uint8_t *code);

/* Do it on an area of XSAVE in its standard form, as signal frames have one. Only where the CPU has
 * AVX-512. */
void kt_half_do(const uint8_t *code, uint8_t *area);

#endif
