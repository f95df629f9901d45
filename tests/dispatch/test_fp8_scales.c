/* How E4M3 codes are scaled, by type, name and shape of what lies beside them.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <string.h>

#include "base/json.h"
#include "dispatch/model/family.h"

Test(fp8_scales, shapes_and_types_tell_the_blocks) {
    static const struct {
        int64_t n, k;
        kt_tensor scales;
        kt_encoding want;
    } cases[] = {
        {192, 128, {.name = "q.weight_scale_inv", KT_DTYPE_U8, 2, {192, 4}}, KT_STORED_MXFP8},
        {192, 128, {.name = "q.weight_scale", KT_DTYPE_F8_E8M0, 2, {192, 4}}, KT_STORED_MXFP8},
        {64, 32, {.name = "q.weight_scale", KT_DTYPE_U8, 2, {64, 1}}, KT_STORED_MXFP8},
        {128, 6144, {.name = "q.weight_scale_inv", KT_DTYPE_U8, 2, {128, 192}}, KT_STORED_MXFP8},
        {64, 32, {.name = "q.weight_scale", KT_DTYPE_F32, 2, {64, 1}}, KT_STORED_FP8_CHANNEL},
        {64, 256, {.name = "q.weight_scale", KT_DTYPE_BF16, 1, {64}}, KT_STORED_FP8_CHANNEL},
        {64, 256, {.name = "q.weight_scale", KT_DTYPE_F32, 0, {0}}, KT_STORED_FP8_CHANNEL},
        {192, 300, {.name = "q.weight_scale_inv", KT_DTYPE_BF16, 2, {2, 3}}, KT_STORED_FP8_BLOCK},
        {96, 64, {.name = "q.weight_scale_inv", KT_DTYPE_F32, 2, {1, 1}}, KT_STORED_FP8_BLOCK},
        {4096, 1024, {.name = "q.scale", KT_DTYPE_F8_E8M0, 2, {32, 8}}, KT_STORED_FP8_BLOCK},
        {128, 128, {.name = "q.scale", KT_DTYPE_F8_E8M0, 2, {1, 1}}, KT_STORED_FP8_BLOCK}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        cr_expect_eq(kt_fp8_encoding(&cases[i].scales, cases[i].n, cases[i].k), cases[i].want,
                     "case %zu: %d", i, kt_fp8_encoding(&cases[i].scales, cases[i].n, cases[i].k));
    cr_expect_eq(kt_fp8_encoding(NULL, 64, 64), KT_STORED_FP8_CHANNEL);
}

/* Without tensors the declaration stands, in blocks of 1 x 32 only. */
Test(fp8_scales, mxfp8_is_declared) {
    static const char *const configs[] = {
        "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":1,\"hidden_size\":128,"
        "\"vocab_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":64,"
        "\"num_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":128,"
        "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"quantization_config\":{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,32]}}",
        "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":1,\"hidden_size\":128,"
        "\"vocab_size\":64,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":64,"
        "\"num_experts\":2,\"num_experts_per_tok\":1,\"moe_intermediate_size\":128,"
        "\"max_position_embeddings\":64,\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,"
        "\"quantization_config\":{\"quant_method\":\"mxfp8\",\"weight_block_size\":[1,16]}}"};
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < 2; i++) {
        kt_json_doc *doc;
        kt_graph_request request = {.source = {.arch = "", .where = "config.json"}};
        kt_graph g;
        kt_status st;
        cr_assert_eq(kt_json_parse(configs[i], strlen(configs[i]), NULL, &doc, &err), KT_OK);
        request.source.json = kt_json_root(doc);
        st = kt_graph_build(&request, &g, &err);
        cr_expect_eq(st, i ? KT_E_UNSUPPORTED : KT_OK, "%s", err.message);
        if (st == KT_OK) {
            cr_expect_eq(kt_graph_find(&g, "qkv", 0)->part[0].stored, KT_W_MXFP8);
            cr_expect_eq(kt_graph_experts(&g, 0)->part[2].stored, KT_W_MXFP8);
            kt_graph_deinit(&g);
        }
        kt_json_destroy(doc);
    }
    cr_expect(strstr(err.message, "[1, 16], expected [1, 32]"), "%s", err.message);
}
