/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/kv_plan.h"

#include "base/numeric.h"

static size_t slot_bytes(int64_t floats) {
    return (size_t)((floats + 15) / 16 * 16) * sizeof(float);
}

kt_kv_sizes kt_kv_sizes_of(const kt_kv_shape *shape, int64_t state_floats) {
    const size_t page = kt_kv_page_bytes(shape);

    return (kt_kv_sizes){.page = page ? page : SIZE_MAX, .slot = slot_bytes(state_floats)};
}

bool kt_kv_plan_least(kt_kv_sizes sizes, int64_t context, kt_kv_plan *out) {
    uint64_t pages, total;

    *out =
        (kt_kv_plan){.pages = kt_kv_pages_for(context), .slots = sizes.slot ? KT_LEAST_SLOTS : 0};
    if (context < 1 || kt_mul_overflow(sizes.page, (uint64_t)out->pages, &pages) ||
        pages > SIZE_MAX / 2 || kt_add_overflow(pages, KT_LEAST_SLOTS * sizes.slot, &total) ||
        total > SIZE_MAX / 2)
        return false;
    out->bytes = (size_t)total;
    return true;
}

void kt_kv_plan_within(kt_kv_sizes sizes, size_t bytes, kt_kv_plan *out) {
    const size_t least = KT_LEAST_SLOTS * sizes.slot;
    uint64_t n = INT32_MAX;

    *out = (kt_kv_plan){0};
    if (bytes < least) return;
    if (sizes.slot) {
        out->slots = KT_LEAST_SLOTS + (int64_t)((bytes - least) / 2 / sizes.slot);
        if (out->slots > KT_MOST_SLOTS) out->slots = KT_MOST_SLOTS;
    }
    if (sizes.page) n = (bytes - (size_t)out->slots * sizes.slot) / sizes.page;
    out->pages = n > INT32_MAX ? INT32_MAX : (int64_t)n;
    out->bytes = (size_t)out->pages * sizes.page + (size_t)out->slots * sizes.slot;
}

bool kt_kv_plan_pool(kt_kv_sizes sizes, int64_t context, size_t asked, uint64_t available,
                     kt_kv_plan *out) {
    kt_kv_plan more;
    uint64_t half, most;

    if (!kt_kv_plan_least(sizes, context, out)) return false;
    if (asked) {
        kt_kv_plan_within(sizes, asked, out);
        return true;
    }
    half = available > out->bytes ? (available - out->bytes) / 2 : 0;
    if (kt_mul_overflow(KT_MOST_CONTEXTS - 1, out->bytes, &most)) most = half;
    if (half > most) half = most;
    if (half > SIZE_MAX / 2) half = SIZE_MAX / 2;
    kt_kv_plan_within(sizes, out->bytes + (size_t)half, &more);
    if (more.pages >= out->pages) *out = more;
    return true;
}
