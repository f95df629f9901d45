/* Tests that some machines cannot run. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_SKIP_H
#define KT_TESTS_SKIP_H

#include "kt/variant.h"

/* Skip the running test with "WHAT: needs avx512+avx512vnni" when an instruction set of `isa` is absent or disabled
 * (KT_DISABLE_ISA); else return. Reasons of skipped tests are compared with tests/lint/skips.txt. */
void kt_skip_without_isa(kt_isa isa, const char *what);

/* The same, but absent tiles are emulated (amx_emulator.h) where AVX-512, which nobody emulates, is
 * present. */
void kt_skip_without_isa_or_tiles(kt_isa isa, const char *what);

/* kt_skip_without_isa for a variant, and when its library cannot be used: "NAME: what usable()
 * said". */
void kt_skip_without(const kt_variant *v);

#endif
