/* What the readers of both containers share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_CHECKPOINT_IMPL_H
#define KT_DISPATCH_CHECKPOINT_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "base/arena.h"
#include "base/json.h"
#include "dispatch/model/checkpoint.h"
#include "dispatch/model/gguf_meta.h"
#include "dispatch/model/quant.h"

typedef struct kt_shard {
    char *path;
    kt_mapping mapping;
    kt_json_doc *header; /* of panels, for their metadata; else NULL */
} kt_shard;

struct kt_checkpoint {
    kt_arena arena; /* names and paths */
    kt_shard *shards;
    int n_shards;
    kt_tensor *tensors; /* sorted by name once all shards are read */
    size_t n_tensors, capacity;
    kt_buffer memory;  /* instead of a shard's mapping */
    kt_gguf_meta meta; /* of the first part of a GGUF file */
    bool is_gguf;
    bool keeps_headers; /* of shards, while they are read */
    /* Of a folder of packed panels: tensors are the source's and have no data. */
    struct kt_checkpoint *panels; /* owned by reference; NULL = tensors are what they say */
    kt_quant packed_as;
    kt_json_doc *formats;  /* chosen weight by weight (packed.h), or NULL */
    atomic_int references; /* beside the first owner's */
};

/* An empty checkpoint of so many files, or NULL; kt_checkpoint_close takes it back. */
kt_checkpoint *kt_checkpoint_create(int n_shards);

/* Room for `more` further tensors. */
kt_status kt_checkpoint_reserve(kt_checkpoint *c, size_t more, kt_err *err);

/* Sort by name and refuse a name that two files hold. */
kt_status kt_checkpoint_finish(kt_checkpoint *c, kt_err *err);

/* Open a GGUF file, or the first of its parts. */
kt_status kt_checkpoint_open_gguf(const char *path, kt_checkpoint **out, kt_err *err);

/* "[2, 3]" for messages; long shapes are cut. */
char *kt_shape_format(char *text, size_t size, int rank, const int64_t *shape);

#endif
