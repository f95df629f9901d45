/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/loader/lowbit_source.h"

#include "kernels/formats/lowbit.h"

/* Inputs decoded at a time to become floats: whole blocks of every type. */
enum { CHUNK = 4096, GROUP = 16 };

size_t kt_lowbit_row_bytes(const kt_tensor *t, int64_t k) {
    const kt_lowbit_type *type = kt_lowbit_of(t->lowbit);

    return (size_t)(k / type->inputs) * (size_t)type->bytes;
}

void kt_lowbit_read_row(const kt_tensor *t, int64_t row, int64_t k, float *out) {
    const uint8_t *blocks = t->data + (size_t)row * kt_lowbit_row_bytes(t, k);
    int8_t code[CHUNK];
    float terms[2 * CHUNK / GROUP];

    for (int64_t at = 0; at < k; at += CHUNK) {
        const int64_t n = k - at < CHUNK ? k - at : CHUNK;
        kt_lowbit_rows(t->lowbit, blocks + kt_lowbit_row_bytes(t, at), 1, n, code, terms);
        for (int64_t i = 0; i < n; i++) out[at + i] = terms[i / GROUP * 2] * (float)code[i];
    }
}

void kt_lowbit_encode(const kt_matrix_source *s, int64_t first, int64_t begin, int64_t end,
                      void *data, void *scales) {
    int64_t base = 0;

    for (int i = 0; i < s->n_pieces; base += s->piece[i++].rows) {
        const kt_tensor *t = s->piece[i].tensor;
        const int64_t from = begin > base ? begin : base, stop = base + s->piece[i].rows;
        const int64_t to = end < stop ? end : stop;
        if (from >= to) continue;
        kt_lowbit_rows(t->lowbit,
                       t->data + (size_t)(s->piece[i].first_row + from - base) *
                                     kt_lowbit_row_bytes(t, s->k),
                       to - from, s->k, (int8_t *)data + (from - first) * s->k,
                       (float *)scales + (from - first) * (s->k / GROUP) * 2);
    }
}
