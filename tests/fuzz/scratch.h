/* A folder for loaders that want files; it goes when the program ends.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FUZZ_SCRATCH_H
#define KT_TESTS_FUZZ_SCRATCH_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { KT_SCRATCH_PATH = 300 };

static char kt_scratch_folder[KT_SCRATCH_PATH / 2];
static char kt_scratch_file[KT_SCRATCH_PATH]; /* the one that is written again and again */

static void kt_scratch_remove(void) {
    unlink(kt_scratch_file);
    rmdir(kt_scratch_folder);
}

/* Write folder/name anew; the folder's path, which lives as long as the program. */
static inline const char *kt_scratch_write(const char *name, const uint8_t *data, size_t size) {
    const char *base = getenv("TMPDIR");
    FILE *f;

    if (!kt_scratch_folder[0]) {
        snprintf(kt_scratch_folder, sizeof kt_scratch_folder, "%.100s/kt-fuzz-XXXXXX",
                 base ? base : "/tmp");
        if (!mkdtemp(kt_scratch_folder)) abort();
        snprintf(kt_scratch_file, sizeof kt_scratch_file, "%s/%s", kt_scratch_folder, name);
        atexit(kt_scratch_remove);
    }
    f = fopen(kt_scratch_file, "wb");
    if (!f || fwrite(data, 1, size, f) != size || fclose(f) != 0) abort();
    return kt_scratch_folder;
}

#endif
