/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/kv_plan.h"

#include "base/numeric.h"

static size_t slot_bytes(int64_t floats) {
    return (size_t)((floats + 15) / 16 * 16) * sizeof(float);
}

bool kt_kv_plan_least(const kt_kv_shape *shape, int64_t state_floats, int64_t context,
                      kt_kv_plan *out) {
    const size_t pages = kt_kv_bytes(shape, context);
    uint64_t total;

    *out =
        (kt_kv_plan){.pages = kt_kv_pages_for(context), .slots = state_floats ? KT_LEAST_SLOTS : 0};
    if (!pages || kt_add_overflow(pages, KT_LEAST_SLOTS * slot_bytes(state_floats), &total) ||
        total > SIZE_MAX / 2)
        return false;
    out->bytes = (size_t)total;
    return true;
}

void kt_kv_plan_within(const kt_kv_shape *shape, int64_t state_floats, size_t bytes,
                       kt_kv_plan *out) {
    const size_t page = kt_kv_page_bytes(shape), slot = slot_bytes(state_floats);
    const size_t least = KT_LEAST_SLOTS * slot;
    uint64_t n;

    *out = (kt_kv_plan){0};
    if (!page || bytes < least) return;
    if (slot) {
        out->slots = KT_LEAST_SLOTS + (int64_t)((bytes - least) / 2 / slot);
        if (out->slots > KT_MOST_SLOTS) out->slots = KT_MOST_SLOTS;
    }
    n = (bytes - (size_t)out->slots * slot) / page;
    out->pages = n > INT32_MAX ? INT32_MAX : (int64_t)n;
    out->bytes = (size_t)out->pages * page + (size_t)out->slots * slot;
}

bool kt_kv_plan_pool(const kt_kv_shape *shape, int64_t state_floats, int64_t context, size_t asked,
                     uint64_t available, kt_kv_plan *out) {
    kt_kv_plan more;
    uint64_t half, most;

    if (!kt_kv_plan_least(shape, state_floats, context, out)) return false;
    if (asked) {
        kt_kv_plan_within(shape, state_floats, asked, out);
        return true;
    }
    half = available > out->bytes ? (available - out->bytes) / 2 : 0;
    if (kt_mul_overflow(KT_MOST_CONTEXTS - 1, out->bytes, &most)) most = half;
    if (half > most) half = most;
    if (half > SIZE_MAX / 2) half = SIZE_MAX / 2;
    kt_kv_plan_within(shape, state_floats, out->bytes + (size_t)half, &more);
    if (more.pages >= out->pages) *out = more;
    return true;
}
