/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/indexer/indexer_common.h"

#include "base/err.h"

kt_status kt_index_accepts(const kt_problem *p, int step, kt_err *why) {
    if (p->weights != KT_W_BF16 && p->weights != KT_W_NONE)
        return kt_fail(why, KT_E_UNSUPPORTED, "indexer: keys in %s, expected wbf16",
                       kt_weight_format_name(p->weights));
    if (p->n < 1 || p->k < 1 || p->k % step != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "indexer: %lld heads of %lld numbers, expected at least one of a multiple "
                       "of %d",
                       (long long)p->n, (long long)p->k, step);
    if (p->kv_heads != 0 && p->kv_heads != p->n)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "indexer: scores of %lld of %lld heads, expected of all or their sum",
                       (long long)p->kv_heads, (long long)p->n);
    return KT_OK;
}
