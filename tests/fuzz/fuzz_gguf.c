/* GGUF: tensors that claim no bytes outside of the file, a tokenizer that encodes, a model that is
 * described, or a message. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "dispatch/model/checkpoint.h"
#include "runtime/model/model_dir.h"
#include "runtime/token/tokenizer.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensors(void) {
    volatile uint8_t sum = 0;
    kt_checkpoint *c = NULL;
    kt_err err = {KT_OK, ""};

    if (kt_checkpoint_open_file(kt_scratch_file, &c, &err) != KT_OK) {
        if (c || !err.message[0]) abort();
        return;
    }
    for (size_t i = 0; i < kt_checkpoint_count(c); i++) {
        const kt_tensor *t = kt_checkpoint_at(c, i);
        const uint8_t *bytes = t->data;
        for (size_t k = 0; k < t->bytes; k++) sum = (uint8_t)(sum + bytes[k]);
    }
    kt_checkpoint_close(c);
}

static void read_tokenizer(void) {
    static const char text[] = "a bc<|x|> \xc3\xa9";
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};
    int32_t *ids = NULL;
    size_t n = 0;

    if (kt_tokenizer_load(kt_scratch_file, &t, &err) != KT_OK) {
        if (t || !err.message[0]) abort();
        return;
    }
    if (kt_tokenizer_encode(t, text, sizeof text - 1, true, &ids, &n, &err) == KT_OK)
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || ids[i] >= kt_tokenizer_size(t)) abort();
    free(ids);
    kt_tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static kt_model_dir dir;
    kt_err err = {KT_OK, ""};

    kt_scratch_write("m.gguf", data, size);
    read_tensors();
    read_tokenizer();
    if (kt_model_dir_read(kt_scratch_file, &dir, &err) != KT_OK && !err.message[0]) abort();
    kt_model_dir_deinit(&dir);
    memset(&dir, 0, sizeof dir);
    return 0;
}
