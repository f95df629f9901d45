/* `kt plan --families`: all published models on given machines.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PLAN_FAMILIES_H
#define KT_RUNTIME_PLAN_FAMILIES_H

#include "runtime/model/shape_fit.h"

/* One row for each bundled shape with a config, by family; printed as text or JSON. asked->shape is
 * not read. 0, or the exit code after a message. */
int kt_plan_families(const kt_shape_fit_request *asked, bool json);

#endif
