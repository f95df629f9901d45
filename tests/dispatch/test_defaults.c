/* What runs where nothing was measured: no name, and nothing that was merely added, decides it.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "dispatch/plan/plan.h"
#include "kernels/formats/format.h"

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
