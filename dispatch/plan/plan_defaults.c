/* Parameters and peaks that depend on the machine where nothing was tuned or probed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dispatch/plan/planner.h"
#include "kernels/formats/format.h"

/* A line says: on these parts this parameter starts with this value, of every variant that lists
 * it and whose name begins so, from so many rows on; of two lines the later one counts. Only what
 * was measured on such a part stands here, with the loser.
 *
 * prefetch: one core of Granite Rapids, one row per expert, 2048 x 768, GB/s of weights without
 * and with 2048 bytes: INT4 13.8 and 15.8, INT8 13.7 and 15.4, BF16 12.1 and 15.2, FP8 11.5 and
 * 13.2. Its hardware prefetchers are those of the server cores before it; on Zen 4 the best is 0.
 * FP8 without BF16 on Ice Lake: 7.7 without, 9.2 with 2048, 9.8 with 8192. What looks codes up has
 * distances of its own; Granite Rapids, us an expert without and with them: Q3_K 167 and 161, Q4_K
 * 204 and 188, Q5_K 250 and 237, Q6_K 305 and 272, IQ4_XS 200 and 177, IQ2_S 230 and 191, IQ3_S
 * 229 and 215, IQ1_S 112 and 99; Q2_K loses (123 and 128), and IQ2_XXS (118 and 123).
 *
 * Two cores of Zen 5, time of one row an expert without by time with 4096 bytes (8192 for
 * K-quants, 6144 for INT4): into L1, as it asks, INT4 1.02, FP8 1.12, Q4_0 1.06, MXFP4 1.15, Q8_0
 * 1.12, Q4_K 1.18, Q6_K 1.06; into L2 Q5_0 1.19, Q2_K 1.26, IQ2_XXS 1.62, IQ3_S 1.34, IQ1_S 2.04.
 * INT8 by channel (1.00) and BF16 (0.93) go without.
 * Of one core, and the other formats: kernels/p64/NOTES.md.
 *
 * many, rows: one core of Ice Lake, kernels/p64/NOTES.md. rows of w8c_a8 on Zen 5, one core and
 * two: with six a tile 8 rows take 1.06 to 1.23 times as long as at best; with three 12 rows take
 * 1.09 to 1.31 times as long, 16 rows 1.17 to 1.31. Up to six rows are one tile with either. */
static const struct {
    const char *part, *variant, *parameter;
    int32_t value, from; /* rows */
} defaults[] = {
    {"skylake-x", "", "prefetch", 2048, 0},
    {"cascadelake", "", "prefetch", 2048, 0},
    {"cooperlake", "", "prefetch", 2048, 0},
    {"icelake", "", "prefetch", 2048, 0},
    {"icelake", "wf8f16_abf16_", "prefetch", 8192, 0},
    {"icelake", "w8c_a8_", "rows", 3, 0},
    {"icelake", "w8c_a8_", "many", 32, 0},
    {"icelake", "w4g32_a8_", "many", 32, 0},
    {"icelake", "wblocks_a8_r8_", "many", 16, 0},
    {"icelake", "wbf16_abf16_", "many", 32, 0},
    {"sapphirerapids", "", "prefetch", 2048, 0},
    {"emeraldrapids", "", "prefetch", 2048, 0},
    {"graniterapids", "", "prefetch", 2048, 0},
    {"graniterapids", "wkquants_a8_", "prefetch", 8192, 0},
    {"graniterapids", "wgrids_a8_", "prefetch", 4096, 0},
    {"graniterapids", "wiq1_a8_", "prefetch", 4096, 0},
    {"zen5", "", "prefetch", 4096, 0},
    {"zen5", "w4g32_a8_", "prefetch", 6144, 0},
    {"zen5", "wkquants_a8_", "prefetch", 8192, 0},
    {"zen5", "w8c_", "prefetch", 0, 0},
    {"zen5", "w8c_a8_", "rows", 3, 0},
    {"zen5", "w8c_a8_", "rows", 6, 12},
    {"zen5", "wbf16_", "prefetch", 0, 0},
};

/* Here a8 is multiplied faster than a8p, or as fast: what ends a group takes the two ports of
 * VPDPBUSD, and a8p has two groups where a8 has one. Layer of 2048 x 768, 128 rows, one core,
 * Gop/s of a8 and of a8p: Ice Lake INT8 440 and 302, INT4 412 and 278; Emerald Rapids 509 and 435
 * at most, 414 and 351. One row reads as fast with either. The server cores with VNNI have the
 * same two ports.
 *
 * Zen 5 has ports of its own for what ends a group, but loads and registers run short. Whole
 * models of Qwen3-30B-A3B's shape, two cores, a8 over a8p in four turns: prompts in INT4 1.01 to
 * 1.10, in INT8 0.98 to 1.02, generation 1.03 to 1.05 with memory at the same speed. So a8, which
 * loses less. */
static const char *const prefers_a8[] = {
    "cascadelake",   "cooperlake",    "icelake", "sapphirerapids",
    "emeraldrapids", "graniterapids", "zen5"};

/* The part itself or, with "-v" behind its name, a virtual machine on it. */
static int is_part(const char *microarch, const char *part) {
    const size_t size = strlen(part);
    return strncmp(microarch, part, size) == 0 &&
           (microarch[size] == '\0' || strcmp(microarch + size, "-v") == 0);
}

static int lists(const kt_param *p, int32_t value) {
    for (int32_t i = 0; i < p->count; i++)
        if (p->values[i] == value) return 1;
    return 0;
}

kt_config kt_config_default(const kt_variant *v, const char *microarch, int64_t m) {
    kt_config c = kt_config_initial(v);

    for (size_t d = 0; d < sizeof defaults / sizeof *defaults; d++) {
        const char *variant = defaults[d].variant;
        if (m < defaults[d].from || !is_part(microarch, defaults[d].part) ||
            strncmp(v->name, variant, strlen(variant)) != 0)
            continue;
        for (int32_t i = 0; i < v->n_params; i++)
            if (strcmp(v->params[i].name, defaults[d].parameter) == 0 &&
                lists(&v->params[i], defaults[d].value))
                c.value[i] = defaults[d].value;
    }
    return c;
}

kt_act_format kt_acts_default(const kt_registry *r, const char *microarch, kt_op op,
                              kt_weight_format weights) {
    const kt_format *format = kt_format_find(weights);

    for (size_t i = 0; format && i < sizeof prefers_a8 / sizeof *prefers_a8; i++)
        if (is_part(microarch, prefers_a8[i])) return format->acts;
    return kt_registry_acts(r, op, weights);
}

/* VDPBF16PS: half of VPDPBUSD's work, for which the general estimate says 256 (kttune probe, one
 * core: Zen 4 236 and 473 Gop/s, FMA 118; Zen 5 548 and 1096, FMA 273). Without it BF16 matrices
 * would run by FMA. */
static const struct {
    const char *part;
    kt_isa isa;
    double gops;
} peaks[] = {{"zen4", KT_ISA_AVX512BF16, 128}, {"zen5", KT_ISA_AVX512BF16, 128}};

void kt_ceilings_default(kt_ceilings *c, const char *microarch) {
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        for (int bit = 0; bit < KT_ISA_COUNT; bit++)
            if (is_part(microarch, peaks[i].part) && peaks[i].isa == (kt_isa)1 << bit &&
                c->peak_gops[bit] <= 0)
                c->peak_gops[bit] = peaks[i].gops;
}
