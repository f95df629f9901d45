/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int kt_command_fail(const kt_err *err) {
    fprintf(stderr, "kt: %s\n", err->message);
    if (err->status == KT_E_NOMEM) return KT_EXIT_RESOURCE;
    if (err->status == KT_E_CANCELLED) return KT_EXIT_INTERRUPTED;
    return KT_EXIT_FAILURE;
}

kt_log kt_command_log(void) {
    const char *wanted = getenv("KT_LOG");
    kt_log log = {.stream = stderr, .level = KT_LOG_WARN};

    if (wanted && strcmp(wanted, "debug") == 0) log.level = KT_LOG_DEBUG;
    if (wanted && strcmp(wanted, "info") == 0) log.level = KT_LOG_INFO;
    if (wanted && strcmp(wanted, "off") == 0) log.stream = NULL;
    return log;
}
