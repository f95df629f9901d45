/* Well-formedness after table 3-7 of the Unicode standard. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/utf8_scan.h"

#include <string.h>

int kt_utf8_next(const char *s, size_t n, uint32_t *cp) {
    const unsigned char *b = (const unsigned char *)s;
    unsigned lo = 0x80, hi = 0xbf; /* what the second byte may be */
    int need;
    uint32_t c;

    if (b[0] < 0x80) {
        *cp = b[0];
        return 1;
    }
    if (b[0] < 0xc2 || b[0] > 0xf4) return -1;
    need = b[0] < 0xe0 ? 2 : b[0] < 0xf0 ? 3 : 4;
    c = b[0] & (0xffu >> (need + 1));
    if (b[0] == 0xe0) lo = 0xa0; /* shorter form exists */
    if (b[0] == 0xed) hi = 0x9f; /* surrogates */
    if (b[0] == 0xf0) lo = 0x90;
    if (b[0] == 0xf4) hi = 0x8f; /* over U+10FFFF */
    for (int i = 1; i < need; i++) {
        if ((size_t)i == n) return 0;
        if (b[i] < lo || b[i] > hi) return -i;
        c = c << 6 | (b[i] & 0x3f);
        lo = 0x80;
        hi = 0xbf;
    }
    *cp = c;
    return need;
}

size_t kt_utf8_valid_prefix(const char *s, size_t n) {
    const uint64_t high = 0x8080808080808080u;
    size_t i = 0;

    while (i < n) {
        uint64_t word;
        uint32_t cp;
        int len;
        if (n - i >= sizeof word) {
            memcpy(&word, s + i, sizeof word);
            if (!(word & high)) {
                i += sizeof word;
                continue;
            }
        }
        len = kt_utf8_next(s + i, n - i, &cp);
        if (len <= 0) return i;
        i += (size_t)len;
    }
    return n;
}
