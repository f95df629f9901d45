/* CPU probe, disabled steps, names. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"

/* Does /proc/cpuinfo list this flag? The kernel clears what it does not enable. */
static int kernel_lists(const char *flag) {
    static char line[16384];
    char word[40];
    FILE *f = fopen("/proc/cpuinfo", "r");
    int found = 0;

    snprintf(word, sizeof word, " %s ", flag);
    while (f && fgets(line, sizeof line, f)) {
        if (strncmp(line, "flags", 5) != 0) continue;
        line[strcspn(line, "\n")] = ' ';
        found = strstr(line, word) != NULL;
        break;
    }
    if (f) fclose(f);
    return found;
}

Test(cpu, agrees_with_the_kernel) {
    static const struct {
        const char *isa, *flags[5];
    } cases[] = {{"avx2", {"avx2", "fma", "f16c", "bmi2"}},
                 {"avxvnni", {"avx2", "fma", "avx_vnni"}},
                 {"avx512", {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}},
                 {"avx512vnni", {"avx512f", "avx512_vnni"}},
                 {"avx512bf16", {"avx512f", "avx512_bf16"}},
                 {"avx512fp16", {"avx512f", "avx512_fp16"}}};
    kt_cpu cpu;

    unsetenv("KT_DISABLE_ISA");
    kt_cpu_probe(&cpu);
    cr_assert_eq(cpu.isa, cpu.isa_hardware);
    cr_assert_eq(cpu.isa, kt_isa_available());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int want = 1;
        /* tests/machine adds it, emulated as AMX is */
        if (strcmp(cases[i].isa, "avx512fp16") == 0 && strstr(cpu.brand, "pretended")) continue;
        for (int f = 0; f < 5 && cases[i].flags[f]; f++) want &= kernel_lists(cases[i].flags[f]);
        cr_assert_eq((int)(cpu.isa >> kt_isa_parse(cases[i].isa) & 1), want, "%s", cases[i].isa);
    }
    cr_assert(cpu.vendor[0] && cpu.microarch[0] && cpu.family > 0);
    cr_assert(cpu.l1d_bytes >= 8192 && cpu.l1d_bytes <= cpu.l2_bytes);
}

Test(cpu, disabling_a_step_disables_what_builds_on_it) {
    kt_isa all = 0;
    kt_cpu cpu;

    setenv("KT_DISABLE_ISA", "", 1);
    kt_cpu_probe(&cpu);
    all = cpu.isa;
    cr_assert_eq(all, cpu.isa_hardware);
    setenv("KT_DISABLE_ISA", "avx512", 1);
    kt_cpu_probe(&cpu);
    cr_assert_eq(cpu.isa, all & (KT_ISA_AVX2 | KT_ISA_AVXVNNI));
    cr_assert_eq(cpu.isa_hardware, all);
    setenv("KT_DISABLE_ISA", "avx512bf16,nonsense,avx512vnni", 1);
    cr_assert_eq(kt_isa_available(),
                 all & ~(KT_ISA_AVX512BF16 | KT_ISA_AVX512VNNI | KT_ISA_AVX512VBMI));
    setenv("KT_DISABLE_ISA", "avx2", 1);
    cr_assert_eq(kt_isa_available(), KT_ISA_SCALAR);
}

Test(cpu, lines_are_asked_for_into_l1_where_that_is_faster) {
    cr_expect(kt_cpu_part_fetches_near("AuthenticAMD", 26, NULL));  /* Zen 5 */
    cr_expect(!kt_cpu_part_fetches_near("AuthenticAMD", 25, NULL)); /* Zen 4 */
    cr_expect(!kt_cpu_part_fetches_near("GenuineIntel", 26, NULL));
    cr_expect(!kt_cpu_part_fetches_near("AuthenticAMD", 26, "l2"));
    cr_expect(kt_cpu_part_fetches_near("GenuineIntel", 6, "l1"));
    cr_expect(kt_cpu_part_fetches_near("AuthenticAMD", 26, "nonsense"));
}

