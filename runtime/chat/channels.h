/* Answers of several messages, each with a header that names its channel (gpt-oss, "harmony"):
 *
 *   MESSAGE = start ROLE [RECIPIENT] channel NAME [RECIPIENT] [[constrain] TYPE] message TEXT END
 *   RECIPIENT = " to=" NAME; END is end, done (of the answer) or call (of a function)
 *
 * The prompt ends behind "start ROLE", so an answer begins inside a header.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHANNELS_H
#define KT_RUNTIME_CHANNELS_H

typedef struct kt_channels {
    const char *start, *channel, *constrain, *message, *end, *done, *call; /* marks */
    const char *role;                                                      /* who answers */
    const char *reasoning;  /* the channel of reasoning; what is on others is text */
    const char *calling;    /* the channel that calls of functions are written on */
    const char *final;      /* the channel of the answer */
    const char *recipients; /* goes before the name of a function of the request */
    const char *type;       /* of a call's arguments */
} kt_channels;

extern const kt_channels kt_channels_harmony;

#endif
