/* Inside of a conversion. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CONVERT_IMPL_H
#define KT_RUNTIME_CONVERT_IMPL_H

#include "base/json.h"
#include "dispatch/model/packed.h"
#include "dispatch/plan/plan.h"
#include "runtime/model/convert.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/packer.h"

#define KT_CONVERT_PATH 4096
#define KT_CONVERT_SHARD_NAME 64

/* A tensor of the output. */
typedef struct kt_convert_piece {
    kt_packed_piece piece;
    int weight, run;
    const kt_tensor *small; /* of a vector, router or table */
    uint64_t checksum;
} kt_convert_piece;

typedef struct kt_convert_shard {
    char name[KT_CONVERT_SHARD_NAME];
    int first, n;      /* pieces */
    size_t data_bytes; /* of them */
    size_t n_sums;     /* chunks */
    size_t bytes;      /* of the file */
} kt_convert_shard;

/* One for each layer, for a draft head, and for what is outside. */
static inline int kt_convert_shards(const kt_graph *g) {
    return (int)g->numbers.layers + 1 + (g->draft_hidden > 0);
}

/* The journal: lines of JSON with a checksum each. */
typedef struct kt_convert_journal {
    char path[KT_CONVERT_PATH + 32];
    int fd; /* locked; -1 = closed */
} kt_convert_journal;

typedef struct kt_convert_work {
    const kt_convert_request *request;
    kt_model_dir model;
    kt_checkpoint *importance;
    const kt_variant **variants; /* those whose layout is p64 */
    kt_registry *registry;
    kt_planner *planner;
    kt_model_plan plan;
    kt_pool *pool;
    kt_packer packer;
    kt_buffer buffer; /* a piece, or some of its experts */
    kt_convert_piece *pieces;
    kt_convert_shard *shards;
    double *errors; /* [weights] of the formats chosen within a budget: squares, relative */
    int n_pieces, n_shards;
    uint64_t *sums;                            /* of the shard at hand */
    kt_format_loss (*losses)[KT_WEIGHT_PARTS]; /* of the buffer's blocks */
    size_t bytes_done, bytes_total;
    char folder[KT_CONVERT_PATH];     /* of the output */
    char identity[20];                /* what is converted, and how */
    char path[KT_CONVERT_PATH + 128]; /* of the file at hand, for messages too */
    kt_convert_journal journal;
    kt_convert_result result;
} kt_convert_work;

/* ---- convert_folder.c ---- */

/* Make or take over the output folder. */
kt_status kt_convert_take_folder(kt_convert_work *w, kt_err *err);
/* Is there room for the rest? */
kt_status kt_convert_check_disk(const kt_convert_work *w, size_t bytes, kt_err *err);
/* What a model is besides its weights: config.json, tokenizer, template; or the metadata of a GGUF
 * file. */
kt_status kt_convert_copy_files(kt_convert_work *w, kt_err *err);
/* model.safetensors.index.json, which makes the folder a whole one. */
kt_status kt_convert_write_index(kt_convert_work *w, kt_err *err);
bool kt_convert_has_index(kt_convert_work *w);
/* Where a file of the output lies: into w->path, which is returned. */
const char *kt_convert_path(kt_convert_work *w, const char *name, const char *ending);

/* ---- convert_journal.c ---- */

/* Lock the journal, take over what a former run of the same conversion finished: *done shards,
 * behind which the journal is cut off. Refuses the journal of another conversion. */
kt_status kt_convert_open_journal(kt_convert_work *w, int *done, kt_err *err);
void kt_convert_close_journal(kt_convert_journal *j);
/* Lines into `lines`; then a shard's lines and its end, at once and durable. */
void kt_convert_note_loss(kt_convert_work *w, kt_json_writer *line, const kt_convert_piece *p,
                          int part, int64_t item, const kt_format_loss *loss, char **lines,
                          size_t *size, size_t *room);
kt_status kt_convert_end_shard(kt_convert_work *w, int shard, const char *lines, size_t size,
                               kt_err *err);
/* Sum up the tensors of the whole journal. */
kt_status kt_convert_sum_up(kt_convert_work *w, kt_err *err);

/* The formats that an earlier run of this conversion chose, into the graph and w->errors; *found =
 * false when there was none. Refuses the journal of another conversion. */
kt_status kt_convert_read_formats(kt_convert_work *w, bool *found, kt_err *err);

/* ---- convert_budget.c ---- */

/* Bytes of a shard's file beside its pieces, at most. */
#define KT_CONVERT_SHARD_BYTES 8192
#define KT_CONVERT_PIECE_BYTES 640

/* Choose a format for each weight of the graph (kt_weight_part.chosen) within the request's budget;
 * those that an earlier run chose, if it did. After the pool is there, before the plan is made. */
kt_status kt_convert_choose(kt_convert_work *w, kt_err *err);
/* Into the result's table of roles, when all pieces are listed. */
void kt_convert_tell_roles(kt_convert_work *w);

/* ---- convert_budget_loss.c ---- */

/* A matrix, or gate and up or down of experts: what it loses in each format. */
typedef struct kt_budget_side {
    int weight, first, n;     /* parts */
    double error[KT_W_COUNT]; /* relative, squared; meaningful where it may be of that format */
    bool is_possible[KT_W_COUNT];
} kt_budget_side;

/* Measure error[] of all sides in the formats that are possible, from some rows of some matrices
 * of each. */
kt_status kt_convert_measure_sides(kt_convert_work *w, kt_budget_side *sides, int n_sides,
                                   kt_err *err);

/* ---- convert_shard.c ---- */

/* Bytes of a shard's file. */
kt_status kt_convert_measure_shard(const kt_convert_work *w, kt_convert_shard *s, kt_err *err);
/* Pack and write one, under another name until it is whole. */
kt_status kt_convert_write_shard(kt_convert_work *w, int shard, kt_err *err);
/* Is it there, whole and undamaged? Fails for lack of memory only. */
kt_status kt_convert_find_shard(kt_convert_work *w, int shard, bool *is_whole, kt_err *err);

#endif
