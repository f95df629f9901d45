/* Classes and cases of characters, from utf8proc's tables. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/unicode.h"

#include <utf8proc.h>

bool kt_unicode_is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 ||
           c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

static utf8proc_category_t category(uint32_t c) {
    return utf8proc_category((utf8proc_int32_t)c);
}

bool kt_unicode_is_alpha(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO;
}

bool kt_unicode_is_digit(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_ND;
}

bool kt_unicode_is_lower(uint32_t c) {
    return category(c) == UTF8PROC_CATEGORY_LL;
}

bool kt_unicode_is_upper(uint32_t c) {
    utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LT;
}

/* Python escapes in repr what is "other" or a separator, but for the space. */
bool kt_unicode_is_printable(uint32_t c) {
    switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
    }
}

/* Characters of living orthographies that become several (Unicode's SpecialCasing). */
static const struct {
    uint32_t c, upper[3], title[3];
} special[] = {
    {0xdf, {'S', 'S'}, {'S', 's'}},
    {0x149, {0x2bc, 'N'}, {0x2bc, 'N'}},
    {0x1f0, {'J', 0x30c}, {'J', 0x30c}},
    {0x587, {0x535, 0x552}, {0x535, 0x582}},
    {0xfb00, {'F', 'F'}, {'F', 'f'}},
    {0xfb01, {'F', 'I'}, {'F', 'i'}},
    {0xfb02, {'F', 'L'}, {'F', 'l'}},
    {0xfb03, {'F', 'F', 'I'}, {'F', 'f', 'i'}},
    {0xfb04, {'F', 'F', 'L'}, {'F', 'f', 'l'}},
    {0xfb05, {'S', 'T'}, {'S', 't'}},
    {0xfb06, {'S', 'T'}, {'S', 't'}},
};

int kt_unicode_convert(uint32_t c, kt_letter_case to, uint32_t out[3]) {
    utf8proc_int32_t from = (utf8proc_int32_t)c;

    if (to == KT_CASE_LOWER && c == 0x130) { /* dotted capital I */
        out[0] = 'i';
        out[1] = 0x307;
        return 2;
    }
    for (size_t i = 0; to != KT_CASE_LOWER && i < sizeof special / sizeof *special; i++) {
        const uint32_t *many = to == KT_CASE_UPPER ? special[i].upper : special[i].title;
        int n = 0;
        if (special[i].c != c) continue;
        for (; n < 3 && many[n]; n++) out[n] = many[n];
        return n;
    }
    out[0] = (uint32_t)(to == KT_CASE_LOWER   ? utf8proc_tolower(from)
                        : to == KT_CASE_UPPER ? utf8proc_toupper(from)
                                              : utf8proc_totitle(from));
    return 1;
}
