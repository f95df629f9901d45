/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/registry/registry.h"
#include "tests/support/fake_variants.h"

static kt_registry *make(kt_isa isa) {
    kt_registry *r;
    kt_err err;
    cr_assert_eq(kt_registry_create(kt_fake_variants, kt_fake_variant_count, isa, &r, &err), KT_OK,
                 "%s", err.message);
    return r;
}

static const char *reason_of(const kt_registry *r, const char *name) {
    for (size_t i = 0; i < kt_registry_refused_count(r); i++) {
        const char *reason;
        if (strcmp(kt_registry_refused_at(r, i, &reason)->name, name) == 0) return reason;
    }
    cr_assert(0, "%s is not refused", name);
    return "";
}

Test(registry, lists_usable_variants_by_name) {
    kt_registry *r = make(KT_FAKE_ISA);

    cr_assert_eq(kt_registry_count(r), kt_fake_variant_count - 2);
    for (size_t i = 0; i < kt_registry_count(r); i++) {
        const kt_variant *v = kt_registry_at(r, i);
        if (i) cr_assert_lt(strcmp(kt_registry_at(r, i - 1)->name, v->name), 0);
        cr_assert_eq(kt_registry_find(r, v->name), v);
    }
    cr_assert_null(kt_registry_at(r, kt_registry_count(r)));
    cr_assert_null(kt_registry_find(r, "fake_amx__amxint8"));
    cr_assert_null(kt_registry_find(r, ""));
    kt_registry_destroy(r);
}

Test(registry, refuses_by_isa_without_calling_anything) {
    kt_registry *r = make(KT_ISA_AVX2); /* calling the AMX variant would kill this process */

    cr_assert_str_eq(reason_of(r, "fake_wide__avx512vnni"),
                     "needs avx512vnni; this machine has avx2");
    cr_assert_str_eq(reason_of(r, "fake_amx__amxint8"), "needs amxint8; this machine has avx2");
    kt_registry_destroy(r);
    r = make(KT_ISA_SCALAR);
    cr_assert_str_eq(reason_of(r, "fake_other__avx2"), "needs avx2; this machine has scalar");
    cr_assert_not_null(kt_registry_find(r, "fake_base__scalar"));
    kt_registry_destroy(r);
}

Test(registry, keeps_the_message_of_a_failed_self_test) {
    kt_registry *r = make(KT_FAKE_ISA);

    cr_assert_str_eq(reason_of(r, "fake_sick__lib"),
                     "self-test: relative error 0.5, expected at most 0.01");
    cr_assert_not_null(kt_registry_find(r, "fake_good__lib"));
    kt_registry_destroy(r);
}

Test(registry, takes_the_built_in_table) {
    kt_registry *r;
    kt_err err;

    cr_assert_eq(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count,
                                    kt_isa_available(), &r, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_registry_count(r) + kt_registry_refused_count(r), kt_builtin_variant_count);
    for (size_t i = 0; i < kt_registry_refused_count(r); i++) {
        const char *reason = NULL;
        const kt_variant *v = kt_registry_refused_at(r, i, &reason);
        cr_assert(reason && reason[0], "%s is refused without a reason", v->name);
        cr_assert(strncmp(reason, "descriptor:", 11) != 0, "%s: %s", v->name, reason);
    }
    kt_registry_destroy(r);
}

Test(registry, refuses_broken_descriptors) {
    static const int32_t values[] = {1, 2};
    static const kt_param not_listed = {"rows", values, 2, 3}, bad_name = {"a=b", values, 2, 1},
                          empty = {"rows", values, 0, 1};
    const kt_variant broken[] = {
        {.name = "a", .op = KT_OP_GEMM, .params = &not_listed, .n_params = 1},
        {.name = "b", .op = KT_OP_GEMM, .params = &bad_name, .n_params = 1},
        {.name = "c", .op = KT_OP_GEMM, .params = &empty, .n_params = 1},
        {.name = "d", .op = KT_OP_GEMM, .params = &empty, .n_params = KT_MAX_PARAMS + 1},
        {.name = "e", .op = KT_OP_COUNT},
    };
    const kt_variant *list[] = {&broken[0], &broken[1], &broken[2], &broken[3], &broken[4]};
    kt_registry *r;

    cr_assert_eq(kt_registry_create(list, 5, 0, &r, NULL), KT_OK);
    cr_assert_eq(kt_registry_count(r), 0);
    cr_assert_str_eq(reason_of(r, "a"),
                     "descriptor: parameter 'rows': its initial value 3 is not in its list");
    kt_registry_destroy(r);
}

