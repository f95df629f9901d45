/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/synthetic.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/iq1.h"

enum { TABLE = 4096 }; /* draws to pick from; a power of two */

/* Picks from a table of normal draws: twelve bits each, so one random word serves five. */
typedef struct picker {
    kt_rng rng;
    uint64_t bits;
    int left;
} picker;

static unsigned pick(picker *p) {
    unsigned i;
    if (p->left == 0) {
        p->bits = kt_rng_u64(&p->rng);
        p->left = 5;
    }
    i = (unsigned)p->bits & (TABLE - 1);
    p->bits >>= 12;
    p->left--;
    return i;
}

static void normal_table(float *table, kt_rng *rng) {
    for (int i = 0; i < TABLE; i++) table[i] = kt_rng_normal(rng);
}

static int clamp_code(float x, int limit) {
    int v = (int)lrintf(x);
    return v > limit ? limit : v < -limit ? -limit : v;
}

/* Timing asks for the histogram, not for bytes that never come again; drawing them would take
 * most of a run's packing. No row is as long as this, nor a divisor of it. */
enum { DRAWN = 1000034 };

static void repeat(void *data, size_t bytes) {
    for (size_t at = DRAWN; at < bytes; at += DRAWN)
        memcpy((char *)data + at, data, bytes - at < DRAWN ? bytes - at : DRAWN);
}

static size_t drawn_of(size_t count, size_t item_bytes) {
    return count < DRAWN / item_bytes ? count : DRAWN / item_bytes;
}

static void fill_bf16(uint16_t *w, size_t count, float sigma, const float *table, picker *p) {
    uint16_t value[TABLE];
    for (int i = 0; i < TABLE; i++) value[i] = kt_f32_to_bf16(sigma * table[i]);
    for (size_t i = 0; i < drawn_of(count, 2); i++) w[i] = value[pick(p)];
    repeat(w, 2 * count);
}

/* A row of a few thousand normal weights has its largest near 3.5 sigma. */
static void fill_int8(int8_t *w, size_t count, const float *table, picker *p) {
    int8_t value[TABLE];
    for (int i = 0; i < TABLE; i++) value[i] = (int8_t)clamp_code(table[i] * (127 / 3.5f), 127);
    for (size_t i = 0; i < drawn_of(count, 1); i++) w[i] = value[pick(p)];
    repeat(w, count);
}

/* The largest of a group of 32 is near 2.1 sigma. */
static void fill_int4(uint8_t *w, size_t bytes, const float *table, picker *p) {
    uint8_t value[TABLE];
    for (int i = 0; i < TABLE; i++) value[i] = (uint8_t)(clamp_code(table[i] * (7 / 2.1f), 7) + 8);
    for (size_t i = 0; i < drawn_of(bytes, 1); i++) {
        unsigned low = value[pick(p)];
        w[i] = (uint8_t)(low | (unsigned)value[pick(p)] << 4);
    }
    repeat(w, bytes);
}

/* Formats that come in blocks or as E4M3: random bytes under scales that make weights of about
 * sigma. */
static void fill_bytes(const kt_format *f, kt_synthetic *s, size_t data_bytes, size_t scale_bytes,
                       float sigma, picker *p) {
    /* Typical |scale * code| of random bytes: codes, and for blocks of 256 small scales, are
     * uniform. */
    const float code = f->bits < 5.5 ? 4 : f->bits < 8 ? 12 : 64, unit = f->block == 256 ? 32 : 1;
    uint8_t *bytes = s->data;

    for (size_t i = 0; i < data_bytes; i++) bytes[i] = (uint8_t)pick(p);
    if (f->block_bytes == 0) { /* E4M3; int8 with minima */
        for (size_t i = 0; i < data_bytes; i++) bytes[i] ^= (bytes[i] & 0x7f) == 0x7f;
        for (size_t i = 0; i < scale_bytes / 4; i++) ((float *)s->scales)[i] = sigma / 128;
        return;
    }
    for (size_t b = 0; b < data_bytes; b += (size_t)f->block_bytes) {
        uint16_t d = kt_f32_to_f16(sigma / (code * unit)), m = kt_f32_to_f16(-sigma / unit);
        if (f->d_at >= 0) memcpy(bytes + b + f->d_at, &d, 2);
        if (f->m_at >= 0) memcpy(bytes + b + f->m_at, &m, 2);
        if (f->put_scale) /* where rows have a factor it is what makes them small */
            f->put_scale(bytes + b, b / (size_t)f->block_bytes,
                         scale_bytes ? 1.4 : sigma / (code * unit));
    }
    for (size_t i = 0; i < scale_bytes / 4; i++) ((float *)s->scales)[i] = sigma / code;
}

