/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/list_variants.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"
#include "base/json.h"
#include "dispatch/device/gpu_view.h"
#include "tuner/cli/tune_options.h"
#include "tuner/report/kernel_matrix.h"

/* What follows a name begins here: most names fit before it. */
enum { NAME_COLUMNS = 40, GROUP_BYTES = 4096, MOST_GROUPS = 256, MOST_GPU_KERNELS = 64 };

/* What a reason keeps from being run, one text. Text that does not fit any more is counted only. */
typedef struct reason_group {
    const char *reason; /* borrowed for the listing */
    char names[GROUP_BYTES];
    int n, n_left_out;
} reason_group;

typedef struct listing {
    int op, isa;              /* -1 = any; isa: bit of the highest step, KT_ISA_COUNT = plain C */
    kt_weight_format weights; /* 0 = any */
    kt_json_writer *json;     /* NULL = text */
    int shown;
    reason_group *groups; /* [MOST_GROUPS], of the section being made; with reasons only */
    int n_groups;
} listing;

/* --- the filter --- */

static kt_status parse_op(const char *word, int *out, kt_err *err) {
    char known[256] = "";
    size_t used = 0;

    *out = word ? kt_op_parse(word) : -1;
    if (!word || *out >= 0) return KT_OK;
    for (int op = 0; op < KT_OP_COUNT && used < sizeof known; op++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                 kt_op_name((kt_op)op));
    return kt_fail(err, KT_E_INVALID, "--op '%s': expected one of %s", word, known);
}

static kt_status parse_isa(const char *word, int *out, kt_err *err) {
    char known[256] = "scalar";
    size_t used = strlen(known);

    *out = -1;
    if (!word) return KT_OK;
    if (strcmp(word, "scalar") == 0) *out = KT_ISA_COUNT;
    for (int bit = 0; bit < KT_ISA_COUNT; bit++) {
        if (strcmp(word, kt_isa_name(bit)) == 0) *out = bit;
        if (used < sizeof known)
            used += (size_t)snprintf(known + used, sizeof known - used, ", %s", kt_isa_name(bit));
    }
    if (*out >= 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "--isa '%s': expected %s", word, known);
}

static kt_status parse_weights(const char *word, kt_weight_format *out, kt_err *err) {
    int format = word ? kt_weight_format_parse(word) : 0;
    char known[480] = "";
    size_t used = 0;

    *out = (kt_weight_format)(format > 0 ? format : 0);
    if (format >= 0 && (!word || format > 0)) return KT_OK;
    for (int f = 1; f < KT_W_COUNT && used < sizeof known; f++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                                 kt_weight_format_name((kt_weight_format)f));
    return kt_fail(err, KT_E_INVALID, "--weights '%s': expected one of %s", word, known);
}

static int highest_isa(const kt_variant *v) {
    int highest = KT_ISA_COUNT;
    for (int bit = 0; bit < KT_ISA_COUNT; bit++)
        if (v->isa >> bit & 1) highest = bit;
    return highest;
}

static bool is_wanted(const listing *l, const kt_variant *v) {
    return (l->op < 0 || (int)v->op == l->op) && (l->isa < 0 || highest_isa(v) == l->isa) &&
           (l->weights == 0 || v->weights >> l->weights & 1);
}

/* --- one variant --- */

static void formats_of(uint64_t mask, char *out, size_t out_bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (int f = 1; f < KT_W_COUNT; f++)
        if (mask >> f & 1 && used < out_bytes)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", used ? "," : "",
                                     kt_weight_format_name((kt_weight_format)f));
}

static void parameters_of(const kt_variant *v, char *out, size_t out_bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (int p = 0; p < v->n_params && used < out_bytes; p++) {
        const kt_param *q = &v->params[p];
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s=", used ? " " : "", q->name);
        for (int i = 0; i < q->count && used < out_bytes; i++)
            used += (size_t)snprintf(out + used, out_bytes - used, "%s%d", i ? "|" : "",
                                     (int)q->values[i]);
    }
}

