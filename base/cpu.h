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
    char microarch[24]; /* kt_cpu_name: "zen4", "graniterapids-v", ... or "family25-model17" */
    char identity[128]; /* one line: what that name rests on */
    int family, model, stepping;
    bool hypervisor;
    kt_isa isa;          /* usable: CPUID, XCR0, AMX permission, minus KT_DISABLE_ISA */
    kt_isa isa_hardware; /* before KT_DISABLE_ISA */
    size_t l1d_bytes, l2_bytes, l3_bytes; /* of one core / one LLC domain, as CPUID reports */
} kt_cpu;

/* What a name is made of, as CPUID says it. */
typedef struct kt_cpu_id {
    const char *vendor;
    int family, model;
    bool hypervisor;
    bool has_prefetchi, has_avx10; /* leaf 7.1, EDX bits 14 and 19 */
    kt_isa isa;                    /* of the hardware: before KT_DISABLE_ISA */
} kt_cpu_id;

/* The machine's name (24 bytes) and what it rests on (128 bytes).
 *
 * The part that the numbers stand for, if that part can have every instruction set seen; a
 * hypervisor may show any numbers. Else the part that has these instruction sets. "-v" is added
 * where the machine is virtual and masked: named by its features, or without some that the part
 * has. Numbers that nobody knows are the name themselves, unless a hypervisor shows them. */
void kt_cpu_name(const kt_cpu_id *id, char name[24], char identity[128]);

/* Fill out. KT_DISABLE_ISA is a comma-separated list of names (kt_isa_name); disabling a step also
 * disables the ones that build on it ("avx512" disables avx512vnni, amx...). Thread-safe. */
void kt_cpu_probe(kt_cpu *out);

/* The usable mask, probed on each call (a few microseconds; keep it). */
kt_isa kt_isa_available(void);

/* Do kernels ask for lines that they read next into L1 (PREFETCHT0), not into L2 (PREFETCHT1)? On
 * Zen 5: there prefetches into L2 fall to a half or a third of memory's rate, for minutes at a
 * time, as those into L1 do on Zen 4 (kernels/attn/NOTES.md). KT_PREFETCH=l1 or =l2 decides
 * instead. Results are the same bits. Looked up once; thread-safe. */
bool kt_cpu_fetches_near(void);

/* The same of a part, and of what KT_PREFETCH has (NULL = nothing). */
bool kt_cpu_part_fetches_near(const char *vendor, int family, const char *wanted);

/* A mask with all that its steps build on: kt_isa_closure(KT_ISA_AMXINT8) has AVX-512 and AVX2,
 * too. */
kt_isa kt_isa_closure(kt_isa mask);

const char *kt_isa_name(int bit);                                /* 0 <= bit < KT_ISA_COUNT */
int kt_isa_parse(const char *name);                              /* bit number or -1 */
char *kt_isa_format(kt_isa mask, char *text, size_t text_bytes); /* "avx2+avx512", "scalar" */

#endif
