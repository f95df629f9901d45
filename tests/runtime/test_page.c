/* The built-in page in a browser, on the bundled model: it shows the machine live and chats.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "tests/support/browser.h"
#include "tests/support/served.h"

#define MODEL KT_SOURCE_DIR "/datasets/models/tiny-moe"

static struct {
    kt_served server;
    kt_browser *browser;
} on; /* a test is a process of its own */

static void expect_soon(const char *expression) {
    char *page;

    if (kt_browser_wait(on.browser, expression, 30)) return;
    page = kt_browser_eval(on.browser, "document.body.innerText");
    cr_assert_fail("never true: %s\n%s\n%s", expression, page, kt_browser_complaints(on.browser));
}

static void open_page(const char *const *more) {
    const char *program = kt_browser_find();
    char url[64];

    if (!program) cr_skip_test("no browser found (package chromium)");
    on.server = kt_served_start(MODEL, more);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/", on.server.port);
    on.browser = kt_browser_open(program, url);
}

static void close_page(void) {
    int state;

    cr_expect_str_eq(kt_browser_complaints(on.browser), "");
    kt_browser_close(on.browser);
    state = kt_served_stop(&on.server);
    cr_expect(WIFEXITED(state) && WEXITSTATUS(state) == 0, "state %#x", (unsigned)state);
}

/* The value beside a name in the list of live numbers. */
#define LIVE(name)                                                                           \
    "Array.from(document.querySelectorAll('#live dt')).find((e) => e.textContent === '" name \
    "').nextSibling.textContent"

Test(page, shows_the_machine_and_chats, .timeout = 240) {
    open_page(NULL);
    expect_soon("document.getElementById('model').textContent === 'tiny-moe'");
    expect_soon("document.getElementById('kernels').innerText.includes('experts (wbf16): ')");
    expect_soon(LIVE("generated") " === '0'");
    expect_soon("/^0 of [1-9][0-9]*$/.test(" LIVE("pages in use") ")");
    free(kt_browser_eval(on.browser,
                         "(document.getElementById('input').value = 'Who wrote Hamlet?',"
                         "document.getElementById('max').value = '24',"
                         "document.getElementById('form').requestSubmit(), true)"));
    expect_soon("document.querySelectorAll('.turn').length === 2 && "
                "!document.getElementById('send').disabled");
    expect_soon("document.querySelector('.turn.assistant .text').textContent.length > 3");
    expect_soon("document.querySelector('.turn.error') === null");
    expect_soon("Number(" LIVE("generated") ") > 3");
    expect_soon("Number(" LIVE("pages kept for reuse") ") >= 0");
    /* the next look after the answer has counted its steps: some of 4 x 16 experts were hit */
    expect_soon("/4 layers of 16 experts, [1-9][0-9]* of 64 hit of late, [1-9][0-9]* steps seen/"
                ".test(document.getElementById('hit').textContent)");
    expect_soon("document.getElementById('heat').width === 16 && "
                "document.getElementById('heat').height === 4");
    close_page();
}

/* With a key nothing but the page itself is given away, and it says so. */
Test(page, asks_for_the_key, .timeout = 240) {
    static const char *const more[] = {"--api-key", "secret", NULL};

    open_page(more);
    expect_soon("document.getElementById('note').textContent.includes('API key')");
    free(kt_browser_eval(on.browser, "(document.getElementById('key').value = 'secret')"));
    expect_soon("document.getElementById('model').textContent === 'tiny-moe'");
    expect_soon(LIVE("running") " === '0'");
    kt_browser_close(on.browser); /* the console tells of each 401 */
    cr_expect_eq(kt_served_stop(&on.server), 0);
}
