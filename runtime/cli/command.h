/* Commands of the `kt` program. One file runtime/cli/cmd_<name>.c defines
 * `const kt_command kt_command_<name> = {...};` The build finds it and writes the table.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_COMMAND_H
#define KT_RUNTIME_COMMAND_H

#include <stddef.h>

#include "base/log.h"
#include "kt/status.h"

/* Exit codes of `kt`, also printed by `kt help`. */
#define KT_EXIT_OK 0
#define KT_EXIT_FAILURE 1       /* something went wrong while running; one message on stderr */
#define KT_EXIT_USAGE 2         /* the command line makes no sense */
#define KT_EXIT_RESOURCE 8      /* the machine has too little memory */
#define KT_EXIT_INTERRUPTED 130 /* Ctrl-C */

typedef struct kt_command {
    const char *name, *summary; /* one line for `kt help` */
    /* argv[0] is the command's name; returns an exit code. */
    int (*run)(int argc, char **argv);
} kt_command;

extern const kt_command *const kt_builtin_commands[];
extern const size_t kt_builtin_command_count;

/* Print "kt: <message>" on stderr and return the exit code that belongs to the status. */
int kt_command_fail(const kt_err *err);

/* The log of every command: warnings and up as text on stderr; debug when $KT_LOG is "debug", info
 * when "info", silent when "off". */
kt_log kt_command_log(void);

#endif
