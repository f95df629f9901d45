/* Small GGUF files, written value by value. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_TINY_GGUF_H
#define KT_TESTS_TINY_GGUF_H

#include <stddef.h>
#include <stdint.h>

#define KT_TINY_GGUF_BYTES (1 << 16)
#define KT_TINY_GGUF_ALIGN 32

/* ggml types of tensors. */
enum { KT_GGML_F32 = 0, KT_GGML_F16 = 1, KT_GGML_Q4_0 = 2, KT_GGML_Q8_0 = 8, KT_GGML_BF16 = 30 };

typedef struct kt_tiny_gguf {
    uint8_t keys[KT_TINY_GGUF_BYTES / 2], list[KT_TINY_GGUF_BYTES / 2];
    size_t n_keys, keys_bytes, n_tensors, list_bytes, data_bytes;
    uint8_t file[KT_TINY_GGUF_BYTES + (1 << 20)]; /* by kt_tiny_gguf_end; tensors are zeros */
} kt_tiny_gguf;

void kt_tiny_gguf_text(kt_tiny_gguf *f, const char *key, const char *value);
/* An array of texts: those that byte-level vocabularies have for bytes 0, 1, ... (at most 256). */
void kt_tiny_gguf_bytes(kt_tiny_gguf *f, const char *key, int count);
void kt_tiny_gguf_int(kt_tiny_gguf *f, const char *key, int32_t value);
void kt_tiny_gguf_real(kt_tiny_gguf *f, const char *key, float value);
/* An array of truth values: which characters of `text` are `yes`. */
void kt_tiny_gguf_bools(kt_tiny_gguf *f, const char *key, const char *text, char yes);
/* Shape with the contiguous dimension first; sizes that are 0 are left out. */
void kt_tiny_gguf_tensor(kt_tiny_gguf *f, const char *name, int type, int64_t d0, int64_t d1,
                         int64_t d2);
/* Likewise of a type with so many bytes. */
void kt_tiny_gguf_blocks(kt_tiny_gguf *f, const char *name, int type, int64_t d0, int64_t d1,
                         int64_t d2, size_t bytes);
/* Everything before the data, into `file`; returns its bytes. Tensors' data follow in the order in
 * which they were added, each rounded up to KT_TINY_GGUF_ALIGN. */
size_t kt_tiny_gguf_head(kt_tiny_gguf *f);
/* Put the file together; returns its bytes. */
size_t kt_tiny_gguf_end(kt_tiny_gguf *f);

/* Metadata of a Qwen3-MoE of one layer: hidden 64, 64 tokens, 2 heads of 32 over 1, experts 4 of
 * 32, top 2. */
void kt_tiny_gguf_qwen3(kt_tiny_gguf *f);
/* Its tensors in Q8_0: [0] outside layers and attention, [1] the feed-forward. */
void kt_tiny_gguf_qwen3_tensors(kt_tiny_gguf *f, int half);
/* The model as folder/m.gguf, or (parts = 2) as m-00001-of-00002.gguf and its other part. */
void kt_tiny_gguf_write(const char *folder, int parts);

#endif
