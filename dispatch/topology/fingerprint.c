/* What a table is bound to: made, written, read, compared. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/topology/topology.h"

/* Differences of measured quantities up to this fraction are noise between runs. */
#define CEILING_TOLERANCE 0.15

void kt_fingerprint_make(const kt_topology *topology, const kt_ceilings *ceilings,
                         kt_fingerprint *out) {
    memset(out, 0, sizeof *out);
    memcpy(out->vendor, topology->cpu.vendor, sizeof out->vendor);
    memcpy(out->microarch, topology->cpu.microarch, sizeof out->microarch);
    out->family = topology->cpu.family;
    out->model = topology->cpu.model;
    out->stepping = topology->cpu.stepping;
    out->isa = topology->cpu.isa;
    out->usable_cores = topology->usable_cores;
    out->numa_nodes = topology->numa_nodes;
    out->memory_bytes = topology->memory_bytes;
    if (ceilings) out->ceilings = *ceilings;
}

/* --- text --- */

/* The plain numbers of kt_ceilings, by name. */
static const struct {
    const char *key;
    size_t offset;
} ceiling_fields[] = {
    {"stream_gbs_1t", offsetof(kt_ceilings, stream_gbs_1t)},
    {"stream_gbs_all", offsetof(kt_ceilings, stream_gbs_all)},
    {"stream_small_gbs_1t", offsetof(kt_ceilings, stream_small_gbs_1t)},
    {"cache_knee_bytes", offsetof(kt_ceilings, cache_knee_bytes)},
    {"peak_scalar_gops", offsetof(kt_ceilings, peak_scalar_gops)},
    {"aa_noise_p95", offsetof(kt_ceilings, aa_noise_p95)},
};

static double field(const kt_ceilings *c, size_t i) {
    double v;
    memcpy(&v, (const char *)c + ceiling_fields[i].offset, sizeof v);
    return v;
}

static void write_ceilings(const kt_ceilings *c, kt_json_writer *w) {
    kt_json_begin_object(w);
    for (size_t i = 0; i < sizeof ceiling_fields / sizeof *ceiling_fields; i++)
        kt_json_add_double(w, ceiling_fields[i].key, field(c, i));
    kt_json_add_int(w, "threads_all", c->threads_all);
    kt_json_key(w, "peak_gops");
    kt_json_begin_object(w);
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        if (c->peak_gops[bit] == 0) continue;
        kt_json_add_double(w, kt_isa_name(bit), c->peak_gops[bit]);
    }
    kt_json_end_object(w);
    kt_json_end_object(w);
}

void kt_fingerprint_write(const kt_fingerprint *f, kt_json_writer *w) {
    char isa[160];

    kt_json_begin_object(w);
    kt_json_add_string(w, "vendor", f->vendor);
    kt_json_add_string(w, "microarch", f->microarch);
    kt_json_add_int(w, "family", f->family);
    kt_json_add_int(w, "model", f->model);
    kt_json_add_int(w, "stepping", f->stepping);
    kt_json_add_string(w, "isa", kt_isa_format(f->isa, isa, sizeof isa));
    kt_json_add_int(w, "usable_cores", f->usable_cores);
    kt_json_add_int(w, "numa_nodes", f->numa_nodes);
    kt_json_add_int(w, "memory_bytes", (int64_t)f->memory_bytes);
    kt_json_key(w, "ceilings");
    write_ceilings(&f->ceilings, w);
    kt_json_end_object(w);
}

static kt_status read_text(const kt_json *object, const char *key, const char *where, char *out,
                           size_t out_bytes, kt_err *err) {
    const char *s;
    KT_TRY(kt_json_need_string(object, key, where, &s, err));
    if (strlen(s) >= out_bytes)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' has %zu characters, at most %zu are possible",
                       where, key, strlen(s), out_bytes - 1);
    memcpy(out, s, strlen(s) + 1);
    return KT_OK;
}

static kt_status read_int(const kt_json *object, const char *key, int64_t min, int64_t max,
                          const char *where, int *out, kt_err *err) {
    int64_t v;
    KT_TRY(kt_json_need_int(object, key, min, max, where, &v, err));
    *out = (int)v;
    return KT_OK;
}

/* "avx2+avx512" or "scalar". */
static kt_status read_isa(const kt_json *object, const char *where, kt_isa *out, kt_err *err) {
    const char *s;
    char name[32];

    *out = 0;
    KT_TRY(kt_json_need_string(object, "isa", where, &s, err));
    if (strcmp(s, "scalar") == 0) return KT_OK;
    for (;;) {
        size_t size = strcspn(s, "+");
        int bit;
        snprintf(name, sizeof name, "%.*s", (int)(size < 31 ? size : 31), s);
        bit = kt_isa_parse(name);
        if (bit < 0)
            return kt_fail(err, KT_E_FORMAT, "%s: 'isa': this build knows no instruction set '%s'",
                           where, name);
        *out |= (kt_isa)1 << bit;
        if (!s[size]) return KT_OK;
        s += size + 1;
    }
}

