/* SPDX-License-Identifier: Apache-2.0 */
#include "base/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "base/err.h"

static kt_status check_log(kt_err *err) {
    static const char *const words[] = {"", "debug", "info", "warn", "off"};
    const char *value = getenv("KT_LOG");

    for (size_t i = 0; value && i < sizeof words / sizeof *words; i++)
        if (strcmp(value, words[i]) == 0) return KT_OK;
    if (!value) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "KT_LOG is '%.40s', expected debug, info, warn or off",
                   value);
}

static kt_status check_isa(kt_err *err) {
    const char *list = getenv("KT_DISABLE_ISA");
    char known[256] = "";
    size_t used = 0;

    for (int i = 0; i < KT_ISA_COUNT && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 kt_isa_name(i));
    while (list && *list) {
        size_t n = strcspn(list, ",");
        char name[24];
        snprintf(name, sizeof name, "%.*s", n < sizeof name ? (int)n : (int)sizeof name - 1, list);
        if (n > 0 && (n >= sizeof name || kt_isa_parse(name) < 0))
            return kt_fail(err, KT_E_INVALID,
                           "KT_DISABLE_ISA has '%.23s', expected names between commas: %s", name,
                           known);
        list += n + (list[n] == ',');
    }
    return KT_OK;
}

kt_status kt_environment_check(kt_err *err) {
    KT_TRY(check_log(err));
    return check_isa(err);
}
