/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "dispatch/topology/topology.h"

#define ISA (KT_ISA_AVX2 | KT_ISA_AVX512 | KT_ISA_AVX512VNNI | KT_ISA_AVX512BF16)

static kt_fingerprint make(void) {
    kt_fingerprint f = {.vendor = "AuthenticAMD",
                        .microarch = "zen4",
                        .family = 25,
                        .model = 17,
                        .stepping = 1,
                        .isa = ISA,
                        .usable_cores = 2,
                        .numa_nodes = 1,
                        .memory_bytes = (uint64_t)24 << 30};
    f.ceilings = (kt_ceilings){.stream_gbs_1t = 30,
                               .stream_gbs_all = 50,
                               .stream_small_gbs_1t = 24,
                               .cache_knee_bytes = 32e6,
                               .peak_scalar_gops = 7.3,
                               .aa_noise_p95 = 0.016,
                               .threads_all = 2};
    f.ceilings.peak_gops[0] = 117;
    f.ceilings.peak_gops[3] = 468;
    return f;
}

/* A change to one field of the table's fingerprint and what must come of it. */
typedef struct forgery {
    const char *what;
    void (*forge)(kt_fingerprint *f);
    kt_match match;
    const char *names; /* what the message must contain */
} forgery;

#define FORGE(id, statement)                    \
    static void forge_##id(kt_fingerprint *f) { \
        statement;                              \
    }
FORGE(nothing, (void)f)
FORGE(vendor_intel, strcpy(f->vendor, "GenuineIntel"))
FORGE(vendor_empty, f->vendor[0] = '\0')
FORGE(vendor_case, f->vendor[0] = 'a')
FORGE(family_up, f->family = 26)
FORGE(family_down, f->family = 23)
FORGE(family_zero, f->family = 0)
FORGE(model_near, f->model = 18)
FORGE(model_far, f->model = 97)
FORGE(model_and_stepping, (f->model = 1, f->stepping = 9))
FORGE(isa_amx, f->isa |= KT_ISA_AMXINT8)
FORGE(isa_amx_bf16, f->isa |= KT_ISA_AMXBF16)
FORGE(isa_fp16, f->isa |= KT_ISA_AVX512FP16)
FORGE(isa_vbmi, f->isa |= KT_ISA_AVX512VBMI)
FORGE(isa_avxvnni, f->isa |= KT_ISA_AVXVNNI)
FORGE(isa_unknown_bit, f->isa |= (kt_isa)1 << 63)
FORGE(isa_swapped, f->isa = KT_ISA_AVX2 | KT_ISA_AVXVNNI)
FORGE(isa_less, f->isa = KT_ISA_AVX2)
FORGE(isa_none, f->isa = 0)
FORGE(stepping, f->stepping = 2)
FORGE(cores_more, f->usable_cores = 64)
FORGE(cores_less, f->usable_cores = 1)
FORGE(nodes, f->numa_nodes = 2)
FORGE(memory_double, f->memory_bytes *= 2)
FORGE(memory_16_percent, f->memory_bytes = (uint64_t)(0.84 * (double)f->memory_bytes))
FORGE(memory_14_percent, f->memory_bytes = (uint64_t)(0.86 * (double)f->memory_bytes))
FORGE(stream_1t, f->ceilings.stream_gbs_1t = 36)
FORGE(stream_1t_near, f->ceilings.stream_gbs_1t = 34)
FORGE(stream_all, f->ceilings.stream_gbs_all = 30)
FORGE(stream_all_other_threads, (f->ceilings.stream_gbs_all = 30, f->ceilings.threads_all = 1))
FORGE(stream_small, f->ceilings.stream_small_gbs_1t = 18)
FORGE(knee, f->ceilings.cache_knee_bytes = 16e6)
FORGE(peak_vnni, f->ceilings.peak_gops[3] = 1060)
FORGE(peak_avx2, f->ceilings.peak_gops[0] = 60)
FORGE(peak_scalar, f->ceilings.peak_scalar_gops = 3)
FORGE(peak_not_measured, f->ceilings.peak_gops[3] = 0)
FORGE(nothing_measured, memset(&f->ceilings, 0, sizeof f->ceilings))
FORGE(noise, f->ceilings.aa_noise_p95 = 0.5)
FORGE(microarch_renamed, strcpy(f->microarch, "genoa"))
FORGE(another_part, (strcpy(f->microarch, "zen5"), f->family = 26))
FORGE(another_part_of_these_numbers, (strcpy(f->microarch, "zen3"), f->isa = KT_ISA_AVX2))
FORGE(unnamed_part, (f->microarch[0] = '\0', f->model = 18))
FORGE(hard_before_soft, (f->stepping = 7, f->ceilings.stream_gbs_1t = 1, f->vendor[0] = 'a'))
FORGE(ceilings_before_numbers, (f->model = 18, f->stepping = 7, f->ceilings.stream_gbs_1t = 36))