Test(registry, refuses_two_variants_of_one_name) {
    const kt_variant *twice[] = {kt_fake_variants[0], kt_fake_variants[1], kt_fake_variants[0]};
    const kt_variant nameless = {.op = KT_OP_GEMM};
    const kt_variant *without_name[] = {&nameless};
    kt_registry *r;
    kt_err err;

    cr_assert_eq(kt_registry_create(twice, 3, KT_FAKE_ISA, &r, &err), KT_E_INVALID);
    cr_assert_null(r);
    cr_assert(strstr(err.message, "fake_wide__avx512vnni"), "%s", err.message);
    cr_assert_eq(kt_registry_create(without_name, 1, KT_FAKE_ISA, &r, &err), KT_E_INVALID);
}

Test(registry, an_empty_table_is_no_error) {
    kt_registry *r;
    cr_assert_eq(kt_registry_create(kt_fake_variants, 0, KT_FAKE_ISA, &r, NULL), KT_OK);
    cr_assert_eq(kt_registry_count(r), 0);
    kt_registry_destroy(r);
    kt_registry_destroy(NULL);
}

Test(config, every_configuration_reads_back) {
    for (size_t i = 0; i < kt_fake_variant_count; i++) {
        const kt_variant *v = kt_fake_variants[i];
        for (int64_t c = 0; c < kt_config_count(v); c++) {
            kt_config config = kt_config_at(v, c), back;
            char text[96];
            cr_assert_eq(
                kt_config_parse(v, kt_config_format(v, &config, text, sizeof text), &back, NULL),
                KT_OK);
            cr_assert_arr_eq(&config, &back, sizeof back);
            for (int64_t d = 0; d < c; d++) {
                kt_config before = kt_config_at(v, d);
                cr_assert(memcmp(&before, &config, sizeof config) != 0, "%s: %lld = %lld", v->name,
                          (long long)c, (long long)d);
            }
        }
    }
}

Test(config, writes_names_and_values) {
    kt_config initial = kt_config_initial(kt_fake_variants[0]);
    char text[96], small[8];

    cr_assert_str_eq(kt_config_format(kt_fake_variants[0], &initial, text, sizeof text),
                     "rows=4,prefetch=0");
    cr_assert_str_eq(kt_config_format(kt_fake_variants[0], &initial, small, sizeof small),
                     "rows=4,");
    cr_assert_str_eq(kt_config_format(kt_fake_variants[2], &initial, text, sizeof text), "");
    cr_assert_eq(kt_config_count(kt_fake_variants[0]), 6);
    cr_assert_eq(kt_config_count(kt_fake_variants[2]), 1);
}

Test(config, refuses_what_it_would_not_write) {
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"rows=4,prefetch=0,", "ends with a comma"},
        {"rows=5,prefetch=0", "parameter 'rows' cannot be 5"},
        {"rows=4,prefetch=0,rows=4", "given twice"},
        {"rows=4,prefetch=0,depth=1", "has no parameter 'depth'"},
        {"row=4,prefetch=0", "has no parameter 'row'"},
        {"rows,prefetch=0", "is not name=value"},
        {"rows=,prefetch=0", "is not an integer"},
        {"rows=4x,prefetch=0", "is not an integer"},
        {"rows=99999999999999999999,prefetch=0", "is not an integer"},
        {"rows=4294967300,prefetch=0", "cannot be 4294967300"},
        {",,,", "is not name=value"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        kt_config before = {{7, 7}}, after = before;
        kt_err err;
        cr_assert_eq(kt_config_parse(kt_fake_variants[0], bad[i].text, &after, &err), KT_E_FORMAT,
                     "'%s' was accepted", bad[i].text);
        cr_assert(strstr(err.message, bad[i].message), "'%s': %s", bad[i].text, err.message);
        cr_assert_arr_eq(&before, &after, sizeof after);
    }
}

