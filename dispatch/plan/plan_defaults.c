/* Parameters and peaks that depend on the machine where nothing was tuned or probed.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "dispatch/plan/planner.h"

/* A line says: on these parts this parameter starts with this value, of every variant that lists
 * it. Only what was measured on such a part stands here, with the loser.
 *
 * prefetch: one core of Granite Rapids, one row per expert, 2048 x 768, GB/s of weights without and
 * with 2048 bytes: INT4 13.8 and 15.8, INT8 13.7 and 15.4, BF16 13.0 and 13.5, FP8 12.0 and 12.7.
 * Its hardware prefetchers are those of the server cores before it; on Zen 4 the best is 0. */
static const struct {
    const char *part, *parameter;
    int32_t value;
} defaults[] = {
    {"skylake-x", "prefetch", 2048},      {"cascadelake", "prefetch", 2048},
    {"cooperlake", "prefetch", 2048},     {"icelake", "prefetch", 2048},
    {"sapphirerapids", "prefetch", 2048}, {"emeraldrapids", "prefetch", 2048},
    {"graniterapids", "prefetch", 2048},
};

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

kt_config kt_config_default(const kt_variant *v, const char *microarch) {
    kt_config c = kt_config_initial(v);

    for (size_t d = 0; d < sizeof defaults / sizeof *defaults; d++) {
        if (!is_part(microarch, defaults[d].part)) continue;
        for (int32_t i = 0; i < v->n_params; i++)
            if (strcmp(v->params[i].name, defaults[d].parameter) == 0 &&
                lists(&v->params[i], defaults[d].value))
                c.value[i] = defaults[d].value;
    }
    return c;
}

/* VDPBF16PS: half of VPDPBUSD's work, for which the general estimate says 256 (Zen 4, kttune probe:
 * 236 and 473 Gop/s of one core; FMA 118). Without it BF16 matrices would run by FMA. */
static const struct {
    const char *part;
    kt_isa isa;
    double gops;
} peaks[] = {{"zen4", KT_ISA_AVX512BF16, 128}};

void kt_ceilings_default(kt_ceilings *c, const char *microarch) {
    for (size_t i = 0; i < sizeof peaks / sizeof *peaks; i++)
        for (int bit = 0; bit < KT_ISA_COUNT; bit++)
            if (is_part(microarch, peaks[i].part) && peaks[i].isa == (kt_isa)1 << bit &&
                c->peak_gops[bit] <= 0)
                c->peak_gops[bit] = peaks[i].gops;
}
