/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/needs.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/formats/format.h"
#include "kernels/formats/w8g16m.h"

/* A format with less than eight bits is for feed-forward layers, where the bytes are. */
static kt_weight_format asked_format(const kt_weight *w, kt_weight_format id) {
    const kt_format *format = kt_format_find(id);

    if (w->use == KT_USE_EXPERTS || w->use == KT_USE_FFN) return id;
    return format && format->encode_rows && format->bits >= 8 ? id : KT_W_INT8_CHANNEL;
}

/* Can the loader make w8g16m of it as it is stored? */
static bool may_widen(const kt_weight_part *p) {
    return p->encoding != KT_STORED_INT4 && kt_w8g16m_takes(p->stored);
}

/* Gate and up are read together, by kernels of one format. */
static bool is_mixed_pair(const kt_weight *w) {
    return w->kind == KT_WEIGHT_EXPERTS && w->part[0].stored != w->part[1].stored &&
           may_widen(&w->part[0]) && may_widen(&w->part[1]);
}

static bool has_integers(kt_weight_format format) {
    const kt_format *f = kt_format_find(format);

    return f && f->acts == KT_A_INT8_G32;
}

/* What no kernels read together, as BF16: gate and up of two formats with floats among them; and,
 * since what stands between gate and down is encoded once, integers on one side of it, floats on
 * the other. */
static bool meets_in_bf16(const kt_weight *w, int part) {
    const kt_weight_format gate = w->part[0].stored;
    const bool is_apart = gate != w->part[1].stored && !is_mixed_pair(w);

    if (w->kind != KT_WEIGHT_EXPERTS || gate == KT_W_NONE) return false;
    if (is_apart && part < 2) return true;
    return has_integers(w->part[part].stored) &&
           (is_apart || has_integers(gate) != has_integers(w->part[2].stored));
}

kt_weight_format kt_weight_becomes(const kt_weight *w, int part, kt_quant quant) {
    const kt_weight_format stored = w->part[part].stored;

    if (w->kind == KT_WEIGHT_HEADS) return KT_W_BF16; /* small, and stored across its columns */
    if (w->part[part].chosen != KT_W_NONE) return w->part[part].chosen;
    if (quant == KT_QUANT_NATIVE && meets_in_bf16(w, part)) return KT_W_BF16;
    if (quant == KT_QUANT_NATIVE && part < 2 && is_mixed_pair(w)) return KT_W_INT8_G16M;
    if (kt_quant_format(quant) != KT_W_NONE) return asked_format(w, kt_quant_format(quant));
    if (quant == KT_QUANT_INT4 && w->use == KT_USE_EXPERTS) return KT_W_INT4_G32;
    if (quant == KT_QUANT_INT8 || quant == KT_QUANT_INT4) return KT_W_INT8_CHANNEL;
    if (quant == KT_QUANT_BF16 || stored == KT_W_F32 || stored == KT_W_NONE) return KT_W_BF16;
    return stored;
}

bool kt_weight_is_quantised(const kt_weight *w) {
    for (int i = 0; i < w->n_parts; i++) {
        const kt_format *format =
            kt_format_find(w->part[i].stored); /* also what is only declared */
        if (w->part[i].encoding == KT_STORED_PACKED || w->part[i].encoding == KT_STORED_INT4 ||
            w->part[i].encoding == KT_STORED_BLOCKS || w->part[i].encoding == KT_STORED_NVFP4 ||
            (w->kind != KT_WEIGHT_VECTOR && format && format->bits < 8))
            return true;
    }
    return false;
}

