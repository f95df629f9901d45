/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/draft_flags.h"

#include <string.h>

int kt_draft_flags_settle(const kt_draft_flags *flags, const kt_usage *usage, kt_speculation *out) {
    static const struct {
        const char *word;
        kt_speculation means;
    } words[] = {
        {"off", KT_SPECULATE_OFF}, {"ngram", KT_SPECULATE_NGRAM}, {"auto", KT_SPECULATE_NGRAM}};

    *out = KT_SPECULATE_OFF;
    for (size_t i = 0; flags->speculate && i < sizeof words / sizeof *words; i++)
        if (strcmp(flags->speculate, words[i].word) == 0) {
            *out = words[i].means;
            return 0;
        }
    if (!flags->speculate) return 0;
    return kt_usage_fail(usage, "--speculate is '%.40s', expected off, ngram or auto",
                         flags->speculate);
}
