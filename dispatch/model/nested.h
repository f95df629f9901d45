/* Multimodal releases wrap a language model: its configuration is the text_config of config.json,
 * and its tensors have a prefix and lie beside those of other towers (models_2026.md 1.8).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_NESTED_H
#define KT_DISPATCH_NESTED_H

#include "dispatch/model/checkpoint.h"
#include "dispatch/model/graph.h"
#include "dispatch/model/numbers.h"

/* The text configuration of a config.json: its text_config, or itself where there is none.
 * Borrowed from root. */
const kt_json *kt_nested_text(const kt_json *root);

/* The source with json set to the text configuration and outer to what is around it. */
kt_config_source kt_nested_source(const kt_config_source *source);

/* Find where the language model lies among a checkpoint's tensors, by the one name that ends in
 * "embed_tokens.weight" or "embed.weight" and by the one in "lm_head.weight": g->body and g->above.
 * Tensors of other towers, of layers and of multi-token prediction are not looked at. Without such
 * a name the usual ones are asked for, and loading says that they are missing. Two embeddings
 * are refused: the error names both. */
kt_status kt_nested_names(kt_graph *g, const kt_checkpoint *c, kt_err *err);

#endif
