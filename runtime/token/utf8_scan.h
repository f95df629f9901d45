/* Reading UTF-8 that may be ill-formed or cut off. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_UTF8_SCAN_H
#define KT_RUNTIME_UTF8_SCAN_H

#include <stddef.h>
#include <stdint.h>

#define KT_UTF8_REPLACEMENT "\xef\xbf\xbd" /* U+FFFD */

/* Look at the character at s, n > 0 bytes long.
 *
 * Returns its length 1..4 and the code point in *cp. Ill-formed text returns -k: the k bytes that
 * Unicode calls a maximal subpart and that one U+FFFD replaces. 0 means that the text ends inside a
 * so far well-formed character. */
int kt_utf8_next(const char *s, size_t n, uint32_t *cp);

/* Length of the well-formed beginning of s: n when all of it is. */
size_t kt_utf8_valid_prefix(const char *s, size_t n);

#endif
