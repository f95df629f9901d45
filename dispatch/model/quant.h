/* What a checkpoint's weights become when it is loaded. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_QUANT_H
#define KT_DISPATCH_QUANT_H

#include "kt/problem.h"

/* What a checkpoint's linear layers become: as stored; BF16; INT8 per channel; experts in INT4
 * and the rest in INT8. KT_QUANT_FORMAT plus a kt_weight_format: feed-forward layers in that
 * format and, if it has eight bits or more and we encode it, the rest too, which is else in
 * INT8. */
typedef enum kt_quant {
    KT_QUANT_NATIVE,
    KT_QUANT_BF16,
    KT_QUANT_INT8,
    KT_QUANT_INT4,
    KT_QUANT_FORMAT
} kt_quant;

/* The format that a kt_quant names, or KT_W_NONE. */
static inline kt_weight_format kt_quant_format(kt_quant quant) {
    return quant > KT_QUANT_FORMAT ? (kt_weight_format)(quant - KT_QUANT_FORMAT) : KT_W_NONE;
}

#endif
