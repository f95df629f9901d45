/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"

#include "base/err.h"

kt_status kt_encode_accepts(const kt_problem *problem, const kt_config *config, kt_err *why) {
    (void)config;
    if (problem->k <= 0 || problem->k % 32 != 0)
        return kt_fail(why, KT_E_UNSUPPORTED, "encode: row length %lld, expected a multiple of 32",
                       (long long)problem->k);
    return KT_OK;
}
