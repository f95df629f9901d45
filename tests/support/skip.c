/* Tests that some machines cannot run. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/skip.h"

#include <criterion/criterion.h>

#include "base/cpu.h"
#include "tests/support/amx_emulator.h"

void kt_skip_without_isa(kt_isa isa, const char *what) {
    kt_isa absent = isa & ~kt_isa_available();
    char names[128];
    if (absent) cr_skip_test("%s: needs %s", what, kt_isa_format(absent, names, sizeof names));
}

void kt_skip_without_isa_or_tiles(kt_isa isa, const char *what) {
    const kt_isa tiles = isa & (KT_ISA_AMXINT8 | KT_ISA_AMXBF16) & ~kt_isa_available();
    kt_err err = {0};

    if (!tiles || !(kt_isa_available() & KT_ISA_AVX512)) {
        kt_skip_without_isa(isa, what);
        return;
    }
    kt_skip_without_isa(isa & ~tiles, what);
    if (kt_amx_start(&err) != KT_OK) cr_skip_test("%s: %s", what, err.message);
}

void kt_skip_without(const kt_variant *v) {
    kt_err err = {0};
    kt_status status;

    kt_skip_without_isa(v->isa, v->name);
    if (!v->usable || (status = v->usable(&err)) == KT_OK) return;
    /* Only bytes multiplied without VNNI may saturate (tests/lint/skips.txt). */
    if (status == KT_E_MISMATCH)
        cr_assert(!(kt_isa_available() & (KT_ISA_AVX512VNNI | KT_ISA_AVXVNNI)), "%s: %s", v->name,
                  err.message);
    cr_skip_test("%s: %s", v->name, err.message);
}
