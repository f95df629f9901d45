/* A headless Chromium, driven through the two pipes of --remote-debugging-pipe: JSON messages, each
 * ended by a NUL. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_BROWSER_H
#define KT_TESTS_BROWSER_H

#include <stdbool.h>

typedef struct kt_browser kt_browser;

/* The first of Chromium's and Chrome's names that is a program here; NULL = none. */
const char *kt_browser_find(void);

/* Start it and open a page. Fails the test when it does not start. */
kt_browser *kt_browser_open(const char *program, const char *url);
/* End it, with its folder. */
void kt_browser_close(kt_browser *b);

/* What an expression of the page is, as text; owned. "error: ..." when it throws. */
char *kt_browser_eval(kt_browser *b, const char *expression);
/* Evaluate until it is "true"; false after so many seconds. */
bool kt_browser_wait(kt_browser *b, const char *expression, int seconds);
/* What the console and the page's policy complained of so far, a line each; "" = nothing. */
const char *kt_browser_complaints(const kt_browser *b);

#endif
