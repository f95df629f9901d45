/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/weight_source.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/family.h"

enum { NAME_BYTES = 240 };

kt_status kt_weight_finder_init(kt_weight_finder *f, const kt_checkpoint *checkpoint,
                                const kt_graph *graph, kt_err *err) {
    uint8_t *used = calloc(kt_checkpoint_count(checkpoint) + 1, 1);

    *f = (kt_weight_finder){0};
    if (kt_checkpoint_panels(checkpoint)) {
        free(used);
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: holds packed weights, which are run as they are; expected the "
                       "checkpoint that they were converted from",
                       kt_checkpoint_file(checkpoint, 0));
    }
    if (!used) return kt_fail(err, KT_E_NOMEM, "no memory for the list of tensors");
    *f = (kt_weight_finder){.checkpoint = checkpoint, .graph = graph, .used = used};
    return KT_OK;
}

void kt_weight_finder_deinit(kt_weight_finder *f) {
    free(f->used);
    f->used = NULL;
}

/* ---- single tensors ---- */

static kt_status need(kt_weight_finder *f, const char *name, int rank, const int64_t *shape,
                      const kt_tensor **out, kt_err *err) {
    KT_TRY(kt_checkpoint_need(f->checkpoint, name, rank, shape, out, err));
    f->used[*out - kt_checkpoint_at(f->checkpoint, 0)] = 1;
    return KT_OK;
}

/* The tensor named after the matrix, of a type and size. */
static kt_status need_part(kt_weight_finder *f, const char *matrix, const char *part, int64_t d0,
                           int64_t d1, const kt_tensor **out, kt_err *err) {
    const int64_t shape[2] = {d0, d1};
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%.200s.%.30s", matrix, part);
    return need(f, name, d1 ? 2 : 1, shape, out, err);
}

static bool has_part(const kt_weight_finder *f, const char *matrix, const char *part) {
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%.200s.%.30s", matrix, part);
    return kt_checkpoint_find(f->checkpoint, name) != NULL;
}

/* [1, n] for [n]; [n / taps, 1, taps] or [n / taps, taps] of a convolution; [rows, n / rows]. */
static bool is_shaped_vector(const kt_weight *w, const kt_tensor *t) {
    const int64_t *s = t->shape;

    if (w->rows) return t->rank == 2 && s[0] == w->rows && s[1] == w->n / w->rows;
    if (!w->taps) return t->rank == 2 && s[0] == 1 && s[1] == w->n;
    if (t->rank == 3 && s[1] != 1) return false;
    return t->rank >= 2 && t->rank <= 3 && s[0] == w->n / w->taps && s[t->rank - 1] == w->taps;
}

static int64_t read_id(const kt_tensor *t, int64_t i) {
    int64_t wide;
    int32_t narrow;

    if (t->dtype == KT_DTYPE_I64) {
        memcpy(&wide, t->data + 8 * (size_t)i, sizeof wide);
        return wide;
    }
    memcpy(&narrow, t->data + 4 * (size_t)i, sizeof narrow);
    return narrow;
}

