/* What runs where nothing was measured: no name, and nothing that was merely added, decides it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cpu.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"
#include "tests/support/own_variants.h"
#include "tests/support/temp.h"

#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)
enum { MOST = 512, MOST_M = 512 };

/* The built-in variants under other names; and what each of them is a copy of. */
typedef struct copies {
    const kt_variant *list[2 * MOST];
    size_t n;
    kt_variant copy[MOST];
    char name[MOST][64];
} copies;

static bool is_matrix_op(const kt_variant *v) {
    return v->op == KT_OP_GEMM || v->op == KT_OP_MOE_FFN;
}

/* What a name of an added variant or of a copy stands for. */
static const kt_variant *original(const copies *c, const kt_variant *v) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (v == &c->copy[i]) return kt_builtin_variants[i];
    return v;
}

typedef struct bench {
    kt_registry *registry;
    kt_planner *planner;
} bench;

static void open_bench(bench *b, const kt_variant *const *list, size_t n, kt_isa isa) {
    const kt_fingerprint machine = {.vendor = "AuthenticAMD", .microarch = "zen4", .isa = isa};
    kt_err err = {0};

    cr_assert_eq(kt_registry_create(list, n, isa, &b->registry, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_planner_create(b->registry, NULL, &machine, NULL, &b->planner, &err), KT_OK,
                 "%s", err.message);
}

static void close_bench(bench *b) {
    kt_planner_destroy(b->planner);
    kt_registry_destroy(b->registry);
}

static bool resolve(const bench *b, const kt_problem *p, kt_choice_map *out) {
    return kt_plan_resolve(b->planner, p, 1, MOST_M, 0.7, out, NULL, NULL) == KT_OK;
}

/* Every format's matrix: the same encoding, layout and variant for every m from both registries. */
static void expect_same_choices(const copies *c, const bench *a, const bench *b) {
    static kt_choice_map here, there;
    static const kt_op ops[] = {KT_OP_GEMM, KT_OP_MOE_FFN};

    for (size_t i = 0; i < 2 * kt_builtin_format_count; i++) {
        kt_problem p = {.op = ops[i % 2], .weights = kt_builtin_formats[i / 2]->id};
        p.n = 768, p.k = 2048;
        if (p.op == KT_OP_MOE_FFN) p.experts = 128, p.topk = 8;
        p.acts = kt_registry_acts(a->registry, p.op, p.weights);
        cr_assert_eq(kt_registry_acts(b->registry, p.op, p.weights), p.acts, "%s %s: encodings",
                     kt_op_name(p.op), kt_weight_format_name(p.weights));
        cr_assert_eq(resolve(a, &p, &here), resolve(b, &p, &there));
        if (here.count == 0) continue;
        for (int64_t m = 1; m <= MOST_M; m++) {
            const kt_variant *x = kt_choice_for(&here, m)->variant;
            const kt_variant *y = original(c, kt_choice_for(&there, m)->variant);
            cr_assert_eq(x, y, "%s %s m=%lld: %s, but then %s", kt_op_name(p.op),
                         kt_weight_format_name(p.weights), (long long)m, x->name, y->name);
        }
    }
}

static kt_isa isa_of_case(int i) {
    const kt_isa have = kt_isa_available();
    switch (i) {
    case 0: return have;
    case 1: return have & KT_ISA_AVX2;
    case 2: return have & (KT_ISA_AVX2 | KT_ISA_AVX512);
    case 3: return have & (KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI);
    default: return have & KT_ISA_AVX512 ? have | TILES : have; /* descriptors only: nothing runs */
    }
}

/* As after `kttune new`: a file whose name sorts first, with the best instruction set, without a
 * rank. */
Test(defaults, a_variant_that_is_merely_added_is_no_default, .timeout = 120) {
    copies *c = calloc(1, sizeof *c);

    cr_assert(c && kt_builtin_variant_count <= MOST);
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        c->list[c->n++] = v;
        if (!is_matrix_op(v) || v->usable) continue;
        c->copy[i] = *v;
        c->copy[i].rank = 0;
        if (i % 2) c->copy[i].layout = "mine";
        snprintf(c->name[i], sizeof c->name[i], "a%03zu_mine", i);
        c->copy[i].name = c->name[i];
        c->list[c->n++] = &c->copy[i];
    }
    for (int i = 0; i < 5; i++) {
        bench before, after;
        open_bench(&before, kt_builtin_variants, kt_builtin_variant_count, isa_of_case(i));
        open_bench(&after, c->list, c->n, isa_of_case(i));
        for (size_t j = 0; j < kt_builtin_variant_count; j++)
            cr_assert(!c->copy[j].name || (c->copy[j].isa & ~isa_of_case(i)) ||
                      kt_registry_find(after.registry, c->copy[j].name));
        expect_same_choices(c, &before, &after);
        close_bench(&before);
        close_bench(&after);
    }
    free(c);
}

