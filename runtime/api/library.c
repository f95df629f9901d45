/* What the library as a whole offers. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "kt/api.h"

int kt_abi_version(void) {
    return KT_ABI_VERSION;
}

const char *kt_version(void) {
    return KT_VERSION;
}

void kt_free(void *memory) {
    free(memory);
}