/* Rows of different integers from 0 to ids - 1. Synthetic tensors without data come later. */
static kt_status check_ids(const kt_weight_finder *f, const kt_weight *w, const kt_tensor *t,
                           kt_err *err) {
    const int64_t width = w->n / w->rows;

    if (t->dtype != KT_DTYPE_I32 && t->dtype != KT_DTYPE_I64)
        return kt_tensor_fail(f->checkpoint, t, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected I32 or I64", kt_dtype_name(t->dtype));
    for (int64_t i = 0; i < w->n; i++) {
        const int64_t id = read_id(t, i);
        bool is_new = true;
        for (int64_t j = i / width * width; j < i; j++) is_new &= read_id(t, j) != id;
        if (id < 0 || id >= w->ids || !is_new)
            return kt_tensor_fail(f->checkpoint, t, KT_E_FORMAT, err,
                                  "row %lld names %lld, expected different numbers from 0 to %lld",
                                  (long long)(i / width), (long long)id, (long long)w->ids - 1);
    }
    return KT_OK;
}

kt_status kt_weight_tensor(kt_weight_finder *f, const kt_weight *w, const kt_tensor **out,
                           kt_err *err) {
    const bool is_vector = w->kind == KT_WEIGHT_VECTOR;
    const int64_t step = w->step && !f->graph->is_gguf ? w->step : 1;
    const int64_t shape[2] = {w->n, w->k};
    const int64_t rows[2] = {w->rows, w->rows ? w->n / w->rows * step : 0};
    char name[NAME_BYTES];
    const kt_tensor *t;

    *out = NULL;
    kt_weight_name(f->graph, w, 0, 0, false, name, sizeof name - 8);
    if (!is_vector) strcat(name, ".weight");
    if (w->is_optional && !kt_checkpoint_find(f->checkpoint, name)) return KT_OK;
    t = is_vector ? kt_checkpoint_find(f->checkpoint, name) : NULL;
    if (is_vector && w->rows)
        KT_TRY(need(f, name, 2, rows, out, err));
    else if (t && is_shaped_vector(w, t))
        KT_TRY(need(f, name, t->rank, t->shape, out, err));
    else
        KT_TRY(need(f, name, is_vector ? 1 : 2, shape, out, err));
    if (w->ids) return check_ids(f, w, *out, err);
    if ((*out)->blocks == KT_W_NVFP4) {
        name[strlen(name) - strlen("weight")] = '\0';
        strcat(name, "scale");
        if (kt_checkpoint_find(f->checkpoint, name))
            return kt_tensor_fail(
                f->checkpoint, *out, KT_E_UNSUPPORTED, err,
                "NVFP4 with a scale of its own ('%s'), expected NVFP4 blocks alone", name);
    }
    if (kt_dtype_is_float((*out)->dtype) ||
        (w->kind == KT_WEIGHT_TABLE && (*out)->blocks != KT_W_NONE))
        return KT_OK;
    return kt_tensor_fail(f->checkpoint, *out, KT_E_UNSUPPORTED, err,
                          "dtype %s, expected BF16, F16 or F32", kt_dtype_name((*out)->dtype));
}

/* ---- INT4 ---- */

static kt_status need_words(kt_weight_finder *f, const char *matrix, const char *part, int64_t d0,
                            int64_t d1, const kt_tensor **out, kt_err *err) {
    KT_TRY(need_part(f, matrix, part, d0, d1, out, err));
    if ((*out)->dtype == KT_DTYPE_I32) return KT_OK;
    return kt_tensor_fail(f->checkpoint, *out, KT_E_UNSUPPORTED, err, "dtype %s, expected I32",
                          kt_dtype_name((*out)->dtype));
}

static kt_status need_scales(kt_weight_finder *f, const char *matrix, const char *part, int64_t d0,
                             int64_t d1, kt_int4_source *s, const kt_tensor **out, kt_err *err) {
    KT_TRY(need_part(f, matrix, part, d0, d1, out, err));
    if (!kt_dtype_is_float((*out)->dtype))
        return kt_tensor_fail(f->checkpoint, *out, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected BF16, F16 or F32", kt_dtype_name((*out)->dtype));
    s->scale_type = (*out)->dtype == KT_DTYPE_BF16  ? KT_W_BF16
                    : (*out)->dtype == KT_DTYPE_F16 ? KT_W_F16
                                                    : KT_W_F32;
    s->scales = (*out)->data;
    return KT_OK;
}

/* compressed-tensors; weight_shape repeats what the config says. */
static kt_status find_rows(kt_weight_finder *f, const char *matrix, kt_int4_source *s,
                           const kt_tensor *t[4], kt_err *err) {
    const int64_t groups = s->k / s->group;

    KT_TRY(need_words(f, matrix, "weight_packed", s->n, s->k / 8, &t[0], err));
    KT_TRY(need_scales(f, matrix, "weight_scale", s->n, groups, s, &t[1], err));
    if (has_part(f, matrix, "weight_zero_point"))
        KT_TRY(need_words(f, matrix, "weight_zero_point", (s->n + 7) / 8, groups, &t[2], err));
    if (has_part(f, matrix, "weight_shape"))
        KT_TRY(need_part(f, matrix, "weight_shape", 2, 0, &t[3], err));
    t[3] = NULL;
    return KT_OK;
}

static kt_status find_transposed(kt_weight_finder *f, const char *matrix, kt_int4_source *s,
                                 const kt_tensor *t[4], kt_err *err) {
    const int64_t groups = s->k / s->group;
    const bool is_awq = s->packing == KT_INT4_AWQ;

    KT_TRY(need_words(f, matrix, "qweight", is_awq ? s->k : s->k / 8, is_awq ? s->n / 8 : s->n,
                      &t[0], err));
    KT_TRY(need_scales(f, matrix, "scales", groups, s->n, s, &t[1], err));
    KT_TRY(need_words(f, matrix, "qzeros", groups, s->n / 8, &t[2], err));
    if (is_awq || !has_part(f, matrix, "g_idx")) return KT_OK;
    return need_words(f, matrix, "g_idx", s->k, 0, &t[3], err);
}

/* Inputs per scale, by the shape of the scales; 0 = they do not divide. */
static int64_t group_of(const kt_weight_finder *f, const char *matrix, bool is_rows, int64_t k) {
    char name[NAME_BYTES];
    const kt_tensor *t;

    snprintf(name, sizeof name, "%.200s.%.30s", matrix, is_rows ? "weight_scale" : "scales");
    t = kt_checkpoint_find(f->checkpoint, name);
    if (!t || t->rank != 2 || t->shape[is_rows] < 1 || k % t->shape[is_rows]) return 0;
    return k / t->shape[is_rows];
}

static kt_status add_int4(kt_weight_finder *f, const kt_weight_part *p, const char *matrix,
                          kt_matrix_source *out, kt_err *err) {
    const bool is_rows = has_part(f, matrix, "weight_packed");
    const kt_tensor *t[4] = {NULL};
    kt_int4_source s = {
        .n = p->n, .k = p->k, .packing = is_rows ? KT_INT4_ROWS : f->graph->packing};

    s.group = group_of(f, matrix, is_rows, p->k);
    if (s.group == 0) s.group = p->k; /* the shapes below will be found wrong */
    if (s.k % s.group || (!is_rows && s.n % 8))
        return kt_fail(err, KT_E_UNSUPPORTED, "'%s': %lld x %lld weights in groups of %lld", matrix,
                       (long long)s.n, (long long)s.k, (long long)s.group);
    KT_TRY(is_rows ? find_rows(f, matrix, &s, t, err) : find_transposed(f, matrix, &s, t, err));
    s.packed = t[0]->data;
    s.zeros = t[2] ? t[2]->data : NULL;
    s.group_index = t[3] ? t[3]->data : NULL;
    if (kt_int4_import_format(&s) == KT_W_NONE)
        return kt_tensor_fail(f->checkpoint, t[1], KT_E_UNSUPPORTED, err,
                              "scales of type %s for groups of %lld, expected BF16 or F16 for "
                              "groups of 32, 64 or 128",
                              kt_dtype_name(t[1]->dtype), (long long)s.group);
    if (kt_int4_import_format(&s) != p->stored)
        return kt_tensor_fail(
            f->checkpoint, t[1], KT_E_MISMATCH, err, "%s, but the first expert has %s",
            kt_weight_format_name(kt_int4_import_format(&s)), kt_weight_format_name(p->stored));
    kt_matrix_source_add_int4(out, &s, t[0], t + 1);
    return KT_OK;
}

/* ---- FP8 ---- */

/* Floats or exponents [n/128, k/128], floats [n], [n, 1] or [1]; exponents [n, k/32]. */
static bool are_scales(const kt_tensor *t, const kt_weight_part *p) {
    const bool is_exponent = t->dtype == KT_DTYPE_U8 || t->dtype == KT_DTYPE_F8_E8M0;
    const int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));

    if (!is_exponent && !kt_dtype_is_float(t->dtype)) return false;
    if (p->encoding == KT_STORED_MXFP8)
        return is_exponent && p->k % 32 == 0 && count == p->n * (p->k / 32);
    if (p->encoding == KT_STORED_FP8_BLOCK)
        return count == (p->n + 127) / 128 * ((p->k + 127) / 128);
    return count == p->n || count == 1;
}

