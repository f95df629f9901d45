/* `kttune new`: what it writes compiles, has its format, and passes the gate.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/support/temp.h"
#include "tests/support/tune_home.h"

#define KTTUNE KT_BUILD_DIR "/kttune "
#define COMPILE                                                                                    \
    "cc -std=c11 -O1 -Wall -Wextra -Werror -ffp-contract=off -I" KT_SOURCE_DIR " -I" KT_SOURCE_DIR \
    "/include -I" KT_BUILD_DIR "/generated "

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);
    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

/* A problem that every op has a meaning for, small enough for a gate in milliseconds. */
static const struct {
    const char *op, *name, *gate, *problem;
    const char *folder; /* of the gate; NULL: the op's name */
} news[] = {
    {"gemm", "w8c_a8_fresh__scalar", "gemm", ".m = 5, .n = 96, .k = 64", NULL},
    {"gemm", "wbf16_abf16__scalar", "gemm", ".m = 5, .n = 96, .k = 64", NULL},
    {"gemm", "w8c_a8p_fresh__scalar", "gemm", ".m = 5, .n = 96, .k = 64", NULL},
    {"moe_ffn", "w4g32_a8_fresh__scalar", "moe",
     ".m = 5, .n = 96, .k = 64, .experts = 2, .topk = 1", NULL},
    {"attn", "bf16_fresh__scalar", "attn", ".m = 3, .n = 4, .k = 32, .kv_heads = 2, .context = 9",
     NULL},
    {"norm", "rms_fresh__scalar", "norm", ".m = 5, .n = 1, .k = 96", NULL},
    {"rope", "rotate_fresh__scalar", "rope", ".m = 5, .n = 3, .k = 32", NULL},
    {"router", "logits_fresh__scalar", "router", ".m = 5, .n = 7, .k = 96", NULL},
    {"conv", "conv_fresh__scalar", "conv", ".m = 5, .n = 16, .k = 4", "linattn"},
    {"delta", "delta_fresh__scalar", "delta", ".m = 5, .n = 2, .k = 16, .v = 16, .kv_heads = 1",
     "linattn"},
    {"index", "index_fresh__scalar", "index", ".m = 3, .n = 2, .k = 32, .context = 9", "indexer"},
    {"encode", "a8_fresh__scalar", "encode", ".m = 5, .n = 1, .k = 96", NULL},
    {"encode", "a8p_fresh__scalar", "encode", ".m = 5, .n = 1, .k = 96", NULL},
    {"encode", "abf16_fresh__scalar", "encode", ".m = 5, .n = 1, .k = 96", NULL}};

/* A kernel over panels is two variants: the one of `op`. */
static void variant_of(const char *op, const char *name, char made[128]) {
    const char *isa = strstr(name, "__");
    const char *infix = !strcmp(op, "gemm") ? "_p64" : !strcmp(op, "moe_ffn") ? "_moe64" : "";

    snprintf(made, 128, "%.*s%s%s", (int)(isa - name), name, infix, isa);
}

/* A program around the new file that runs the gate of its op. */
static void write_gate_program(const char *folder, const char *op, const char *name,
                               const char *gate, const char *problem) {
    char text[2048];
    int size = snprintf(
        text, sizeof text,
        "#include <stdio.h>\n#include \"kernels/%s/%s_gate.h\"\n"
        "extern const kt_variant kt_variant_%s;\n"
        "int main(void) {\n"
        "    const kt_variant *v = &kt_variant_%s;\n"
        "    kt_problem p = {.op = v->op, %s};\n"
        "    kt_config c = {{0}};\n    kt_err err = {KT_OK, \"\"};\n"
        "    for (int i = 0; i < v->n_params; i++) c.value[i] = v->params[i].initial;\n"
        "    while (v->weights && !(v->weights >> p.weights & 1)) p.weights++;\n"
        "    while (v->acts && !(v->acts >> p.acts & 1)) p.acts++;\n"
        "    if (kt_%s_gate(v, &c, &p, 1, NULL, &err) != KT_OK) return puts(err.message), 1;\n"
        "    printf(\"%%s passes, weights %%d acts %%d\\n\", v->name, (int)p.weights, "
        "(int)p.acts);\n"
        "    return 0;\n}\n",
        op, gate, name, name, problem, gate);
    kt_temp_write(folder, "main.c", text, (size_t)size);
}