/* Of a process, on the first call: a test is a process of its own. */
static void expect_near(const char *wanted, bool otherwise) {
    kt_cpu cpu;

    kt_cpu_probe(&cpu);
    if (wanted)
        setenv("KT_PREFETCH", wanted, 1);
    else
        unsetenv("KT_PREFETCH");
    cr_expect_eq(kt_cpu_fetches_near(), kt_cpu_part_fetches_near(cpu.vendor, cpu.family, wanted));
    setenv("KT_PREFETCH", otherwise ? "l1" : "l2", 1);
    cr_expect_eq(kt_cpu_fetches_near(), !otherwise, "looked up once");
}

Test(cpu, this_machine_asks_as_its_part_does) {
    kt_cpu cpu;

    kt_cpu_probe(&cpu);
    if (strstr(cpu.brand, "pretended")) return; /* kernels ask as the part below it does */
    expect_near(NULL, !kt_cpu_part_fetches_near(cpu.vendor, cpu.family, NULL));
}

Test(cpu, this_machine_asks_into_l1_if_told_so) {
    expect_near("l1", false);
}

Test(cpu, this_machine_asks_into_l2_if_told_so) {
    expect_near("l2", true);
}

Test(cpu, a_closure_has_what_its_steps_build_on) {
    cr_expect_eq(kt_isa_closure(0), 0);
    cr_expect_eq(kt_isa_closure(KT_ISA_AVX2), KT_ISA_AVX2);
    cr_expect_eq(kt_isa_closure(KT_ISA_AMXINT8), KT_ISA_AMXINT8 | KT_ISA_AVX512 | KT_ISA_AVX2);
    cr_expect_eq(kt_isa_closure(KT_ISA_AVX512VBMI),
                 KT_ISA_AVX512VBMI | KT_ISA_AVX512VNNI | KT_ISA_AVX512 | KT_ISA_AVX2);
}

Test(cpu, names_round_trip) {
    char text[128];
    for (int i = 0; i < KT_ISA_COUNT; i++) cr_assert_eq(kt_isa_parse(kt_isa_name(i)), i);
    cr_assert_eq(kt_isa_parse("sse"), -1);
    cr_assert_str_eq(kt_isa_name(-1), "unknown");
    cr_assert_str_eq(kt_isa_name(KT_ISA_COUNT), "unknown");
    cr_assert_str_eq(kt_isa_format(0, text, sizeof text), "scalar");
    cr_assert_str_eq(kt_isa_format(KT_ISA_AVX2 | KT_ISA_AVX512, text, sizeof text), "avx2+avx512");
    cr_assert_str_eq(kt_isa_format(KT_ISA_AVX2 | KT_ISA_AVX512, text, 7), "avx2+a");
}

/* --- names ----------------------------------------------------------------------------------- */

#define ZEN4 \
    (KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI | KT_ISA_AVX512BF16 | KT_ISA_AVX512VBMI)
#define ZEN5 (ZEN4 | KT_ISA_AVXVNNI)
#define TILES (KT_ISA_AMXINT8 | KT_ISA_AMXBF16)
#define SAPPHIRE (ZEN5 | KT_ISA_AVX512FP16 | TILES)
#define ICE (ZEN4 & ~KT_ISA_AVX512BF16)

