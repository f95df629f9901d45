/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/hooks.h"

static kt_status open_parser(void *arg, int choice, void **out, kt_err *err) {
    kt_parser_options options = *(const kt_parser_options *)arg;
    kt_parser *p = NULL;
    kt_status st;

    options.seed += (uint64_t)choice * 0x9e3779b97f4a7c15u; /* call ids of choices differ */
    st = kt_parser_create(&options, &p, err);
    *out = p;
    return st;
}

static void close_parser(void *state) {
    kt_parser_destroy(state);
}

static bool wants(void *state, int32_t id) {
    return kt_parser_wants(state, id);
}

static kt_status push(void *state, int32_t id, const char *bytes, size_t size, kt_event_sink *sink,
                      void *sink_arg, kt_err *err) {
    return kt_parser_push(state, id, bytes, size, sink, sink_arg, err);
}

static kt_status finish(void *state, kt_event_sink *sink, void *sink_arg, kt_err *err) {
    return kt_parser_finish(state, sink, sink_arg, err);
}

static bool in_reasoning(void *state) {
    return kt_parser_in_reasoning(state);
}

static int whole_calls(void *state) {
    int n;
    kt_parser_calls(state, &n);
    return n;
}

kt_output kt_output_of_parser(const kt_parser_options *options) {
    return (kt_output){(void *)(uintptr_t)options,
                       open_parser,
                       close_parser,
                       wants,
                       push,
                       finish,
                       in_reasoning,
                       whole_calls,
                       NULL};
}
