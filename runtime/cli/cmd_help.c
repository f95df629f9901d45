/* kt help. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "kt/version.h"
#include "runtime/cli/command.h"

static void list_commands(void) {
    printf("kt %s: serve mixture-of-experts models with tuned kernels\n\n"
           "usage: kt COMMAND [OPTION]... (`kt COMMAND --help` explains one)\n\n",
           KT_VERSION);
    for (size_t i = 0; i < kt_builtin_command_count; i++)
        printf("  %-10s %s\n", kt_builtin_commands[i]->name, kt_builtin_commands[i]->summary);
    printf("\nEnvironment: KT_LOG=debug|info|off, KT_TABLE=FILE (dispatch table), "
           "KT_DISABLE_ISA=NAMES\n"
           "Exit codes: 0 success, 1 failure, 2 wrong command line, 8 too little memory, "
           "130 interrupted\n");
}

static int run(int argc, char **argv) {
    if (argc < 2 || argv[1][0] == '-') {
        list_commands();
        return KT_EXIT_OK;
    }
    for (size_t i = 0; i < kt_builtin_command_count; i++) {
        const kt_command *command = kt_builtin_commands[i];
        char help[] = "--help", *words[] = {argv[1], help, NULL};
        if (strcmp(command->name, argv[1]) == 0) return command->run(2, words);
    }
    fprintf(stderr, "kt: '%s' is not a command; `kt help` lists them\n", argv[1]);
    return KT_EXIT_USAGE;
}

const kt_command kt_command_help = {
    .name = "help", .summary = "list the commands, or explain one", .run = run};
