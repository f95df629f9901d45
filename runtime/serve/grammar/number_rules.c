/* Decimal numbers between two bounds, digit by digit.
 *
 * While the digits so far equal those of a bound the text is "at" it, and the next digit may not
 * cross it; once it differs the rest is free. Both bounds split after the first digit in which they
 * differ, so the expression grows with the number of their digits, not with their values. No
 * exponents are written. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/serve/grammar/json_rules.h"

enum {
    MOST_DIGITS = 40,   /* of a bound, on each side of its point */
    FREE_FRACTION = 16, /* digits behind the point beyond those of the bounds */
    FREE_INTEGER = 18,  /* digits of an integer without a bound, */
    FREE_NUMBER = 16,   /* and of a number in front of its point */
    ZEROS = 4           /* that may follow a number which is equal to its upper bound */
};

typedef struct decimal {
    bool negative;
    int n_whole, n_fraction; /* no leading zeros but "0", no trailing zeros */
    char whole[MOST_DIGITS], fraction[MOST_DIGITS];
} decimal;

/* Positive numbers between two bounds; high may be NULL. */
typedef struct span_rules {
    kt_rules *r;
    const decimal *low, *high;
    bool low_excluded, high_excluded, is_integer;
    int n_whole; /* digits in front of the point */
} span_rules;

/* ---- bounds ---- */

static bool add_digit(char *digits, int *n, char c) {
    if (*n == MOST_DIGITS) return false;
    digits[(*n)++] = c;
    return true;
}

/* Digits, point and exponent of a JSON number to whole and fraction; false when they are too
 * many. */
static bool read_decimal(const char *text, decimal *out) {
    char digits[2 * MOST_DIGITS];
    int n = 0, point = 0, first = 0;
    bool behind = false;
    long exponent = 0;

    memset(out, 0, sizeof *out);
    out->negative = *text == '-';
    for (text += out->negative; *text && *text != 'e' && *text != 'E'; text++) {
        if (*text == '.') {
            behind = true;
            continue;
        }
        if (n == 2 * MOST_DIGITS) return false;
        digits[n++] = *text;
        point += !behind;
    }
    if (*text) exponent = strtol(text + 1, NULL, 10);
    if (exponent > 100 || exponent < -100) return false;
    point += (int)exponent;
    while (first < n && digits[first] == '0') first++;
    while (n > first && digits[n - 1] == '0') n--;
    for (int i = first; i < point; i++)
        if (!add_digit(out->whole, &out->n_whole, i < n ? digits[i] : '0')) return false;
    for (int i = point; i < n; i++)
        if (!add_digit(out->fraction, &out->n_fraction, i < first ? '0' : digits[i])) return false;
    if (out->n_whole == 0) add_digit(out->whole, &out->n_whole, '0');
    if (first == n) out->negative = false;
    return true;
}

static int compare_size(const decimal *a, const decimal *b) {
    int order = a->n_whole - b->n_whole, n = a->n_fraction;

    if (order == 0) order = memcmp(a->whole, b->whole, (size_t)a->n_whole);
    if (n > b->n_fraction) n = b->n_fraction;
    if (order == 0) order = memcmp(a->fraction, b->fraction, (size_t)n);
    return order ? order : a->n_fraction - b->n_fraction;
}

/* ---- digits ---- */

static kt_expr digit(kt_rules *r, int first, int last) {
    kt_char_set set = {.range = {{(uint32_t)first, (uint32_t)last}}, .n = 1};
    return kt_rules_chars(r, &set);
}

static kt_expr free_digits(kt_rules *r, int min, int max) {
    return kt_rules_repeat(r, digit(r, '0', '9'), min, max);
}

/* May the number end where its digits are the bounds' up to `at` behind the point? */
static bool may_end(const span_rules *s, int at, bool at_low, bool at_high) {
    if (at_low && (at < s->low->n_fraction || s->low_excluded)) return false;
    return !at_high || at < s->high->n_fraction || !s->high_excluded;
}

static kt_expr more_fraction(const span_rules *s, int at, bool at_low, bool at_high);

/* What follows a digit of the fraction: nothing where the number may end, or more. */
static kt_expr rest_of_fraction(const span_rules *s, int at, bool at_low, bool at_high) {
    kt_expr more = more_fraction(s, at, at_low, at_high);
    return may_end(s, at, at_low, at_high) ? kt_rules_optional(s->r, more) : more;
}

