/* How a matrix is stored, told by the tensors that are there (models.md 9): each decides for
 * itself, lists of module names are not asked. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "dispatch/model/build_impl.h"

enum { NAME_BYTES = 240 };

static const kt_tensor *find(const kt_build *b, const char *name, const char *suffix) {
    char full[NAME_BYTES];

    snprintf(full, sizeof full, "%.200s%.30s", name, suffix);
    return kt_checkpoint_find(b->checkpoint, full);
}

static kt_weight_format float_format(kt_dtype dtype) {
    return dtype == KT_DTYPE_F16 ? KT_W_F16 : dtype == KT_DTYPE_F32 ? KT_W_F32 : KT_W_BF16;
}

/* Groups are counted by the scales, zero points by their presence. */
static void detect_int4(const kt_build *b, const char *name, kt_int4_packing packing,
                        kt_weight_part *p) {
    const bool is_rows = packing == KT_INT4_ROWS;
    const kt_tensor *scales = find(b, name, is_rows ? ".weight_scale" : ".scales");
    const kt_tensor *zeros = find(b, name, is_rows ? ".weight_zero_point" : ".qzeros");
    kt_int4_source s = {.packing = packing, .zeros = zeros};
    const int64_t groups = scales && scales->rank == 2 ? scales->shape[is_rows] : 0;

    p->encoding = KT_STORED_INT4;
    if (groups > 0 && p->k % groups == 0) s.group = p->k / groups;
    if (scales) s.scale_type = float_format(scales->dtype);
    p->stored = kt_int4_import_format(&s); /* KT_W_NONE: the loader says why */
}

const kt_tensor *kt_fp8_scales(const kt_checkpoint *c, const char *matrix) {
    static const char *const ends[] = {".weight_scale_inv", ".weight_scale", ".scale"};
    char full[NAME_BYTES];

    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const kt_tensor *t;
        snprintf(full, sizeof full, "%.200s%s", matrix, ends[i]);
        t = kt_checkpoint_find(c, full);
        if (t) return t;
    }
    return NULL;
}

/* Inputs or outputs that share one of `scales` scales: the next of 1, 32 and 128, or all. */
static int64_t shared_by(int64_t count, int64_t scales) {
    const int64_t least = scales > 0 ? (count + scales - 1) / scales : count;

    return least <= 1 ? 1 : least <= 32 ? 32 : 128;
}

kt_encoding kt_fp8_encoding(const kt_tensor *scales, int64_t n, int64_t k) {
    const bool is_matrix = scales && scales->rank == 2;
    const bool is_exponent =
        scales && (scales->dtype == KT_DTYPE_U8 || scales->dtype == KT_DTYPE_F8_E8M0);
    bool is_inverse;

    if (is_matrix && scales->shape[0] == n && (scales->shape[1] > 1 || is_exponent) &&
        shared_by(k, scales->shape[1]) == 32)
        return KT_STORED_MXFP8;
    is_inverse = scales && strstr(scales->name, ".weight_scale_inv") != NULL;
    if (is_inverse || (is_matrix && is_exponent) ||
        (is_matrix && scales->shape[0] > 1 && scales->shape[1] > 1))
        return KT_STORED_FP8_BLOCK;
    return KT_STORED_FP8_CHANNEL;
}

/* One scale per 32 inputs of a row, per 128 x 128, per channel or (which is the same with equal
 * scales) per tensor: by the shape of the scales. */
static void detect_fp8(const kt_build *b, const char *name, kt_weight_part *p) {
    p->encoding = kt_fp8_encoding(kt_fp8_scales(b->checkpoint, name), p->n, p->k);
    p->stored = p->encoding == KT_STORED_MXFP8       ? KT_W_MXFP8
                : p->encoding == KT_STORED_FP8_BLOCK ? KT_W_FP8_B128
                                                     : KT_W_FP8_CHANNEL;
}

static bool has_bytes(const kt_tensor *t) {
    return t && (t->dtype == KT_DTYPE_U8 || t->dtype == KT_DTYPE_I8) && t->blocks == KT_W_NONE;
}

/* compressed-tensors' "mxfp4-pack-quantized"; or bytes with exponents beside them. */
static bool has_mxfp4(const kt_build *b, const char *name) {
    return has_bytes(find(b, name, ".weight_packed")) ||
           (has_bytes(find(b, name, ".weight")) && find(b, name, ".scale"));
}

