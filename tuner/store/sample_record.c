/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/sample_record.h"

#include <stdio.h>
#include <string.h>

/* Kinds, and where each keeps the name of its cell. */
static const struct {
    const char *kind, *cell_key;
} kinds[] = {{"rung", "cell"}, {"slice", "of"}, {"plan_rung", "plan"}};

bool kt_sample_record_read(const kt_json *record, kt_sample_record *out) {
    const char *kind = kt_json_string(kt_json_get(record, "t"), NULL);

    memset(out, 0, sizeof *out);
    for (size_t k = 0; kind && k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kind, kinds[k].kind) != 0) continue;
        out->kind = kinds[k].kind;
        out->cell = kt_json_string(kt_json_get(record, kinds[k].cell_key), NULL);
    }
    if (!out->cell) return false;
    if (strcmp(out->kind, "plan_rung") == 0) {
        out->plan = out->cell;
        out->plan_size = (int)strcspn(out->cell, " ");
    }
    if (strcmp(out->kind, "slice") == 0) out->outputs = kt_json_int(kt_json_get(record, "n"), 0);
    out->contest = kt_json_int(kt_json_get(record, "contest"), -1);
    out->rung = kt_json_int(kt_json_get(record, "rung"), 0);
    out->live = kt_json_get(record, "live");
    out->voided = kt_json_get(record, "void");
    out->ns = kt_json_get(record, "ns");
    return true;
}

const char *kt_sample_record_name(const kt_sample_record *r, size_t i) {
    const char *name = kt_json_string(kt_json_at(r->live, i), NULL);
    return name ? name : "";
}

bool kt_sample_record_is_voided(const kt_sample_record *r, size_t round) {
    for (size_t i = 0; i < kt_json_length(r->voided); i++)
        if (kt_json_int(kt_json_at(r->voided, i), -1) == (int64_t)round) return true;
    return false;
}

char *kt_sample_record_cell(const kt_sample_record *r, char *out, size_t out_bytes) {
    if (r->outputs > 0)
        snprintf(out, out_bytes, "slice n=%lld of %s", (long long)r->outputs, r->cell);
    else
        snprintf(out, out_bytes, "%s", r->cell);
    return out;
}

char *kt_sample_record_contender(const kt_sample_record *r, size_t i, char *out, size_t out_bytes) {
    const char *name = kt_sample_record_name(r, i);

    if (r->plan)
        snprintf(out, out_bytes, "%.*s{%s%s}", r->plan_size, r->plan,
                 strchr(name, '=') ? "" : "kernels=", name);
    else
        snprintf(out, out_bytes, "%s", name);
    return out;
}
