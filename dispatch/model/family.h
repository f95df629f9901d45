/* Model families: one file dispatch/model/families/<name>.c defines `const kt_family
 * kt_family_<name>`; the build writes the table. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_FAMILY_H
#define KT_DISPATCH_FAMILY_H

#include "dispatch/model/graph.h"
#include "dispatch/model/numbers.h"

typedef struct kt_build kt_build;

/* A token that a published vocabulary has: in models with that vocab_size, `text` is this id.
 * Tokenizers of other sizes are somebody's own. */
typedef struct kt_known_token {
    int64_t vocab;
    const char *text; /* NULL: the id is some added token */
    int32_t id;
} kt_known_token;

/* What a published tokenizer makes of the check text (runtime/token/check_text.h), in models with
 * that vocab_size. Several for one size: any of them will do. */
typedef struct kt_known_hash {
    int64_t vocab;
    const char *sha256;
    int n_before; /* ids that the published tokenizer puts first; the hash may be without them */
    int32_t before[2];
} kt_known_hash;

typedef struct kt_family {
    const char *name;
    const char *models;  /* published ones, for people */
    const char *types;   /* config.json "model_type", separated by '|' */
    const char *archs;   /* GGUF general.architecture, likewise; "" = none */
    const char *gguf_as; /* without one: another family's, which its GGUF files are read as; or NULL
                          */
    kt_name head;        /* what its matrix is called; left out: lm_head and output */
    /* The family's own numbers: a struct of that size, filled by the table. */
    size_t numbers_bytes;
    const kt_number *numbers;
    size_t n_numbers;
    /* Check the numbers, fill what depends on others, refuse what is not supported. */
    kt_status (*settle)(const kt_config_source *source, const kt_model_numbers *model,
                        void *numbers, kt_err *err);
    /* Describe one layer, and what comes after the last. */
    void (*layer)(kt_build *b, const void *numbers, int layer);
    void (*end)(kt_build *b, const void *numbers);
    /* Describe the draft head (draft_head.h), whose layer is number numbers.layers; nothing, where
     * the checkpoint has none, or without one the configuration (`declared` layers). NULL = models
     * of the family carry none that is known. */
    void (*draft)(kt_build *b, const void *numbers, int layer, int64_t declared);
    const kt_known_token *tokens; /* NULL = none; what `kt` holds a model's tokenizer against */
    size_t n_tokens;
    const kt_known_hash *hashes; /* NULL = none; likewise */
    size_t n_hashes;
} kt_family;

extern const kt_family *const kt_builtin_families[];
extern const size_t kt_builtin_family_count;

/* What to build a graph of. */
typedef struct kt_graph_request {
    kt_config_source source;
    bool with_draft; /* and its draft head, where it carries one that the family knows */
    const kt_checkpoint
        *checkpoint; /* whose tensors decide how weights are stored; NULL = as the config
                                      * declares (quantization_config), else BF16 */
} kt_graph_request;

/* Find the family (the error lists the known ones), read its numbers and describe the model.
 * *out is ended with kt_graph_deinit. Where a checkpoint is given, its tensors tell how each
 * matrix is stored; whether all are there and have their shapes is checked at load. */
kt_status kt_graph_build(const kt_graph_request *request, kt_graph *out, kt_err *err);

/* eos_token_id of a parsed config, a number or a list, when it has one: instead of what was there,
 * or beside it. At most KT_MAX_EOS ids, each once. */
void kt_numbers_read_eos(const kt_json *root, kt_model_numbers *out);
void kt_numbers_add_eos(const kt_json *root, kt_model_numbers *out);

#endif
