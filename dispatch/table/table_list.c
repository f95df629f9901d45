/* Arrays of a table's file beside its rows. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table_rows.h"

kt_status kt_table_read_text(const kt_json *object, const char *key, const char *where, char *out,
                             size_t out_bytes, kt_err *err) {
    const char *s;

    KT_TRY(kt_json_need_string(object, key, where, &s, err));
    if (strlen(s) >= out_bytes)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' has %zu characters, at most %zu are possible",
                       where, key, strlen(s), out_bytes - 1);
    memcpy(out, s, strlen(s) + 1);
    return KT_OK;
}

kt_status kt_table_blame_file(kt_status st, const char *where, kt_err *err) {
    if (st == KT_OK) return KT_OK;
    kt_fail_prefix(err, st, "%s", where);
    if (st == KT_E_INVALID) st = KT_E_FORMAT;
    if (err) err->status = st;
    return st;
}

kt_status kt_table_read_list(const kt_json *root, const char *path, const kt_table_list *list,
                             kt_table *table, kt_err *err) {
    const kt_json *array = kt_json_get(root, list->key);
    const size_t n = kt_json_length(array);

    if (!array) return KT_OK;
    if (kt_json_type_of(array) != KT_JSON_ARRAY || n > (size_t)list->most)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is %s of %zu, expected an array of at most %d",
                       path, list->key, kt_json_type_name(kt_json_type_of(array)), n, list->most);
    for (size_t i = 0; i < n; i++) {
        const kt_json *entry = kt_json_at(array, i);
        const char *cell = kt_json_string(kt_json_get(entry, "cell"), NULL);
        char where[256];
        if (cell && !list->is_known(cell)) continue;
        snprintf(where, sizeof where, "%.200s: %s %zu of %zu", path, list->entry, i + 1, n);
        KT_TRY(list->add(entry, where, table, err));
    }
    return KT_OK;
}