static kt_status add_fp8(kt_weight_finder *f, const kt_weight_part *p, const char *matrix,
                         kt_matrix_source *out, kt_err *err) {
    const char *want = p->encoding == KT_STORED_MXFP8 ? "exponents per 32 inputs (U8, F8_E8M0)"
                       : p->encoding == KT_STORED_FP8_BLOCK ? "one per 128 x 128"
                                                            : "floats, one per row";
    const kt_tensor *t, *scale;

    KT_TRY(need_part(f, matrix, "weight", p->n, p->k, &t, err));
    if (t->dtype != KT_DTYPE_F8_E4M3)
        return kt_tensor_fail(f->checkpoint, t, KT_E_MISMATCH, err,
                              "dtype %s, but the first expert has F8_E4M3",
                              kt_dtype_name(t->dtype));
    scale = kt_fp8_scales(f->checkpoint, matrix);
    if (!scale)
        return kt_tensor_fail(f->checkpoint, t, KT_E_NOT_FOUND, err,
                              "F8_E4M3 without '%.100s.weight_scale'", matrix);
    f->used[scale - kt_checkpoint_at(f->checkpoint, 0)] = 1;
    if (are_scales(scale, p)) {
        kt_matrix_source_add_fp8(out, t, scale, p->stored);
        return KT_OK;
    }
    return kt_tensor_fail(f->checkpoint, scale, KT_E_MISMATCH, err,
                          "%zu scales of type %s for %lld x %lld weights, expected %s",
                          scale->bytes / kt_dtype_bytes(scale->dtype), kt_dtype_name(scale->dtype),
                          (long long)p->n, (long long)p->k, want);
}

