/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/attn_form.h"

#include <criterion/criterion.h>

#include "base/err.h"
#include "kernels/attn/attn_gate.h"

void kt_expect_attn_form(const kt_variant *v, void (*attn)(const kt_attn_call *),
                         kt_weight_format cache) {
    static const int64_t heads[][4] = {
        {8, 2, 128, 0}, {3, 3, 20, 0}, {5, 1, 576, 512}, {12, 2, 68, 0}};
    const kt_config config = {{32}};
    kt_variant form = *v;
    kt_err err = {0};

    form.attn = attn;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        for (uint64_t seed = 1; seed < 5; seed++) {
            const kt_problem q = {.op = KT_OP_ATTN,
                                  .weights = cache,
                                  .m = 1 + 3 * (int64_t)seed,
                                  .n = heads[i][0],
                                  .kv_heads = heads[i][1],
                                  .k = heads[i][2],
                                  .v = heads[i][3],
                                  .context = 50 + 300 * (int64_t)seed};
            cr_assert_eq(kt_attn_gate(&form, &config, &q, seed, NULL, &err), KT_OK, "%s",
                         err.message);
        }
}
