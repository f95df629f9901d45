/* Machine code as `kttune inspect` reads it: classes, loops, stack traffic, and the program itself.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "kt/variant.h"
#include "tests/support/tune_home.h"
#include "tuner/measure/counters.h"
#include "tuner/report/machine_code.h"
#include "tuner/report/static_cycles.h"

#define KTTUNE KT_BUILD_DIR "/kttune "

/* As GNU objdump prints. The hot loop is 1010..1043; it holds a prefetch loop (1030..1036), a rare path
 * behind the end (1050) and, before it, padding that nothing reaches. */
static const char gnu_text[] =
    "\nkernel:     file format elf64-x86-64\n\n0000000000001000 <tile>:\n"
    "    1000:\tpush   %rbp\n"
    "    1001:\tmov    %rsp,%rbp\n"
    "    1004:\tjmp    1010 <tile+0x10>\n"
    "    1006:\tnopw   0x0(%rax,%rax,1)\n"
    "    1010:\tvmovdqu64 (%rax),%zmm1\n"
    "    1014:\tvpandd 0x40(%rax),%zmm2,%zmm3\n"
    "    1018:\tvpdpbusd %zmm4,%zmm3,%zmm0\n"
    "    101c:\tvpdpbusd -0x80(%rbp),%zmm3,%zmm31\n"
    "    1020:\tvfmadd231ps (%rbx){1to16},%zmm1,%zmm5\n"
    "    1024:\tcmp    %rcx,%rdx\n"
    "    1027:\tja     1050 <tile+0x50>\n"
    "    102a:\tvmovaps %zmm0,0x8(%rsp)\n"
    "    1030:\tprefetcht1 (%rcx)\n"
    "    1033:\tadd    $0x40,%rcx\n"
    "    1036:\tjb     1030 <tile+0x30>\n"
    "    103a:\tadd    $0x20,%r9\n"
    "    103e:\tcmp    %r9,-0x28(%rsp)\n"
    "    1043:\tjg     1010 <tile+0x10>\n"
    "    1045:\tpop    %rbp\n"
    "    1046:\tret\n"
    "    1050:\tmov    0x60(%r15),%rcx\n"
    "    1054:\tjmp    1030 <tile+0x30>\n"
    "\n0000000000001060 <copy>:\n"
    "    1060:\tvmovups (%rsi),%ymm0\n"
    "    1064:\tvmovups %ymm0,(%rdi)\n"
    "    1068:\tmov    -0x8(%rbp),%rax\n"
    "    106c:\tjne    1060 <copy>\n"
    "    106e:\tret\n";

static void read_text(const char *text, kt_listing *l, kt_code_loops *loops) {
    memset(l, 0, sizeof *l);
    cr_assert_eq(kt_listing_read(l, text, NULL), KT_OK);
    cr_assert_eq(kt_code_loops_find(l, loops, NULL), KT_OK);
}

Test(inspect, a_loop_holds_its_small_loops_but_not_its_rare_paths) {
    static const int want[KT_CODE_CLASSES] = {
        [KT_CODE_DOT] = 2,     [KT_CODE_FMA] = 1,      [KT_CODE_LOAD] = 1,   [KT_CODE_STORE] = 1,
        [KT_CODE_SHUFFLE] = 1, [KT_CODE_PREFETCH] = 1, [KT_CODE_SCALAR] = 4, [KT_CODE_BRANCH] = 3};
    kt_code_loops loops;
    kt_listing l;

    read_text(gnu_text, &l, &loops);
    cr_assert_eq(loops.n, 2, "%zu loops, expected 2", loops.n);
    for (int c = 0; c < KT_CODE_CLASSES; c++)
        cr_expect_eq(loops.list[0].count[c], want[c], "%s: %d, expected %d",
                     kt_code_class_name((kt_code_class)c), loops.list[0].count[c], want[c]);
    cr_expect_eq(loops.list[0].n, 14);
    cr_expect_eq(loops.list[0].n_aside, 2, "the rare path");
    cr_expect_eq(loops.list[0].reads, 5, "%d", loops.list[0].reads);
    cr_expect_eq(loops.list[0].writes, 1);
    cr_expect_eq(loops.list[0].stack_reads, 2, "one by %%rbp, one by %%rsp");
    cr_expect_eq(loops.list[0].stack_writes, 1);
    cr_expect_eq(loops.list[0].vector_spills, 2);
    cr_expect_eq(loops.list[0].vector_bytes, 64);
    cr_expect_eq(kt_code_vector_registers(&loops.list[0]), 7); /* 0 to 5 and 31 */
    cr_expect_eq(l.list[loops.list[1].member[0]].address, 0x1060);
    cr_expect_eq(loops.list[1].stack_reads, 0, "%%rbp is no frame pointer in this function");
    cr_expect_eq(loops.list[1].vector_bytes, 32);
    kt_code_loops_deinit(&loops);
    kt_listing_deinit(&l);
}

