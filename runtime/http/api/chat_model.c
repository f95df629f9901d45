/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/chat_model.h"

#include <stdlib.h>
#include <string.h>

void kt_model_prompt_deinit(kt_model_prompt *p) {
    free(p->text);
    free(p->ids);
    memset(p, 0, sizeof *p);
}

int32_t kt_chat_special_token(const void *tokenizer, const char *text) {
    int32_t id = kt_tokenizer_find(tokenizer, text);
    bool special = false;
    size_t size;

    if (id >= 0) kt_tokenizer_bytes(tokenizer, id, &size, &special);
    return special ? id : -1;
}
