/* The parts that all grammars of JSON have in common. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JSON_RULES_H
#define KT_RUNTIME_JSON_RULES_H

#include "base/json.h"
#include "runtime/serve/grammar/grammar_rules.h"

/* Rules for JSON texts of one kt_rules. Numbers have at most 16 digits before and after the point
 * and an exponent of at most 2, integers at most 18: what doubles and 64 bits hold. White space is
 * bounded: a space, or a new line with up to 20 of indentation, where JSON writers put any. */
typedef struct kt_json_rules {
    kt_rules *rules;
    int32_t space, string, number, integer, boolean, value, object, array;
} kt_json_rules;

void kt_json_rules_define(kt_json_rules *j, kt_rules *r);

/* A character of a string, in any of its spellings; or one of the set, as it is or, where it must
 * be, escaped. */
kt_expr kt_json_char(kt_json_rules *j);
kt_expr kt_json_char_of(kt_json_rules *j, const kt_char_set *sorted);

/* The one text of a value as a writer without spaces makes it. */
kt_expr kt_json_constant(kt_json_rules *j, const kt_json *value);

/* open item, item ... close with commas: first, then min - 1 to max - 1 (max < 0: any number) more
 * of `rest`, where first and rest may be the same; min = 0 allows none at all. */
kt_expr kt_json_list(kt_json_rules *j, const char *open, kt_expr items, const char *close,
                     bool may_be_empty);
kt_expr kt_json_comma(kt_json_rules *j, kt_expr item); /* ',' and the item */
kt_expr kt_json_items(kt_json_rules *j, kt_expr item, int32_t min, int32_t max); /* min >= 1 */

/* key (with its quotes), ':' and value. */
kt_expr kt_json_pair(kt_json_rules *j, kt_expr key, kt_expr value);

/* A key that is none of these n, written without escapes. */
typedef struct kt_json_name {
    const char *text;
    size_t size;
} kt_json_name;
kt_expr kt_json_other_key(kt_json_rules *j, kt_json_name *names, size_t n); /* names are sorted */

/* Numbers between two bounds, each a JSON number's digits as written, or NULL. KT_E_UNSUPPORTED for
 * bounds of over 40 digits. */
typedef struct kt_number_range {
    const char *min, *max;
    bool min_excluded, max_excluded, is_integer;
} kt_number_range;
kt_status kt_json_number_range(kt_json_rules *j, const kt_number_range *range, kt_expr *out,
                               kt_err *err);

/* The inside of strings that a regular expression (ECMA-262, without look-around, back references
 * and word borders) is found in. Errors name the construct and its place in the pattern. */
kt_status kt_json_pattern(kt_json_rules *j, const char *pattern, size_t size, kt_expr *out,
                          kt_err *err);
/* The pattern of a string format of JSON Schema, or NULL. */
const char *kt_json_format_pattern(const char *format);

#endif