/* Where nothing else accepts a problem, an unproven variant is better than none. */
Test(defaults, an_unproven_variant_runs_what_no_other_accepts) {
    const kt_variant only = {.name = "only__scalar",
                             .op = KT_OP_GEMM,
                             .weights = 1u << KT_W_BF16,
                             .acts = 1u << KT_A_BF16,
                             .layout = "p64"};
    const kt_variant *const list[] = {&only};
    const kt_problem p = {
        .op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .n = 64, .k = 64};
    static kt_choice_map map;
    bench b;

    open_bench(&b, list, 1, 0);
    cr_assert(resolve(&b, &p, &map));
    cr_expect_eq(kt_choice_for(&map, 1)->variant, &only);
    close_bench(&b);
}

/* The same variants under names in the opposite order. */
Test(defaults, no_choice_is_left_to_names, .timeout = 120) {
    copies *c = calloc(1, sizeof *c);

    cr_assert(c && kt_builtin_variant_count <= MOST);
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        const char *isa = strstr(v->name, "__");
        c->copy[i] = *v;
        snprintf(c->name[i], sizeof c->name[i], "x%03zu%s", kt_builtin_variant_count - i,
                 isa ? isa : "");
        c->copy[i].name = c->name[i];
        c->list[c->n++] = &c->copy[i];
    }
    for (int i = 0; i < 5; i++) {
        bench by_name, reversed;
        open_bench(&by_name, kt_builtin_variants, kt_builtin_variant_count, isa_of_case(i));
        open_bench(&reversed, c->list, c->n, isa_of_case(i));
        expect_same_choices(c, &by_name, &reversed);
        close_bench(&by_name);
        close_bench(&reversed);
    }
    free(c);
}

/* --- parameters ------------------------------------------------------------------------------- */

static int32_t prefetch_of(const kt_choice *c) {
    for (int32_t i = 0; i < c->variant->n_params; i++)
        if (strcmp(c->variant->params[i].name, "prefetch") == 0) return c->config.value[i];
    return -1;
}

/* One row per expert is one pass over the weights: server cores of Intel want it prefetched. */
Test(defaults, prefetch_depends_on_the_part) {
    static const struct {
        const char *microarch;
        int32_t prefetch;
    } cases[] = {{"zen4", 0},
                 {"zen5", 0},
                 {"graniterapids", 2048},
                 {"graniterapids-v", 2048},
                 {"icelake", 2048},
                 {"icelake-client", 0},
                 {"alderlake", 0},
                 {"graniterapids2", 0},
                 {"", 0}};
    const kt_isa isa = KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI;

    if (isa & ~kt_isa_available()) cr_skip_test("kernels that prefetch need AVX-512 VNNI");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_fingerprint machine = {.vendor = "V", .isa = isa};
        kt_problem p = {.op = KT_OP_MOE_FFN, .weights = KT_W_INT8_CHANNEL, .n = 768, .k = 2048};
        static kt_choice_map map;
        kt_planner *planner;
        kt_registry *r;

        p.experts = 128, p.topk = 8;
        snprintf(machine.microarch, sizeof machine.microarch, "%s", cases[i].microarch);
        cr_assert_eq(
            kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, isa, &r, NULL),
            KT_OK);
        cr_assert_eq(kt_planner_create(r, NULL, &machine, NULL, &planner, NULL), KT_OK);
        p.acts = kt_plan_acts(planner, &p);
        cr_assert_eq(kt_plan_resolve(planner, &p, 1, 64, 0.7, &map, NULL, NULL), KT_OK);
        cr_expect_eq(prefetch_of(kt_choice_for(&map, 1)), cases[i].prefetch, "%s: %s prefetch=%d",
                     cases[i].microarch, kt_choice_for(&map, 1)->variant->name,
                     (int)prefetch_of(kt_choice_for(&map, 1)));
        kt_planner_destroy(planner);
        kt_registry_destroy(r);
    }
}