/* ---- MXFP4 ---- */

static kt_status need_bytes(kt_weight_finder *f, const char *name, int rank, const int64_t *shape,
                            bool is_exponent, const kt_tensor **out, kt_err *err) {
    KT_TRY(need(f, name, rank, shape, out, err));
    if ((*out)->dtype == KT_DTYPE_U8 ||
        (*out)->dtype == (is_exponent ? KT_DTYPE_F8_E8M0 : KT_DTYPE_I8))
        return KT_OK;
    return kt_tensor_fail(f->checkpoint, *out, KT_E_UNSUPPORTED, err, "dtype %s, expected U8%s",
                          kt_dtype_name((*out)->dtype), is_exponent ? " or F8_E8M0" : "");
}

static kt_status need_blocks_of_32(const char *matrix, int64_t k, kt_err *err) {
    if (k % 32 == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "'%.200s': MXFP4 rows of %lld inputs, expected a multiple of 32", matrix,
                   (long long)k);
}

/* A matrix of its own: weight_packed with weight_scale, or weight with scale. */
static kt_status add_mxfp4(kt_weight_finder *f, const kt_weight_part *p, const char *matrix,
                           kt_matrix_source *out, kt_err *err) {
    const bool is_packed = has_part(f, matrix, "weight_packed");
    const int64_t shape[2] = {p->n, p->k / 2}, blocks[2] = {p->n, p->k / 32};
    const kt_tensor *codes, *exponents;
    char name[NAME_BYTES];

    KT_TRY(need_blocks_of_32(matrix, p->k, err));
    snprintf(name, sizeof name, "%.200s.%s", matrix, is_packed ? "weight_packed" : "weight");
    KT_TRY(need_bytes(f, name, 2, shape, false, &codes, err));
    snprintf(name, sizeof name, "%.200s.%s", matrix, is_packed ? "weight_scale" : "scale");
    KT_TRY(need_bytes(f, name, 2, blocks, true, &exponents, err));
    kt_matrix_source_add_fp4(out, KT_W_MXFP4, codes, exponents, 0, 1, p->n, p->k);
    return KT_OK;
}

/* ---- NVFP4 ---- */

/* modelopt multiplies by weight_scale_2, compressed-tensors divides by weight_global_scale: the
 * factor is then its inverse, rounded once. */
static kt_status need_factor(kt_weight_finder *f, const char *matrix, float *out, kt_err *err) {
    const bool is_divisor = !has_part(f, matrix, "weight_scale_2");
    const kt_tensor *t;
    char name[NAME_BYTES];
    float stored;

    snprintf(name, sizeof name, "%.200s.%s", matrix,
             is_divisor ? "weight_global_scale" : "weight_scale_2");
    t = kt_checkpoint_find(f->checkpoint, name);
    if (!t)
        return kt_fail(err, KT_E_NOT_FOUND,
                       "tensor '%.200s': NVFP4 without '%.200s' or '%.200s.weight_scale_2'", matrix,
                       name, matrix);
    f->used[t - kt_checkpoint_at(f->checkpoint, 0)] = 1;
    if (!kt_dtype_is_float(t->dtype) || t->bytes != kt_dtype_bytes(t->dtype))
        return kt_tensor_fail(f->checkpoint, t, KT_E_UNSUPPORTED, err,
                              "%zu numbers of type %s, expected one of F32, F16 or BF16",
                              t->bytes / kt_dtype_bytes(t->dtype), kt_dtype_name(t->dtype));
    kt_tensor_read_f32(t, 0, 1, &stored);
    *out = is_divisor ? (float)(1 / (double)stored) : stored;
    if (isfinite(stored) && isfinite(*out)) return KT_OK;
    return kt_tensor_fail(f->checkpoint, t, KT_E_FORMAT, err, "is %g, expected a finite number%s",
                          (double)stored, is_divisor ? " other than 0" : "");
}

/* What scales activations to four bits, which are not made here: known, but not needed. */
static void skip_input_scales(kt_weight_finder *f, const char *matrix) {
    static const char *const names[] = {"input_scale", "input_global_scale"};
    char name[NAME_BYTES];

    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const kt_tensor *t;
        snprintf(name, sizeof name, "%.200s.%s", matrix, names[i]);
        t = kt_checkpoint_find(f->checkpoint, name);
        if (t) f->used[t - kt_checkpoint_at(f->checkpoint, 0)] = 1;
    }
}