Test(inspect, the_text_of_llvm_objdump_reads_alike) {
    static const char text[] = "0000000000001000 <f>:\n"
                               "    1000:      \tvpdpbusd\t(%rax), %zmm1, %zmm2\n"
                               "    1006: \tdecq\t%rcx\n"
                               "    1009: \tjne\t0x1000 <f>\n"
                               "    100b: \tretq\n";
    kt_code_loops loops;
    kt_listing l;

    read_text(text, &l, &loops);
    cr_assert_eq(loops.n, 1);
    cr_expect_eq(loops.list[0].count[KT_CODE_DOT], 1);
    cr_expect_eq(loops.list[0].reads, 1);
    cr_expect_str_eq(l.list[0].text, "vpdpbusd (%rax), %zmm1, %zmm2");
    kt_code_loops_deinit(&loops);
    kt_listing_deinit(&l);
}

Test(inspect, instructions_have_the_class_of_their_work) {
    static const struct {
        const char *text;
        kt_code_class want;
    } cases[] = {{"vdpbf16ps %zmm1,%zmm2,%zmm3", KT_CODE_DOT},
                 {"vpmaddubsw (%rax),%ymm2,%ymm3", KT_CODE_DOT},
                 {"tdpbssd %tmm0,%tmm1,%tmm2", KT_CODE_DOT},
                 {"tileloadd (%rax,%rbx,1),%tmm0", KT_CODE_LOAD},
                 {"tilestored %tmm0,(%rax,%rbx,1)", KT_CODE_STORE},
                 {"vfnmadd213ss %xmm0,%xmm1,%xmm2", KT_CODE_FMA},
                 {"vpbroadcastd 0x4(%rax),%zmm0", KT_CODE_LOAD},
                 {"vpbroadcastd %xmm1,%zmm0", KT_CODE_SHUFFLE},
                 {"vmovups %zmm0,(%rax){%k1}", KT_CODE_STORE},
                 {"vpsrlw $0x4,%ymm0,%ymm0", KT_CODE_SHUFFLE},
                 {"vcvtdq2ps %zmm0,%zmm0", KT_CODE_SHUFFLE},
                 {"vpaddd %zmm0,%zmm1,%zmm1", KT_CODE_ARITHMETIC},
                 {"mulss %xmm0,%xmm1", KT_CODE_ARITHMETIC},
                 {"prefetcht0 0x400(%rax)", KT_CODE_PREFETCH},
                 {"lea 0x40(%rax),%rbx", KT_CODE_SCALAR},
                 {"mov (%rax),%rbx", KT_CODE_SCALAR},
                 {"call 1000 <f>", KT_CODE_BRANCH}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_listing l = {0};
        char line[128];
        snprintf(line, sizeof line, "    1000:\t%s\n", cases[i].text);
        cr_assert_eq(kt_listing_read(&l, line, NULL), KT_OK);
        cr_assert_eq(l.n, 1);
        cr_expect_eq(l.list[0].code_class, cases[i].want, "%s: %s", cases[i].text,
                     kt_code_class_name(l.list[0].code_class));
        kt_listing_deinit(&l);
    }
}

Test(inspect, text_that_is_no_disassembly_gives_no_loop) {
    static const char *const texts[] = {"",
                                        "\n\n",
                                        "objdump: a: file format not recognized\n",
                                        "zz:\tjmp 0\n",
                                        "    10:\tjmp    10 <f>\n",
                                        "    10:\tjne    ffffffffffffffffff\n",
                                        "    10:\t\n    11:",
                                        "    10:\tvmovups (%rax,%zmm0"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        kt_code_loops loops;
        kt_listing l;
        read_text(texts[i], &l, &loops);
        cr_expect_eq(loops.n, 0, "'%s'", texts[i]);
        kt_code_loops_deinit(&loops);
        kt_listing_deinit(&l);
    }
}

