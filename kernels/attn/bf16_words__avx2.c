/* Grouped-query attention over a BF16 cache by VPMADDWD and additions:
 * kernels/attn/attn_words_bf16.h explains it.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_words_bf16.h"
#include "kernels/attn/words_avx2.h"

KT_ATTN_VARIANT(bf16_words__avx2, .isa = KT_ISA_AVX2, BF16_WORDS);
