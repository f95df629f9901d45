/* Requests to load a server with: made up, or from a file. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOAD_DATA_H
#define KT_RUNTIME_LOAD_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_load_prompt {
    char *text; /* UTF-8, NUL-terminated */
    size_t size;
    int64_t max_tokens;
} kt_load_prompt;

typedef struct kt_load_data {
    kt_load_prompt *prompts; /* owned */
    size_t n;
} kt_load_data;
void kt_load_data_deinit(kt_load_data *d);

/* n prompts of common English words, of which nearly each is one token: input_len words and
 * output_len tokens, both uniform within +- range (0 to 1) of that. No two begin alike, so no
 * cached prefix helps. Equal seeds give equal prompts. */
kt_status kt_load_data_synthetic(size_t n, int64_t input_len, int64_t output_len, double range,
                                 uint64_t seed, kt_load_data *out, kt_err *err);

/* n prompts of a file, from the start again when it has fewer: lines of JSON with "prompt" and, if
 * wanted, "max_tokens" (or "output_tokens"); or ShareGPT's form, an array or lines of
 * {"conversations": [{"from": "human", "value": ...}, {"from": "gpt", ...}]}: the first question,
 * and a quarter of the characters of its answer as tokens. output_len replaces what the file says
 * unless it is 0; a prompt without a length gets 128. */
kt_status kt_load_data_file(const char *path, size_t n, int64_t output_len, kt_load_data *out,
                            kt_err *err);

#endif
