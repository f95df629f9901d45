/* Makers of the public API with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>

#include "kt/kt.h"
#include "tests/support/nomem.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static kt_status make_stop(void *out, const void *with, kt_err *err) {
    (void)with;
    return kt_stop_create(out, err);
}
static void unmake_stop(void *out) {
    kt_stop_destroy(*(kt_stop **)out);
}

static kt_status make_sampler(void *out, const void *with, kt_err *err) {
    const kt_token_bias bias = {1, 2};
    return kt_sampler_create(with, &bias, 1, 100, out, err);
}
static void unmake_sampler(void *out) {
    kt_sampler_destroy(*(kt_sampler **)out);
}

static kt_status make_format(void *out, const void *with, kt_err *err) {
    return kt_chat_format_open(with, NULL, out, err);
}
static void unmake_format(void *out) {
    kt_chat_format_destroy(*(kt_chat_format **)out);
}

static kt_status make_engine(void *out, const void *with, kt_err *err) {
    return kt_engine_load(with, out, err);
}
static void unmake_engine(void *out) {
    kt_engine_destroy(*(kt_engine **)out);
}

Test(api_nomem, objects_are_whole_or_none, .timeout = 60) {
    kt_sampling greedy;
    kt_nomem_case c = {.function = "kt_stop_create",
                       .make = make_stop,
                       .unmake = unmake_stop,
                       .out_bytes = sizeof(void *),
                       .says = "memory"};

    kt_sampling_init(&greedy);
    kt_nomem_check(&c);
    c.function = "kt_sampler_create", c.make = make_sampler, c.unmake = unmake_sampler;
    c.with = &greedy;
    kt_nomem_check(&c);
    c.function = "kt_chat_format_open", c.make = make_format, c.unmake = unmake_format;
    c.with = TINY, c.says = "", c.most = 20;
    kt_nomem_check(&c);
}

/* The engine's own allocations fail in test_engine_nomem; here some of all. */
Test(api_nomem, an_engine_is_whole_or_none, .timeout = 240) {
    kt_model_options o;
    kt_nomem_case c = {.function = "kt_engine_load",
                       .make = make_engine,
                       .unmake = unmake_engine,
                       .with = &o,
                       .out_bytes = sizeof(kt_engine *),
                       .says = "",
                       .n_optional = 20, /* libraries that cannot be tried are not used */
                       .most = 16};

    kt_model_options_init(&o, sizeof o);
    o.model = TINY, o.table = "", o.n_threads = 1, o.context = 128;
    kt_nomem_check(&c);
}