Test(inspect, a_loop_becomes_text_that_an_assembler_takes) {
    kt_code_loops loops;
    kt_listing l;
    char *text;

    read_text(gnu_text, &l, &loops);
    cr_assert_eq(kt_loop_assembly(&l, &loops.list[1], &text, NULL), KT_OK);
    cr_expect_str_eq(text, ".Lloop:\nvmovups (%rsi),%ymm0\nvmovups %ymm0,(%rdi)\n"
                           "mov -0x8(%rbp),%rax\njne .Lloop\n");
    free(text);
    kt_code_loops_deinit(&loops);
    kt_listing_deinit(&l);
    cr_expect(fabs(kt_mca_cycles("Iterations:        100\nInstructions:      200\n"
                                 "Total Cycles:      903\n") -
                   9.03) < 1e-9);
    cr_expect_eq(kt_mca_cycles("error: no such thing\n"), 0);
}

Test(inspect, the_clock_is_that_of_a_processor) {
    double ghz = kt_clock_ghz();
    kt_counters c;

    cr_expect(ghz > 0.3 && ghz < 8, "%.2f GHz", ghz);
    kt_counters_open(&c); /* where the kernel allows none, all are left out */
    kt_counters_start(&c);
    kt_clock_ghz();
    kt_counters_stop(&c);
    if (kt_counters_has(&c, KT_COUNTER_CYCLES))
        cr_expect_gt(c.value[KT_COUNTER_CYCLES], 2e6, "ten chains of 300000 cycles");
    if (kt_counters_has(&c, KT_COUNTER_CPU_NS)) cr_expect_gt(c.value[KT_COUNTER_CPU_NS], 1e5);
    kt_counters_close(&c);
}

/* --- the program --- */

static void skip_without_objdump(void) {
    if (system("objdump --version >/dev/null 2>&1") != 0) cr_skip_test("objdump is not installed");
}

static kt_json_doc *inspect_json(const char *variant) {
    char command[256], *out;
    kt_json_doc *doc = NULL;
    kt_err err;

    snprintf(command, sizeof command, KTTUNE "inspect %s --json", variant);
    cr_assert_eq(kt_tune_home_run(command, &out), 0, "%s: %s", variant, out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, &err), KT_OK, "%s: %s", variant,
                 err.message);
    free(out);
    return doc;
}

static int64_t mix_of(const kt_json *loop, const char *code_class) {
    return kt_json_int(kt_json_get(kt_json_get(loop, "mix"), code_class), -1);
}

/* What the lint of hot loops checks by object file is what inspect shows of the program. */
Test(inspect, the_vnni_tile_multiplies_in_registers, .timeout = 120) {
    const kt_json *root, *loop;
    kt_json_doc *doc;

    skip_without_objdump();
#if defined(__SANITIZE_ADDRESS__) || !defined(__OPTIMIZE__)
    cr_skip_test("only optimised builds keep tiles in registers");
#endif
    doc = inspect_json("w4g32_a8_p64__avx512vnni");
    root = kt_json_root(doc);
    loop = kt_json_at(kt_json_get(root, "loops"), 0);
    cr_expect_eq(mix_of(loop, "dot"), 96, "six rows, eight steps, two vectors");
    cr_expect_eq(kt_json_int(kt_json_get(loop, "vector_spills"), -1), 0);
    cr_expect_eq(kt_json_int(kt_json_get(loop, "vector_bytes"), -1), 64);
    cr_expect_geq(kt_json_int(kt_json_get(loop, "vector_registers"), -1), 16);
    cr_expect_eq((size_t)kt_json_int(kt_json_get(loop, "instructions"), -1),
                 kt_json_length(kt_json_get(loop, "code")));
    kt_json_destroy(doc);
}

/* Of every op one, AMX included, which hardly any machine that runs this test has. What
 * AddressSanitizer checks need not have loops that count as work on vectors. */
