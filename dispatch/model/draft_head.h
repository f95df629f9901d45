/* The draft head of a model (MTP): one more layer, which from the last hidden state of a token and
 * the embedding of the next one says the token after it (models.md 3.6, 4.4). Its nodes stand
 * behind the model's own. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_DRAFT_HEAD_H
#define KT_DISPATCH_DRAFT_HEAD_H

#include "dispatch/model/build.h"

/* Tensors beside the layer's own: norms of the embedding, of the hidden state and before the head,
 * and the matrix [hidden, 2 hidden] over the first two, embedding first. */
typedef struct kt_draft_head {
    kt_vec embedding_norm, hidden_norm, norm;
    kt_mat join;
    double eps;
    /* What names of the layer's tensors begin with in safetensors; the tensors above then have
     * whole names. NULL: all of them are the layer's, as of any other layer. */
    const char *body;
} kt_draft_head;

/* As DeepSeek and GLM name them, and GGUF files. */
kt_draft_head kt_draft_head_usual(const kt_build *b, double eps);

/* Does the model carry a draft head? `join` says it where there is a checkpoint, else
 * `declared`. */
bool kt_draft_head_is_there(const kt_build *b, const kt_draft_head *head, int64_t declared);

/* The residual becomes what the layer begins with: join of the normed embedding, which it holds,
 * and of the normed hidden state. Between kt_draft_begin and kt_draft_end stands the layer. */
void kt_draft_begin(kt_build *b, const kt_draft_head *head);
/* Norm, and the model's own lm_head. */
void kt_draft_end(kt_build *b, const kt_draft_head *head);

#endif
