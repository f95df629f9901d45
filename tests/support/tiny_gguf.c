/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/tiny_gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/temp.h"

enum { TYPE_I32 = 5, TYPE_F32 = 6, TYPE_BOOL = 7, TYPE_STRING = 8, TYPE_ARRAY = 9 };

static void put(uint8_t *to, size_t *at, uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) to[(*at)++] = (uint8_t)(value >> 8 * i);
}

static void put_text(uint8_t *to, size_t *at, const char *text) {
    put(to, at, strlen(text), 8);
    memcpy(to + *at, text, strlen(text));
    *at += strlen(text);
}

static void put_key(kt_tiny_gguf *f, const char *key, uint64_t type) {
    if (f->keys_bytes + 512 > sizeof f->keys) abort();
    put_text(f->keys, &f->keys_bytes, key);
    put(f->keys, &f->keys_bytes, type, 4);
    f->n_keys++;
}

void kt_tiny_gguf_text(kt_tiny_gguf *f, const char *key, const char *value) {
    put_key(f, key, TYPE_STRING);
    put_text(f->keys, &f->keys_bytes, value);
}

void kt_tiny_gguf_bytes(kt_tiny_gguf *f, const char *key, int count) {
    int n_others = 0;

    put_key(f, key, TYPE_ARRAY);
    put(f->keys, &f->keys_bytes, TYPE_STRING, 4);
    put(f->keys, &f->keys_bytes, (uint64_t)count, 8);
    for (int i = 0; i < count; i++) {
        const int is_itself = (i > 32 && i < 127) || (i > 160 && i != 173);
        const int c = is_itself ? i : 256 + n_others++;
        const char text[3] = {(char)(c < 128 ? c : 0xc0 | c >> 6),
                              (char)(c < 128 ? 0 : 0x80 | (c & 63)), 0}; /* UTF-8 */
        if (f->keys_bytes + 512 > sizeof f->keys) abort();
        put_text(f->keys, &f->keys_bytes, text);
    }
}

void kt_tiny_gguf_int(kt_tiny_gguf *f, const char *key, int32_t value) {
    put_key(f, key, TYPE_I32);
    put(f->keys, &f->keys_bytes, (uint32_t)value, 4);
}

void kt_tiny_gguf_real(kt_tiny_gguf *f, const char *key, float value) {
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    put_key(f, key, TYPE_F32);
    put(f->keys, &f->keys_bytes, bits, 4);
}

void kt_tiny_gguf_bools(kt_tiny_gguf *f, const char *key, const char *text, char yes) {
    put_key(f, key, TYPE_ARRAY);
    put(f->keys, &f->keys_bytes, TYPE_BOOL, 4);
    put(f->keys, &f->keys_bytes, strlen(text), 8);
    for (const char *c = text; *c; c++) put(f->keys, &f->keys_bytes, *c == yes, 1);
}

static size_t type_bytes(int type, size_t elements) {
    switch (type) {
    case KT_GGML_F32: return 4 * elements;
    case KT_GGML_F16:
    case KT_GGML_BF16: return 2 * elements;
    case KT_GGML_Q4_0: return elements / 32 * 18;
    default: return elements / 32 * 34;
    }
}

void kt_tiny_gguf_tensor(kt_tiny_gguf *f, const char *name, int type, int64_t d0, int64_t d1,
                         int64_t d2) {
    const size_t elements = (size_t)(d0 * (d1 ? d1 : 1) * (d2 ? d2 : 1));

    kt_tiny_gguf_blocks(f, name, type, d0, d1, d2, type_bytes(type, elements));
}

void kt_tiny_gguf_blocks(kt_tiny_gguf *f, const char *name, int type, int64_t d0, int64_t d1,
                         int64_t d2, size_t bytes) {
    const int64_t size[3] = {d0, d1, d2};
    const int rank = d2 ? 3 : d1 ? 2 : 1;

    if (f->list_bytes + 512 > sizeof f->list) abort();
    put_text(f->list, &f->list_bytes, name);
    put(f->list, &f->list_bytes, (uint64_t)rank, 4);
    for (int i = 0; i < rank; i++) put(f->list, &f->list_bytes, (uint64_t)size[i], 8);
    put(f->list, &f->list_bytes, (uint64_t)type, 4);
    put(f->list, &f->list_bytes, f->data_bytes, 8);
    f->data_bytes += (bytes + KT_TINY_GGUF_ALIGN - 1) / KT_TINY_GGUF_ALIGN * KT_TINY_GGUF_ALIGN;
    f->n_tensors++;
}

