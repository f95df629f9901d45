/* JSON Schema as rules of a grammar. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SCHEMA_RULES_H
#define KT_RUNTIME_SCHEMA_RULES_H

#include "base/json.h"
#include "runtime/serve/grammar/grammar_rules.h"

/* Give `rule` of r the JSON texts that obey the schema as its body. Errors as
 * kt_grammar_from_schema; running out of memory may stick in r instead. */
kt_status kt_schema_rules(kt_rules *r, int32_t rule, const kt_json *schema, kt_err *err);

#endif
