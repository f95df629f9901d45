/* safetensors: a file is refused with a message, or every byte that its tensors claim can be read.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/checkpoint.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    volatile uint8_t sum = 0;
    kt_checkpoint *c = NULL;
    kt_err err = {KT_OK, ""};

    kt_scratch_write("x.safetensors", data, size);
    if (kt_checkpoint_open_file(kt_scratch_file, &c, &err) != KT_OK) {
        if (c || !strstr(err.message, "x.safetensors")) abort();
        return 0;
    }
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        const uint8_t *bytes = t->data;
        if (kt_checkpoint_find(c, t->name) != t) abort();
        for (size_t k = 0; k < t->bytes; k++) sum = (uint8_t)(sum + bytes[k]);
    }
    kt_checkpoint_close(c);
    return 0;
}
