/* CPU identity and instruction sets by CPUID, XCR0 and the kernel's permission.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_CPU_H
#define KT_BASE_CPU_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/isa.h"

typedef struct kt_cpu {
    char vendor[13];
    char brand[49];
    char microarch[24]; /* "zen4", "zen5", "sapphirerapids", ... or "family25-model17" */
    int family, model, stepping;
    bool hypervisor;
    kt_isa isa;          /* usable: CPUID, XCR0, AMX permission, minus KT_DISABLE_ISA */
    kt_isa isa_hardware; /* before KT_DISABLE_ISA */
    size_t l1d_bytes, l2_bytes, l3_bytes; /* of one core / one LLC domain, as CPUID reports */
} kt_cpu;

/* Fill out. KT_DISABLE_ISA is a comma-separated list of names (kt_isa_name); disabling a step also
 * disables the ones that build on it ("avx512" disables avx512vnni, amx...). Thread-safe. */
void kt_cpu_probe(kt_cpu *out);

/* The usable mask, probed on each call (a few microseconds; keep it). */
kt_isa kt_isa_available(void);

const char *kt_isa_name(int bit);                                /* 0 <= bit < KT_ISA_COUNT */
int kt_isa_parse(const char *name);                              /* bit number or -1 */
char *kt_isa_format(kt_isa mask, char *text, size_t text_bytes); /* "avx2+avx512", "scalar" */

#endif
