/* Monotonic time. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_CLOCK_H
#define KT_BASE_CLOCK_H

#include <stdint.h>

int64_t kt_clock_ns(void);      /* CLOCK_MONOTONIC_RAW */
int64_t kt_clock_unix_ms(void); /* wall clock, for records */

#endif
