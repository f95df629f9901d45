/* An attention kernel whose instruction is run in another form.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_ATTN_FORM_H
#define KT_TESTS_ATTN_FORM_H

#include "kt/variant.h"

/* v, computed by `attn`, passes its gate over this cache: heads of several sizes, shared and not,
 * one of them latent. */
void kt_expect_attn_form(const kt_variant *v, void (*attn)(const kt_attn_call *),
                         kt_weight_format cache);

#endif
