/* Instruction-set bits: what a variant needs, what a machine has.
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_ISA_H
#define KT_ISA_H

#include <stdint.h>

/* One bit per instruction-set step that a kernel file can be compiled for. The steps of a column
 * imply the ones before: a machine that has KT_ISA_AVX512VNNI also reports KT_ISA_AVX512 and
 * KT_ISA_AVX2. A variant carries the mask it needs as data; nothing of the variant is called
 * before `(variant->isa & ~kt_cpu_isa()) == 0` was checked. */
typedef uint64_t kt_isa;

#define KT_ISA_SCALAR ((kt_isa)0)          /* baseline x86-64 */
#define KT_ISA_AVX2 ((kt_isa)1 << 0)       /* AVX2, FMA, F16C, BMI2 */
#define KT_ISA_AVXVNNI ((kt_isa)1 << 1)    /* 256-bit VPDPBUSD, VEX form */
#define KT_ISA_AVX512 ((kt_isa)1 << 2)     /* AVX-512 F, BW, DQ, VL, CD */
#define KT_ISA_AVX512VNNI ((kt_isa)1 << 3) /* and VNNI */
#define KT_ISA_AVX512BF16 ((kt_isa)1 << 4) /* and BF16 */
#define KT_ISA_AVX512VBMI ((kt_isa)1 << 5) /* and VBMI, VBMI2, GFNI */
#define KT_ISA_AVX512FP16 ((kt_isa)1 << 6) /* and FP16 */
#define KT_ISA_AMXINT8 ((kt_isa)1 << 7)    /* AMX tiles and INT8, permitted by the kernel */
#define KT_ISA_AMXBF16 ((kt_isa)1 << 8)    /* AMX tiles and BF16, permitted by the kernel */
#define KT_ISA_COUNT 9

#endif
