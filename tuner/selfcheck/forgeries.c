/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/selfcheck/forgeries.h"

#include <stdio.h>
#include <string.h>

/* The v-th of n names that is not the machine's own. */
static const char *another(const char *const *names, int n, const char *own, int v) {
    for (int i = 0; i < n; i++)
        if (strcmp(names[i], own) != 0 && v-- == 0) return names[i];
    return NULL;
}

static bool vendor(kt_fingerprint *f, int v) {
    static const char *const names[] = {"GenuineIntel", "AuthenticAMD", "AuthenticAMd", "",
                                        "HygonGenuine", "authenticAMD"};
    const char *name = another(names, 6, f->vendor, v);
    if (name) snprintf(f->vendor, sizeof f->vendor, "%s", name);
    return name != NULL;
}

static const int steps[][2] = {{0, 1}, {1, -1}, {-1, 16}, {100, 80}}; /* of family and model */

static bool numbers(kt_fingerprint *f, int v) {
    f->family += steps[v][0];
    f->model += steps[v][1];
    return true;
}

static bool part(kt_fingerprint *f, int v) {
    static const char *const names[] = {"zen2", "sapphirerapids", "graniterapids-v", "haswell",
                                        "zen5"};
    const char *name = another(names, 5, f->microarch, v);
    if (name) snprintf(f->microarch, sizeof f->microarch, "%s", name);
    return name && numbers(f, v);
}

/* The v-th of the lowest bits that this machine lacks. */
static bool isa_more(kt_fingerprint *f, int v) {
    for (int bit = 0; bit < 64; bit++)
        if (!(f->isa >> bit & 1) && v-- == 0) {
            f->isa |= (kt_isa)1 << bit;
            return true;
        }
    return false;
}

static bool isa_less(kt_fingerprint *f, int v) {
    if (f->isa == 0) return false;
    f->isa = v == 0 ? 0 : f->isa & (f->isa - 1);
    return true;
}

static bool stepping(kt_fingerprint *f, int v) {
    f->stepping += v + 1;
    return true;
}

static bool cores(kt_fingerprint *f, int v) {
    f->usable_cores = v == 0 ? f->usable_cores + 1 : f->usable_cores * 16 + 1;
    return true;
}

static bool nodes(kt_fingerprint *f, int v) {
    f->numa_nodes += v + 1;
    return true;
}

static bool memory(kt_fingerprint *f, int v) {
    if (f->memory_bytes < 2) return false;
    f->memory_bytes = v == 0 ? 2 * f->memory_bytes : f->memory_bytes / 2;
    return true;
}

static bool bandwidth(kt_fingerprint *f, int v) {
    f->ceilings.stream_gbs_1t *= v == 0 ? 1.2 : 0.8;
    return f->ceilings.stream_gbs_1t > 0; /* what was not measured is not compared */
}

static bool near_bandwidth(kt_fingerprint *f, int v) {
    f->ceilings.stream_gbs_1t *= v == 0 ? 1.05 : 0.95;
    return f->ceilings.stream_gbs_1t > 0;
}

static bool noise(kt_fingerprint *f, int v) {
    f->ceilings.aa_noise_p95 += 0.1 * (v + 1);
    return true;
}

static const struct {
    const char *what;
    kt_match want;
    bool (*forge)(kt_fingerprint *f, int variation); /* false: impossible on this machine */
    int variations;
} kinds[] = {
    {"vendor", KT_MATCH_OTHER, vendor, 5},
    {"part", KT_MATCH_OTHER, part, 4},
    {"further instruction set", KT_MATCH_OTHER, isa_more, 4},
    {"fewer instruction sets", KT_MATCH_SOFT, isa_less, 2},
    {"numbers", KT_MATCH_SOFT, numbers, 4},
    {"stepping", KT_MATCH_SOFT, stepping, 2},
    {"cores", KT_MATCH_SOFT, cores, 2},
    {"NUMA nodes", KT_MATCH_SOFT, nodes, 1},
    {"memory", KT_MATCH_SOFT, memory, 2},
    {"bandwidth", KT_MATCH_SOFT, bandwidth, 2},
    {"bandwidth within noise", KT_MATCH_SAME, near_bandwidth, 2},
    {"noise", KT_MATCH_SAME, noise, 1},
};

bool kt_forge(const kt_fingerprint *own, int i, kt_forgery *out) {
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; i -= kinds[k++].variations) {
        if (i >= kinds[k].variations) continue;
        *out = (kt_forgery){.what = kinds[k].what, .want = kinds[k].want, .fingerprint = *own};
        out->is_possible = kinds[k].forge(&out->fingerprint, i);
        return true;
    }
    return false;
}
