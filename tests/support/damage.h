/* Overwriting single values of checkpoints. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_DAMAGE_H
#define KT_TESTS_DAMAGE_H

#include <stdint.h>

/* Overwrite element `at` of a tensor in folder/model.safetensors; value has the bytes of the
 * tensor's type. Never fails (aborts the test process). */
void kt_damage_element(const char *folder, const char *tensor, int64_t at, const void *value);

#endif
