/* Conversions and packed folders, with every allocation failing once.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/exec/engine.h"
#include "runtime/model/convert.h"
#include "tests/support/nomem.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"
#include "dispatch/model/checkpoint.h"

/* Experts of 192: of 128 in groups of 128 they could not be cut over two nodes. */
static const kt_model_shape small = {.layers = 2,
                                     .hidden = 64,
                                     .vocab = 128,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 32,
                                     .experts = 4,
                                     .topk = 2,
                                     .expert_size = 192,
                                     .dense_size = 192,
                                     .dense_layer = 0,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

static char model[256], packed[256], out[256], load[300];

/* With formats chosen by a recorded load, which takes what other conversions do, and more. */
static kt_status convert_to(const char *folder, kt_convert_result *result, kt_err *err) {
    const kt_convert_request request = {
        .model = model, .out = folder, .budget = 300000, .load = load, .n_threads = 2};
    return kt_convert(&request, result, err);
}

static void make_models(void) {
    static const char steps[] = "{\"schema\":\"kt-trace-1\",\"experts\":4}\n"
                                "{\"decode\":1,\"layers\":[[0,3]]}\n";
    kt_convert_result result;
    kt_err err = {KT_OK, ""};

    kt_temp_make(model, sizeof model);
    kt_temp_make(packed, sizeof packed);
    kt_random_model(&small, 3, model);
    kt_temp_write(model, "load.jsonl", steps, sizeof steps - 1);
    snprintf(load, sizeof load, "%s/load.jsonl", model);
    cr_assert_eq(convert_to(packed, &result, &err), KT_OK, "%s", err.message);
}

static void remove_models(void) {
    kt_temp_remove(model);
    kt_temp_remove(packed);
}
TestSuite(convert_nomem, .init = make_models, .fini = remove_models, .timeout = 240);

/* What the former try has left may be gone on with. */
static kt_status convert(void *result, const void *with, kt_err *err) {
    (void)with;
    return convert_to(out, result, err);
}

static void forget(void *result) {
    (void)result;
    kt_temp_remove(out);
    kt_temp_make(out, sizeof out);
}

Test(convert_nomem, a_conversion_is_whole_or_goes_on) {
    const kt_nomem_case c = {.function = "kt_convert",
                             .make = convert,
                             .unmake = forget,
                             .out_bytes = sizeof(kt_convert_result),
                             .says = "converting",
                             .n_optional = 20}; /* libraries that cannot be tried are not used */
    kt_temp_make(out, sizeof out);
    kt_nomem_check(&c);
    kt_temp_remove(out);
}

static kt_status open_folder(void *c, const void *with, kt_err *err) {
    (void)with;
    return kt_checkpoint_open(packed, c, err);
}

static kt_status open_shard(void *c, const void *with, kt_err *err) {
    char path[400];
    (void)with;

    snprintf(path, sizeof path, "%s/model-00001-of-00003.safetensors", packed);
    return kt_checkpoint_open_panels(path, c, err);
}

static void close_checkpoint(void *c) {
    kt_checkpoint_close(*(kt_checkpoint **)c);
}

Test(convert_nomem, packed_folders_are_open_or_closed) {
    kt_nomem_case c = {.function = "kt_checkpoint_open",
                       .make = open_folder,
                       .unmake = close_checkpoint,
                       .out_bytes = sizeof(kt_checkpoint *),
                       .says = "memory"};

    kt_nomem_check(&c);
    c.function = "kt_checkpoint_open_panels";
    c.make = open_shard;
    kt_nomem_check(&c);
}

static kt_status create_engine(void *e, const void *with, kt_err *err) {
    const kt_engine_options o = {.model_dir = packed,
                                 .table_path = "",
                                 .tokenizer_optional = true,
                                 .deterministic = true,
                                 .max_context = 32,
                                 .numa = *(const int *)with,
                                 .n_threads = 2};
    return kt_engine_create(&o, e, err);
}

static void destroy_engine(void *e) {
    kt_engine_destroy(*(kt_engine **)e);
}

Test(convert_nomem, packed_models_are_loaded_or_not) {
    static const int groups[] = {1, 2};

    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        const kt_nomem_case c = {.function = "kt_engine_create",
                                 .make = create_engine,
                                 .unmake = destroy_engine,
                                 .with = &groups[i],
                                 .out_bytes = sizeof(kt_engine *),
                                 .says = "",
                                 .n_optional = 20};
        kt_nomem_check(&c);
    }
}
