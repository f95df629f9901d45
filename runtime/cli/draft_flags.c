/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/draft_flags.h"

#include <string.h>

#include "base/err.h"
#include "runtime/cli/command.h"
#include "runtime/cli/interrupt.h"

static bool is_word(const kt_draft_flags *flags, const char *word) {
    return flags->speculate && strcmp(flags->speculate, word) == 0;
}

int kt_draft_flags_settle(const kt_draft_flags *flags, const kt_usage *usage, kt_speculation *out) {
    *out = KT_SPECULATE_OFF;
    if (is_word(flags, "ngram")) *out = KT_SPECULATE_NGRAM;
    if (is_word(flags, "mtp") || is_word(flags, "auto")) *out = KT_SPECULATE_HEAD;
    if (*out || !flags->speculate || is_word(flags, "off")) return 0;
    return kt_usage_fail(usage, "--speculate is '%.40s', expected off, ngram, mtp or auto",
                         flags->speculate);
}

kt_status kt_draft_flags_create(const kt_draft_flags *flags, const kt_engine_options *options,
                                kt_engine **out, kt_err *err) {
    const bool is_open = is_word(flags, "auto");
    kt_engine_options o = *options;
    kt_err why = {KT_OK, ""};
    kt_status st;

    o.with_draft_head = is_open || is_word(flags, "mtp");
    st = kt_engine_create(&o, out, &why);
    if (is_open && (st == KT_E_UNSUPPORTED || st == KT_E_NOMEM)) {
        kt_log_write(o.log, KT_LOG_INFO, "drafts", "by n-grams: %s", why.message);
        o.with_draft_head = false;
        return kt_engine_create(&o, out, err);
    }
    return st == KT_OK ? KT_OK : kt_fail(err, st, "%s", why.message);
}

int kt_draft_flags_load(const kt_draft_flags *flags, const kt_engine_flags *engine,
                        const kt_usage *usage, const char *model_dir, const kt_log *log,
                        kt_engine **out) {
    kt_engine_options options;
    kt_err err = {KT_OK, ""};
    const int code = kt_engine_flags_options(engine, usage, model_dir, log, &options);

    *out = NULL;
    if (code != 0) return code;
    options.cancel = kt_interrupted;
    return kt_draft_flags_create(flags, &options, out, &err) == KT_OK ? 0 : kt_command_fail(&err);
}