/* One digit or more, from the one at `at` on. */
static kt_expr more_fraction(const span_rules *s, int at, bool at_low, bool at_high) {
    kt_rules *r = s->r;
    int low_digits = at_low ? s->low->n_fraction : 0;
    int high_digits = at_high ? s->high->n_fraction : 0;
    int low = at_low && at < low_digits ? s->low->fraction[at] : '0';
    int high = !at_high ? '9' : at < high_digits ? s->high->fraction[at] : '0';
    kt_expr all[3];
    size_t n = 0;

    if (!at_high && at >= low_digits) {
        kt_expr some = kt_rules_pair(r, digit(r, '1', '9'), free_digits(r, 0, FREE_FRACTION));
        if (!at_low || !s->low_excluded) return free_digits(r, 1, FREE_FRACTION);
        return kt_rules_pair(r, kt_rules_repeat(r, digit(r, '0', '0'), 0, FREE_FRACTION), some);
    }
    if (at >= high_digits && at >= low_digits && at_high) { /* equal to the bound: zeros */
        if (!may_end(s, at, at_low, at_high)) return kt_rules_never(r);
        return kt_rules_repeat(r, digit(r, '0', '0'), 1, ZEROS);
    }
    if (low > high) return kt_rules_never(r);
    if (low == high || at_low)
        all[n++] = kt_rules_pair(r, digit(r, low, low),
                                 rest_of_fraction(s, at + 1, at_low, at_high && low == high));
    if (low < high && at_high)
        all[n++] = kt_rules_pair(r, digit(r, high, high), rest_of_fraction(s, at + 1, false, true));
    low += at_low;
    high -= at_high;
    if (low <= high)
        all[n++] = kt_rules_pair(r, digit(r, low, high), free_digits(r, 0, FREE_FRACTION));
    return kt_rules_choice(r, all, n);
}

/* What follows the whole part. */
static kt_expr after_whole(const span_rules *s, bool at_low, bool at_high) {
    kt_rules *r = s->r;
    bool ends = may_end(s, 0, at_low, at_high);
    kt_expr fraction;

    if (s->is_integer) return ends ? 0 : kt_rules_never(r);
    fraction = kt_rules_pair(r, kt_rules_literal(r, "."), more_fraction(s, 0, at_low, at_high));
    return ends ? kt_rules_optional(r, fraction) : fraction;
}

/* The digits of the whole part from the one at `at` on, and what follows. */
static kt_expr whole_part(const span_rules *s, int at, bool at_low, bool at_high) {
    kt_rules *r = s->r;
    kt_expr all[3], rest;
    size_t n = 0;
    int low, high;

    if (at == s->n_whole) return after_whole(s, at_low, at_high);
    low = at_low ? s->low->whole[at] : at == 0 && s->n_whole > 1 ? '1' : '0';
    high = at_high ? s->high->whole[at] : '9';
    if (!at_low && !at_high && at > 0)
        return kt_rules_pair(r, free_digits(r, s->n_whole - at, s->n_whole - at),
                             after_whole(s, false, false));
    if (low > high) return kt_rules_never(r);
    if (at_low || (at_high && low == high))
        all[n++] = kt_rules_pair(r, digit(r, low, low),
                                 whole_part(s, at + 1, at_low, at_high && low == high));
    if (at_high && low < high)
        all[n++] = kt_rules_pair(r, digit(r, high, high), whole_part(s, at + 1, false, true));
    low += n > 0 && (at_low || low == high);
    high -= at_high;
    if (low <= high) {
        rest = kt_rules_pair(r, free_digits(r, s->n_whole - at - 1, s->n_whole - at - 1),
                             after_whole(s, false, false));
        all[n++] = kt_rules_pair(r, digit(r, low, high), rest);
    }
    return kt_rules_choice(r, all, n);
}

static kt_expr span_of(span_rules s) {
    kt_expr_list all = {NULL, 0, 0};
    int most = s.is_integer ? FREE_INTEGER : FREE_NUMBER;
    kt_expr e;

    if (most < s.low->n_whole + 1) most = s.low->n_whole + 1;
    if (s.high) most = s.high->n_whole;
    for (s.n_whole = s.low->n_whole; s.n_whole <= most; s.n_whole++)
        kt_expr_list_add(
            s.r, &all,
            whole_part(&s, 0, s.n_whole == s.low->n_whole, s.high && s.n_whole == s.high->n_whole));
    e = kt_rules_choice(s.r, all.item, all.n);
    free(all.item);
    return e;
}

kt_status kt_json_number_range(kt_json_rules *j, const kt_number_range *range, kt_expr *out,
                               kt_err *err) {
    static const decimal zero = {.n_whole = 1, .whole = "0"};
    kt_rules *r = j->rules;
    decimal min = zero, max = zero;
    kt_expr positive = kt_rules_never(r), negative = kt_rules_never(r);

    if ((range->min && !read_decimal(range->min, &min)) ||
        (range->max && !read_decimal(range->max, &max)))
        return kt_fail(err, KT_E_UNSUPPORTED, "bounds of over %d digits are not supported",
                       (int)MOST_DIGITS);
    if (!range->max || !max.negative) {
        span_rules s = {
            r, &zero, range->max ? &max : NULL, false, range->max_excluded, range->is_integer, 0};
        if (range->min && !min.negative) {
            s.low = &min;
            s.low_excluded = range->min_excluded;
        }
        if (!s.high || compare_size(s.low, s.high) <= 0) positive = span_of(s);
    }
    if (!range->min || min.negative) {
        span_rules s = {
            r, &zero, range->min ? &min : NULL, true, range->min_excluded, range->is_integer, 0};
        if (range->max && max.negative) {
            s.low = &max;
            s.low_excluded = range->max_excluded;
        }
        if (!s.high || compare_size(s.low, s.high) <= 0)
            negative = kt_rules_pair(r, kt_rules_literal(r, "-"), span_of(s));
    }
    *out = kt_rules_either(r, positive, negative);
    return KT_OK;
}