/* The same codes with E4M3 scales beside them (modelopt, or compressed-tensors'
 * "nvfp4-pack-quantized"); the factor tells them where the scales are missing. */
static bool has_nvfp4(const kt_build *b, const char *name) {
    const kt_tensor *scales = find(b, name, ".weight_scale");

    if (!has_bytes(find(b, name, ".weight_packed")) && !has_bytes(find(b, name, ".weight")))
        return false;
    return (scales && scales->dtype == KT_DTYPE_F8_E4M3) || find(b, name, ".weight_scale_2") ||
           find(b, name, ".weight_global_scale");
}

static void detect_part(const kt_build *b, const kt_weight *w, int part, kt_weight_part *p) {
    char name[NAME_BYTES];
    const kt_tensor *t;

    kt_weight_name(b->graph, w, part, 0, false, name, sizeof name - 32);
    if (has_nvfp4(b, name)) {
        p->encoding = KT_STORED_NVFP4;
        p->stored = p->k % 64 ? KT_W_INT8_G16M : KT_W_NVFP4; /* whole blocks, or what holds them */
        return;
    }
    if (has_mxfp4(b, name)) {
        p->encoding = KT_STORED_MXFP4;
        p->stored = KT_W_MXFP4;
        return;
    }
    if (find(b, name, ".weight_packed")) {
        detect_int4(b, name, KT_INT4_ROWS, p);
        return;
    }
    if (find(b, name, ".qweight")) {
        detect_int4(b, name, b->graph->packing, p);
        return;
    }
    t = find(b, name, ".weight");
    if (!t) return;
    p->encoding = t->blocks != KT_W_NONE ? KT_STORED_BLOCKS : KT_STORED_PLAIN;
    p->stored = t->blocks != KT_W_NONE ? t->blocks : float_format(t->dtype);
    if (t->dtype == KT_DTYPE_F8_E4M3) detect_fp8(b, name, p);
}

/* One matrix holds all heads and, of each, more rows than these; scales are counted in its sizes. */
static void detect_heads(const kt_build *b, kt_weight *w) {
    kt_weight_part whole = w->part[0];

    whole.n = w->count * w->head_rows;
    whole.k = w->is_transposed ? w->n : w->k;
    detect_part(b, w, 0, &whole);
    w->part[0].encoding = whole.encoding;
    w->part[0].stored = whole.stored;
}

/* All experts in one tensor, as newer safetensors have them; MXFP4 keeps codes and scales in two. */
static void detect_fused(const kt_build *b, kt_weight *w) {
    kt_weight probe = *w;
    char name[NAME_BYTES];
    const kt_tensor *t;
    bool is_mxfp4;

    probe.part[0].name = w->fused;
    kt_weight_name(b->graph, &probe, 0, 0, false, name, sizeof name);
    if (!*name) return;
    t = kt_checkpoint_find(b->checkpoint, name);
    is_mxfp4 = !t && find(b, name, "_blocks");
    if (!t && !is_mxfp4) return;
    w->is_fused = true;
    for (int i = 0; i < (b->graph->is_gguf ? 2 : w->n_parts); i++) {
        kt_weight_part *p = &w->part[i];
        if (is_mxfp4) {
            p->encoding = KT_STORED_MXFP4;
            p->stored = KT_W_MXFP4;
        } else {
            p->encoding = t->blocks != KT_W_NONE ? KT_STORED_BLOCKS : KT_STORED_PLAIN;
            p->stored = t->blocks != KT_W_NONE ? t->blocks : float_format(t->dtype);
        }
    }
}

static kt_weight_format declared(const kt_build *b, const kt_weight *w) {
    if (w->kind == KT_WEIGHT_ROUTER || w->kind == KT_WEIGHT_TABLE || w->use == KT_USE_HEAD)
        return b->declared.floats;
    if (w->use == KT_USE_FFN) return b->declared.ffn;
    return w->use == KT_USE_LINEAR ? b->declared.linear : b->declared.experts;
}

void kt_build_detect(kt_build *b, kt_weight *w) {
    for (int i = 0; i < w->n_parts; i++) {
        w->part[i].stored = declared(b, w);
        if (!b->checkpoint || w->kind == KT_WEIGHT_VECTOR) continue;
        if (w->head_rows)
            detect_heads(b, w);
        else
            detect_part(b, w, i, &w->part[i]);
    }
    if (b->checkpoint && w->kind == KT_WEIGHT_EXPERTS) detect_fused(b, w);
}
