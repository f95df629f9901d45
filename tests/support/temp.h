/* Temporary folders for tests. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_TEMP_H
#define KT_TESTS_TEMP_H

#include <stddef.h>

/* A fresh empty folder; its path goes to out. Never fails (aborts the test process). */
void kt_temp_make(char *out, size_t out_bytes);
/* Remove the folder with all files and folders in it. */
void kt_temp_remove(const char *folder);
/* Write a whole file folder/name. */
void kt_temp_write(const char *folder, const char *name, const void *data, size_t size);

#endif
