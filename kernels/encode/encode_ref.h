/* Reference encoding, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENCODE_REF_H
#define KT_KERNELS_ENCODE_REF_H

#include "kt/variant.h"

/* Encode the call's rows as kernels/formats/acts.h says. The layout's scales are f32 by definition;
 * each f32 operation is done in double and rounded once, which gives the same value. */
void kt_encode_ref(kt_act_format acts, const kt_encode_call *call);

#endif
