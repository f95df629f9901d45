/* The `kt` program: find the command, run it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "runtime/cli/command.h"

/* "--help" and "--version" where a command is expected mean the commands of that name. */
static const char *command_name(const char *word) {
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) return "help";
    if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0) return "version";
    if (strcmp(word, "run") == 0) return "serve";
    return word;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? command_name(argv[1]) : "help";

    for (size_t i = 0; i < kt_builtin_command_count; i++) {
        const kt_command *command = kt_builtin_commands[i];
        if (strcmp(command->name, name) != 0) continue;
        return argc > 1 ? command->run(argc - 1, argv + 1) : command->run(argc, argv);
    }
    fprintf(stderr, "kt: '%s' is not a command; `kt help` lists them\n", name);
    return KT_EXIT_USAGE;
}
