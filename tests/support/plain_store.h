/* A random model of a family (plain_model.h) in the encodings that checkpoints have: its matrices
 * are encoded, its numbers become what was written, and the files say so as published ones do.
 * Nothing of the engine's loader, of its decoders or of its encoders is used.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_PLAIN_STORE_H
#define KT_TESTS_PLAIN_STORE_H

#include "tests/support/plain_model.h"

typedef enum kt_plain_encoding {
    KT_PLAIN_FLOATS, /* BF16, F16 or F32, by tensor */
    KT_PLAIN_FP8_BLOCK,
    KT_PLAIN_FP8_CHANNEL,
    KT_PLAIN_MXFP8,
    KT_PLAIN_INT4,       /* compressed-tensors, symmetric */
    KT_PLAIN_INT4_ZEROS, /* the same with zero points */
    KT_PLAIN_AWQ,
    KT_PLAIN_GPTQ,
    KT_PLAIN_GPTQ_V2,
    KT_PLAIN_MXFP4,
    KT_PLAIN_NVFP4,            /* as modelopt writes it */
    KT_PLAIN_NVFP4_COMPRESSED, /* as compressed-tensors does */
    KT_PLAIN_ENCODINGS
} kt_plain_encoding;

extern const char *const kt_plain_encoding_names[KT_PLAIN_ENCODINGS];

/* Encode the model's matrices, but those that the seed spares and those whose sizes the encoding
 * does not have, and write model.safetensors and the quantization_config of config.json anew. A
 * matrix of the same role in all experts of a layer is encoded in all of them. Never fails (aborts
 * the test process). */
void kt_plain_store(kt_plain_model *m, kt_plain_encoding encoding, uint64_t seed,
                    const char *folder);

/* Likewise as a GGUF file: each matrix in a type of its own that its sizes allow, gate and up
 * in one or in two. Not for DeepSeek-V4. */
void kt_plain_store_gguf(kt_plain_model *m, uint64_t seed, const char *path);

#endif
