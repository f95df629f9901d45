/* What this CPU is and may execute. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "base/cpu.h"

#include <cpuid.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct regs {
    uint32_t a, b, c, d;
} regs;

static regs cpuid(uint32_t leaf, uint32_t sub) {
    regs r = {0};
    if (!__get_cpuid_count(leaf, sub, &r.a, &r.b, &r.c, &r.d)) memset(&r, 0, sizeof r);
    return r;
}

static uint64_t read_xcr0(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

/* Linux grants AMX state per process on request (Documentation/x86/xstate.rst). */
static bool amx_permitted(void) {
    enum { ARCH_REQ_XCOMP_PERM_ = 0x1023, XFEATURE_XTILEDATA_ = 18 };
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM_, XFEATURE_XTILEDATA_) == 0;
}

static bool has(uint32_t word, int bit) {
    return word >> bit & 1;
}

/* Steps that a step builds on, besides itself. A disabled step takes along all that contain it. */
static const struct {
    const char *name;
    kt_isa needs;
} steps[KT_ISA_COUNT] = {
    {"avx2", 0},
    {"avxvnni", KT_ISA_AVX2},
    {"avx512", KT_ISA_AVX2},
    {"avx512vnni", KT_ISA_AVX2 | KT_ISA_AVX512},
    {"avx512bf16", KT_ISA_AVX2 | KT_ISA_AVX512},
    {"avx512vbmi", KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI},
    {"avx512fp16", KT_ISA_AVX2 | KT_ISA_AVX512},
    {"amxint8", KT_ISA_AVX2 | KT_ISA_AVX512},
    {"amxbf16", KT_ISA_AVX2 | KT_ISA_AVX512},
};

/* Drop every step one of whose foundations is missing. */
static kt_isa close_downwards(kt_isa mask) {
    for (int i = 0; i < KT_ISA_COUNT; i++)
        if (steps[i].needs & ~mask) mask &= ~((kt_isa)1 << i);
    return mask;
}

static kt_isa probe_isa(void) {
    regs l1 = cpuid(1, 0), l7 = cpuid(7, 0), l71 = cpuid(7, 1);
    bool osxsave = has(l1.c, 27);
    uint64_t xcr0 = osxsave ? read_xcr0() : 0;
    bool ymm = (xcr0 & 0x06) == 0x06;        /* SSE and AVX state */
    bool zmm = ymm && (xcr0 & 0xe0) == 0xe0; /* opmask, upper ZMM halves, ZMM16-31 */
    bool tiles = zmm && (xcr0 & 0x60000) == 0x60000;
    kt_isa m = 0;

    /* AVX, FMA, F16C; AVX2, BMI2 */
    if (ymm && has(l1.c, 28) && has(l1.c, 12) && has(l1.c, 29) && has(l7.b, 5) && has(l7.b, 8))
        m |= KT_ISA_AVX2;
    if (ymm && has(l71.a, 4)) m |= KT_ISA_AVXVNNI;
    /* F, DQ, CD, BW, VL */
    if (zmm && has(l7.b, 16) && has(l7.b, 17) && has(l7.b, 28) && has(l7.b, 30) && has(l7.b, 31))
        m |= KT_ISA_AVX512;
    if (zmm && has(l7.c, 11)) m |= KT_ISA_AVX512VNNI;
    if (zmm && has(l71.a, 5)) m |= KT_ISA_AVX512BF16;
    /* VBMI, VBMI2, GFNI */
    if (zmm && has(l7.c, 1) && has(l7.c, 6) && has(l7.c, 8)) m |= KT_ISA_AVX512VBMI;
    if (zmm && has(l7.d, 23)) m |= KT_ISA_AVX512FP16;
    if (tiles && has(l7.d, 24) && (has(l7.d, 25) || has(l7.d, 22)) && amx_permitted()) {
        if (has(l7.d, 25)) m |= KT_ISA_AMXINT8;
        if (has(l7.d, 22)) m |= KT_ISA_AMXBF16;
    }
    return close_downwards(m);
}

static kt_isa disabled_by_user(void) {
    const char *list = getenv("KT_DISABLE_ISA");
    kt_isa mask = 0;

    while (list && *list) {
        size_t n = strcspn(list, ",");
        char name[24];
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : 0, list);
        int bit = kt_isa_parse(name);
        if (bit >= 0) mask |= (kt_isa)1 << bit;
        list += n + (list[n] == ',');
    }
    return mask;
}

