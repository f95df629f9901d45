/* Cold banks: shared by layout, in the memory of older ones where that is cheaper, and with the
 * right bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tuner/measure/banks.h"
#include "tuner/measure/synthetic.h"

extern const kt_variant kt_variant_any_any_p64__scalar;

enum { ROTATION = 1 << 22 };

static kt_problem gemm_of(int64_t n) {
    return (kt_problem){.op = KT_OP_GEMM,
                        .weights = KT_W_INT8_CHANNEL,
                        .acts = KT_A_INT8_G32,
                        .m = 1,
                        .n = n,
                        .k = 256};
}

static kt_cold_bank *get(kt_banks *b, int64_t n) {
    const kt_problem p = gemm_of(n);
    kt_cold_bank *bank = NULL;
    kt_err err;

    kt_banks_new_cell(b);
    cr_assert_eq(kt_banks_get(b, &p, &kt_variant_any_any_p64__scalar, 1, &bank, &err), KT_OK, "%s",
                 err.message);
    cr_assert_geq((size_t)bank->n_slots * bank->stride, ROTATION, "the rotation stays cold");
    return bank;
}

/* Every slot holds what packing gives. */
static void check_bytes(const kt_cold_bank *bank, int64_t n) {
    const kt_problem p = gemm_of(n);
    const size_t size = kt_variant_any_any_p64__scalar.packed_bytes(&p);
    void *want = aligned_alloc(64, (size + 63) / 64 * 64);
    kt_err err;

    cr_assert(want);
    memset(want, 0, size);
    cr_assert_eq(kt_synthetic_pack_into(&p, &kt_variant_any_any_p64__scalar, 1, want, &err), KT_OK);
    cr_assert_eq(bank->slot_bytes, size);
    for (int64_t i = 0; i < bank->n_slots; i++)
        cr_assert_eq(memcmp((const char *)bank->buffer.data + (size_t)i * bank->stride, want, size),
                     0, "n=%lld, slot %lld", (long long)n, (long long)i);
    free(want);
}

/* Fresh pages are dear: one bank's memory serves all, as long as it is large enough. */
Test(banks, begin_in_the_memory_of_older_ones_where_pages_are_dear) {
    static const int64_t sizes[] = {512, 320, 512, 1024, 320};
    kt_banks b = {.rotation_bytes = ROTATION};

    check_bytes(get(&b, 512), 512);
    b.mapped = 1;
    b.map_ns = 1e9; /* a second per byte */
    for (int i = 1; i < 5; i++) {
        const kt_cold_bank *bank = get(&b, sizes[i]);
        cr_expect_eq(b.n_reused, i, "%d reused", b.n_reused);
        check_bytes(bank, sizes[i]);
    }
    cr_expect_gt(b.again_ns, 0, "512 and 320 were packed twice");
    get(&b, (int64_t)1 << 16); /* one slot of 16 MiB does not fit into 4 */
    cr_expect_eq(b.n_reused, 4);
    kt_banks_deinit(&b);
}

/* Fresh pages are cheap, or what was saved is spent: every matrix keeps a bank of its own,
 * packed once. */
Test(banks, are_kept_where_pages_are_cheap) {
    kt_banks b = {.rotation_bytes = ROTATION};
    const kt_cold_bank *first = get(&b, 512);

    b.map_ns = 1e-9;
    b.again_ns = 1;
    check_bytes(get(&b, 320), 320);
    cr_expect_eq(b.n_reused, 0);
    cr_expect_eq(get(&b, 512), first, "is still there");
    check_bytes(first, 512);
    kt_banks_deinit(&b);
}

/* Contenders of one cell never lose theirs to each other. */
Test(banks, of_the_cell_in_hand_stay) {
    const kt_problem one = gemm_of(512), other = gemm_of(320);
    kt_banks b = {.rotation_bytes = ROTATION};
    kt_cold_bank *a = get(&b, 512), *c = NULL;

    b.map_ns = 1e18;
    cr_assert_eq(kt_banks_get(&b, &other, &kt_variant_any_any_p64__scalar, 1, &c, NULL), KT_OK);
    cr_expect(b.n_reused == 0 && a != c);
    cr_expect_eq(kt_banks_cost_ns(&b, &one, &kt_variant_any_any_p64__scalar, 1), 0);
    kt_banks_deinit(&b);
}
