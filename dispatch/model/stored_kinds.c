/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/stored_kinds.h"

const kt_container_kind kt_container_kinds[] = {
    {"safetensors", "config.json, model.safetensors"},
    {"safetensors, sharded", "config.json, model.safetensors.index.json and its shards"},
    {"packed by kt convert",
     "config.json or metadata.gguf, model.safetensors.index.json and its shards"},
    {"GGUF", "one .gguf file, version 2 or 3"},
    {"GGUF, split", "NAME-00001-of-0000N.gguf and the other parts beside it"}};

const size_t kt_container_kind_count = sizeof kt_container_kinds / sizeof *kt_container_kinds;

#define ALL_INT4                                                                      \
    {                                                                                 \
        KT_W_INT4_G32, KT_W_INT4_G64, KT_W_INT4_G128, KT_W_INT4Z_G32, KT_W_INT4Z_G64, \
            KT_W_INT4Z_G128                                                           \
    }
#define ZERO_INT4 \
    { KT_W_INT4Z_G32, KT_W_INT4Z_G64, KT_W_INT4Z_G128 }

const kt_stored_kind kt_stored_kinds[] = {
    {KT_STORED_PLAIN, 0, "BF16", "X.weight", {KT_W_BF16}},
    {KT_STORED_PLAIN, 0, "F16", "X.weight", {KT_W_F16}},
    {KT_STORED_PLAIN, 0, "F32", "X.weight", {KT_W_F32}},
    {KT_STORED_FP8_BLOCK,
     0,
     "FP8 block",
     "X.weight, X.weight_scale_inv per 128 x 128",
     {KT_W_FP8_B128}},
    {KT_STORED_FP8_CHANNEL,
     0,
     "FP8 channel",
     "X.weight, X.weight_scale per row or tensor",
     {KT_W_FP8_CHANNEL}},
    {KT_STORED_MXFP8,
     0,
     "MXFP8 blocks",
     "X.weight, X.weight_scale_inv or X.weight_scale (U8, F8_E8M0) per 32 inputs",
     {KT_W_MXFP8}},
    {KT_STORED_MXFP4,
     0,
     "MXFP4 blocks",
     "experts X_blocks, X_scales; X.weight_packed (U8), X.weight_scale; X.weight (U8), X.scale",
     {KT_W_MXFP4}},
    {KT_STORED_NVFP4,
     0,
     "NVFP4",
     "X.weight or X.weight_packed (U8), X.weight_scale (F8_E4M3) per 16, "
     "X.weight_scale_2 or X.weight_global_scale",
     {KT_W_NVFP4}},
    {KT_STORED_INT4, KT_INT4_ROWS, "INT4 compressed-tensors", "X.weight_packed, X.weight_scale",
     ALL_INT4},
    {KT_STORED_INT4, KT_INT4_AWQ, "AWQ", "X.qweight, X.qzeros, X.scales", ZERO_INT4},
    {KT_STORED_INT4, KT_INT4_GPTQ, "GPTQ", "X.qweight, X.qzeros, X.scales, X.g_idx", ZERO_INT4},
    {KT_STORED_INT4, KT_INT4_GPTQ_V2, "GPTQ v2", "the same, checkpoint_format gptq_v2", ZERO_INT4}};

const size_t kt_stored_kind_count = sizeof kt_stored_kinds / sizeof *kt_stored_kinds;
