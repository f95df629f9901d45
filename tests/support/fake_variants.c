/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/fake_variants.h"

#include <stdlib.h>

#include "base/err.h"

#define ANY_WEIGHTS (KT_W_BIT(KT_W_COUNT) - 1)
#define ANY_ACTS ((1u << KT_A_COUNT) - 1)

static const int32_t rows_list[] = {1, 4, 8}, prefetch_list[] = {0, 2048}, tile_rows[] = {16};
static const kt_param wide_params[] = {{"rows", rows_list, 3, 4},
                                       {"prefetch", prefetch_list, 2, 0}};
static const kt_param tile_params[] = {{"rows", tile_rows, 1, 16}};

static kt_status from_16_rows(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    if (p->m >= 16) return KT_OK;
    return kt_fail(why, KT_E_UNSUPPORTED, "m=%lld under 16", (long long)p->m);
}

static kt_status sound(kt_err *why) {
    (void)why;
    return KT_OK;
}
static kt_status unsound(kt_err *why) {
    return kt_fail(why, KT_E_UNSUPPORTED, "self-test: relative error 0.5, expected at most 0.01");
}

static kt_status deadly_usable(kt_err *why) {
    (void)why;
    abort();
}
static kt_status deadly_accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)p, (void)config, (void)why;
    abort();
}

static const kt_variant base = {.name = "fake_base__scalar",
                                .op = KT_OP_GEMM,
                                .weights = ANY_WEIGHTS,
                                .acts = ANY_ACTS,
                                .bits = "narrow",
                                .version = 1,
                                .layout = "p64"};
static const kt_variant wide = {.name = "fake_wide__avx512vnni",
                                .op = KT_OP_GEMM,
                                .weights = ANY_WEIGHTS,
                                .acts = ANY_ACTS,
                                .isa = KT_ISA_AVX512VNNI,
                                .bits = "wide",
                                .version = 3,
                                .layout = "p64",
                                .params = wide_params,
                                .n_params = 2};
static const kt_variant tile = {.name = "fake_tile__avx512",
                                .op = KT_OP_GEMM,
                                .weights = ANY_WEIGHTS,
                                .acts = ANY_ACTS,
                                .isa = KT_ISA_AVX512,
                                .bits = "tiles",
                                .version = 1,
                                .layout = "p64",
                                .params = tile_params,
                                .n_params = 1,
                                .accepts = from_16_rows};
static const kt_variant other = {.name = "fake_other__avx2",
                                 .op = KT_OP_GEMM,
                                 .weights = ANY_WEIGHTS,
                                 .acts = ANY_ACTS,
                                 .isa = KT_ISA_AVX2,
                                 .bits = "other",
                                 .version = 1,
                                 .layout = "q8"};
static const kt_variant good_lib = {.name = "fake_good__lib",
                                    .op = KT_OP_GEMM,
                                    .weights = ANY_WEIGHTS,
                                    .acts = ANY_ACTS,
                                    .isa = KT_ISA_AVX512VNNI,
                                    .bits = KT_BITS_UNSTABLE,
                                    .version = 1,
                                    .layout = "lib",
                                    .usable = sound};
static const kt_variant sick_lib = {.name = "fake_sick__lib",
                                    .op = KT_OP_GEMM,
                                    .weights = ANY_WEIGHTS,
                                    .acts = ANY_ACTS,
                                    .bits = KT_BITS_UNSTABLE,
                                    .version = 1,
                                    .layout = "lib",
                                    .usable = unsound};
static const kt_variant amx = {.name = "fake_amx__amxint8",
                               .op = KT_OP_GEMM,
                               .weights = ANY_WEIGHTS,
                               .acts = ANY_ACTS,
                               .isa = KT_ISA_AMXINT8,
                               .bits = "amx",
                               .version = 1,
                               .layout = "p64",
                               .usable = deadly_usable,
                               .accepts = deadly_accepts};
static const kt_variant norm_scalar = {
    .name = "fake_norm__scalar", .op = KT_OP_NORM, .bits = "norm", .version = 1, .layout = ""};
static const kt_variant norm_avx2 = {.name = "fake_norm__avx2",
                                     .op = KT_OP_NORM,
                                     .isa = KT_ISA_AVX2,
                                     .bits = "norm256",
                                     .version = 1,
                                     .layout = ""};

const kt_variant *const kt_fake_variants[] = {&wide,      &norm_scalar, &base,  &sick_lib, &amx,
                                              &norm_avx2, &tile,        &other, &good_lib};
const size_t kt_fake_variant_count = sizeof kt_fake_variants / sizeof *kt_fake_variants;
