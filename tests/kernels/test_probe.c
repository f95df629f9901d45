/* Every usable ceiling probe does the work it claims. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kt/variant.h"
#include "base/cpu.h"
#include "base/numeric.h"
#include "tests/support/guard.h"

static double rate(const kt_variant *v, const kt_probe_call *call, double *work) {
    double best = 0;
    for (int i = 0; i < 3; i++) {
        int64_t start = kt_clock_ns();
        *work = v->probe(call);
        double r = *work / (double)(kt_clock_ns() - start);
        if (r > best) best = r;
    }
    return best;
}

/* Reads end inside the buffer (it touches an inaccessible page), work grows with repeats, and no
 * machine does more than 10^5 operations or bytes per nanosecond: a loop that the compiler dropped
 * would. */
Test(probe, every_usable_probe_does_what_it_counts) {
    size_t bytes = 1 << 20;
    void *data = kt_guard_alloc(bytes, 64, 1);
    kt_isa isa = kt_isa_available();
    int n = 0;

    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op != KT_OP_PROBE || v->pack_gemm || (v->isa & ~isa)) continue;
        kt_probe_call once = {.data = data, .bytes = bytes, .repeats = 40}, twice = once;
        double work1, work2, r = rate(v, &once, &work1);
        twice.repeats = 80;
        rate(v, &twice, &work2);
        cr_expect(work1 > 0 && work2 == 2 * work1, "%s: %g then %g", v->name, work1, work2);
        cr_expect(r > 0.01 && r < 1e5, "%s: %g per ns", v->name, r);
        if (strncmp(v->name, "read_stream", 11) == 0)
            cr_expect(work1 == 40.0 * (double)bytes, "%s: %g bytes", v->name, work1);
        for (int32_t c = 0; strncmp(v->name, "read_stream", 11) == 0 && c < v->params[0].count;
             c++) {
            const kt_config config = {{v->params[0].values[c]}};
            kt_probe_call ahead = once; /* prefetches past the end touch the inaccessible page */
            ahead.config = &config;
            cr_expect_eq(v->probe(&ahead), work1, "%s prefetch=%d", v->name, (int)config.value[0]);
        }
        n++;
    }
    cr_assert(n >= 2, "only %d probes are usable", n);
    kt_guard_free(data);
}

/* Small integers, whose products and sums are exact in int32 and in f32. */
static void check_dense(const kt_variant *v, kt_weight_format format, int m, int n, int k) {
    const kt_problem q = {.op = KT_OP_PROBE, .weights = format, .m = m, .n = n, .k = k};
    const size_t each = format == KT_W_BF16 ? 2 : 1, count = (size_t)(n * k),
                 rows = (size_t)(m * k);
    int8_t *w = malloc(2 * count);
    void *a = kt_guard_alloc(rows * each, 64, 1), *c = kt_guard_alloc((size_t)(m * n) * 4, 64, 1);
    void *packed = kt_guard_alloc(v->packed_bytes(&q), 64, 1);
    const kt_matrix matrix = {.format = format, .n = n, .k = k, .data = w};
    const kt_probe_call call = {.data = packed, .repeats = 2, .problem = &q, .a = a, .c = c};

    for (size_t i = 0; i < count; i++) {
        int value = (int)(i * 11 % 17) - 8;
        if (each == 1)
            w[i] = (int8_t)value;
        else
            ((uint16_t *)(void *)w)[i] = kt_f32_to_bf16((float)value);
    }
    for (size_t i = 0; i < rows; i++) {
        if (each == 1)
            ((uint8_t *)a)[i] = (uint8_t)(i * 7 % 19);
        else
            ((uint16_t *)a)[i] = kt_f32_to_bf16((float)(i * 7 % 19));
    }
    v->pack_gemm(&q, &matrix, packed);
    cr_assert_eq(v->probe(&call), 2 * 2.0 * m * n * k, "%s: refused", v->name);
    for (int i = 0; i < m * n; i++) {
        int want = 0;
        float got = each == 1 ? (float)((int32_t *)c)[i] : ((float *)c)[i];
        for (int l = 0; l < k; l++)
            want += ((i % n * k + l) * 11 % 17 - 8) * ((i / n * k + l) * 7 % 19);
        cr_assert_eq(got, (float)want, "%s %d x %d x %d: element %d is %g, expected %d", v->name, m,
                     n, k, i, (double)got, want);
    }
    free(w);
    kt_guard_free(a);
    kt_guard_free(c);
    kt_guard_free(packed);
}

Test(probe, library_gemms_multiply) {
    static const int shapes[][3] = {{1, 64, 64}, {3, 100, 128}, {70, 192, 128}, {64, 64, 2048}};
    kt_isa isa = kt_isa_available();
    int n = 0;

    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const kt_variant *v = kt_builtin_variants[i];
        if (v->op != KT_OP_PROBE || !v->pack_gemm || (v->isa & ~isa)) continue;
        if (v->usable(NULL) != KT_OK) continue;
        for (int f = 0; f < KT_W_COUNT; f++)
            for (size_t s = 0; s < sizeof shapes / sizeof *shapes && v->weights >> f & 1; s++, n++)
                check_dense(v, (kt_weight_format)f, shapes[s][0], shapes[s][1], shapes[s][2]);
    }
    if (n == 0) cr_skip_test("no library is usable here");
}