static kt_status add_nvfp4(kt_weight_finder *f, const kt_weight_part *p, const char *matrix,
                           kt_matrix_source *out, kt_err *err) {
    const bool is_packed = has_part(f, matrix, "weight_packed");
    const kt_tensor *codes, *scales;
    float factor = 0;

    if (has_part(f, matrix, "pre_quant_scale"))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "'%.200s.pre_quant_scale' scales inputs (NVFP4_AWQ), expected plain NVFP4",
                       matrix);
    if (p->k % 32)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "'%.200s': NVFP4 rows of %lld inputs, expected a multiple of 32", matrix,
                       (long long)p->k);
    KT_TRY(
        need_part(f, matrix, is_packed ? "weight_packed" : "weight", p->n, p->k / 2, &codes, err));
    if (codes->dtype != KT_DTYPE_U8 && codes->dtype != KT_DTYPE_I8)
        return kt_tensor_fail(f->checkpoint, codes, KT_E_MISMATCH, err,
                              "dtype %s, expected U8 or I8 as the first expert of NVFP4 has",
                              kt_dtype_name(codes->dtype));
    KT_TRY(need_part(f, matrix, "weight_scale", p->n, p->k / 16, &scales, err));
    if (scales->dtype != KT_DTYPE_F8_E4M3)
        return kt_tensor_fail(f->checkpoint, scales, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected F8_E4M3", kt_dtype_name(scales->dtype));
    KT_TRY(need_factor(f, matrix, &factor, err));
    skip_input_scales(f, matrix);
    kt_matrix_source_add_fp4(out, KT_W_NVFP4, codes, scales, 0, 1, p->n, p->k);
    kt_matrix_source_times(out, factor);
    return KT_OK;
}

/* ---- MXFP4 of stacked experts ---- */

/* All experts in X_blocks [count, rows, k / 32, 16] and X_scales [count, rows, k / 32]; of gate and
 * up rows 2i and 2i + 1. */
static kt_status fused_mxfp4(kt_weight_finder *f, const kt_weight *w, int part, int64_t expert,
                             kt_matrix_source *out, kt_err *err) {
    const kt_weight_part *p = &w->part[part];
    const int64_t step = part < 2 ? 2 : 1,
                  first = part < 2 ? 2 * expert * p->n + part : expert * p->n;
    const int64_t shape[4] = {w->count, step * p->n, p->k / 32, 16};
    const kt_tensor *codes, *exponents;
    kt_weight named = *w;
    char matrix[NAME_BYTES], name[NAME_BYTES];

    named.part[0].name = part < 2 ? w->fused : w->fused_down;
    kt_weight_name(f->graph, &named, 0, 0, false, matrix, sizeof matrix);
    KT_TRY(need_blocks_of_32(matrix, p->k, err));
    snprintf(name, sizeof name, "%.200s_blocks", matrix);
    KT_TRY(need_bytes(f, name, 4, shape, false, &codes, err));
    snprintf(name, sizeof name, "%.200s_scales", matrix);
    KT_TRY(need_bytes(f, name, 3, shape, true, &exponents, err));
    kt_matrix_source_add_fp4(out, KT_W_MXFP4, codes, exponents, first, step, p->n, p->k);
    return KT_OK;
}

/* ---- plain floats and blocks ---- */

/* The factor that NVFP4 blocks of a matrix, or of matrix `index` of a stack, have beside them. */
static kt_status add_factor(kt_weight_finder *f, const kt_tensor *blocks, const char *matrix,
                            int64_t index, kt_matrix_source *out, kt_err *err) {
    const int64_t stack = blocks->rank == 3 ? blocks->shape[0] : 1;
    const kt_tensor *t;
    char name[NAME_BYTES];
    float factor;

    snprintf(name, sizeof name, "%.200s.scale", matrix);
    t = kt_checkpoint_find(f->checkpoint, name);
    if (blocks->blocks != KT_W_NVFP4 || !t) return KT_OK;
    f->used[t - kt_checkpoint_at(f->checkpoint, 0)] = 1;
    if (t->dtype != KT_DTYPE_F32 || t->rank != 1 || (t->shape[0] != 1 && t->shape[0] != stack))
        return kt_tensor_fail(
            f->checkpoint, t, KT_E_UNSUPPORTED, err,
            "%lld numbers of type %s beside NVFP4 blocks, expected 1 or %lld, F32",
            (long long)(t->rank > 0 ? t->shape[0] : 0), kt_dtype_name(t->dtype), (long long)stack);
    kt_tensor_read_f32(t, t->shape[0] > 1 ? index : 0, 1, &factor);
    if (!isfinite(factor))
        return kt_tensor_fail(f->checkpoint, t, KT_E_FORMAT, err,
                              "number %lld is %g, expected finite",
                              (long long)(t->shape[0] > 1 ? index : 0), (double)factor);
    kt_matrix_source_times(out, factor);
    return KT_OK;
}