/* Tables outlive a variant's new parameters, which begin as what was there before. */
Test(config, what_is_not_named_has_its_initial_value) {
    const kt_variant *v = kt_fake_variants[0];
    const kt_config initial = kt_config_initial(v);
    kt_config config;

    cr_assert_eq(kt_config_parse(v, "", &config, NULL), KT_OK);
    cr_assert_arr_eq(&config, &initial, sizeof config);
    for (int32_t i = 0; i < v->params[0].count; i++) {
        char text[32];
        snprintf(text, sizeof text, "%s=%d", v->params[0].name, v->params[0].values[i]);
        config.value[1] = 77;
        cr_assert_eq(kt_config_parse(v, text, &config, NULL), KT_OK);
        cr_assert_eq(config.value[0], v->params[0].values[i]);
        cr_assert_eq(config.value[1], initial.value[1]);
    }
}

Test(accepts, checks_op_formats_sizes_then_the_variant) {
    const kt_variant only_int4 = {.name = "int4",
                                  .op = KT_OP_GEMM,
                                  .weights = 1u << KT_W_INT4_G32,
                                  .acts = 1u << KT_A_INT8_G32};
    kt_problem p = {.op = KT_OP_GEMM,
                    .weights = KT_W_INT4_G32,
                    .acts = KT_A_INT8_G32,
                    .m = 1,
                    .n = 64,
                    .k = 64};
    kt_problem q;
    kt_err why;

    cr_assert_eq(kt_variant_accepts(&only_int4, &p, NULL, &why), KT_OK);
    q = p, q.op = KT_OP_NORM;
    cr_assert_eq(kt_variant_accepts(&only_int4, &q, NULL, &why), KT_E_UNSUPPORTED);
    cr_assert_str_eq(why.message, "int4 is for gemm, not norm");
    q = p, q.weights = KT_W_BF16;
    cr_assert_eq(kt_variant_accepts(&only_int4, &q, NULL, &why), KT_E_UNSUPPORTED);
    cr_assert_str_eq(why.message, "int4 does not read wbf16 weights");
    q = p, q.acts = KT_A_F32;
    cr_assert_eq(kt_variant_accepts(&only_int4, &q, NULL, &why), KT_E_UNSUPPORTED);
    q = p, q.k = 0;
    cr_assert_eq(kt_variant_accepts(&only_int4, &q, NULL, &why), KT_E_INVALID);
    q = p, q.weights = (kt_weight_format)77;
    cr_assert_eq(kt_variant_accepts(&only_int4, &q, NULL, &why), KT_E_INVALID);
    cr_assert_eq(kt_variant_accepts(kt_fake_variants[6], &p, NULL, &why), KT_E_UNSUPPORTED);
    cr_assert_str_eq(why.message, "m=1 under 16");
    q = p, q.m = 16;
    cr_assert_eq(kt_variant_accepts(kt_fake_variants[6], &q, NULL, NULL), KT_OK);
}

Test(registry, unstable_variants_are_usable_but_not_for_deterministic_plans) {
    kt_registry *r = make(KT_FAKE_ISA);
    const kt_variant *lib = kt_registry_find(r, "fake_good__lib");
    kt_variant unnamed = {.name = "unnamed", .op = KT_OP_GEMM};
    kt_err why = {KT_OK, ""};

    cr_assert(lib);
    cr_expect_eq(kt_variant_keeps_bits(lib, &why), KT_E_UNSUPPORTED);
    cr_expect(strstr(why.message, "'unstable'") && strstr(why.message, "deterministic"), "%s",
              why.message);
    cr_expect_eq(kt_variant_keeps_bits(&unnamed, &why), KT_E_UNSUPPORTED);
    cr_expect(strstr(why.message, "'not named'"), "%s", why.message);
    cr_expect_eq(kt_variant_keeps_bits(kt_registry_find(r, "fake_base__scalar"), &why), KT_OK);
    kt_registry_destroy(r);
}
