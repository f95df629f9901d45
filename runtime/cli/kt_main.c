/* The `kt` program: find the command, run it. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/environment.h"
#include "runtime/cli/command.h"

/* "--help" and "--version" where a command is expected mean the commands of that name. */
static const char *command_name(const char *word) {
    if (strcmp(word, "-h") == 0 || strcmp(word, "--help") == 0) return "help";
    if (strcmp(word, "-V") == 0 || strcmp(word, "--version") == 0) return "version";
    if (strcmp(word, "run") == 0) return "serve";
    return word;
}

/* What was printed may still lie in the buffer, and the disk be full. */
static int end(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "kt: standard output: cannot be written\n");
    return code ? code : KT_EXIT_FAILURE;
}

int main(int argc, char **argv) {
    const char *name = argc > 1 ? command_name(argv[1]) : "help";
    kt_err err = {KT_OK, ""};

    if (kt_environment_check(&err) != KT_OK) {
        fprintf(stderr, "kt: %s\n", err.message);
        return KT_EXIT_USAGE;
    }
    for (size_t i = 0; i < kt_builtin_command_count; i++) {
        const kt_command *command = kt_builtin_commands[i];
        if (strcmp(command->name, name) != 0) continue;
        return end(argc > 1 ? command->run(argc - 1, argv + 1) : command->run(argc, argv));
    }
    fprintf(stderr, "kt: '%s' is not a command; `kt help` lists them\n", name);
    return KT_EXIT_USAGE;
}