/* A tensor of its own, or matrix `index` of a stack of `count`. */
static kt_status add_rows(kt_weight_finder *f, const kt_weight_part *p, const char *matrix,
                          int64_t index, int64_t count, kt_matrix_source *out, kt_err *err) {
    const int64_t shape[3] = {count, p->n, p->k};
    const bool is_stack = count > 0;
    const kt_tensor *t;
    char name[NAME_BYTES];

    snprintf(name, sizeof name, "%.200s.weight", matrix);
    KT_TRY(need(f, name, is_stack ? 3 : 2, is_stack ? shape : shape + 1, &t, err));
    if (t->blocks == KT_W_NONE && !kt_dtype_is_float(t->dtype))
        return kt_tensor_fail(f->checkpoint, t, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected BF16, F16 or F32", kt_dtype_name(t->dtype));
    kt_matrix_source_add(out, t, index * p->n, p->n);
    return add_factor(f, t, matrix, index, out, err);
}

static kt_status fused_expert(kt_weight_finder *f, const kt_weight *w, int part, int64_t expert,
                              kt_matrix_source *out, kt_err *err) {
    const int64_t gate_up[3] = {w->count, 2 * w->n, w->k}, down[3] = {w->count, w->k, w->n};
    const int64_t gate_up_turned[3] = {w->count, w->k, 2 * w->n};
    const int64_t down_turned[3] = {w->count, w->n, w->k};
    kt_weight named = *w;
    char name[NAME_BYTES];
    const kt_tensor *t;

    const bool is_turned = w->is_fused_transposed && !f->graph->is_gguf;

    named.part[0].name = part < 2 ? w->fused : w->fused_down;
    kt_weight_name(f->graph, &named, 0, 0, false, name, sizeof name);
    KT_TRY(need(f, name, 3,
                is_turned  ? part < 2 ? gate_up_turned : down_turned
                : part < 2 ? gate_up
                           : down,
                &t, err));
    if (t->blocks == KT_W_NONE && !kt_dtype_is_float(t->dtype))
        return kt_tensor_fail(f->checkpoint, t, KT_E_UNSUPPORTED, err,
                              "dtype %s, expected BF16, F16 or F32", kt_dtype_name(t->dtype));
    if (is_turned) {
        kt_matrix_source_add_turned(out, t, part < 2 ? part : 0, part < 2 ? 2 : 1, w->part[part].n,
                                    expert * w->part[part].k, w->part[part].k);
        return KT_OK;
    }
    kt_matrix_source_add(out, t, part < 2 ? (2 * expert + part) * w->n : expert * w->k,
                         part < 2 ? w->n : w->k);
    if (strlen(name) > 7 && strcmp(name + strlen(name) - 7, ".weight") == 0)
        name[strlen(name) - 7] = '\0';
    return add_factor(f, t, name, expert, out, err);
}

static kt_status add(kt_weight_finder *f, const kt_weight *w, int part, int64_t expert,
                     kt_matrix_source *out, kt_err *err) {
    const kt_weight_part *p = &w->part[part];
    const bool is_routed = w->kind == KT_WEIGHT_EXPERTS && w->use == KT_USE_EXPERTS;
    char matrix[NAME_BYTES];

    if (w->is_fused && p->encoding == KT_STORED_MXFP4)
        return fused_mxfp4(f, w, part, expert, out, err);
    if (w->is_fused && (part < 2 || !f->graph->is_gguf))
        return fused_expert(f, w, part, expert, out, err);
    kt_weight_name(f->graph, w, part, expert, false, matrix, sizeof matrix - 24);
    switch (p->encoding) {
    case KT_STORED_MXFP4: return add_mxfp4(f, p, matrix, out, err);
    case KT_STORED_NVFP4: return add_nvfp4(f, p, matrix, out, err);
    case KT_STORED_INT4: return add_int4(f, p, matrix, out, err);
    case KT_STORED_FP8_BLOCK:
    case KT_STORED_MXFP8:
    case KT_STORED_FP8_CHANNEL: return add_fp8(f, p, matrix, out, err);
    default:
        return is_routed && f->graph->is_gguf ? add_rows(f, p, matrix, expert, w->count, out, err)
                                              : add_rows(f, p, matrix, 0, 0, out, err);
    }
}

/* ---- importance ---- */

/* Of a matrix's inputs; its first part stands for the others, which have the same. What was looked
 * at is the model: of its draft head there may be none. */
static kt_status find_importance(const kt_weight_finder *f, const kt_weight *w, int part,
                                 int64_t expert, kt_matrix_source *s, kt_err *err) {
    const int64_t shape[1] = {s->k};
    const kt_tensor *t;
    const float *x;
    char name[NAME_BYTES];

    if (!f->importance) return KT_OK;
    kt_weight_name(f->graph, w, part, expert, true, name, sizeof name - 8);
    strcat(name, ".weight");
    if (kt_weight_is_drafting(f->graph, w) && !kt_checkpoint_find(f->importance, name))
        return KT_OK;
    KT_TRY(kt_checkpoint_need(f->importance, name, 1, shape, &t, err));
    if (t->dtype != KT_DTYPE_F32 || (uintptr_t)t->data % sizeof(float) != 0)
        return kt_tensor_fail(f->importance, t, KT_E_FORMAT, err, "dtype %s, expected F32, aligned",
                              kt_dtype_name(t->dtype));
    x = (const float *)(const void *)t->data;
    for (int64_t i = 0; i < s->k; i++)
        if (!(x[i] >= 0 && isfinite(x[i])))
            return kt_tensor_fail(f->importance, t, KT_E_FORMAT, err,
                                  "input %lld has %g, expected a mean of squares", (long long)i,
                                  x[i]);
    s->importance = x;
    return KT_OK;
}

kt_status kt_weight_source(kt_weight_finder *f, const kt_weight *w, int first, int n,
                           int64_t expert, kt_matrix_source *out, kt_err *err) {
    *out = (kt_matrix_source){.allows_nonfinite = f->allows_nonfinite};
    for (int i = 0; i < n; i++) KT_TRY(add(f, w, first + i, expert, out, err));
    return find_importance(f, w, first, expert, out, err);
}

kt_status kt_weight_head_source(kt_weight_finder *f, const kt_weight *w, int64_t head,
                                kt_matrix_source *out, kt_err *err) {
    const int64_t rows = w->is_transposed ? w->k : w->n, k = w->is_transposed ? w->n : w->k;
    kt_weight whole = *w;
    char matrix[NAME_BYTES];

    *out = (kt_matrix_source){.allows_nonfinite = f->allows_nonfinite};
    whole.part[0].n = w->head_rows ? w->count * w->head_rows : rows;
    whole.part[0].k = k;
    if (!w->head_rows) {
        kt_weight_name(f->graph, w, 0, 0, false, matrix, sizeof matrix - 24);
        return add_rows(f, &whole.part[0], matrix, head, w->count, out, err);
    }
    KT_TRY(add(f, &whole, 0, 0, out, err));
    out->piece[0].first_row = head * w->head_rows + w->head_at;
    out->piece[0].rows = out->rows = rows;
    return KT_OK;
}

kt_status kt_weight_check(kt_weight_finder *f, const kt_weight *w, kt_quant quant, kt_err *err) {
    const kt_tensor *t;
    kt_matrix_source source;
    kt_run runs[KT_WEIGHT_PARTS];
    const int n = kt_weight_runs(w, quant, runs);

    if (n == 0) return kt_weight_tensor(f, w, &t, err);
    for (int64_t e = 0; w->kind == KT_WEIGHT_HEADS && e < w->count; e++)
        KT_TRY(kt_weight_head_source(f, w, e, &source, err));
    if (w->kind == KT_WEIGHT_HEADS) return KT_OK;
    for (int64_t e = 0; e < w->count; e++) {
        for (int i = 0; w->kind == KT_WEIGHT_EXPERTS && i < w->n_parts; i++)
            KT_TRY(kt_weight_source(f, w, i, 1, e, &source, err));
        for (int r = 0; w->kind != KT_WEIGHT_EXPERTS && r < n; r++)
            KT_TRY(kt_weight_source(f, w, runs[r].first, runs[r].n, e, &source, err));
    }
    return KT_OK;
}

void kt_weight_finder_report(const kt_weight_finder *f, const kt_log *log) {
    size_t n = kt_checkpoint_count(f->checkpoint), unused = 0;
    const char *first = NULL;

    for (size_t i = 0; i < n; i++) {
        if (f->used[i]) continue;
        if (!first) first = kt_checkpoint_at(f->checkpoint, i)->name;
        unused++;
    }
    if (unused)
        kt_log_write(log, KT_LOG_WARN, "loader",
                     "%zu tensors of the checkpoint are not part of %s and are ignored, first '%s'",
                     unused, f->graph->family->name, first);
}

#define GIB (1024.0 * 1024.0 * 1024.0)

/* Few bits of one kind as those of another: both losses remain. */
static void tell_second_loss(const kt_graph *g, kt_quant quant, const kt_log *log) {
    const kt_weight *first = NULL;
    int part_of_first = 0, n = 0;

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const bool is_matrix = w->kind == KT_WEIGHT_EXPERTS || w->kind == KT_WEIGHT_MATRIX;
        bool is_changed = false;
        for (int p = 0; is_matrix && kt_weight_is_quantised(w) && p < w->n_parts; p++) {
            const kt_weight_format to = kt_weight_becomes(w, p, quant);
            if (to == w->part[p].stored || to == KT_W_BF16) continue;
            if (!first) part_of_first = p;
            if (!first) first = w;
            is_changed = true;
        }
        n += is_changed;
    }
    if (n)
        kt_log_write(
            log, KT_LOG_WARN, "loader",
            "%d weights are stored in few bits and are encoded anew (%s of %s as %s): what "
            "that loses comes on top; --weights native keeps them exactly",
            n, kt_weight_format_name(first->part[part_of_first].stored), first->role,
            kt_weight_format_name(kt_weight_becomes(first, part_of_first, quant)));
}

