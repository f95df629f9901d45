/* Constants of exp for all widths. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_EXP_POLY_H
#define KT_KERNELS_EXP_POLY_H

/* x = n ln 2 + r with |r| <= ln 2 / 2, and e^r = 1 + r + r^2 p(r), p = P0 + P1 r + ... + P4 r^4, fitted
 * for the smallest largest relative error: 4.6e-9 as rounded here, a twelfth of half a unit of f32.
 * ln 2 comes in two parts, so that the error of n * LN2_HIGH is LN2_LOW's to repair. */
#define KT_EXP_LOG2E 0x1.715476p+0f
#define KT_EXP_LN2_HIGH 0x1.62e43p-1f
#define KT_EXP_LN2_LOW -0x1.05c61p-29f
#define KT_EXP_P0 0x1.fffffcp-2f
#define KT_EXP_P1 0x1.555491p-3f
#define KT_EXP_P2 0x1.5558f1p-5f
#define KT_EXP_P3 0x1.1239e3p-7f
#define KT_EXP_P4 0x1.6a242fp-10f

/* 2^r = 1 + C1 r + ... + C5 r^5 with |r| <= 1/2, fitted likewise: 1.1e-7. */
#define KT_EXP2_C1 0x1.62e42ap-1f
#define KT_EXP2_C2 0x1.ebf9bcp-3f
#define KT_EXP2_C3 0x1.c6b752p-5f
#define KT_EXP2_C4 0x1.3cea88p-7f
#define KT_EXP2_C5 0x1.5bba14p-10f

#endif
