/* Another machine than the one the tests run on: an Intel server with AMX, as virtual machines show it.
 *
 * In a build with KT_PRETEND_AMX every program is linked with this file. What the programs ask about the
 * CPU goes through the two wrappers below (-Wl,--wrap), which add AMX and FP16 to the instruction
 * sets and give the vendor and a model number of a masked Xeon; tile instructions are emulated from
 * the first one on. So the registry offers the tile variants, plans choose them, tuning races them
 * and whole models run on them, in every test as it stands. Times mean nothing. AVX-512 is real:
 * without it there is nothing to pretend.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "tests/support/amx_emulator.h"

kt_isa __real_kt_isa_available(void);
void __real_kt_cpu_probe(kt_cpu *out);
kt_isa __wrap_kt_isa_available(void);
void __wrap_kt_cpu_probe(kt_cpu *out);

static kt_isa not_disabled(void) {
    const char *list = getenv("KT_DISABLE_ISA");
    kt_isa pretended = KT_ISA_AMXINT8 | KT_ISA_AMXBF16 | KT_ISA_AVX512FP16;

    if (list && strstr(list, "amxint8")) pretended &= ~KT_ISA_AMXINT8;
    if (list && strstr(list, "amxbf16")) pretended &= ~KT_ISA_AMXBF16;
    if (list && strstr(list, "avx512fp16")) pretended &= ~KT_ISA_AVX512FP16;
    return pretended;
}

kt_isa __wrap_kt_isa_available(void) {
    kt_isa isa = __real_kt_isa_available();
    return isa & KT_ISA_AVX512 ? isa | not_disabled() : isa;
}

void __wrap_kt_cpu_probe(kt_cpu *out) {
    kt_cpu_id id = {.vendor = "GenuineIntel",
                    .family = 6,
                    .model = 167,
                    .hypervisor = true,
                    .has_prefetchi = true,
                    .has_avx10 = true};

    __real_kt_cpu_probe(out);
    if (out->isa_hardware & KT_ISA_AVX512)
        out->isa_hardware |= KT_ISA_AMXINT8 | KT_ISA_AMXBF16 | KT_ISA_AVX512FP16;
    out->isa = __wrap_kt_isa_available();
    snprintf(out->vendor, sizeof out->vendor, "%s", id.vendor);
    snprintf(out->brand, sizeof out->brand, "Intel Xeon Processor (pretended, tiles emulated)");
    out->family = id.family;
    out->model = id.model;
    out->stepping = 4;
    out->hypervisor = id.hypervisor;
    id.isa = out->isa_hardware;
    kt_cpu_name(&id, out->microarch, out->identity);
}

__attribute__((constructor)) static void emulate(void) {
    kt_amx_emulate();
}
