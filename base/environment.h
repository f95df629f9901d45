/* Environment variables with a fixed set of values. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_ENVIRONMENT_H
#define KT_BASE_ENVIRONMENT_H

#include "kt/status.h"

/* Refuse values of KT_LOG and KT_DISABLE_ISA that nothing would obey, naming those that are known.
 * For programs, before they do anything. */
kt_status kt_environment_check(kt_err *err);

#endif