/* Numbers and instruction sets that CPUID may show together, and what such a machine is called. */
Test(cpu, a_name_is_believed_only_with_the_instruction_sets_of_its_part) {
    static const struct {
        kt_cpu_id id;
        const char *name, *identity;
    } cases[] = {
        {{"GenuineIntel", 6, 167, true, true, true, SAPPHIRE},
         "graniterapids-v",
         "by its features: family 6 model 167 is rocketlake, which has no"},
        {{"GenuineIntel", 6, 167, true, false, false, SAPPHIRE}, "sapphirerapids-v", "amxint8"},
        {{"GenuineIntel", 6, 167, false, false, false, ICE}, "rocketlake", "by its numbers"},
        {{"GenuineIntel", 6, 173, true, true, true, SAPPHIRE}, "graniterapids", "by its numbers"},
        {{"GenuineIntel", 6, 173, true, true, true, SAPPHIRE & ~TILES},
         "graniterapids-v",
         "without amxint8+amxbf16, which the hypervisor masks"},
        {{"GenuineIntel", 6, 143, false, false, false, SAPPHIRE},
         "sapphirerapids",
         "by its numbers"},
        {{"GenuineIntel", 6, 143, true, false, false, KT_ISA_AVX2}, "sapphirerapids-v", "masks"},
        {{"GenuineIntel", 6, 6, true, false, false, ICE},
         "icelake-v",
         "by its features: the hypervisor shows family 6 model 6"},
        {{"GenuineIntel", 6, 6, true, false, false, ICE | KT_ISA_AVX512FP16},
         "sapphirerapids-v",
         "by its features"},
        {{"GenuineIntel", 6, 60, true, false, false, KT_ISA_AVX2 | KT_ISA_AVX512},
         "skylake-x-v",
         "is haswell, which has no avx512"},
        {{"GenuineIntel", 6, 0x55, false, false, false, ICE & ~KT_ISA_AVX512VBMI},
         "cascadelake",
         "by its numbers"},
        {{"GenuineIntel", 6, 0x97, false, false, false, KT_ISA_AVX2 | KT_ISA_AVXVNNI},
         "alderlake",
         "by its numbers"},
        {{"GenuineIntel", 6, 0x97, false, false, false, ZEN5 | KT_ISA_AVX512FP16},
         "alderlake",
         "by its numbers"},
        {{"GenuineIntel", 6, 0x97, true, false, false, SAPPHIRE}, "sapphirerapids-v", "alderlake"},
        {{"GenuineIntel", 19, 1, false, true, true, SAPPHIRE},
         "family19-model1",
         "which this build does not know"},
        {{"AuthenticAMD", 23, 1, false, false, false, KT_ISA_AVX2}, "zen", "by its numbers"},
        {{"AuthenticAMD", 23, 49, true, false, false, KT_ISA_AVX2}, "zen2", "by its numbers"},
        {{"AuthenticAMD", 25, 1, false, false, false, KT_ISA_AVX2}, "zen3", "by its numbers"},
        {{"AuthenticAMD", 25, 17, true, false, false, ZEN4}, "zen4", "by its numbers"},
        {{"AuthenticAMD", 25, 17, true, false, false, KT_ISA_AVX2}, "zen4-v", "without avx512"},
        {{"AuthenticAMD", 26, 2, false, false, false, ZEN5}, "zen5", "by its numbers"},
        {{"AuthenticAMD", 23, 49, true, false, false, ZEN4}, "zen4-v", "is zen2, which has no"},
        {{"AuthenticAMD", 23, 49, true, false, false, ZEN5}, "zen5-v", "is zen2, which has no"},
        {{"AuthenticAMD", 15, 107, true, false, false, KT_ISA_AVX2}, "zen-v", "by its features"},
        {{"HygonGenuine", 24, 0, false, false, false, KT_ISA_AVX2}, "dhyana", "by its numbers"},
        {{"KVMKVMKVM", 6, 6, true, false, false, 0}, "x86-64-v", "by its features"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[24], identity[128];
        kt_cpu_name(&cases[i].id, name, identity);
        cr_expect_str_eq(name, cases[i].name, "case %zu: %s (%s), expected %s", i, name, identity,
                         cases[i].name);
        cr_expect(strstr(identity, cases[i].identity), "case %zu: '%s' lacks '%s'", i, identity,
                  cases[i].identity);
        cr_expect(strlen(identity) < sizeof identity - 1, "case %zu: cut: '%s'", i, identity);
    }
}
