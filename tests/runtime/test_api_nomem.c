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

/* ---- expert layers, parts of which are made by the team's thread ---- */

static kt_status make_team(void *out, const void *with, kt_err *err) {
    return kt_moe_team_create(with, out, err);
}
static void unmake_team(void *out) {
    kt_moe_team_destroy(*(kt_moe_team **)out);
}

static kt_status make_layer(void *out, const void *with, kt_err *err) {
    static uint16_t w[2 * 64 * 64];
    const kt_moe_tensor tensors[2] = {{"gate_up_proj", "BF16", 3, {1, 128, 64}, 0, w},
                                      {"down_proj", "BF16", 3, {1, 64, 64}, 256, w}};
    kt_moe_options o;
    kt_moe *m = NULL;
    kt_status st;

    kt_moe_options_init(&o, sizeof o);
    o.experts = o.topk = 1, o.hidden = o.intermediate = 64, o.max_tokens = 1;
    st = kt_moe_create(*(kt_moe_team *const *)with, &o, &m, err);
    if (st == KT_OK) st = kt_moe_load_from_tensors(m, tensors, 2, NULL, err);
    if (st != KT_OK) {
        kt_moe_destroy(m);
        return st;
    }
    *(kt_moe **)out = m;
    return KT_OK;
}
static void unmake_layer(void *out) {
    kt_moe_destroy(*(kt_moe **)out);
}

/* kt_moe_load: the layer stays without weights, or has them. */
static kt_status load_layer(void *out, const void *with, kt_err *err) {
    (void)out;
    return kt_moe_load(*(kt_moe *const *)with, TINY, 0, err);
}

Test(api_nomem, teams_and_layers_are_whole_or_none, .timeout = 120) {
    kt_moe_team_options options;
    kt_moe_options o;
    kt_moe_team *team;
    kt_moe *m;
    kt_err err = {KT_OK, ""};
    kt_nomem_case c = {.function = "kt_moe_team_create",
                       .make = make_team,
                       .unmake = unmake_team,
                       .with = &options,
                       .out_bytes = sizeof(void *),
                       .says = "",
                       .n_optional = 20}; /* libraries that cannot be tried are not used */

    kt_moe_team_options_init(&options, sizeof options);
    options.n_threads = 2;
    kt_nomem_check(&c);
    cr_assert_eq(kt_moe_team_create(&options, &team, &err), KT_OK, "%s", err.message);
    c = (kt_nomem_case){.function = "kt_moe_load_from_tensors",
                        .make = make_layer,
                        .unmake = unmake_layer,
                        .with = &team,
                        .out_bytes = sizeof(void *),
                        .says = "",
                        .n_optional = 20};
    kt_nomem_check(&c);
    kt_moe_options_init(&o, sizeof o);
    o.experts = 16, o.topk = 4, o.hidden = 256, o.intermediate = 128, o.max_tokens = 1;
    cr_assert_eq(kt_moe_create(team, &o, &m, &err), KT_OK, "%s", err.message);
    cr_assert_eq(load_layer(NULL, &m, &err), KT_OK, "%s", err.message);
    c.function = "kt_moe_load", c.make = load_layer, c.unmake = NULL, c.with = &m, c.most = 60;
    kt_nomem_check(&c);
    kt_moe_destroy(m);
    kt_moe_team_destroy(team);
}