size_t kt_tiny_gguf_head(kt_tiny_gguf *f) {
    size_t at = 4;

    memset(f->file, 0, sizeof f->file);
    memcpy(f->file, "GGUF", 4);
    put(f->file, &at, 3, 4);
    put(f->file, &at, f->n_tensors, 8);
    put(f->file, &at, f->n_keys, 8);
    memcpy(f->file + at, f->keys, f->keys_bytes);
    at += f->keys_bytes;
    memcpy(f->file + at, f->list, f->list_bytes);
    at += f->list_bytes;
    return (at + KT_TINY_GGUF_ALIGN - 1) / KT_TINY_GGUF_ALIGN * KT_TINY_GGUF_ALIGN;
}

size_t kt_tiny_gguf_end(kt_tiny_gguf *f) {
    if (f->data_bytes + KT_TINY_GGUF_BYTES > sizeof f->file) abort();
    return kt_tiny_gguf_head(f) + f->data_bytes;
}

void kt_tiny_gguf_qwen3(kt_tiny_gguf *f) {
    static const struct {
        const char *key;
        int32_t value;
    } numbers[] = {{"block_count", 1},           {"embedding_length", 64},
                   {"vocab_size", 64},           {"context_length", 128},
                   {"attention.head_count", 2},  {"attention.head_count_kv", 1},
                   {"attention.key_length", 32}, {"expert_count", 4},
                   {"expert_used_count", 2},     {"expert_feed_forward_length", 32}};
    char key[80];

    kt_tiny_gguf_text(f, "general.architecture", "qwen3moe");
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        snprintf(key, sizeof key, "qwen3moe.%s", numbers[i].key);
        kt_tiny_gguf_int(f, key, numbers[i].value);
    }
    kt_tiny_gguf_real(f, "qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f);
    kt_tiny_gguf_real(f, "qwen3moe.rope.freq_base", 10000);
    kt_tiny_gguf_int(f, "tokenizer.ggml.eos_token_id", 7);
    kt_tiny_gguf_int(f, "tokenizer.ggml.eot_token_id", 9);
}

void kt_tiny_gguf_qwen3_tensors(kt_tiny_gguf *f, int half) {
    static const struct {
        const char *name;
        int type;
        int64_t d0, d1, d2;
    } tensors[2][9] = {{{"token_embd.weight", KT_GGML_Q8_0, 64, 64, 0},
                        {"output_norm.weight", KT_GGML_F32, 64, 0, 0},
                        {"blk.0.attn_norm.weight", KT_GGML_F32, 64, 0, 0},
                        {"blk.0.attn_q.weight", KT_GGML_Q8_0, 64, 64, 0},
                        {"blk.0.attn_k.weight", KT_GGML_Q8_0, 64, 32, 0},
                        {"blk.0.attn_v.weight", KT_GGML_Q4_0, 64, 32, 0},
                        {"blk.0.attn_output.weight", KT_GGML_Q8_0, 64, 64, 0},
                        {"blk.0.attn_q_norm.weight", KT_GGML_F32, 32, 0, 0},
                        {"blk.0.attn_k_norm.weight", KT_GGML_F32, 32, 0, 0}},
                       {{"blk.0.ffn_norm.weight", KT_GGML_F32, 64, 0, 0},
                        {"blk.0.ffn_gate_inp.weight", KT_GGML_F32, 64, 4, 0},
                        {"blk.0.ffn_gate_exps.weight", KT_GGML_Q8_0, 64, 32, 4},
                        {"blk.0.ffn_up_exps.weight", KT_GGML_Q8_0, 64, 32, 4},
                        {"blk.0.ffn_down_exps.weight", KT_GGML_Q4_0, 32, 64, 4}}};

    for (int i = 0; i < 9 && tensors[half][i].name; i++)
        kt_tiny_gguf_tensor(f, tensors[half][i].name, tensors[half][i].type, tensors[half][i].d0,
                            tensors[half][i].d1, tensors[half][i].d2);
}

void kt_tiny_gguf_write(const char *folder, int parts) {
    kt_tiny_gguf *f = calloc(1, sizeof *f);

    kt_tiny_gguf_qwen3(f);
    kt_tiny_gguf_qwen3_tensors(f, 0);
    if (parts == 1) {
        kt_tiny_gguf_qwen3_tensors(f, 1);
        kt_temp_write(folder, "m.gguf", f->file, kt_tiny_gguf_end(f));
    } else {
        kt_tiny_gguf_int(f, "split.no", 0);
        kt_tiny_gguf_int(f, "split.count", 2);
        kt_tiny_gguf_int(f, "split.tensors.count", 14);
        kt_temp_write(folder, "m-00001-of-00002.gguf", f->file, kt_tiny_gguf_end(f));
        memset(f, 0, sizeof *f);
        kt_tiny_gguf_int(f, "split.no", 1);
        kt_tiny_gguf_int(f, "split.count", 2);
        kt_tiny_gguf_qwen3_tensors(f, 1);
        kt_temp_write(folder, "m-00002-of-00002.gguf", f->file, kt_tiny_gguf_end(f));
    }
    free(f);
}
