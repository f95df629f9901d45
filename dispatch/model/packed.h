/* Folders that `kt convert` writes: safetensors whose tensors are the bytes that kernels read. A
 * shard per layer and one for what is outside; model.safetensors.index.json is written last and has
 * in its metadata "kt_packed":
 *
 *   version  KT_PACKED_VERSION, or KT_PACKED_CHOSEN_VERSION with "formats"
 *   weights  what --to said: "native", "int4", "w4g64" ...
 *   formats  what --budget chose, by weight: {"layers.3.experts": ["w4g64", "w8c"], ...}, of
 *            experts gate with up and down, of others one; or absent
 *   gguf     name of a GGUF file in the folder that holds the metadata of the source; or absent,
 *            then config.json is the source's
 *   source   [name, dtype or block format, shape] of the source's tensors, so that the model is
 *            described as its source is; of experts in tensors of their own only the first's
 *
 * A draft head (draft_head.h) has the shard behind those of the layers; a folder may be without it,
 * whatever "source" lists.
 *
 * A tensor is U8 [count, bytes]: count matrices or experts, each a multiple of 64 bytes; or a
 * vector, router or table in one. Its shard's __metadata__ has under its name the text of
 * kt_packed_text and the checksum. Data begin at a multiple of 4096 in the file.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_PACKED_H
#define KT_DISPATCH_PACKED_H

#include <stdbool.h>

#include "base/json.h"
#include "dispatch/model/graph.h"
#include "dispatch/model/quant.h"

#define KT_PACKED_VERSION 1
#define KT_PACKED_CHOSEN_VERSION 2
#define KT_PACKED_ALIGN 4096 /* of a shard's data */
#define KT_PACKED_NAME 96
#define KT_PACKED_TEXT 256
#define KT_PACKED_CHUNK ((size_t)1 << 20) /* bytes of a matrix or expert with one checksum */

/* One tensor of such a folder. */
typedef struct kt_packed_piece {
    char name[KT_PACKED_NAME]; /* "layers.3.experts", "lm_head" */
    bool is_panels;            /* p64; else rows as they are kept */
    kt_weight_format format, down;
    int64_t n, k, count;
    size_t bytes; /* of one, a multiple of 64; SIZE_MAX when too large to count */
} kt_packed_piece;

/* The name of a weight's first piece, which stands for the weight: "layers.3.qkv". */
void kt_packed_weight_name(const kt_graph *g, int weight, char out[KT_PACKED_NAME]);

/* Pieces of a weight: its runs, or itself. */
int kt_packed_count(const kt_graph *g, int weight, kt_quant quant);
void kt_packed_piece_of(const kt_graph *g, int weight, int run, kt_quant quant,
                        kt_packed_piece *out);

/* "layout=p64 version=1 format=w4g32 down=w4g32 n=768 k=2048 count=128" */
char *kt_packed_text(const kt_packed_piece *p, char *out, size_t out_bytes);

/* The checksum of a piece, made of those of its chunks: KT_PACKED_CHUNK bytes of a matrix or expert
 * each, its last one shorter. */
static inline size_t kt_packed_chunks(size_t bytes) {
    return (bytes + KT_PACKED_CHUNK - 1) / KT_PACKED_CHUNK;
}

/* The words of --to and of "weights". quant_parse: -1 for an unknown word. */
const char *kt_packed_quant_word(kt_quant quant);
int kt_packed_quant_parse(const char *word);

/* Does the source's tensor belong into "source"? Not those of experts behind the first. */
kt_status kt_packed_list_source(const kt_graph *g, const kt_checkpoint *c, uint8_t *is_listed,
                                kt_err *err);
void kt_packed_put_source(kt_json_writer *w, const kt_checkpoint *c, const uint8_t *is_listed);

/* Formats chosen weight by weight (kt_weight_part.chosen) as the object "formats"; and from such an
 * object into the graph. Refuses a name that is no matrix of the graph and a word that is no
 * format, after which the graph is not to be used. */
void kt_packed_put_formats(kt_json_writer *w, const kt_graph *g);
kt_status kt_packed_read_formats(kt_graph *g, const kt_json *formats, kt_err *err);

/* A graph described by the source's tensors becomes one whose matrices are stored as packed: as
 * `quant` says, or as "formats" of the checkpoint's index does. */
kt_status kt_packed_settle(kt_graph *g, const kt_checkpoint *c, kt_err *err);

/* The checkpoint that such a folder is: the source's tensors without data, and the panels, which
 * are transferred also when the call fails. packed = the index's "kt_packed". */
kt_status kt_packed_open(const char *folder, const char *index, const kt_json *packed,
                         kt_checkpoint *panels, kt_checkpoint **out, kt_err *err);

#endif