/* Experts whose integers become BF16, because floats stand on the other side of their kernels. */
static void tell_meetings(const kt_graph *g, const kt_log *log) {
    const kt_weight *first = NULL;
    double bf16 = 0, stored = 0;
    int n = 0, part = 0;

    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        bool is_changed = false;
        for (int p = 0; w->kind == KT_WEIGHT_EXPERTS && p < w->n_parts; p++) {
            const kt_format *from = kt_format_find(w->part[p].stored);
            const double weights = (double)(w->count * w->n * w->k) / 8;
            if (!from || from->bits >= 16 || kt_weight_becomes(w, p, KT_QUANT_NATIVE) != KT_W_BF16)
                continue;
            if (!first) first = w, part = p;
            is_changed = true;
            stored += weights * from->bits;
            bf16 += weights * 16;
        }
        n += is_changed;
    }
    if (n)
        kt_log_write(log, KT_LOG_WARN, "loader",
                     "gate, up and down of %d layers are stored in formats that no kernels read "
                     "together (%s of %s beside floats): as BF16, %.2f GiB instead of %.2f",
                     n, kt_weight_format_name(first->part[part].stored), first->role, bf16 / GIB,
                     stored / GIB);
}

void kt_weights_tell_changes(const kt_graph *g, kt_quant quant, const kt_log *log) {
    double widened = 0, stored = 0;
    int n_pairs = 0, n_floats = 0, n_nvfp4 = 0, n_ragged = 0;

    if (quant != KT_QUANT_NATIVE) {
        tell_second_loss(g, quant, log);
        return;
    }
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const bool is_pair = w->kind == KT_WEIGHT_EXPERTS &&
                             kt_weight_becomes(w, 0, KT_QUANT_NATIVE) == KT_W_INT8_G16M;
        const bool is_matrix = w->kind == KT_WEIGHT_EXPERTS || w->kind == KT_WEIGHT_MATRIX;
        n_floats += is_matrix && w->part[0].stored == KT_W_F32;
        n_nvfp4 += w->part[0].encoding == KT_STORED_NVFP4;
        for (int p = 0; p < w->n_parts; p++)
            n_ragged += w->part[p].encoding == KT_STORED_NVFP4 &&
                        w->part[p].stored == KT_W_INT8_G16M && w->kind != KT_WEIGHT_HEADS;
        if (!is_pair || w->part[0].stored == KT_W_INT8_G16M) continue;
        n_pairs++;
        for (int p = 0; p < 2; p++) {
            const double weights = (double)(w->count * w->n * w->k) / 8;
            stored += weights * kt_format_find(w->part[p].stored)->bits;
            widened += weights * kt_format_find(KT_W_INT8_G16M)->bits;
        }
    }
    if (n_pairs)
        kt_log_write(log, KT_LOG_WARN, "loader",
                     "gate and up of %d layers are stored in two formats, which no kernel reads "
                     "together: loaded exactly as w8g16m, %.2f GiB instead of %.2f",
                     n_pairs, widened / GIB, stored / GIB);
    if (n_nvfp4)
        kt_log_write(log, KT_LOG_INFO, "loader",
                     "%d weights are stored as NVFP4: codes, scales and factors are kept as they "
                     "are; a divisor (weight_global_scale) becomes a factor, rounded once to F32",
                     n_nvfp4);
    if (n_ragged)
        kt_log_write(log, KT_LOG_WARN, "loader",
                     "%d matrices of NVFP4 have rows that are no multiple of 64 inputs: loaded as "
                     "w8g16m, 12 bits a weight instead of 4.5",
                     n_ragged);
    tell_meetings(g, log);
    if (n_floats)
        kt_log_write(log, KT_LOG_WARN, "loader", "%d matrices are stored as F32 and become BF16",
                     n_floats);
}
