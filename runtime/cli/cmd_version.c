/* kt version. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/options.h"

static int run(int argc, char **argv) {
    bool json = false;
    const kt_option options[] = {KT_OPTION_FLAG("json", &json, "print a JSON object")};
    const kt_usage usage = {
        .command = "version", .arguments = "", .about = "Print the version and the compiler."};
    int code = kt_options_parse(&usage, options, 1, argc, argv, NULL, 0, NULL);

    if (code >= 0) return code;
    if (json)
        printf("{\"version\": \"%s\", \"compiler\": \"%s\"}\n", KT_VERSION, __VERSION__);
    else
        printf("kt %s (compiler %s)\n", KT_VERSION, __VERSION__);
    return KT_EXIT_OK;
}

const kt_command kt_command_version = {
    .name = "version", .summary = "print the version", .run = run};