/* --- reasons --- */

static reason_group *find_group(listing *l, const char *reason) {
    for (int i = 0; i < l->n_groups; i++)
        if (strcmp(l->groups[i].reason, reason) == 0) return &l->groups[i];
    if (l->n_groups == MOST_GROUPS - 1) reason = "other reasons (--json has them)";
    if (l->n_groups == MOST_GROUPS) return &l->groups[MOST_GROUPS - 1];
    l->groups[l->n_groups] = (reason_group){.reason = reason};
    return &l->groups[l->n_groups++];
}

static void note(listing *l, const char *name, const char *reason) {
    reason_group *g = find_group(l, reason);
    size_t used = strlen(g->names);

    if (used + strlen(name) + 3 > sizeof g->names) {
        g->n_left_out++;
        return;
    }
    snprintf(g->names + used, sizeof g->names - used, "%s%s", used ? ", " : "", name);
    g->n++;
}

/* A section: each reason once, with what it concerns. */
static void show_reasons(listing *l, const char *title) {
    if (l->n_groups && !l->json) printf("%s%s\n", l->shown ? "\n" : "", title);
    for (int i = 0; i < l->n_groups && !l->json; i++) {
        const reason_group *g = &l->groups[i];
        int at = printf("  ");
        kt_print_words(g->reason, strlen(g->reason), at, 2);
        at = printf("      ");
        kt_print_words(g->names, strlen(g->names), at, 6);
        if (g->n_left_out) printf("      and %d more (--json has all)\n", g->n_left_out);
        l->shown++;
    }
    l->n_groups = 0;
}

/* "  name          words", the words below each other when there are many. */
static void print_line(const char *name, const char *words) {
    int at = printf("  %-*s ", NAME_COLUMNS - 3, name);
    kt_print_words(words, strlen(words), at, NAME_COLUMNS);
}

static void show_variant(const kt_variant *v, const char *reason, listing *l) {
    char formats[480], isa[160], parameters[256], words[480 + 256 + 2];
    kt_json_writer *w = l->json;

    formats_of(v->weights, formats, sizeof formats);
    parameters_of(v, parameters, sizeof parameters);
    kt_isa_format(v->isa, isa, sizeof isa);
    if (w) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "name", v->name);
        kt_json_add_string(w, "op", kt_op_name(v->op));
        kt_json_add_string(w, "weights", formats);
        kt_json_add_string(w, "isa", isa);
        kt_json_add_string(w, "layout", v->layout ? v->layout : "");
        kt_json_add_string(w, "bits", v->bits ? v->bits : "");
        kt_json_add_string(w, "parameters", parameters);
        kt_json_add_string(w, "refused", reason ? reason : "");
        kt_json_end_object(w);
        return;
    }
    if (reason) {
        note(l, v->name, reason);
        return;
    }
    if (strlen(formats) > 34) /* plain C takes them all: a count reads better */
        snprintf(formats, sizeof formats, "%d formats", __builtin_popcountll(v->weights));
    snprintf(words, sizeof words, "%s%s%s", formats, *formats && *parameters ? " " : "",
             parameters);
    print_line(v->name, words);
}

/* --- groups --- */

static size_t count_wanted(const kt_registry *r, listing *l, bool refused) {
    size_t n = refused ? kt_registry_refused_count(r) : kt_registry_count(r), wanted = 0;
    for (size_t i = 0; i < n; i++)
        wanted += is_wanted(l, refused ? kt_registry_refused_at(r, i, NULL) : kt_registry_at(r, i));
    return wanted;
}