static kt_status check_measure(double v, const char *key, const char *where, kt_err *err) {
    if (isfinite(v) && v >= 0) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %g, expected a number >= 0", where, key, v);
}

static kt_status read_peaks(const kt_json *peaks, const char *where, kt_ceilings *c, kt_err *err) {
    if (kt_json_type_of(peaks) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "%s: 'peak_gops' is %s, expected an object", where,
                       kt_json_type_name(kt_json_type_of(peaks)));
    for (size_t i = 0; i < kt_json_length(peaks); i++) {
        const char *key;
        const kt_json *v = kt_json_member(peaks, i, &key, NULL);
        int bit = kt_isa_parse(key);
        if (bit < 0) continue; /* measured by a newer build: of no use here */
        c->peak_gops[bit] = kt_json_double(v, NAN);
        KT_TRY(check_measure(c->peak_gops[bit], key, where, err));
    }
    return KT_OK;
}

static kt_status read_ceilings(const kt_json *object, const char *where, kt_ceilings *c,
                               kt_err *err) {
    if (kt_json_type_of(object) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "%s: 'ceilings' is %s, expected an object", where,
                       kt_json_type_name(kt_json_type_of(object)));
    for (size_t i = 0; i < sizeof ceiling_fields / sizeof *ceiling_fields; i++) {
        double v;
        KT_TRY(kt_json_need_double(object, ceiling_fields[i].key, where, &v, err));
        KT_TRY(check_measure(v, ceiling_fields[i].key, where, err));
        memcpy((char *)c + ceiling_fields[i].offset, &v, sizeof v);
    }
    KT_TRY(read_int(object, "threads_all", 0, 1 << 20, where, &c->threads_all, err));
    return read_peaks(kt_json_get(object, "peak_gops"), where, c, err);
}

kt_status kt_fingerprint_read(const kt_json *object, const char *where, kt_fingerprint *out,
                              kt_err *err) {
    kt_fingerprint f;
    int64_t memory;

    memset(&f, 0, sizeof f);
    if (kt_json_type_of(object) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "%s: the fingerprint is %s, expected an object", where,
                       kt_json_type_name(kt_json_type_of(object)));
    KT_TRY(read_text(object, "vendor", where, f.vendor, sizeof f.vendor, err));
    KT_TRY(read_text(object, "microarch", where, f.microarch, sizeof f.microarch, err));
    KT_TRY(read_int(object, "family", 0, 1 << 20, where, &f.family, err));
    KT_TRY(read_int(object, "model", 0, 1 << 20, where, &f.model, err));
    KT_TRY(read_int(object, "stepping", 0, 1 << 20, where, &f.stepping, err));
    KT_TRY(read_isa(object, where, &f.isa, err));
    KT_TRY(read_int(object, "usable_cores", 1, 1 << 20, where, &f.usable_cores, err));
    KT_TRY(read_int(object, "numa_nodes", 1, 1 << 20, where, &f.numa_nodes, err));
    KT_TRY(kt_json_need_int(object, "memory_bytes", 0, INT64_MAX, where, &memory, err));
    f.memory_bytes = (uint64_t)memory;
    KT_TRY(read_ceilings(kt_json_get(object, "ceilings"), where, &f.ceilings, err));
    *out = f;
    return KT_OK;
}

/* --- comparison --- */

/* Both measured and further apart than noise, relative to the machine's own value. */
static int apart(double table, double machine) {
    return table > 0 && machine > 0 && fabs(table - machine) > CEILING_TOLERANCE * machine;
}

static int same_numbers(const kt_fingerprint *t, const kt_fingerprint *m) {
    return t->family == m->family && t->model == m->model;
}

/* Another part. The same numbers with the same instruction sets are the same part, whatever another
 * build called it; a part without a name is told by its numbers. */
static int is_other_part(const kt_fingerprint *t, const kt_fingerprint *m) {
    if (same_numbers(t, m) && t->isa == m->isa) return 0;
    if (!t->microarch[0] || !m->microarch[0]) return !same_numbers(t, m);
    return strcmp(t->microarch, m->microarch) != 0;
}