kt_status kt_graph_check_quant(const kt_graph *g, kt_quant quant, const char *model, kt_err *err) {
    const kt_format *format = kt_format_find(kt_quant_format(quant));

    if (quant == KT_QUANT_NATIVE) return KT_OK;
    if (format && !format->encode_rows)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "weights as %s: GGUF blocks are multiplied as they lie in files and never "
                       "made from other weights; expected a format with an encoder, such as w4g64, "
                       "w4zg32, w8g128, fp8 or f16",
                       format->name);
    for (int i = 0; i < g->n_weights; i++)
        if (g->weights[i].part[0].encoding == KT_STORED_PACKED)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s holds packed weights (%s of %s), which stay what they are: use "
                           "--weights native, or convert its source anew",
                           model, kt_weight_format_name(g->weights[i].part[0].stored),
                           g->weights[i].role);
    return KT_OK;
}

kt_weight_format kt_weight_kept_as(const kt_weight *w) {
    const kt_weight_format stored = w->part[0].stored;

    if (w->kind == KT_WEIGHT_VECTOR || stored == KT_W_F16 || stored == KT_W_NONE) return KT_W_F32;
    return stored;
}

/* Blocks of 128 rows share scales: a part that ends inside one cannot be followed by another. */
static bool may_join(const kt_weight *w, int part, kt_weight_format format) {
    const kt_format *f = kt_format_find(format);

    return !f || !f->scale_rows || w->part[part].n % f->scale_rows == 0;
}

static int expert_run(const kt_weight *w, kt_quant quant, kt_run *run) {
    const kt_weight_format gate = kt_weight_becomes(w, 0, quant);
    const kt_weight_format down = kt_weight_becomes(w, 2, quant);

    *run = (kt_run){.n = w->n_parts,
                    .problem = {.op = KT_OP_MOE_FFN,
                                .weights = gate,
                                .n = w->n,
                                .k = w->k,
                                .experts = w->count,
                                .topk = w->topk,
                                .down = down == gate ? KT_W_NONE : down}};
    return 1;
}

int kt_weight_runs(const kt_weight *w, kt_quant quant, kt_run runs[KT_WEIGHT_PARTS]) {
    int64_t at = 0;
    int n = 0;

    if (w->kind == KT_WEIGHT_EXPERTS) return expert_run(w, quant, &runs[0]);
    if (w->kind != KT_WEIGHT_MATRIX && w->kind != KT_WEIGHT_HEADS) return 0;
    for (int i = 0; i < w->n_parts; at += w->part[i++].n) {
        const kt_weight_format format = kt_weight_becomes(w, i, quant);
        if (n && runs[n - 1].problem.weights == format && may_join(w, i - 1, format)) {
            runs[n - 1].problem.n += w->part[i].n;
            runs[n - 1].n++;
            continue;
        }
        runs[n++] = (kt_run){
            .first = i,
            .n = 1,
            .at = at,
            .problem = {.op = KT_OP_GEMM, .weights = format, .n = w->part[i].n, .k = w->part[i].k}};
    }
    return n;
}

int kt_need_is_same(const kt_problem *a, const kt_problem *b) {
    return a->op == b->op && a->weights == b->weights && a->down == b->down && a->n == b->n &&
           a->k == b->k && a->experts == b->experts && a->topk == b->topk;
}

kt_status kt_graph_needs(const kt_graph *g, kt_quant quant, kt_need **out, int *count,
                         kt_err *err) {
    kt_need *list = calloc((size_t)g->n_weights * KT_WEIGHT_PARTS + 1, sizeof *list);
    int n = 0;

    *out = NULL;
    *count = 0;
    if (!list) return kt_fail(err, KT_E_NOMEM, "no memory for the needs of a model");
    for (int i = 0; i < g->n_weights; i++) {
        kt_run runs[KT_WEIGHT_PARTS];
        int n_runs = kt_weight_runs(&g->weights[i], quant, runs), j;
        for (int r = 0; r < n_runs; r++) {
            for (j = 0; j < n && !kt_need_is_same(&list[j].problem, &runs[r].problem); j++)
                continue;
            if (j == n) list[n++] = (kt_need){g->weights[i].role, runs[r].problem, 0};
            list[j].times += g->weights[i].kind == KT_WEIGHT_HEADS ? g->weights[i].count : 1;
        }
    }
    *out = list;
    *count = n;
    return KT_OK;
}
