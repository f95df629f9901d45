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
