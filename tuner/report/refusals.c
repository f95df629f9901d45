/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/refusals.h"

#include <string.h>

static bool is_gate(const kt_json *record) {
    return strcmp(kt_json_text(record, "t"), "gate") == 0;
}

static bool has_same(const kt_json *a, const kt_json *b, const char *key) {
    return strcmp(kt_json_text(a, key), kt_json_text(b, key)) == 0;
}

bool kt_is_refusal(const kt_journal *journal, size_t at) {
    const kt_json *r = kt_journal_at(journal, at);

    if (!is_gate(r) || strcmp(kt_json_text(r, "outcome"), "passed") == 0) return false;
    for (size_t i = at + 1; i < kt_journal_count(journal); i++) {
        const kt_json *later = kt_journal_at(journal, i);
        if (is_gate(later) && has_same(later, r, "contender") && has_same(later, r, "shape"))
            return false;
    }
    return true;
}
