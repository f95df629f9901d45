/* Grouped-query attention over an INT8 cache by VPMADDWD and additions:
 * kernels/attn/attn_words_int8.h explains it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_words_int8.h"
#include "kernels/attn/words_avx2.h"

KT_ATTN_VARIANT(int_words__avx2, .isa = KT_ISA_AVX2, INT_WORDS);