/* Every operation there is (the probes of the machine aside), every encoding. */
Test(kttune_new, what_it_writes_compiles_and_is_right, .timeout = 120) {
    char folder[256];

    if (strstr(KT_BUILD_DIR, "asan")) cr_skip_test("the libraries need a sanitizer to link with");
    kt_temp_make(folder, sizeof folder);
    for (size_t i = 0; i < sizeof news / sizeof *news; i++) {
        char command[3000], words[160], variant[128];
        variant_of(news[i].op, news[i].name, variant);
        snprintf(command, sizeof command, KTTUNE "new %s %s --json --folder %s", news[i].op,
                 news[i].name, folder);
        expect(command, 0, variant);
        write_gate_program(folder, news[i].folder ? news[i].folder : news[i].op, variant,
                           news[i].gate, news[i].problem);
        snprintf(command, sizeof command,
                 COMPILE "-o %s/gate %s/main.c %s/%s.c " KT_BUILD_DIR
                         "/libkt_kernels.a " KT_BUILD_DIR "/libkt_base.a -lpthread -lm && %s/gate",
                 folder, folder, folder, news[i].name, folder);
        snprintf(words, sizeof words, "%s passes", variant);
        expect(command, 0, words);
    }
    kt_temp_remove(folder);
}

Test(kttune_new, bad_names_are_refused_with_what_was_expected) {
    char folder[256], command[1024];

    kt_temp_make(folder, sizeof folder);
    expect(KTTUNE "new", 2, "expected an operation and a name");
    expect(KTTUNE "new probe x__avx2", 2, "expected gemm, moe_ffn, attn, norm");
    expect(KTTUNE "new attn x", 2, "bf16_<trait>__<isa>");
    expect(KTTUNE "new attn rms_x__avx2", 2, "expected bf16_<trait>__avx2, such as bf16_mine");
    expect(KTTUNE "new norm rms__avx2", 2, "expected rms_<trait>__avx2");
    expect(KTTUNE "new encode b8_x__avx2", 2, "begins with no encoding");
    expect(KTTUNE "new encode a8_rows__avx2", 2, "already");
    expect(KTTUNE "new gemm fast", 2, "<weights>_<acts>[_<trait>]__<isa>");
    expect(KTTUNE "new gemm ../w8c_a8_x__avx2", 2, "<weights>_<acts>[_<trait>]__<isa>");
    expect(KTTUNE "new gemm w8c_a8_x__sse9", 2, "'sse9' is no instruction set");
    expect(KTTUNE "new gemm w9_a8_x__avx2", 2, "begins with no weight format");
    expect(KTTUNE "new gemm w8c_abf16_x__avx2", 2, "expected w8c_a8[_<trait>]__avx2");
    expect(KTTUNE "new gemm w8c__avx2", 2, "expected w8c_a8[_<trait>]__avx2");
    expect(KTTUNE "new gemm w8c_a8__avx2", 2, "w8c_a8__avx2.c: there is such a file already");
    expect(KTTUNE "new gemm w8c_a8_p64__avx2", 2, "w8c_a8_p64__avx2: there is a variant of that");
    expect(KTTUNE "new gemm w8c_a8_x__avx2 --folder /nonexistent", 2, "/nonexistent");
    snprintf(command, sizeof command, KTTUNE "new moe_ffn w8c_a8__avx2 --folder %s", folder);
    expect(command, 2, "w8c_a8_p64__avx2: there is a variant of that name");
    snprintf(command, sizeof command, KTTUNE "new gemm w8c_a8_x__avx2 --folder %s", folder);
    expect(command, 0, "wrote");
    expect(command, 2, "there is such a file already");
    kt_temp_remove(folder);
}
