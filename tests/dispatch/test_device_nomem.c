/* Devices with every allocation failing once. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "dispatch/device/mailbox.h"
#include "tests/support/nomem.h"

static const kt_device_options options = {
    .class = "emulated", .threads = 2, .memory_bytes = 1 << 20};

static kt_status open_device(void *out, const void *with, kt_err *err) {
    return kt_device_open(with, out, err);
}
static void close_device(void *out) {
    kt_device_close(*(kt_device **)out);
}

/* Blocks, an event and a graph, on a device of its own. */
static kt_status use_device(void *out, const void *with, kt_err *err) {
    const char text[64] = "captured";
    kt_device_graph *graph = NULL;
    kt_device_event *event;
    kt_device *d;
    void *p, *q;
    kt_status st = kt_device_open(with, &d, err);

    if (st != KT_OK) return st;
    st = kt_device_alloc(d, 5000, &p, err);
    if (st == KT_OK) st = kt_device_host_alloc(d, 64, &q, err);
    if (st == KT_OK) st = kt_device_event_make(d, &event, err);
    if (st == KT_OK) st = kt_device_capture_begin(d, KT_STREAM_MAIN, err);
    if (st == KT_OK) st = kt_device_record(d, KT_STREAM_MAIN, event, err);
    if (st == KT_OK) st = kt_device_upload(d, KT_STREAM_MAIN, p, text, sizeof text, err);
    if (st == KT_OK) st = kt_device_download(d, KT_STREAM_MAIN, q, p, sizeof text, err);
    if (st == KT_OK) st = kt_device_capture_end(d, &graph, err);
    if (st == KT_OK) st = kt_device_replay(d, KT_STREAM_MAIN, graph, err);
    if (st == KT_OK) st = kt_device_sync(d, NULL, err);
    if (st == KT_OK) cr_expect_str_eq(q, text);
    if (st == KT_OK)
        *(kt_device **)out = d;
    else
        kt_device_close(d);
    return st;
}

/* Without memory to remember a piece by, it is put as it comes. */
static kt_status gather(void *out, const void *with, kt_err *err) {
    const char text[64] = "gathered";
    kt_mailbox *box = NULL;
    kt_device *d;
    void *p = NULL, *q = NULL;
    kt_status st = kt_device_open(with, &d, err);

    if (st != KT_OK) return st;
    st = kt_device_alloc(d, sizeof text, &p, err);
    if (st == KT_OK) st = kt_device_host_alloc(d, sizeof text, &q, err);
    if (st == KT_OK) st = kt_mailbox_create(d, KT_MAILBOX_MAPPED, 4, &box, err);
    for (int i = 0; st == KT_OK && i < 3; i++) {
        memset(q, 0, sizeof text);
        st = kt_device_gather_begin(d, KT_STREAM_MAIN, false, err);
        if (st == KT_OK) st = kt_device_upload(d, KT_STREAM_MAIN, p, text, sizeof text, err);
        if (st == KT_OK) st = kt_device_download(d, KT_STREAM_MAIN, q, p, 32, err);
        if (st == KT_OK) st = kt_device_download(d, KT_STREAM_MAIN, q, p, sizeof text, err);
        if (st == KT_OK) st = kt_device_gather_end(d, err);
        if (st == KT_OK) st = kt_device_sync(d, NULL, err);
        if (st == KT_OK) cr_expect_str_eq(q, text);
    }
    kt_mailbox_destroy(box);
    if (st == KT_OK)
        *(kt_device **)out = d;
    else
        kt_device_close(d);
    return st;
}

Test(device_nomem, an_emulated_device_is_whole_or_none, .timeout = 60) {
    const kt_nomem_case c = {.function = "kt_device_open",
                             .make = open_device,
                             .unmake = close_device,
                             .with = &options,
                             .out_bytes = sizeof(kt_device *),
                             .says = "emulated"};
    kt_nomem_check(&c);
}

Test(device_nomem, what_is_put_into_a_device_is_whole_or_none, .timeout = 60) {
    const kt_nomem_case c = {.function = "kt_device_alloc, graphs",
                             .make = use_device,
                             .unmake = close_device,
                             .with = &options,
                             .out_bytes = sizeof(kt_device *),
                             .says = "emulated"};
    kt_nomem_check(&c);
}

Test(device_nomem, mailboxes_are_whole_or_none_and_pieces_are_put, .timeout = 60) {
    const kt_nomem_case c = {.function = "kt_device_gather_begin, kt_mailbox_create",
                             .make = gather,
                             .unmake = close_device,
                             .with = &options,
                             .out_bytes = sizeof(kt_device *),
                             .says = "emulated",
                             .n_optional = 4}; /* a piece that is remembered, its graph */
    kt_nomem_check(&c);
}
