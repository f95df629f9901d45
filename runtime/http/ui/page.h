/* The built-in page, embedded by the build from page.html. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PAGE_H
#define KT_RUNTIME_PAGE_H

#include <stddef.h>

extern const char kt_page_html[]; /* not NUL-terminated; "@NONCE@" stands where a nonce belongs */
extern const size_t kt_page_html_size;

#endif
