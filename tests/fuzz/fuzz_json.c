/* JSON: what is read and written reads back as the same text.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const kt_json_limits limits = {.max_depth = 200};
    kt_json_writer once = {.text = NULL}, twice = {.text = NULL};
    kt_json_doc *doc = NULL, *again = NULL;
    const char *text;
    size_t n;

    if (kt_json_parse((const char *)data, size, &limits, &doc, NULL) != KT_OK) return 0;
    kt_json_put_value(&once, kt_json_root(doc));
    text = kt_json_writer_text(&once, &n);
    if (!text || kt_json_parse(text, n, &limits, &again, NULL) != KT_OK) abort();
    kt_json_put_value(&twice, kt_json_root(again));
    if (strcmp(text, kt_json_writer_text(&twice, NULL)) != 0) abort();
    kt_json_writer_deinit(&once);
    kt_json_writer_deinit(&twice);
    kt_json_destroy(doc);
    kt_json_destroy(again);
    return 0;
}
