/* tokenizer.json: it is refused with a message, or it encodes to ids of its own and decodes them.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/token/tokenizer.h"
#include "tests/fuzz/scratch.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char text[] = "The cat's 12345 <|end|>\n  \xe4\xb8\xad\xff it";
    kt_tokenizer *t = NULL;
    kt_err err = {KT_OK, ""};
    int32_t *ids = NULL;
    char *back = NULL;
    size_t n = 0, n_back;

    kt_scratch_write("tokenizer.json", data, size);
    if (kt_tokenizer_load(kt_scratch_file, &t, &err) != KT_OK) {
        if (t || !err.message[0]) abort();
        return 0;
    }
    if (kt_tokenizer_encode(t, text, sizeof text - 1, size & 1, &ids, &n, &err) == KT_OK) {
        for (size_t i = 0; i < n; i++)
            if (ids[i] < 0 || ids[i] >= kt_tokenizer_size(t)) abort();
        if (kt_tokenizer_decode(t, ids, n, size & 2, &back, &n_back, &err) == KT_OK) free(back);
    }
    free(ids);
    kt_tokenizer_destroy(t);
    return 0;
}
