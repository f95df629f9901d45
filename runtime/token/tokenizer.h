/* Tokenizer: text <-> token ids. The interface is the public one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TOKENIZER_H
#define KT_RUNTIME_TOKENIZER_H

#include "kt/tokenizer.h"

#endif