static const forgery forgeries[] = {
    {"nothing", forge_nothing, KT_MATCH_SAME, ""},
    {"another vendor", forge_vendor_intel, KT_MATCH_OTHER, "vendor: table 'GenuineIntel'"},
    {"no vendor", forge_vendor_empty, KT_MATCH_OTHER, "vendor"},
    {"vendor in lower case", forge_vendor_case, KT_MATCH_OTHER, "vendor"},
    /* The same part by name and features: a guest that has moved to another host. */
    {"later family", forge_family_up, KT_MATCH_SOFT, "table family 26 model 17, machine 25 17"},
    {"earlier family", forge_family_down, KT_MATCH_SOFT, "family"},
    {"family 0", forge_family_zero, KT_MATCH_SOFT, "family"},
    {"next model", forge_model_near, KT_MATCH_SOFT, "model 18"},
    {"far model", forge_model_far, KT_MATCH_SOFT, "model 97"},
    {"model and stepping", forge_model_and_stepping, KT_MATCH_SOFT, "model 1"},
    {"another part", forge_another_part, KT_MATCH_OTHER, "table 'zen5' (family 26 model 17)"},
    {"another part that shows these numbers", forge_another_part_of_these_numbers, KT_MATCH_OTHER,
     "table 'zen3'"},
    {"a part without a name", forge_unnamed_part, KT_MATCH_OTHER, "table '' (family 25 model 18)"},
    {"ceilings and numbers", forge_ceilings_before_numbers, KT_MATCH_SOFT, "stream_gbs_1t"},
    {"AMX INT8", forge_isa_amx, KT_MATCH_OTHER, "amxint8"},
    {"AMX BF16", forge_isa_amx_bf16, KT_MATCH_OTHER, "amxbf16"},
    {"FP16", forge_isa_fp16, KT_MATCH_OTHER, "avx512fp16"},
    {"VBMI", forge_isa_vbmi, KT_MATCH_OTHER, "avx512vbmi"},
    {"AVX-VNNI", forge_isa_avxvnni, KT_MATCH_OTHER, "avxvnni"},
    {"an unknown ISA bit", forge_isa_unknown_bit, KT_MATCH_OTHER, "instruction sets"},
    {"fewer steps, one of them absent", forge_isa_swapped, KT_MATCH_OTHER, "avxvnni"},
    {"tuned with AVX2 only", forge_isa_less, KT_MATCH_SOFT, "without avx512"},
    {"tuned with nothing", forge_isa_none, KT_MATCH_SOFT, "without avx2"},
    {"stepping", forge_stepping, KT_MATCH_SOFT, "stepping: table 2, machine 1"},
    {"more cores", forge_cores_more, KT_MATCH_SOFT, "cores: table 64, machine 2"},
    {"fewer cores", forge_cores_less, KT_MATCH_SOFT, "cores"},
    {"NUMA nodes", forge_nodes, KT_MATCH_SOFT, "NUMA nodes: table 2, machine 1"},
    {"twice the memory", forge_memory_double, KT_MATCH_SOFT, "memory: table 48.0 GiB"},
    {"memory 16 % off", forge_memory_16_percent, KT_MATCH_SOFT, "memory"},
    {"memory 14 % off", forge_memory_14_percent, KT_MATCH_SAME, ""},
    {"stream 20 % off", forge_stream_1t, KT_MATCH_SOFT, "stream_gbs_1t: table 36, machine 30"},
    {"stream 13 % off", forge_stream_1t_near, KT_MATCH_SAME, ""},
    {"stream of all cores", forge_stream_all, KT_MATCH_SOFT, "stream_gbs_all"},
    {"stream of another thread count", forge_stream_all_other_threads, KT_MATCH_SAME, ""},
    {"stream from small pages", forge_stream_small, KT_MATCH_SOFT, "stream_small_gbs_1t"},
    {"cache knee", forge_knee, KT_MATCH_SOFT, "cache_knee_bytes"},
    {"VNNI peak", forge_peak_vnni, KT_MATCH_SOFT, "peak_gops.avx512vnni: table 1060, machine 468"},
    {"AVX2 peak", forge_peak_avx2, KT_MATCH_SOFT, "peak_gops.avx2"},
    {"scalar peak", forge_peak_scalar, KT_MATCH_SOFT, "peak_scalar_gops"},
    {"a peak that was not measured", forge_peak_not_measured, KT_MATCH_SAME, ""},
    {"no ceilings at all", forge_nothing_measured, KT_MATCH_SAME, ""},
    {"noise", forge_noise, KT_MATCH_SAME, ""},
    {"microarchitecture under another name", forge_microarch_renamed, KT_MATCH_SAME, ""},
    {"soft and hard at once", forge_hard_before_soft, KT_MATCH_OTHER, "vendor"},
};