/* VDPBF16PS is worth taking unmeasured where it was measured to be fast. */
Test(defaults, bf16_products_depend_on_the_part) {
    static const struct {
        const char *microarch;
        bool is_fast;
    } cases[] = {
        {"zen4", true}, {"zen4-v", true}, {"zen5", true}, {"graniterapids", false}, {"", false}};
    const kt_isa isa = KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI | KT_ISA_AVX512BF16;
    const kt_problem p = {
        .op = KT_OP_GEMM, .weights = KT_W_BF16, .acts = KT_A_BF16, .n = 512, .k = 128};

    if (isa & ~kt_isa_available()) cr_skip_test("BF16 products need AVX-512 BF16");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_fingerprint machine = {.vendor = "V", .isa = isa};
        static kt_choice_map map;
        kt_planner *planner;
        kt_registry *r;

        snprintf(machine.microarch, sizeof machine.microarch, "%s", cases[i].microarch);
        cr_assert_eq(
            kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, isa, &r, NULL),
            KT_OK);
        cr_assert_eq(kt_planner_create(r, NULL, &machine, NULL, &planner, NULL), KT_OK);
        cr_assert_eq(kt_plan_resolve(planner, &p, 1, MOST_M, 0.7, &map, NULL, NULL), KT_OK);
        cr_expect_eq((kt_choice_for(&map, MOST_M)->variant->isa & KT_ISA_AVX512BF16) != 0,
                     cases[i].is_fast, "'%s': %s", cases[i].microarch,
                     kt_choice_for(&map, MOST_M)->variant->name);
        kt_planner_destroy(planner);
        kt_registry_destroy(r);
    }
}

/* --- results of like machines ---------------------------------------------------------------- */

static void file_table(const char *results, const char *class_name, const kt_fingerprint *machine) {
    char folder[512], path[600];
    kt_table *t;
    kt_err err;

    snprintf(folder, sizeof folder, "%s/%s", results, class_name);
    cr_assert_eq(mkdir(folder, 0777), 0);
    snprintf(path, sizeof path, "%s/Some-Model.kttable.json", folder);
    cr_assert_eq(kt_table_create(&t, &err), KT_OK);
    t->fingerprint = *machine;
    snprintf(t->workload, sizeof t->workload, "Some-Model");
    cr_assert_eq(kt_table_save(t, path, &err), KT_OK, "%s", err.message);
    kt_table_destroy(t);
}

/* The same part with other cores is like this machine; another part is not, whatever its folder is
 * called. */
Test(defaults, results_of_the_nearest_like_machine_are_taken) {
    kt_fingerprint zen4 = {.vendor = "AuthenticAMD",
                           .microarch = "zen4",
                           .family = 25,
                           .model = 17,
                           .isa = KT_ISA_AVX2,
                           .usable_cores = 64,
                           .numa_nodes = 1};
    kt_fingerprint here = zen4, zen5 = zen4;
    char results[256], found[1024];

    strcpy(zen5.microarch, "zen5");
    zen5.family = 26;
    here.usable_cores = 12;
    kt_temp_make(results, sizeof results);
    kt_table_of_like_machine(results, &here, "Some-Model", 0, found, sizeof found);
    cr_expect_str_eq(found, "", "nothing is filed");
    file_table(results, "zen5-12c-64g", &zen5);
    file_table(results, "zen4-v-12c-64g", &zen4); /* another class: masked */
    file_table(results, "zen4-12x-64g", &zen4);
    file_table(results, "zen4-13c-64g", &zen5); /* which lies */
    kt_table_of_like_machine(results, &here, "Some-Model", 0, found, sizeof found);
    cr_expect_str_eq(found, "", "%s is no like machine's", found);
    file_table(results, "zen4-64c-512g", &zen4);
    kt_table_of_like_machine(results, &here, "org/Some-Model", 0, found, sizeof found);
    cr_expect_not_null(strstr(found, "/zen4-64c-512g/Some-Model.kttable.json"), "%s", found);
    file_table(results, "zen4-8c-64g", &zen4);
    kt_table_of_like_machine(results, &here, "Some-Model", 0, found, sizeof found);
    cr_expect_not_null(strstr(found, "/zen4-8c-64g/"), "%s", found);
    kt_table_of_like_machine(results, &here, "Other-Model", 0, found, sizeof found);
    cr_expect_str_eq(found, "");
    kt_temp_remove(results);
}

