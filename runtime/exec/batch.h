/* Steps over rows of many sequences, and the sequences themselves: pages of keys and values, states
 * of recurrent layers, reuse of what earlier sequences have computed. The interface is the public
 * one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BATCH_H
#define KT_RUNTIME_BATCH_H

#include "kt/engine.h"
#include "runtime/exec/stop.h"

#endif
