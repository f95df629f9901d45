/* The words by which people and programs say how a model is loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_OPTION_WORDS_H
#define KT_RUNTIME_OPTION_WORDS_H

#include "dispatch/model/quant.h"

/* Weights (--weights) by name, a kt_quant; -1 when there is no such format. */
int kt_quant_parse(const char *name);
#define KT_QUANT_WORDS                                                                             \
    "native, bf16, int8, int4, fp8, f16, w4g64, w4g128, w4zg32 to w4zg128, w8g128, wf8c, or with " \
    "--synthetic q4_0 to q6_k, iq2_xxs to iq4_xs or mxfp4"

/* A cache (--kv) by name; KT_W_NONE when there is no such format. */
kt_weight_format kt_kv_parse(const char *name);
const char *kt_kv_name(kt_weight_format format);

/* Memory nodes (--numa): KT_NUMA_AUTO, KT_NUMA_OFF or a number; -1 when it is none of its words. */
int kt_numa_parse(const char *word);

#endif