Test(inspect, every_op_has_something_to_show, .timeout = 120) {
    static const char *const names[] = {
        "any_any_p64__scalar", "w8c_a8_moe64__avx2", "w8c_a8_p64__amxint8",
        "bf16_online__avx512", "rms_rows__avx2",     "rotate_heads__avx2",
        "logits_rows__avx512", "a8_rows__avx2",      "peak_fma__avx2"};
#ifdef __SANITIZE_ADDRESS__
    const bool is_checked = true;
#else
    const bool is_checked = false;
#endif
    skip_without_objdump();
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        kt_json_doc *doc = inspect_json(names[i]);
        const kt_json *loops = kt_json_get(kt_json_root(doc), "loops");
        cr_expect(kt_json_length(loops) > 0 || is_checked, "%s: no loop", names[i]);
        cr_expect_gt(kt_json_int(kt_json_get(kt_json_root(doc), "code_bytes"), 0), 50);
        kt_json_destroy(doc);
    }
}

static void expect(const char *command, int code, const char *words) {
    char *out;
    int got = kt_tune_home_run(command, &out);
    cr_expect_eq(got, code, "%s: exit code %d, expected %d: %s", command, got, code, out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", command, out, words);
    free(out);
}

Test(inspect, what_is_missing_is_named, .timeout = 120) {
    expect(KTTUNE "inspect", 2, "expected the name of a variant");
    expect(KTTUNE "inspect no__such", 2, "'no__such' is no variant");
    expect("PATH=/nonexistent " KTTUNE "inspect rms_rows__avx2", 2, "the package binutils");
    skip_without_objdump();
    expect(KTTUNE "inspect rms_rows__avx2 --loop 99", 2, "expected 1 to");
    expect(KTTUNE "inspect rms_rows__avx2 --bench", 2, "expected a variant of gemm or moe_ffn");
    expect("d=$(mktemp -d); ln -s \"$(command -v objdump)\" $d; PATH=$d " KTTUNE
           "inspect rms_rows__avx2; c=$?; rm -r $d; exit $c",
           0, "llvm-mca: not installed");
}

Test(inspect, bench_shows_counters_or_says_why_not, .timeout = 120) {
    kt_tune_home h;
    char *out;

    skip_without_objdump();
    kt_tune_home_make(&h);
    cr_assert_eq(kt_tune_home_run(KTTUNE "inspect any_any_p64__scalar --bench --weights w8c --m 1 "
                                         "--n 64 --k 64",
                                  &out),
                 0, "%s", out);
    cr_expect(strstr(out, "of the roofline"), "%s", out);
    cr_expect(strstr(out, "cycles, ") || strstr(out, "perf_event_open: "), "%s", out);
    cr_expect(strstr(out, " GHz"), "%s", out);
    free(out);
    kt_tune_home_remove(&h);
}

Test(inspect, a_duel_takes_the_encoding_that_is_asked_for, .timeout = 120) {
    kt_tune_home h;

    kt_tune_home_make(&h);
    expect(KTTUNE "bench --op gemm --weights w8c --m 1 --n 64 --k 64 --rounds 5 --variant "
                  "any_any_p64__scalar --acts a9",
           2, "--acts 'a9': expected a8");
    expect(KTTUNE "bench --op gemm --weights w8c --m 1 --n 64 --k 64 --rounds 5 --variant "
                  "any_any_p64__scalar --acts a8p",
           0, "--k 64 --acts a8p --variant any_any_p64__scalar --threads 1");
    expect(KTTUNE "bench --op gemm --weights w8c --m 1 --n 64 --k 64 --rounds 5 --variant "
                  "any_any_p64__scalar",
           0, "--k 64 --variant any_any_p64__scalar --threads 1");
    kt_tune_home_remove(&h);
}

/* Minutes of plain code in samples of a second; one signal is enough. */
Test(inspect, a_duel_ends_when_it_is_told_to, .timeout = 180) {
    kt_tune_home h;
    char *out;
    int code;

    kt_tune_home_make(&h);
    code = kt_tune_home_run("timeout -k 100 2 " KTTUNE
                            "bench --op gemm --weights w8c --m 64 --n 8192 --k 4096 --variant "
                            "any_any_p64__scalar --rounds 128",
                            &out);
    cr_expect_eq(code, 124, "%d, expected an end by SIGTERM (137 = it had to be killed): %s", code,
                 out);
    free(out);
    kt_tune_home_remove(&h);
}
