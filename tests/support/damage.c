/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/damage.h"

#include <stdio.h>
#include <stdlib.h>

#include "dispatch/model/checkpoint.h"

static void give_up(const char *what, const char *why) {
    fprintf(stderr, "cannot damage %s: %s\n", what, why);
    abort();
}

/* Bytes of the file before its data. */
static long data_begin(FILE *f) {
    unsigned char size[8];
    long header = 0;

    if (fread(size, 1, sizeof size, f) != sizeof size) give_up("a checkpoint", "no header");
    for (int i = 0; i < 8; i++) header |= (long)size[i] << 8 * i;
    return 8 + header;
}

void kt_damage_element(const char *folder, const char *tensor, int64_t at, const void *value) {
    char path[4200];
    kt_checkpoint *c;
    const kt_tensor *t;
    const uint8_t *first;
    size_t bytes;
    long offset;
    FILE *f;
    kt_err err = {KT_OK, ""};

    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (kt_checkpoint_open_file(path, &c, &err) != KT_OK) give_up(tensor, err.message);
    t = kt_checkpoint_find(c, tensor);
    if (!t) give_up(tensor, "not in the checkpoint");
    first = t->data;
    for (size_t i = 0; i < kt_checkpoint_count(c); i++)
        if (kt_checkpoint_at(c, i)->data < first) first = kt_checkpoint_at(c, i)->data;
    bytes = kt_dtype_bytes(t->dtype);
    offset = (long)(t->data - first) + (long)at * (long)bytes;
    kt_checkpoint_close(c);
    f = fopen(path, "r+b");
    if (!f) give_up(path, "cannot be opened");
    if (fseek(f, data_begin(f) + offset, SEEK_SET) != 0 || fwrite(value, bytes, 1, f) != 1 ||
        fclose(f) != 0)
        give_up(path, "cannot be written");
}