/* The configuration that `part` runs a problem with where nothing was measured. */
static kt_choice chosen_on(const char *part, kt_weight_format weights, kt_act_format acts,
                           int64_t m) {
    const kt_isa isa = KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI | KT_ISA_AVX512VBMI;
    kt_fingerprint machine = {.vendor = "V", .isa = isa};
    kt_problem p = {.op = KT_OP_MOE_FFN, .weights = weights, .acts = acts, .n = 768, .k = 2048};
    kt_choice_map map;
    kt_choice choice;
    bench b;

    p.experts = 128, p.topk = 8;
    snprintf(machine.microarch, sizeof machine.microarch, "%s", part);
    b.registry = kt_test_own_variants(isa);
    cr_assert_eq(kt_planner_create(b.registry, NULL, &machine, NULL, &b.planner, NULL), KT_OK);
    cr_assert(resolve(&b, &p, &map));
    choice = *kt_choice_for(&map, m);
    close_bench(&b);
    return choice;
}

Test(defaults, parameters_start_where_their_part_was_measured_to_want_them) {
    static const struct {
        const char *part;
        kt_weight_format weights;
        kt_act_format acts;
        int64_t m;
        const char *config;
    } cases[] = {
        {"icelake", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 48, "rows=3,prefetch=2048,many=32"},
        {"icelake-v", KT_W_INT4_G32, KT_A_INT8_G32, 48, "rows=6,prefetch=2048,many=32"},
        {"icelake", KT_W_Q4_K, KT_A_INT8_G32, 128, "rows=6,prefetch=0,many=16"},
        {"icelake", KT_W_FP8_B128, KT_A_BF16, 1, "rows=6,prefetch=8192,many=16"},
        {"icelake", KT_W_BF16, KT_A_BF16, 1, "rows=6,prefetch=2048,many=32"},
        {"cascadelake", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 48, "rows=6,prefetch=2048,many=0"},
        {"zen4", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 48, "rows=6,prefetch=0,many=0"},
        {"zen4", KT_W_FP8_B128, KT_A_BF16, 1, "rows=6,prefetch=0,many=16"},
        {"zen5", KT_W_FP8_B128, KT_A_BF16, 1, "rows=6,prefetch=4096,many=16"},
        {"zen5", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 1, "rows=3,prefetch=0,many=0"},
        {"zen5", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 8, "rows=3,prefetch=0,many=0"},
        {"zen5", KT_W_INT8_CHANNEL, KT_A_INT8_G32, 12, "rows=6,prefetch=0,many=0"},
        {"zen5", KT_W_INT4_G32, KT_A_INT8_G32, 1, "rows=6,prefetch=6144,many=0"},
        {"zen5", KT_W_Q4_K, KT_A_INT8_G32, 1, "rows=4,prefetch=8192,many=16"},
    };
    char text[96];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const kt_choice c = chosen_on(cases[i].part, cases[i].weights, cases[i].acts, cases[i].m);
        kt_config_format(c.variant, &c.config, text, sizeof text);
        cr_expect_str_eq(text, cases[i].config, "%s %s: %s %s, expected %s", cases[i].part,
                         kt_weight_format_name(cases[i].weights), c.variant->name, text,
                         cases[i].config);
    }
}
