/* Inside of a request: one of its choices. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ANSWER_H
#define KT_RUNTIME_ANSWER_H

#include "runtime/serve/request.h"

/* A token that was chosen and not taken over yet. */
typedef struct kt_pick {
    kt_status status; /* of choosing it */
    kt_err why;
    int32_t id;
    float logprob;
    int n_top;
    int32_t top_ids[KT_MAX_TOP_LOGPROBS];
    float top[KT_MAX_TOP_LOGPROBS];
} kt_pick;

struct kt_answer {
    kt_request *request;
    const kt_request_model *model;
    const kt_prompt *prompt;
    int index;
    kt_sampler sampler;
    uint64_t *mask; /* owned: [(vocab + 63) / 64], NULL where nothing is ever forbidden */
    void *constraint, *output; /* owned states, or NULL */
    kt_pick pick;
    kt_ids tokens; /* made so far */
    int64_t n_reasoning;
    kt_detokenizer detokenizer;
    kt_text piece, held, shown; /* bytes of a token; may become a stop string; may be sent */
    const char *matched;        /* stop string that came, or NULL */
    int32_t stop_token;         /* id that ended it, or -1 */
    bool is_over;
    kt_status sink_status; /* of what the output's sink did */
};

#endif