static void show_group(const kt_registry *r, kt_op op, listing *l, bool refused) {
    size_t n = refused ? kt_registry_refused_count(r) : kt_registry_count(r);
    bool is_first = true;

    for (size_t i = 0; i < n; i++) {
        const char *reason = NULL;
        const kt_variant *v =
            refused ? kt_registry_refused_at(r, i, &reason) : kt_registry_at(r, i);
        if (v->op != op || !is_wanted(l, v)) continue;
        if (is_first && !l->json && !refused)
            printf("%s%s\n", l->shown ? "\n" : "", kt_op_name(op));
        is_first = false;
        l->shown += !refused;
        show_variant(v, refused && !reason ? "refused" : reason, l);
    }
}

/* Usable ones that serve by default only; as JSON each variant has its bits. */
static void show_unstable(const kt_registry *r, listing *l) {
    for (size_t i = 0; i < kt_registry_count(r) && !l->json; i++) {
        const kt_variant *v = kt_registry_at(r, i);
        if (v->op != KT_OP_PROBE && is_wanted(l, v) && kt_variant_keeps_bits(v, NULL) != KT_OK)
            note(l, v->name, "bits 'unstable': a row may change with the rows beside it");
    }
}

static void show_absent(listing *l) {
    if (l->op >= 0 || l->isa >= 0 || l->weights) return; /* nothing is known of them but the name */
    for (size_t i = 0; i < kt_builtin_absent_count; i++) {
        if (!l->json) {
            note(l, kt_builtin_absent[i].name, kt_builtin_absent[i].reason);
            continue;
        }
        kt_json_begin_object(l->json);
        kt_json_add_string(l->json, "name", kt_builtin_absent[i].name);
        kt_json_add_string(l->json, "refused", kt_builtin_absent[i].reason);
        kt_json_end_object(l->json);
    }
}

static void show_cell(kt_op op, kt_weight_format format, int isa, const char *reason, listing *l) {
    char cell[64];

    snprintf(cell, sizeof cell, "%s %s on %s", kt_op_name(op), kt_weight_format_name(format),
             isa == KT_MATRIX_SCALAR ? "scalar" : kt_isa_name(isa));
    if (!l->json) {
        note(l, cell, reason);
        return;
    }
    kt_json_begin_object(l->json);
    kt_json_add_string(l->json, "name", strchr(cell, ' ') + 1);
    kt_json_add_string(l->json, "op", kt_op_name(op));
    kt_json_add_string(l->json, "refused", reason);
    kt_json_end_object(l->json);
}

/* Cells of format x instruction set without a kernel, once if neither op has one for the same reason; or all
 * cells. */
static void show_cells(listing *l, bool all) {
    static const kt_op ops[] = {KT_OP_GEMM, KT_OP_MOE_FFN};

    for (int op = 0; op < 2; op++)
        for (int f = 1; f < KT_W_COUNT; f++)
            for (int isa = KT_MATRIX_SCALAR; isa < KT_ISA_COUNT; isa++) {
                const kt_weight_format format = (kt_weight_format)f;
                const bool is_filled = kt_cell_is_filled(ops[op], format, isa);
                const char *reason = kt_cell_gap_reason(ops[op], format, isa);
                if ((l->op >= 0 && l->op != (int)ops[op]) ||
                    (l->isa >= 0 && l->isa != (isa < 0 ? KT_ISA_COUNT : isa)) ||
                    (l->weights && l->weights != format) || (is_filled && !all))
                    continue;
                if (op == 1 && !all && l->op < 0 && !kt_cell_is_filled(ops[0], format, isa) &&
                    reason == kt_cell_gap_reason(ops[0], format, isa))
                    continue;
                if (is_filled) reason = "";
                show_cell(ops[op], format, isa, reason ? reason : "no reason given", l);
            }
}