/* Instruction sets of parts. */
#define ISA_AVX2 KT_ISA_AVX2
#define ISA_VNNI2 (KT_ISA_AVX2 | KT_ISA_AVXVNNI)
#define ISA_SKX (KT_ISA_AVX2 | KT_ISA_AVX512)
#define ISA_CLX (ISA_SKX | KT_ISA_AVX512VNNI)
#define ISA_CPX (ISA_CLX | KT_ISA_AVX512BF16)
#define ISA_ICX (ISA_CLX | KT_ISA_AVX512VBMI)
#define ISA_ZEN4 (ISA_ICX | KT_ISA_AVX512BF16)
#define ISA_ZEN5 (ISA_ZEN4 | KT_ISA_AVXVNNI)
#define ISA_ADL (ISA_ZEN5 | KT_ISA_AVX512FP16) /* before AVX-512 was fused off */
#define ISA_SPR (ISA_ADL | KT_ISA_AMXINT8 | KT_ISA_AMXBF16)

/* Models of one family; the ranges are those of the vendors' revision guides. Every part has `has`,
 * unless something masks it; some have `can`. */
static const struct part {
    const char *vendor;
    int family, first, last;
    const char *name;
    kt_isa has, can;
} parts[] = {
    {"AuthenticAMD", 23, 0x00, 0x2f, "zen", ISA_AVX2, ISA_AVX2},
    {"AuthenticAMD", 23, 0x30, 0xff, "zen2", ISA_AVX2, ISA_AVX2},
    {"AuthenticAMD", 25, 0x00, 0x0f, "zen3", ISA_AVX2, ISA_AVX2},
    {"AuthenticAMD", 25, 0x10, 0x1f, "zen4", ISA_ZEN4, ISA_ZEN4},
    {"AuthenticAMD", 25, 0x20, 0x5f, "zen3", ISA_AVX2, ISA_AVX2},
    {"AuthenticAMD", 25, 0x60, 0x7f, "zen4", ISA_ZEN4, ISA_ZEN4},
    {"AuthenticAMD", 25, 0xa0, 0xaf, "zen4", ISA_ZEN4, ISA_ZEN4},
    {"AuthenticAMD", 26, 0x00, 0x4f, "zen5", ISA_ZEN5, ISA_ZEN5},
    {"AuthenticAMD", 26, 0x60, 0x7f, "zen5", ISA_ZEN5, ISA_ZEN5},
    {"HygonGenuine", 24, 0x00, 0xff, "dhyana", ISA_AVX2, ISA_AVX2},
    {"GenuineIntel", 6, 0x3c, 0x3c, "haswell", 0, ISA_AVX2}, /* Pentiums have no AVX2 */
    {"GenuineIntel", 6, 0x3f, 0x3f, "haswell", ISA_AVX2, ISA_AVX2},
    {"GenuineIntel", 6, 0x45, 0x46, "haswell", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x3d, 0x3d, "broadwell", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x47, 0x47, "broadwell", ISA_AVX2, ISA_AVX2},
    {"GenuineIntel", 6, 0x4f, 0x4f, "broadwell", ISA_AVX2, ISA_AVX2},
    {"GenuineIntel", 6, 0x56, 0x56, "broadwell", ISA_AVX2, ISA_AVX2},
    {"GenuineIntel", 6, 0x4e, 0x4e, "skylake", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x5e, 0x5e, "skylake", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x8e, 0x8e, "kabylake", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x9e, 0x9e, "kabylake", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0xa5, 0xa6, "cometlake", 0, ISA_AVX2},
    {"GenuineIntel", 6, 0x55, 0x55, "skylake-x", ISA_SKX, ISA_CPX}, /* refined below */
    {"GenuineIntel", 6, 0x6a, 0x6a, "icelake", ISA_ICX, ISA_ICX},
    {"GenuineIntel", 6, 0x6c, 0x6c, "icelake", ISA_ICX, ISA_ICX},
    {"GenuineIntel", 6, 0x7d, 0x7e, "icelake-client", ISA_ICX, ISA_ICX},
    {"GenuineIntel", 6, 0x8c, 0x8d, "tigerlake", ISA_ICX, ISA_ICX},
    {"GenuineIntel", 6, 0xa7, 0xa7, "rocketlake", ISA_ICX, ISA_ICX},
    {"GenuineIntel", 6, 0x97, 0x97, "alderlake", ISA_VNNI2, ISA_ADL},
    {"GenuineIntel", 6, 0x9a, 0x9a, "alderlake", ISA_VNNI2, ISA_ADL},
    {"GenuineIntel", 6, 0xb7, 0xb7, "raptorlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xba, 0xba, "raptorlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xbf, 0xbf, "raptorlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xaa, 0xac, "meteorlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xbd, 0xbd, "lunarlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xc5, 0xc6, "arrowlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0xb5, 0xb5, "arrowlake", ISA_VNNI2, ISA_VNNI2},
    {"GenuineIntel", 6, 0x8f, 0x8f, "sapphirerapids", ISA_SPR, ISA_SPR},
    {"GenuineIntel", 6, 0xcf, 0xcf, "emeraldrapids", ISA_SPR, ISA_SPR},
    {"GenuineIntel", 6, 0xad, 0xae, "graniterapids", ISA_SPR, ISA_SPR},
    {"GenuineIntel", 6, 0xaf, 0xaf, "sierraforest", ISA_VNNI2, ISA_VNNI2},
};

