/* Words of commands that people copy from messages. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_SHELL_WORD_H
#define KT_BASE_SHELL_WORD_H

#include <stddef.h>

#define KT_SHELL_WORD_BYTES 1200

/* The word as a POSIX shell takes it back: as it is when plain, else in single quotes. One that
 * does not fit is cut. out_bytes is at least 8. Returns out. */
char *kt_shell_word(const char *word, char *out, size_t out_bytes);

#endif
