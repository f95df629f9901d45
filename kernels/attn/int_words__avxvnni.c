/* Grouped-query attention over an INT8 cache by VPDPWSSD: kernels/attn/attn_words256.h explains it.
 * The bits of int_words__avx2.c. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_words_int8.h"
#include "kernels/attn/words_vnni.h"

KT_ATTN_VARIANT(int_words__avxvnni, .isa = KT_ISA_AVXVNNI, INT_WORDS);