static const struct part *part_of(const kt_cpu_id *id) {
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strcmp(parts[i].vendor, id->vendor) != 0 || parts[i].family != id->family) continue;
        if (id->model >= parts[i].first && id->model <= parts[i].last) return &parts[i];
    }
    return NULL;
}

/* Skylake-X, Cascade Lake and Cooper Lake share a model number; what they added tells them apart. */
static const char *refine(const char *name, kt_isa isa) {
    if (strcmp(name, "skylake-x") != 0) return name;
    if (isa & KT_ISA_AVX512BF16) return "cooperlake";
    return isa & KT_ISA_AVX512VNNI ? "cascadelake" : name;
}

/* The part that has these instruction sets: of each vendor the first line whose sets are all there.
 * Granite Rapids has those of Sapphire Rapids, and announces PREFETCHI and AVX10 besides. */
static const char *name_by_features(const kt_cpu_id *id) {
    static const struct {
        kt_isa isa;
        const char *intel, *amd;
    } steps_of[] = {{KT_ISA_AMXINT8, "sapphirerapids", NULL},
                    {KT_ISA_AMXBF16, "sapphirerapids", NULL},
                    {KT_ISA_AVX512FP16, "sapphirerapids", NULL},
                    {KT_ISA_AVXVNNI | KT_ISA_AVX512, "sapphirerapids", "zen5"},
                    {KT_ISA_AVX512VBMI | KT_ISA_AVX512BF16, "sapphirerapids", "zen4"},
                    {KT_ISA_AVX512BF16, "cooperlake", "zen4"},
                    {KT_ISA_AVX512VBMI, "icelake", "zen4"},
                    {KT_ISA_AVX512VNNI, "cascadelake", "zen4"},
                    {KT_ISA_AVX512, "skylake-x", "zen4"},
                    {KT_ISA_AVXVNNI, "alderlake", "zen5"},
                    {KT_ISA_AVX2, "haswell", "zen"}};
    const bool is_amd =
        strcmp(id->vendor, "AuthenticAMD") == 0 || strcmp(id->vendor, "HygonGenuine") == 0;

    if (id->isa & (KT_ISA_AMXINT8 | KT_ISA_AMXBF16) && !is_amd &&
        (id->has_prefetchi || id->has_avx10))
        return "graniterapids";
    for (size_t i = 0; i < sizeof steps_of / sizeof *steps_of; i++) {
        const char *name = is_amd ? steps_of[i].amd : steps_of[i].intel;
        if (name && (id->isa & steps_of[i].isa) == steps_of[i].isa) return name;
    }
    return "x86-64";
}

void kt_cpu_name(const kt_cpu_id *id, char name[24], char identity[128]) {
    const struct part *p = part_of(id);
    const char *v = id->hypervisor ? "-v" : "";
    char sets[64];

    if (p && !(id->isa & ~p->can)) {
        const kt_isa masked = id->hypervisor ? p->has & ~id->isa : 0;
        snprintf(name, 24, "%s%s", refine(p->name, id->isa), masked ? "-v" : "");
        if (masked)
            snprintf(identity, 128, "by its numbers; without %s, which the hypervisor masks",
                     kt_isa_format(masked, sets, sizeof sets));
        else
            snprintf(identity, 128, "by its numbers");
    } else if (p) {
        snprintf(name, 24, "%s%s", name_by_features(id), v);
        snprintf(identity, 128, "by its features: family %d model %d is %s, which has no %s",
                 id->family, id->model, refine(p->name, id->isa),
                 kt_isa_format(id->isa & ~p->can, sets, sizeof sets));
    } else if (id->hypervisor) {
        snprintf(name, 24, "%s%s", name_by_features(id), v);
        snprintf(identity, 128, "by its features: the hypervisor shows family %d model %d",
                 id->family, id->model);
    } else {
        snprintf(name, 24, "family%d-model%d", id->family, id->model);
        snprintf(identity, 128, "by its numbers, which this build does not know");
    }
}

