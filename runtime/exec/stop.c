/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/stop.h"

#include <stdlib.h>

#include "base/err.h"

kt_status kt_stop_create(kt_stop **out, kt_err *err) {
    *out = calloc(1, sizeof **out);
    return *out ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for a stop flag");
}

void kt_stop_destroy(kt_stop *stop) {
    free(stop);
}

void kt_stop_set(kt_stop *stop, bool is_raised) {
    atomic_store(&stop->is_set, is_raised);
}

bool kt_stop_is_set(const kt_stop *stop) {
    return atomic_load(&stop->is_set);
}
