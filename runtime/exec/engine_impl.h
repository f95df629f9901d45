/* What the files of the engine share: engine.c makes it, sequence.c keeps tokens and pages, batch.c
 * runs steps. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_IMPL_H
#define KT_RUNTIME_ENGINE_IMPL_H

#include "dispatch/plan/plan.h"
#include "runtime/exec/engine.h"
#include "runtime/device/device_plan.h"
#include "runtime/exec/expert_map.h"
#include "runtime/exec/step.h"
#include "runtime/kv/kv_plan.h"
#include "runtime/model/memory_plan.h"
#include "runtime/model/model_dir.h"

struct kt_engine {
    kt_log log;
    kt_model_dir model;
    kt_model_plan plan;
    kt_topology topology;
    kt_fingerprint machine;
    kt_registry *registry;
    kt_table *table;
    char table_path[KT_MODEL_PATH_BYTES], table_line[768];
    kt_pool *pool;
    kt_node_plan nodes;
    kt_kv_shape kv; /* of the pages */
    kt_memory_plan memory;
    kt_device *device[KT_DEVICES_MOST]; /* until the step has them */
    int n_devices;                      /* 0 = the CPU alone */
    kt_device_plan beside;              /* what it does and holds */
    kt_weights *weights;
    kt_tokenizer *tokenizer;
    kt_step step;
    kt_page_pool pages;
    kt_states states;     /* zeroed when the model has no recurrent layers */
    int64_t state_floats; /* of a sequence; 0 = the model has no such layers */
    int64_t reused_tokens;
    uint64_t batches;     /* steps checked so far: a sequence in this one has this number */
    int32_t *out_row;     /* owned: [max_chunk] of kt_engine_forward */
    int32_t *draft_token; /* owned: [max_chunk] of kt_engine_draft; NULL = no draft head */
    int32_t *next_state;  /* owned: [max_chunk] slots that the spans of a step write */
    kt_recorder *recorder;
    kt_importance *importance;
    kt_expert_map *expert_map; /* NULL: no routed experts */
    bool is_synthetic;
    kt_quant quant;
    int64_t layers_of_all;
    int64_t load_ns;
    int64_t max_context, max_chunk, chunk;
};

/* The first `known` pages, all full ones but those that guesses stand in, are in the index of
 * prefixes and may have other users; all others are this sequence's alone. */
struct kt_sequence {
    kt_engine *engine;
    uint32_t *page; /* owned: [n_pages of room] */
    int32_t *token; /* owned: [room * 64] */
    int64_t n_pages, room;
    int64_t length, capacity; /* capacity: reserved tokens */
    int64_t known;            /* pages */
    int64_t recent;           /* pages up to the state of kt_sequence_keep_recent; 0 = none */
    int64_t guesses;          /* of the next step's tokens the last ones: kt_sequence_guess */
    int32_t state, marked;    /* slots: now, and at `mark`; KT_STATE_NONE = none */
    int64_t mark;
    uint64_t batch; /* the last one that it was in */
};

/* Append tokens whose rows are in the pages: full pages become known, once there are no guesses in
 * them. */
void kt_sequence_append(kt_sequence *s, const int32_t *tokens, int64_t n);
/* Keep a copy of the state at the end of the last page, if that is the sequence's end. */
void kt_sequence_keep_state(kt_sequence *s);
/* Keep a copy of the state for this sequence alone, to be truncated to. */
void kt_sequence_mark(kt_sequence *s);

#endif