/* A library chooses its instructions itself: none of these when asked for one step. */
static void show_library_gaps(listing *l) {
    for (size_t i = 0; i < kt_library_gap_count && l->isa < 0; i++) {
        const kt_library_gap *g = &kt_library_gaps[i];
        char name[64];
        if ((l->op >= 0 && l->op != (int)g->op) || (l->weights && !(g->weights >> l->weights & 1)))
            continue;
        snprintf(name, sizeof name, "%s %s", g->library, g->what);
        if (l->json) {
            kt_json_begin_object(l->json);
            kt_json_add_string(l->json, "name", name);
            kt_json_add_string(l->json, "op", kt_op_name(g->op));
            kt_json_add_string(l->json, "refused", g->reason);
            kt_json_end_object(l->json);
            continue;
        }
        snprintf(name, sizeof name, "%s %s %s", kt_op_name(g->op), g->library, g->what);
        note(l, name, g->reason);
    }
}

/* Kernels that not even the first GPU runs; as JSON all kernels, with what they are refused for. */
static void show_gpu_kernels(listing *l) {
    char why[MOST_GPU_KERNELS][320]; /* kept while the section is made */
    kt_gpu_view v;

    if (l->op >= 0 || l->isa >= 0 || l->weights) return;
    kt_gpu_view_take(&v);
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count && i < MOST_GPU_KERNELS; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        const char *reason = kt_gpu_refuses(&v, 0, k, why[i]);
        if (!l->json) {
            if (*reason) note(l, k->name, reason);
            continue;
        }
        kt_json_begin_object(l->json);
        kt_json_add_string(l->json, "name", k->name);
        kt_json_add_string(l->json, "op", "gpu");
        kt_json_add_string(l->json, "refused", reason);
        kt_json_end_object(l->json);
    }
    show_reasons(l, "not on a GPU here");
    kt_gpu_view_drop(&v);
}

static void finish_json(kt_json_writer *w) {
    kt_json_end_array(w);
    kt_json_writer_print(w, stdout);
}

void kt_list_matrix(bool json) {
    kt_json_writer writer = {.indent = 2};
    listing l = {.op = -1, .isa = -1, .json = &writer};

    if (!json) {
        kt_matrix_print(stdout);
        return;
    }
    kt_json_begin_array(&writer);
    show_cells(&l, true);
    finish_json(&writer);
}

/* What this machine lacks comes first, what nobody has last. */
static void show_invalid(const kt_registry *r, listing *l) {
    for (int op = 0; op < KT_OP_COUNT; op++) show_group(r, (kt_op)op, l, true);
    show_reasons(l, "not usable here");
    show_unstable(r, l);
    show_reasons(l, "not with --deterministic");
    show_absent(l);
    show_reasons(l, "not built");
    show_gpu_kernels(l);
    show_library_gaps(l);
    show_reasons(l, "not asked of libraries");
    show_cells(l, false);
    show_reasons(l, "no kernel");
}

kt_status kt_list_variants(const kt_registry *r, const kt_variant_filter *filter, bool why_invalid,
                           bool json, kt_err *err) {
    kt_json_writer writer = {.indent = 2};
    listing l = {.json = json ? &writer : NULL};

    KT_TRY(parse_op(filter->op, &l.op, err));
    KT_TRY(parse_isa(filter->isa, &l.isa, err));
    KT_TRY(parse_weights(filter->weights, &l.weights, err));
    if (why_invalid) {
        l.groups = malloc(MOST_GROUPS * sizeof *l.groups);
        if (!l.groups) return kt_fail(err, KT_E_NOMEM, "no memory for the reasons");
    }
    if (json) kt_json_begin_array(&writer);
    for (int op = 0; op < KT_OP_COUNT && (json || !why_invalid); op++)
        show_group(r, (kt_op)op, &l, false);
    if (why_invalid) show_invalid(r, &l);
    free(l.groups);
    if (json) {
        finish_json(&writer);
    } else if (!why_invalid) {
        printf("\n%zu usable; %zu refused here, %zu not built (--why-invalid shows them)\n",
               count_wanted(r, &l, false), count_wanted(r, &l, true), kt_builtin_absent_count);
    }
    return KT_OK;
}
