/* Registries of machines other than this one. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TEST_OWN_VARIANTS_H
#define KT_TEST_OWN_VARIANTS_H

#include "dispatch/registry/registry.h"

/* Our own variants that a machine of these sets would run: for plans, which run nothing.
 * Libraries are left out: they are asked for a self-test. A failure ends the test; the caller
 * destroys it. */
kt_registry *kt_test_own_variants(kt_isa isa);

#endif
