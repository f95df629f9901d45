/* Inside of a stop flag. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STOP_H
#define KT_RUNTIME_STOP_H

#include <stdatomic.h>

#include "kt/api.h"

/* Zero-initialise where it is not made by kt_stop_create. */
struct kt_stop {
    atomic_bool is_set;
};

#endif