Test(fingerprint, every_forgery_is_judged_as_specified) {
    const kt_fingerprint machine = make();

    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        kt_fingerprint table = make();
        kt_err why = {KT_OK, ""};
        forgeries[i].forge(&table);
        cr_assert_eq(kt_fingerprint_compare(&table, &machine, &why), forgeries[i].match, "%s: %s",
                     forgeries[i].what, why.message);
        cr_assert(strstr(why.message, forgeries[i].names), "%s: '%s'", forgeries[i].what,
                  why.message);
        cr_assert_eq(why.message[0] == '\0', forgeries[i].match == KT_MATCH_SAME, "%s: '%s'",
                     forgeries[i].what, why.message);
        cr_assert_eq(kt_fingerprint_compare(&table, &machine, NULL), forgeries[i].match);
    }
}

static kt_json_doc *written(const kt_fingerprint *f) {
    kt_json_writer w = {0};
    kt_json_doc *doc;
    size_t size;
    const char *text;
    kt_err err;

    kt_fingerprint_write(f, &w);
    text = kt_json_writer_text(&w, &size);
    cr_assert(text);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    kt_json_writer_deinit(&w);
    return doc;
}

Test(fingerprint, every_forgery_reads_back_as_written) {
    for (size_t i = 0; i < sizeof forgeries / sizeof *forgeries; i++) {
        kt_fingerprint f = make(), back;
        kt_json_doc *doc;
        kt_err err;
        forgeries[i].forge(&f);
        f.isa &= ((kt_isa)1 << KT_ISA_COUNT) - 1; /* bits without a name cannot be written */
        doc = written(&f);
        cr_assert_eq(kt_fingerprint_read(kt_json_root(doc), "test", &back, &err), KT_OK, "%s: %s",
                     forgeries[i].what, err.message);
        cr_assert_eq(kt_fingerprint_compare(&f, &back, &err), KT_MATCH_SAME, "%s: %s",
                     forgeries[i].what, err.message);
        cr_assert_eq(f.memory_bytes, back.memory_bytes);
        cr_assert_str_eq(f.microarch, back.microarch);
        cr_assert_eq(f.ceilings.aa_noise_p95, back.ceilings.aa_noise_p95);
        kt_json_destroy(doc);
    }
}

Test(fingerprint, refuses_text_that_makes_no_sense) {
    static const char *const texts[] = {
        "null", "[]", "{}", "{\"vendor\":7}", "{\"vendor\":\"AuthenticAMD and a half\"}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        kt_fingerprint f = make(), before = f;
        kt_json_doc *doc;
        kt_err err;
        cr_assert_eq(kt_json_parse(texts[i], strlen(texts[i]), NULL, &doc, NULL), KT_OK);
        cr_assert_eq(kt_fingerprint_read(kt_json_root(doc), "mine.json", &f, &err), KT_E_FORMAT);
        cr_assert(strstr(err.message, "mine.json"), "%s", err.message);
        cr_assert_arr_eq(&f, &before, sizeof f);
        kt_json_destroy(doc);
    }
}

Test(fingerprint, is_made_from_the_topology) {
    kt_topology t;
    kt_ceilings ceilings = {.stream_gbs_1t = 12.5};
    kt_fingerprint f;

    memset(&t, 0, sizeof t);
    strcpy(t.cpu.vendor, "AuthenticAMD");
    strcpy(t.cpu.microarch, "zen5");
    t.cpu.family = 26, t.cpu.model = 2, t.cpu.stepping = 1, t.cpu.isa = ISA;
    t.usable_cores = 8, t.cores = 64, t.numa_nodes = 2, t.memory_bytes = (uint64_t)384 << 30;
    kt_fingerprint_make(&t, &ceilings, &f);
    cr_assert_str_eq(f.vendor, "AuthenticAMD");
    cr_assert_eq(f.family, 26);
    cr_assert_eq(f.usable_cores, 8);
    cr_assert_eq(f.isa, ISA);
    cr_assert_eq(f.ceilings.stream_gbs_1t, 12.5);
    kt_fingerprint_make(&t, NULL, &f);
    cr_assert_eq(f.ceilings.stream_gbs_1t, 0);
}

Test(machine_class, is_a_plain_folder_name) {
    kt_fingerprint f = make();
    char out[64];

    kt_machine_class(&f, out, sizeof out);
    cr_assert_str_eq(out, "zen4-2c-24g");
    f.memory_bytes = ((uint64_t)23 << 30) + ((uint64_t)700 << 20); /* the kernel keeps a part */
    kt_machine_class(&f, out, sizeof out);
    cr_assert_str_eq(out, "zen4-2c-24g");
    strcpy(f.microarch, "../../etc/x");
    kt_machine_class(&f, out, sizeof out);
    cr_assert_null(strpbrk(out, "./"), "%s", out);
    f.microarch[0] = '\0';
    kt_machine_class(&f, out, sizeof out);
    cr_assert_str_eq(out, "unknown-2c-24g");
}
