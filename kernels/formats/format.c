/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/format.h"

const kt_format *kt_format_find(kt_weight_format id) {
    for (size_t i = 0; i < kt_builtin_format_count; i++)
        if (kt_builtin_formats[i]->id == id) return kt_builtin_formats[i];
    return NULL;
}
