/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/cold.h"

#include <string.h>

#include "base/err.h"
#include "base/numeric.h"

enum { PAGE = 4096, MIB = 1 << 20 };

size_t kt_cold_rotation_bytes(const kt_ceilings *ceilings, size_t llc_bytes) {
    double knee =
        ceilings && ceilings->cache_knee_bytes > 0 ? ceilings->cache_knee_bytes : (double)llc_bytes;
    double want = 4 * knee;
    double cap = (double)kt_memory_available_bytes() / 2;
    if (want < 256.0 * MIB) want = 256.0 * MIB;
    if (want > cap) want = cap;
    return (size_t)want;
}

size_t kt_cold_rotation_of_model(const kt_ceilings *ceilings, size_t llc_bytes,
                                 double model_bytes) {
    size_t cold = kt_cold_rotation_bytes(ceilings, llc_bytes);
    return model_bytes < (double)cold ? (size_t)model_bytes : cold;
}

/* How many slots, how far apart; *total = bytes of all. */
static kt_status lay_out(size_t slot_bytes, int64_t min_slots, size_t rotation_bytes,
                         kt_cold_bank *b, uint64_t *total, kt_err *err) {
    *b = (kt_cold_bank){.slot_bytes = slot_bytes};
    if (slot_bytes == 0 || slot_bytes > SIZE_MAX / 2)
        return kt_fail(err, KT_E_INVALID, "cold pool: slots of %zu bytes", slot_bytes);
    b->stride = (slot_bytes + PAGE - 1) / PAGE * PAGE;
    b->n_slots = (int64_t)((rotation_bytes + b->stride - 1) / b->stride);
    if (b->n_slots < min_slots) b->n_slots = min_slots;
    if (b->n_slots < 2 && b->stride < rotation_bytes)
        b->n_slots = 2; /* else one pass is the rotation */
    if (b->n_slots < 1) b->n_slots = 1;
    if (kt_mul_overflow((uint64_t)b->n_slots, b->stride, total)) *total = UINT64_MAX;
    return KT_OK;
}

kt_status kt_cold_bank_create(const void *content, size_t slot_bytes, int64_t min_slots,
                              size_t rotation_bytes, kt_cold_bank *out, kt_err *err) {
    kt_cold_bank b;
    uint64_t total = 0;

    memset(out, 0, sizeof *out);
    KT_TRY(lay_out(slot_bytes, min_slots, rotation_bytes, &b, &total, err));
    if (total > kt_memory_available_bytes() / 2)
        return kt_fail(err, KT_E_NOMEM,
                       "cold pool: %lld slots of %zu bytes exceed half of the available memory "
                       "(%llu MiB)",
                       (long long)b.n_slots, b.stride,
                       (unsigned long long)(kt_memory_available_bytes() / 2 / MIB));
    KT_TRY(kt_buffer_create((size_t)total, KT_PAGES_ADVISED, -1, &b.buffer, err));
    *out = b;
    if (!content) return KT_OK;
    memcpy(out->buffer.data, content, slot_bytes);
    kt_cold_bank_copy(out);
    return KT_OK;
}

/* Packing counts on zeroed memory where a layout has gaps. */
kt_status kt_cold_bank_create_in(kt_buffer *memory, size_t slot_bytes, int64_t min_slots,
                                 size_t rotation_bytes, kt_cold_bank *out, kt_err *err) {
    kt_cold_bank b;
    uint64_t total = 0;

    memset(out, 0, sizeof *out);
    KT_TRY(lay_out(slot_bytes, min_slots, rotation_bytes, &b, &total, err));
    if (total > memory->bytes)
        return kt_fail(err, KT_E_INVALID, "cold pool: %llu bytes do not fit the older bank's %zu",
                       (unsigned long long)total, memory->bytes);
    memset(memory->data, 0, b.stride);
    b.buffer = *memory;
    memset(memory, 0, sizeof *memory);
    *out = b;
    return KT_OK;
}

void kt_cold_bank_copy(kt_cold_bank *b) {
    for (int64_t i = 1; i < b->n_slots; i++)
        memcpy((char *)b->buffer.data + (size_t)i * b->stride, b->buffer.data, b->slot_bytes);
}

void kt_cold_bank_destroy(kt_cold_bank *bank) {
    if (!bank) return;
    kt_buffer_destroy(&bank->buffer);
    memset(bank, 0, sizeof *bank);
}
