/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/check_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sha256.h"

/* The text by which converters of models to GGUF tell vocabularies apart (MIT licence); its own
 * SHA-256 is a36179c1e2b1cfcfbfad1dc779addad2ffc778201e4cf0d538bddeafa2c526da. White space,
 * scripts, emoji, digits and contractions: where tokenizers differ. */
static const char check_text[] =
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n\360\237\232\200 (normal) \360\237\230"
    "\266\342\200\215\360\237\214\253\357\270\217 (multiple emojis concatenated) \342\234\205"
    " \360\237\246\231\360\237\246\231 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3"
    "...3 \341\236\200\341\236\266\341\236\223\341\237\213\341\236\217\341\237\202\341\236"
    "\226\341\236\267\341\236\237\341\237\201\341\236\237\341\236\242\341\236\266\341\236\205"
    "\360\237\230\201 \077\346\210\221\346\203\263\345\234\250apple\345\267\245\344\275\23413"
    "14151\345\244\251\357\275\236 ------======= \320\275\320\265\321\211\320\276 \320\275"
    "\320\260 \320\221\321\212\320\273\320\263\320\260\321\200\321\201\320\272\320\270 ''''''"
    "```````\"\"\"\"......!!!!!!\077\077\077\077\077\077 I've been 'told he's there, 'RE you "
    "sure\077 'M not sure I'll make it, 'D you like some tea\077 We'Ve a'lL";

size_t kt_check_text_bytes(void) {
    return sizeof check_text - 1;
}

const char *kt_check_text(void) {
    return check_text;
}

kt_status kt_check_text_hash(const kt_tokenizer *t, const int32_t *before, int n_before,
                             char hex[65], kt_err *err) {
    int32_t *ids = NULL;
    size_t n = 0, at;
    char *list;

    KT_TRY(kt_tokenizer_encode(t, check_text, sizeof check_text - 1, true, &ids, &n, err));
    list = malloc((n + (size_t)n_before) * 14 + 8);
    if (!list) {
        free(ids);
        return kt_fail(err, KT_E_NOMEM, "no memory for %zu ids", n);
    }
    at = (size_t)sprintf(list, "[");
    for (int i = 0; i < n_before; i++) at += (size_t)sprintf(list + at, "%d, ", before[i]);
    for (size_t i = 0; i < n; i++) at += (size_t)sprintf(list + at, "%d, ", ids[i]);
    if (at > 1) at -= 2; /* the last comma */
    at += (size_t)sprintf(list + at, "]");
    kt_sha256(list, at, hex);
    free(list);
    free(ids);
    return KT_OK;
}
