/* Variants without kernels, for tests of the dispatch. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FAKE_VARIANTS_H
#define KT_TESTS_FAKE_VARIANTS_H

#include "kt/variant.h"

/* In no order. GEMM unless said otherwise, every weight and activation format, each with a class of bits of its
 * own but the libraries, which are KT_BITS_UNSTABLE:
 *   fake_base__scalar        layout p64, no parameters
 *   fake_wide__avx512vnni    layout p64, rows 1|4|8 (4), prefetch 0|2048 (0), version 3
 *   fake_tile__avx512        layout p64, rows 16, refuses m < 16
 *   fake_other__avx2         layout q8
 *   fake_good__lib           layout lib, needs avx512vnni, self-test passes
 *   fake_sick__lib           self-test fails
 *   fake_amx__amxint8        kills the process when anything of it is called
 *   fake_norm__scalar, fake_norm__avx2   NORM */
extern const kt_variant *const kt_fake_variants[];
extern const size_t kt_fake_variant_count;

#define KT_FAKE_ISA \
    (KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI) /* all but fake_amx run with it */

#endif
