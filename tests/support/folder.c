/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/folder.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/buffer.h"
#include "base/checksum.h"

uint64_t kt_folder_checksum(const char *folder) {
    struct dirent **list;
    int n = scandir(folder, &list, NULL, alphasort);
    uint64_t sums[3] = {0};

    if (n < 0) {
        fprintf(stderr, "cannot read folder %s\n", folder);
        abort();
    }
    for (int i = 0; i < n; i++) {
        char path[4096];
        struct stat info;
        kt_mapping file;
        snprintf(path, sizeof path, "%s/%s", folder, list[i]->d_name);
        if (stat(path, &info) == 0 && S_ISREG(info.st_mode)) {
            if (kt_mapping_open(path, &file, NULL) != KT_OK) abort();
            sums[1] = kt_checksum(list[i]->d_name, strlen(list[i]->d_name));
            sums[2] = kt_checksum(file.data, file.bytes);
            sums[0] = kt_checksum(sums, sizeof sums);
            kt_mapping_close(&file);
        }
        free(list[i]);
    }
    free(list);
    return sums[0];
}
