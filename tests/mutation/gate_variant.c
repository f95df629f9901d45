/* Gates one variant as kttune does, with every configuration, over a few shapes of every format that
 * it takes, or of the one that is named. Exit status: 0 accepted, 1 rejected (the reason on standard
 * output), 2 usage, 3 this machine lacks its instruction set.
 *
 * --runs NAME: only whether this machine runs the variant, of any operation, and if it is a
 * library's finds it right: 0 or 3; 0, too, when NAME is none. The name of a file of kernels/p64
 * stands for its variants.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "kernels/formats/gate_inputs.h"
#include "tests/support/amx_emulator.h"
#include "tuner/verify/verdicts.h"

enum { MAX_CONFIGS = 64 };

/* Odd tails of outputs and of groups, lengths that unroll, and blocks of 256. */
static const int64_t gemm_shapes[][2] = {{131, 96}, {192, 768}, {67, 1056}};
static const int64_t moe_shapes[][2] = {{96, 224}, {128, 768}, {416, 64}, {256, 512}};
/* For emulated tiles, whose products take thousands of cycles, and for plain C, which takes every
 * format; the last shape is for variants that take blocks of 256 alone. */
static const int64_t small_gemm_shapes[3][2] = {{67, 544}, {65, 640}, {65, 512}};
static const int64_t small_moe_shapes[3][2] = {{96, 288}, {128, 384}, {256, 256}};

static int configs_of(const kt_variant *v, const kt_problem *q, kt_choice *out) {
    int count = 1, n = 0;

    for (int i = 0; i < v->n_params; i++) count *= v->params[i].count;
    for (int c = 0; c < count && n < MAX_CONFIGS; c++) {
        kt_choice choice = {.variant = v};
        for (int i = 0, left = c; i < v->n_params; left /= v->params[i].count, i++)
            choice.config.value[i] = v->params[i].values[left % v->params[i].count];
        if (kt_gate_accepts(v, q, &choice.config, NULL) == KT_OK) out[n++] = choice;
    }
    return n;
}

/* 1 = something was rejected, 0 = nothing, -1 = the gate itself failed. */
static int gate(const kt_variant *v, const kt_problem *q, int *n_gated) {
    kt_choice choices[MAX_CONFIGS];
    kt_gate_result results[MAX_CONFIGS];
    kt_gate_limits limits = {.seed = 1, .deadline_ns = kt_clock_ns() + 60000000000};
    kt_err err = {0};
    int n = configs_of(v, q, choices);

    if (n == 0) return 0;
    if (kt_gate_choices(q, choices, n, &limits, results, &err) != KT_OK) {
        printf("%s\n", err.message);
        return -1;
    }
    for (int i = 0; i < n; i++) {
        ++*n_gated;
        if (results[i].passed) continue;
        printf("%s, %s: %s\n", kt_weight_format_name(q->weights), results[i].outcome,
               results[i].message);
        return 1;
    }
    return 0;
}

/* format: NULL = all */
static int gate_all(const kt_variant *v, const char *format) {
    const bool is_slow = !v->isa || (v->isa & ~kt_isa_available()), is_gemm = v->op == KT_OP_GEMM;
    const int64_t(*shapes)[2] = is_gemm ? gemm_shapes : moe_shapes;
    int n_gated = 0, n_shapes = is_gemm ? 3 : 4;

    if (is_slow) {
        shapes = is_gemm ? small_gemm_shapes : small_moe_shapes;
        n_shapes = 3;
    }
    for (int w = 1; w < KT_W_COUNT; w++) {
        if (format && strcmp(kt_weight_format_name((kt_weight_format)w), format) != 0) continue;
        for (int a = 1; a < KT_A_COUNT; a++)
            for (int s = 0; s < n_shapes; s++) {
                const int64_t *shape = shapes[s];
                kt_problem q = {.op = v->op,
                                .weights = (kt_weight_format)w,
                                .acts = (kt_act_format)a,
                                .m = 72,
                                .n = shape[0],
                                .k = shape[1],
                                .experts = v->op == KT_OP_MOE_FFN,
                                .topk = v->op == KT_OP_MOE_FFN};
                int found;
                if (is_slow && s == 2 && n_gated > 0) continue;
                if (!(v->weights & KT_W_BIT(w)) || !(v->acts & 1u << a)) continue;
                found = gate(v, &q, &n_gated);
                if (found) return found < 0 ? 2 : 1;
            }
    }
    if (n_gated == 0) printf("%s takes none of the shapes\n", v->name);
    return n_gated > 0 ? 0 : 2;
}

/* Tiles are emulated where there are none. */
static bool can_run(const kt_variant *v) {
    const kt_isa missing = v->isa & ~kt_isa_available(), tiles = KT_ISA_AMXINT8 | KT_ISA_AMXBF16;

    if (missing & ~tiles || (missing && !(kt_isa_available() & KT_ISA_AVX512))) return false;
    return !missing || kt_amx_start(NULL) == KT_OK;
}

/* `name` is a variant's, or without the word _p64 or _moe64 that of its file. */
static bool is_named(const kt_variant *v, const char *name) {
    static const char *const words[] = {"_p64__", "_moe64__"};

    if (strcmp(v->name, name) == 0) return true;
    for (int i = 0; i < 2; i++) {
        const char *at = strstr(v->name, words[i]);
        const size_t before = at ? (size_t)(at - v->name) : 0;
        if (at && strncmp(v->name, name, before) == 0 &&
            strcmp(at + strlen(words[i]) - 2, name + before) == 0)
            return true;
    }
    return false;
}

static int runs(const char *name) {
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (!is_named(v, name)) continue;
        return can_run(v) && (!v->usable || v->usable(NULL) == KT_OK) ? 0 : 3;
    }
    return 0;
}

int main(int argc, char **argv) {
    const size_t name_length = argc == 2 ? strcspn(argv[1], "/") : 0;

    if (argc == 3 && strcmp(argv[1], "--runs") == 0) return runs(argv[2]);
    for (size_t i = 0; argc == 2 && i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        const char *format = argv[1][name_length] ? argv[1] + name_length + 1 : NULL;
        if (strlen(v->name) != name_length || strncmp(v->name, argv[1], name_length) != 0) continue;
        if (v->op != KT_OP_GEMM && v->op != KT_OP_MOE_FFN) break;
        return can_run(v) ? gate_all(v, format) : 3;
    }
    fprintf(stderr,
            "usage: gate_variant NAME[/FORMAT], a gemm or moe_ffn variant; or --runs NAME\n");
    return 2;
}
