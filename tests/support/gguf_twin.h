/* The GGUF file that a small safetensors model of latent attention becomes by the published
 * converter's rules: architecture deepseek2, stacked experts, keys and values of kv_b apart, keys
 * turned. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_GGUF_TWIN_H
#define KT_TESTS_GGUF_TWIN_H

/* folder: config.json (or text_config in it) and model.safetensors in BF16 or INT4 of
 * compressed-tensors, without an indexer. Every number is kept exactly: BF16 stays BF16, decoded
 * INT4 becomes F16, vectors and the router F32. names_score: whether the file says that the router
 * is a sigmoid, which files of GLM-4.7-Flash may leave out. Never fails (aborts the test process).
 */
void kt_gguf_twin(const char *folder, int names_score, const char *path);

#endif
