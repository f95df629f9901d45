/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/table_choice.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/shell_word.h"
#include "dispatch/plan/plan.h"
#include "tuner/space/shapes.h"

/* By model, or by a table's own name where that is no model's: tables stay when a folder is gone. */
static kt_status locate(const kt_workbench *b, const char *model, char *where, size_t where_bytes,
                        kt_err *err) {
    kt_shapes shapes;
    char word[KT_SHELL_WORD_BYTES];
    kt_status st;

    where[0] = '\0';
    if (!strchr(model, '/')) kt_table_locate(&b->machine, model, 0, where, where_bytes);
    if (*where) return KT_OK;
    st = kt_shapes_find(model, &shapes, NULL, 0, err);
    if (st == KT_OK) kt_table_locate(&b->machine, shapes.name, shapes.shape_id, where, where_bytes);
    if (*where) return KT_OK;
    if (st != KT_OK)
        return kt_fail_prefix(err, KT_E_NOT_FOUND, "no table of '%.60s' for machine class %s",
                              model, b->class_name);
    kt_shell_word(model, word, sizeof word);
    return kt_fail(err, KT_E_NOT_FOUND,
                   "no table of '%s' for machine class %s; make one with `kttune run --model %s`",
                   shapes.name, b->class_name, word);
}

kt_status kt_table_choose(const kt_workbench *b, const char *path, const char *model, char *where,
                          size_t where_bytes, kt_table **out, kt_err *err) {
    *out = NULL;
    if (path)
        snprintf(where, where_bytes, "%s", path);
    else
        KT_TRY(locate(b, model, where, where_bytes, err));
    return kt_table_load(where, out, err);
}

int kt_table_verb_fail(const kt_err *err) {
    int code = kt_verb_fail(err);
    switch (err->status) {
    case KT_E_NOT_FOUND:
    case KT_E_FORMAT:
    case KT_E_IO:
    case KT_E_MISMATCH: return KT_TUNE_NO_TABLE;
    default: return code;
    }
}
