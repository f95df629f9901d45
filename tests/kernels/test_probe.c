/* Every usable ceiling probe does the work it claims. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/clock.h"
#include "kt/variant.h"
#include "base/cpu.h"
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
        if (v->op != KT_OP_PROBE || (v->isa & ~isa)) continue;
        kt_probe_call once = {data, bytes, 40}, twice = {data, bytes, 80};
        double work1, work2, r = rate(v, &once, &work1);
        rate(v, &twice, &work2);
        cr_expect(work1 > 0 && work2 == 2 * work1, "%s: %g then %g", v->name, work1, work2);
        cr_expect(r > 0.01 && r < 1e5, "%s: %g per ns", v->name, r);
        if (strncmp(v->name, "read_stream", 11) == 0)
            cr_expect(work1 == 40.0 * (double)bytes, "%s: %g bytes", v->name, work1);
        n++;
    }
    cr_assert(n >= 2, "only %d probes are usable", n);
    kt_guard_free(data);
}