static void probe_identity(kt_cpu *out) {
    regs l0 = cpuid(0, 0), l1 = cpuid(1, 0);
    int family = l1.a >> 8 & 15, model = l1.a >> 4 & 15;

    memcpy(out->vendor, &l0.b, 4);
    memcpy(out->vendor + 4, &l0.d, 4);
    memcpy(out->vendor + 8, &l0.c, 4);
    out->family = family == 15 ? family + (int)(l1.a >> 20 & 255) : family;
    out->model = family == 15 || family == 6 ? model + (int)(l1.a >> 16 & 15) * 16 : model;
    out->stepping = l1.a & 15;
    out->hypervisor = has(l1.c, 31);
    if (cpuid(0x80000000u, 0).a >= 0x80000004u) {
        for (uint32_t i = 0; i < 3; i++) {
            regs r = cpuid(0x80000002u + i, 0);
            memcpy(out->brand + 16 * i, &r, 16);
        }
    }
}

/* Brand strings come padded with blanks on either side. */
static void trim(char *text) {
    size_t n = strlen(text), skip = strspn(text, " ");

    while (n > skip && text[n - 1] == ' ') n--;
    memmove(text, text + skip, n - skip);
    text[n - skip] = '\0';
}

/* Deterministic cache parameters: leaf 4 (Intel) and its AMD twin have the same form. */
static void probe_caches(kt_cpu *out) {
    bool amd_leaf = cpuid(0x80000000u, 0).a >= 0x8000001du && has(cpuid(0x80000001u, 0).c, 22);
    uint32_t leaf = amd_leaf ? 0x8000001du : 4;

    for (uint32_t i = 0; i < 16; i++) {
        regs r = cpuid(leaf, i);
        uint32_t type = r.a & 31, level = r.a >> 5 & 7;
        size_t ways = (r.b >> 22) + 1, lines = (r.b >> 12 & 1023) + 1,
               line_bytes = (r.b & 4095) + 1;
        size_t bytes = ways * lines * line_bytes * ((size_t)r.c + 1);

        if (type == 0) break;
        if (type == 2) continue; /* instructions */
        if (level == 1) out->l1d_bytes = bytes;
        if (level == 2) out->l2_bytes = bytes;
        if (level == 3) out->l3_bytes = bytes;
    }
}

void kt_cpu_probe(kt_cpu *out) {
    kt_cpu_id id;

    memset(out, 0, sizeof *out);
    probe_identity(out);
    trim(out->brand);
    probe_caches(out);
    out->isa_hardware = probe_isa();
    out->isa = close_downwards(out->isa_hardware & ~disabled_by_user());
    id = (kt_cpu_id){.vendor = out->vendor,
                     .family = out->family,
                     .model = out->model,
                     .hypervisor = out->hypervisor,
                     .has_prefetchi = has(cpuid(7, 1).d, 14),
                     .has_avx10 = has(cpuid(7, 1).d, 19),
                     .isa = out->isa_hardware};
    kt_cpu_name(&id, out->microarch, out->identity);
}

kt_isa kt_isa_available(void) {
    return close_downwards(probe_isa() & ~disabled_by_user());
}

bool kt_cpu_part_fetches_near(const char *vendor, int family, const char *wanted) {
    if (wanted && strcmp(wanted, "l1") == 0) return true;
    if (wanted && strcmp(wanted, "l2") == 0) return false;
    return strcmp(vendor, "AuthenticAMD") == 0 && family >= 26;
}

/* Asks for no permission, as kt_cpu_probe does: kernels call it. */
bool kt_cpu_fetches_near(void) {
    static atomic_int known; /* 0 = not yet, 1 = no, 2 = yes */
    int is = atomic_load_explicit(&known, memory_order_relaxed);

    if (!is) {
        kt_cpu cpu = {0};
        probe_identity(&cpu);
        is = 1 + kt_cpu_part_fetches_near(cpu.vendor, cpu.family, getenv("KT_PREFETCH"));
        atomic_store_explicit(&known, is, memory_order_relaxed);
    }
    return is == 2;
}

kt_isa kt_isa_closure(kt_isa mask) {
    kt_isa all = mask;

    for (int i = 0; i < KT_ISA_COUNT; i++)
        if (mask >> i & 1) all |= steps[i].needs; /* which are complete themselves */
    return all;
}

const char *kt_isa_name(int bit) {
    return bit >= 0 && bit < KT_ISA_COUNT ? steps[bit].name : "unknown";
}

int kt_isa_parse(const char *name) {
    for (int i = 0; i < KT_ISA_COUNT; i++)
        if (strcmp(steps[i].name, name) == 0) return i;
    return -1;
}

char *kt_isa_format(kt_isa mask, char *text, size_t text_bytes) {
    size_t used = 0;

    if (text_bytes == 0) return text;
    snprintf(text, text_bytes, "%s", mask ? "" : "scalar");
    for (int i = 0; i < KT_ISA_COUNT; i++) {
        if (!(mask >> i & 1) || used >= text_bytes) continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s", used ? "+" : "",
                                 steps[i].name);
    }
    return text;
}
