/* What Python's str methods know about characters. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_UNICODE_H
#define KT_RUNTIME_UNICODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum kt_letter_case { KT_CASE_LOWER, KT_CASE_UPPER, KT_CASE_TITLE } kt_letter_case;

bool kt_unicode_is_space(uint32_t c); /* str.isspace: more than a regular expression's \s */
bool kt_unicode_is_alpha(uint32_t c);
bool kt_unicode_is_digit(uint32_t c); /* decimal digits of any script */
bool kt_unicode_is_lower(uint32_t c);
bool kt_unicode_is_upper(uint32_t c); /* or title case */
bool kt_unicode_is_printable(uint32_t c);

/* c in that case, up to 3 characters ("ß" becomes "SS"); returns how many. */
int kt_unicode_convert(uint32_t c, kt_letter_case to, uint32_t out[3]);

#endif
