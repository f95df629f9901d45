/* Grouped-query attention over a BF16 cache by VPDPWSSD: kernels/attn/attn_words_bf16.h explains
 * it. The bits of bf16_words__avx2.c. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_words_bf16.h"
#include "kernels/attn/words_vnni.h"

KT_ATTN_VARIANT(bf16_words__avxvnni, .isa = KT_ISA_AVXVNNI, BF16_WORDS);
