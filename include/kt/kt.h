/* The whole public API. The contract of kernels (kt/variant.h, kt/problem.h, kt/isa.h) stands
 * apart: it is for files inside the tree.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KT_H
#define KT_KT_H

#include "kt/api.h"
#include "kt/chat.h"
#include "kt/engine.h"
#include "kt/moe.h"
#include "kt/probe.h"
#include "kt/sampler.h"
#include "kt/table.h"
#include "kt/tokenizer.h"

#endif