/* Formats that we encode: rows of normal weights, encoded. */
static kt_status fill_encoded(const kt_format *f, kt_synthetic *s, float sigma, const float *table,
                              picker *p, kt_err *err) {
    const kt_matrix *m = &s->matrix;
    size_t row_data, row_scales;
    float *row = malloc(sizeof *row * (size_t)m->k);

    if (!row) return kt_fail(err, KT_E_NOMEM, "synthetic weights: no memory for a row");
    f->plain_bytes(1, m->k, &row_data, &row_scales);
    for (int64_t r = 0; r < m->n; r++) {
        for (int64_t i = 0; i < m->k; i++) row[i] = sigma * table[pick(p)];
        f->encode_rows(row, 1, m->k, NULL, 0, 1, (char *)s->data + (size_t)r * row_data,
                       (char *)s->scales + (size_t)r * row_scales, NULL);
    }
    free(row);
    return KT_OK;
}

static kt_status fill(const kt_format *f, kt_synthetic *s, uint64_t seed, size_t data_bytes,
                      size_t scale_bytes, kt_err *err) {
    const kt_matrix *m = &s->matrix;
    float table[TABLE], sigma = 1 / sqrtf((float)m->k);
    picker p = {.left = 0};

    kt_rng_seed(&p.rng, seed);
    normal_table(table, &p.rng);
    switch (m->format) {
    case KT_W_BF16: fill_bf16(s->data, data_bytes / 2, sigma, table, &p); break;
    case KT_W_INT8_CHANNEL:
        fill_int8(s->data, data_bytes, table, &p);
        for (size_t i = 0; i < scale_bytes / 4; i++) ((float *)s->scales)[i] = sigma * 3.5f / 127;
        break;
    case KT_W_INT4_G32:
        fill_int4(s->data, data_bytes, table, &p);
        for (size_t i = 0; i < scale_bytes / 2; i++)
            ((uint16_t *)s->scales)[i] = kt_f32_to_bf16(sigma * 2.1f / 7);
        break;
    case KT_W_F32:
        for (size_t i = 0; i < data_bytes / 4; i++) ((float *)s->data)[i] = sigma * table[pick(&p)];
        break;
    default:
        if (f->encode_rows && !f->scale_rows) return fill_encoded(f, s, sigma, table, &p, err);
        fill_bytes(f, s, data_bytes, scale_bytes, sigma, &p);
    }
    return KT_OK;
}

kt_status kt_synthetic_create(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                              kt_synthetic *out, kt_err *err) {
    const kt_format *f = kt_format_find(format);
    kt_synthetic s = {.matrix = {.format = format, .n = n, .k = k}};
    size_t data_bytes, scale_bytes;
    kt_status st;

    memset(out, 0, sizeof *out);
    if (!f)
        return kt_fail(err, KT_E_UNSUPPORTED, "synthetic weights: format %s",
                       kt_weight_format_name(format));
    KT_TRY(kt_format_sizes(f, n, k, &data_bytes, &scale_bytes, err));
    s.data = malloc(data_bytes + 1);
    s.scales = malloc(scale_bytes + 1);
    if (!s.data || !s.scales) {
        kt_synthetic_destroy(&s);
        return kt_fail(err, KT_E_NOMEM, "synthetic weights: no memory for %zu bytes", data_bytes);
    }
    s.matrix.data = s.data;
    s.matrix.scales = scale_bytes ? s.scales : NULL;
    st = fill(f, &s, seed, data_bytes, scale_bytes, err);
    if (st != KT_OK) {
        kt_synthetic_destroy(&s);
        return st;
    }
    *out = s;
    return KT_OK;
}

void kt_synthetic_destroy(kt_synthetic *s) {
    if (!s) return;
    free(s->data);
    free(s->scales);
    memset(s, 0, sizeof *s);
}

void kt_synthetic_rows(float *x, size_t count, uint64_t seed) {
    kt_rng rng;
    kt_rng_seed(&rng, seed);
    for (size_t i = 0; i < count; i++) x[i] = kt_rng_normal(&rng);
}

static kt_status pack_expert(const kt_problem *q, const kt_variant *v, uint64_t seed, void *dst,
                             kt_err *err) {
    kt_synthetic gate = {0}, up = {0}, down = {0};
    kt_status st = kt_synthetic_create(q->weights, q->n, q->k, seed, &gate, err);

    if (st == KT_OK) st = kt_synthetic_create(q->weights, q->n, q->k, seed + 1, &up, err);
    if (st == KT_OK) st = kt_synthetic_create(q->weights, q->k, q->n, seed + 2, &down, err);
    if (st == KT_OK) v->pack_expert(q, &gate.matrix, &up.matrix, &down.matrix, dst);
    kt_synthetic_destroy(&gate);
    kt_synthetic_destroy(&up);
    kt_synthetic_destroy(&down);
    return st;
}

static kt_status pack_gemm(const kt_problem *q, const kt_variant *v, uint64_t seed, void *dst,
                           kt_err *err) {
    kt_synthetic w;
    KT_TRY(kt_synthetic_create(q->weights, q->n, q->k, seed, &w, err));
    v->pack_gemm(q, &w.matrix, dst);
    kt_synthetic_destroy(&w);
    return KT_OK;
}

kt_status kt_synthetic_pack_into(const kt_problem *q, const kt_variant *v, uint64_t seed, void *dst,
                                 kt_err *err) {
    return q->op == KT_OP_MOE_FFN ? pack_expert(q, v, seed, dst, err)
                                  : pack_gemm(q, v, seed, dst, err);
}
