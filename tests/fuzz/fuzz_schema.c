/* JSON Schema: any JSON as a schema; a text drawn from its masks must be JSON when it ends.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/grammar_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    kt_json_doc *schema = NULL, *value = NULL;
    kt_err err = {KT_OK, ""};
    kt_grammar *g = NULL;
    char text[600];
    bool done = false;
    size_t n;

    if (kt_json_parse((const char *)data, size, NULL, &schema, NULL) != KT_OK) return 0;
    if (kt_grammar_from_schema(kt_target_vocabulary(), kt_json_root(schema), &g, &err) != KT_OK) {
        if (g || !err.message[0]) abort();
        kt_json_destroy(schema);
        return 0;
    }
    n = kt_target_walk(g, data, size, text, sizeof text, &done);
    /* A name may come twice in an object of any names. */
    if (done && kt_json_parse(text, n, NULL, &value, &err) != KT_OK &&
        !strstr(err.message, "two members"))
        abort();
    kt_json_destroy(value);
    kt_grammar_destroy(g);
    kt_json_destroy(schema);
    return 0;
}
