/* Folders as a whole. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FOLDER_H
#define KT_TESTS_FOLDER_H

#include <stdint.h>

/* One number for the names and bytes of all files in a folder (not of folders in it). Never fails
 * (aborts the test process). */
uint64_t kt_folder_checksum(const char *folder);

#endif