static kt_match compare_hard(const kt_fingerprint *t, const kt_fingerprint *m, kt_err *why) {
    char lacks[160];

    if (t->isa & ~m->isa) {
        kt_fail(why, KT_E_MISMATCH,
                "instruction sets: the table was tuned with %s, not usable here",
                kt_isa_format(t->isa & ~m->isa, lacks, sizeof lacks));
        return KT_MATCH_OTHER;
    }
    if (strcmp(t->vendor, m->vendor) != 0) {
        kt_fail(why, KT_E_MISMATCH, "vendor: table '%s', machine '%s'", t->vendor, m->vendor);
        return KT_MATCH_OTHER;
    }
    if (is_other_part(t, m)) {
        kt_fail(why, KT_E_MISMATCH,
                "CPU: table '%s' (family %d model %d), machine '%s' (family %d model %d)",
                t->microarch, t->family, t->model, m->microarch, m->family, m->model);
        return KT_MATCH_OTHER;
    }
    return KT_MATCH_SAME;
}

static kt_match compare_machine(const kt_fingerprint *t, const kt_fingerprint *m, kt_err *why) {
    const double gib = 1024.0 * 1024 * 1024;
    char extra[160];

    if (m->isa & ~t->isa)
        kt_fail(why, KT_E_MISMATCH, "instruction sets: the table was tuned without %s",
                kt_isa_format(m->isa & ~t->isa, extra, sizeof extra));
    else if (t->usable_cores != m->usable_cores)
        kt_fail(why, KT_E_MISMATCH, "usable cores: table %d, machine %d", t->usable_cores,
                m->usable_cores);
    else if (t->numa_nodes != m->numa_nodes)
        kt_fail(why, KT_E_MISMATCH, "NUMA nodes: table %d, machine %d", t->numa_nodes,
                m->numa_nodes);
    else if (apart((double)t->memory_bytes, (double)m->memory_bytes))
        kt_fail(why, KT_E_MISMATCH, "memory: table %.1f GiB, machine %.1f GiB",
                (double)t->memory_bytes / gib, (double)m->memory_bytes / gib);
    else
        return KT_MATCH_SAME;
    return KT_MATCH_SOFT;
}

static kt_match compare_ceilings(const kt_ceilings *t, const kt_ceilings *m, kt_err *why) {
    for (size_t i = 0; i < sizeof ceiling_fields / sizeof *ceiling_fields; i++) {
        size_t at = ceiling_fields[i].offset;
        if (at == offsetof(kt_ceilings, aa_noise_p95)) continue; /* says nothing of the machine */
        if (at == offsetof(kt_ceilings, stream_gbs_all) && t->threads_all != m->threads_all)
            continue;
        if (!apart(field(t, i), field(m, i))) continue;
        kt_fail(why, KT_E_MISMATCH, "%s: table %.4g, machine %.4g", ceiling_fields[i].key,
                field(t, i), field(m, i));
        return KT_MATCH_SOFT;
    }
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        if (!apart(t->peak_gops[bit], m->peak_gops[bit])) continue;
        kt_fail(why, KT_E_MISMATCH, "peak_gops.%s: table %.4g, machine %.4g", kt_isa_name(bit),
                t->peak_gops[bit], m->peak_gops[bit]);
        return KT_MATCH_SOFT;
    }
    return KT_MATCH_SAME;
}

/* Last: another host of the same kind, or the same guest after a migration, may show other numbers.
 */
static kt_match compare_numbers(const kt_fingerprint *t, const kt_fingerprint *m, kt_err *why) {
    if (!same_numbers(t, m))
        kt_fail(why, KT_E_MISMATCH, "CPU numbers: table family %d model %d, machine %d %d",
                t->family, t->model, m->family, m->model);
    else if (t->stepping != m->stepping)
        kt_fail(why, KT_E_MISMATCH, "CPU stepping: table %d, machine %d", t->stepping, m->stepping);
    else
        return KT_MATCH_SAME;
    return KT_MATCH_SOFT;
}

kt_match kt_fingerprint_compare(const kt_fingerprint *table, const kt_fingerprint *machine,
                                kt_err *why) {
    kt_match match = compare_hard(table, machine, why);
    if (match == KT_MATCH_SAME) match = compare_machine(table, machine, why);
    if (match == KT_MATCH_SAME) match = compare_ceilings(&table->ceilings, &machine->ceilings, why);
    if (match == KT_MATCH_SAME) match = compare_numbers(table, machine, why);
    return match;
}

void kt_machine_class(const kt_fingerprint *f, char *out, size_t out_bytes) {
    const uint64_t gib = (uint64_t)1 << 30;
    char arch[sizeof f->microarch];
    size_t i;

    /* It becomes a folder name: nothing but letters, digits and dashes. */
    for (i = 0; i + 1 < sizeof arch && f->microarch[i]; i++) {
        char c = f->microarch[i];
        int plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        arch[i] = plain ? c : '-';
    }
    arch[i] = '\0';
    snprintf(out, out_bytes, "%s-%dc-%llug", i ? arch : "unknown", f->usable_cores,
             (unsigned long long)((f->memory_bytes + gib / 2) / gib));
}
