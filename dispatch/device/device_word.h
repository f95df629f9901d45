/* A device by its word on the command line. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_WORD_H
#define KT_DEVICE_DEVICE_WORD_H

#include <stdbool.h>

#include "dispatch/device/device.h"

/* "cpu" (or NULL): *is_used becomes false. "cuda", "cuda:1", "emulated", or an emulated device
 * with parts behind a colon, divided by commas: memory=64M, threads=2, target=90a, seed=5, lazy,
 * races, fail-after=100 (launches until it is lost). The log is left as it is. KT_E_INVALID says
 * what is expected. */
kt_status kt_device_word_parse(const char *word, bool *is_used, kt_device_options *out,
                               kt_err *err);

#endif
