/* ATTEND, ATTEND_SPARSE and ATTEND_BLOCKS on a device: which launches a step gets, and what comes out of them
 * under the emulator. The rest of the device (runtime/device) is a few functions of this file.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "kernels/indexer/index_pick.h"
#include "kernels/indexer/indexer_ref.h"
#include "runtime/device/device_attn.h"
#include "tests/kernels/cuda_attn_batch.h"

enum { LAYERS = 3, PLANE_ROW = 48, MAX_TAKEN = 64, PROCESSORS = 6 };

extern const kt_device_op kt_device_op_attend, kt_device_op_attend_sparse,
    kt_device_op_attend_blocks;

/* ---- a device of a few functions ---- */

struct kt_device_code {
    const kt_cuda_kernel *kernel;
    kt_config config;
};

static struct fake {
    void *taken[MAX_TAKEN];
    int n_taken, n_staged, n_launched, n_joined;
    size_t needed;
    const float *sink;  /* weight 0 */
    char entry[16][32]; /* names of the launches */
} fake;

static void *take(size_t bytes) {
    cr_assert(fake.n_taken < MAX_TAKEN);
    return fake.taken[fake.n_taken++] = calloc(1, bytes + 1);
}

const kt_device_facts *kt_device_about(const kt_device *d) {
    static kt_device_facts facts;
    (void)d;
    facts.target = &kt_cuda_targets[3]; /* 99 KiB of shared memory */
    facts.multiprocessors = PROCESSORS;
    return &facts;
}

void *kt_device_step_alloc(kt_device_step *s, size_t bytes) {
    (void)s;
    return take(bytes);
}

kt_status kt_device_step_take(kt_device_step *s, size_t bytes, void **out, kt_err *err) {
    (void)s, (void)err;
    *out = take(bytes);
    return KT_OK;
}

void kt_device_step_need(kt_device_step *s, size_t bytes) {
    (void)s;
    if (bytes > fake.needed) fake.needed = bytes;
}

/* The only one that a node here has: its sinks. */
kt_status kt_device_load_small(kt_device_step *s, int weight, const void **out,
                               kt_weight_format *format, kt_err *err) {
    (void)s, (void)format, (void)err;
    cr_assert(weight == 0 && fake.sink, "weight %d is not here", weight);
    *out = fake.sink;
    return KT_OK;
}

kt_status kt_device_step_code(kt_device_step *s, const char *name, const kt_config *config,
                              const kt_device_code **out, kt_err *err) {
    struct kt_device_code *code = take(sizeof *code);
    (void)s, (void)err;
    *code = (struct kt_device_code){attn_kernel(name), *config};
    *out = code;
    return KT_OK;
}

kt_status kt_device_upload(kt_device *d, kt_stream stream, void *to, const void *from, size_t bytes,
                           kt_err *err) {
    (void)d, (void)stream, (void)err;
    memcpy(to, from, bytes);
    return KT_OK;
}

kt_status kt_device_stage(kt_device_step *s, const void *list, size_t bytes, const void **out,
                          kt_err *err) {
    (void)s, (void)err;
    *out = memcpy(take(bytes), list, bytes);
    fake.n_staged++;
    return KT_OK;
}

kt_status kt_device_put(kt_device_step *s, const kt_device_code *code, int entry, int grid_x,
                        int grid_y, size_t shared_bytes, const void *parameters,
                        size_t parameter_bytes, kt_err *err) {
    const kt_launch l = {.name = code->kernel->entry[entry].name,
                         .entry = code->kernel->entry[entry].emulated,
                         .parameters = parameters,
                         .grid_x = grid_x,
                         .grid_y = grid_y,
                         .threads = code->kernel->threads(&code->config),
                         .shared_bytes = shared_bytes,
                         .constant = code->config.value};
    (void)s;
    cr_assert_leq(parameter_bytes, (size_t)KT_DEVICE_PARAMETERS);
    cr_assert_leq(shared_bytes, (size_t)kt_device_about(NULL)->target->shared_bytes);
    snprintf(fake.entry[fake.n_launched++ % 16], sizeof fake.entry[0], "%s", l.name);
    return kt_emulate(&l, &(kt_emulator_options){.seed = 5, .lazy = true, .races = true}, err);
}

static void forget(void) {
    for (int i = 0; i < fake.n_taken; i++) free(fake.taken[i]);
    memset(&fake, 0, sizeof fake);
}

/* ---- a step with layers of one shape ---- */

typedef struct world {
    attn_batch b;
    kt_graph graph;
    kt_plane plane;
    kt_node node[LAYERS];
    kt_model_plan plan;
    kt_device_step step;
    kt_device_node device_node[LAYERS];
    kt_device_span span[MAX_SEQUENCES];
    int32_t first_page[MAX_SEQUENCES];
    int64_t plane_row, index_row;
    uint8_t *rows;
    float *scales;
} world;

/* The batch's pools as one array of rows, keys of all heads, then values, after others' rows. */
static void put_pages(world *w) {
    const kt_attn_shape *h = &w->b.c.shape;
    const int64_t n = w->b.pages + 1, rows = h->kv_heads * n * KT_ATTN_PAGE;
    const size_t row = (size_t)h->k * (h->cache == KT_ATTN_BF16 ? 2 : 1);

    w->rows = aligned_alloc(256, ((size_t)(PLANE_ROW + 2 * rows) * row + 256) / 256 * 256);
    memset(w->rows, 0xff, (size_t)(PLANE_ROW + 2 * rows) * row);
    w->scales = calloc((size_t)(PLANE_ROW + 2 * rows), sizeof *w->scales);
    for (int which = 0; which < (h->is_shared ? 1 : 2); which++) {
        const int64_t at = PLANE_ROW + which * rows;
        memcpy(w->rows + (size_t)at * row, w->b.pool[which].data, (size_t)rows * row);
        if (h->cache != KT_ATTN_BF16)
            memcpy(w->scales + at, w->b.pool_scale[which].data, (size_t)rows * sizeof *w->scales);
    }
    w->plane_row = PLANE_ROW;
    w->step.pages = (kt_device_pages){.shape = {.format = attn_format(&w->b.c),
                                                .kv_heads = h->kv_heads,
                                                .head_dim = h->k,
                                                .has_shared_rows = h->is_shared},
                                      .n = n,
                                      .plane_row = &w->plane_row,
                                      .rows = w->rows,
                                      .scales = h->cache == KT_ATTN_BF16 ? NULL : w->scales};
}

static void put_step(world *w) {
    for (int s = 0; s < w->b.c.n; s++) {
        const kt_attn_sequence *q = &w->b.sequence[s];
        w->span[s] = (kt_device_span){q->row, q->rows, q->position, 0, 0};
        w->first_page[s] = q->page;
    }
    w->step.device = NULL;
    w->step.graph = &w->graph;
    w->step.plan = &w->plan;
    w->step.max_rows = w->step.rows = w->b.rows;
    w->step.max_context = 512;
    w->step.number = 1;
    w->step.n_spans = w->b.c.n;
    w->step.position = w->b.position;
    w->step.span_of = w->step.first_page = NULL;
    w->step.page = w->b.table;
    w->step.host_span = w->span;
    w->step.host_first_page = w->first_page;
}

static void make_world(world *w, const attn_case *c, kt_node_kind kind, const kt_device_op *op) {
    const kt_attn_shape *h = &c->shape;

    memset(w, 0, sizeof *w);
    attn_make(&w->b, c, 3);
    w->plane = (kt_plane){.heads = h->kv_heads, .k = h->k, .v = h->is_shared ? 0 : h->v};
    w->graph.planes = &w->plane;
    w->graph.nodes = w->node;
    w->graph.n_nodes = LAYERS;
    w->plan.kv = attn_format(c);
    put_step(w);
    put_pages(w);
    fake.sink = w->b.call.sink;
    for (int i = 0; i < LAYERS; i++) {
        w->node[i] = (kt_node){
            .weight3 = c->has_sinks ? 0 : -1,
            .kind = kind,
            .attention = {h->heads, h->kv_heads, h->k, h->v, (double)w->b.call.scale, h->window}};
        w->device_node[i] =
            (kt_device_node){.node = &w->node[i],
                             .op = op,
                             .step = &w->step,
                             .in = {(float *)w->b.q.data, w->b.call.ldq, (int64_t)h->heads * h->k},
                             .out = {w->b.call.out, w->b.call.ldo, (int64_t)h->heads * h->v}};
    }
}

static void init_world(world *w) {
    const kt_device_ask ask = {.graph = &w->graph,
                               .plan = &w->plan,
                               .target = kt_device_about(NULL)->target,
                               .kv = w->step.pages.shape,
                               .max_rows = w->step.max_rows,
                               .max_context = w->step.max_context};
    kt_err err;

    for (int i = 0; i < LAYERS; i++) {
        const char *why = w->device_node[i].op->refuse(&ask, &w->node[i]);
        cr_assert_null(why, "%s", why);
        cr_assert_eq(w->device_node[i].op->init(&w->device_node[i], &err), KT_OK, "%s",
                     err.message);
    }
    w->step.scratch = take(fake.needed);
}

static void run_layer(world *w, int layer) {
    kt_err err;

    memset(w->b.out.data, 0xff, w->b.out.bytes);
    cr_assert_eq(w->device_node[layer].op->enqueue(&w->device_node[layer], &err), KT_OK, "%s",
                 err.message);
}

static void drop_world(world *w) {
    attn_drop(&w->b);
    free(w->rows), free(w->scales);
    forget();
}

static bool was_launched(const char *entry) {
    for (int i = 0; i < fake.n_launched && i < 16; i++)
        if (strcmp(fake.entry[i], entry) == 0) return true;
    return false;
}

/* ---- attention ---- */

Test(device_attn, few_and_many_rows_of_one_step, .timeout = 120) {
    static const attn_case cases[] = {
        {{8, 2, 32, 32, 0, KT_ATTN_BF16, false}, false, 3, {{300, 1}, {5, 20}, {40, 2}}},
        {{4, 1, 48, 48, 280, KT_ATTN_FP8, false}, true, 2, {{20, 12}, {330, 2}}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        world w;
        make_world(&w, &cases[i], KT_NODE_ATTEND, &kt_device_op_attend);
        init_world(&w);
        for (int layer = 0; layer < LAYERS; layer++) {
            run_layer(&w, layer);
            attn_expect(&w.b, "a step");
            cr_expect_eq(fake.n_staged, 2, "layer %d made lists of its own", layer);
        }
        cr_expect(was_launched("attn_decode_split") && was_launched("attn_decode_join") &&
                  was_launched("attn_prefill"));
        drop_world(&w);
    }
}

/* The next step's rows are others: one row of the second sequence. */
Test(device_attn, lists_are_made_anew_for_every_step, .timeout = 60) {
    const attn_case c = {{4, 2, 32, 32, 0, KT_ATTN_BF16, false}, false, 2, {{30, 3}, {70, 1}}};
    world w;

    make_world(&w, &c, KT_NODE_ATTEND, &kt_device_op_attend);
    init_world(&w);
    run_layer(&w, 0);
    attn_expect(&w.b, "the first step");
    w.step.number = 2;
    w.span[0] = (kt_device_span){3, 1, 70, 0, 0};
    w.first_page[0] = w.b.sequence[1].page;
    w.step.n_spans = 1;
    run_layer(&w, 1);
    cr_expect_eq(fake.n_staged, 2);
    cr_expect(isnan(w.b.call.out[0]), "a row that is not of the step is written");
    cr_expect_not(isnan(w.b.call.out[3 * w.b.call.ldo]));
    drop_world(&w);
}

Test(device_attn, latent_attention_goes_one_way, .timeout = 60) {
    const attn_case c = {{16, 1, 64, 32, 0, KT_ATTN_INT8, true}, false, 2, {{290, 1}, {3, 6}}};
    world w;

    make_world(&w, &c, KT_NODE_ATTEND, &kt_device_op_attend);
    init_world(&w);
    run_layer(&w, LAYERS - 1);
    attn_expect(&w.b, "latent attention");
    cr_expect_eq(fake.n_staged, 1);
    cr_expect(was_launched("attn_latent_split"));
    cr_expect_not(was_launched("attn_decode_split"));
    drop_world(&w);
}

/* ---- sparse attention ---- */

enum { TOPK = 40, INDEX_HEADS = 4, INDEX_DIM = 32 };

typedef struct index_side {
    float *q, *w;
    uint16_t *keys;
    int32_t *picked;
} index_side;

/* Index queries, weights and keys at random; picked is by a double reference of the scores. */
static void make_index(world *w, index_side *x) {
    const kt_problem problem = {.n = INDEX_HEADS, .k = INDEX_DIM};
    const int rows = w->b.rows, tokens = (w->b.pages + 1) * KT_ATTN_PAGE;
    const int before = 64; /* rows of another plane */
    kt_rng rng;

    kt_rng_seed(&rng, 11);
    x->q = take((size_t)(rows * INDEX_HEADS * INDEX_DIM) * sizeof(float));
    x->w = take((size_t)(rows * INDEX_HEADS) * sizeof(float));
    x->keys = aligned_alloc(256, (size_t)((before + tokens) * INDEX_DIM) * 2);
    x->picked = take((size_t)(rows * TOPK) * sizeof(int32_t));
    for (int i = 0; i < rows * INDEX_HEADS * INDEX_DIM; i++) x->q[i] = kt_rng_normal(&rng);
    for (int i = 0; i < rows * INDEX_HEADS; i++) x->w[i] = kt_rng_normal(&rng);
    for (int i = 0; i < (before + tokens) * INDEX_DIM; i++)
        x->keys[i] = (uint16_t)kt_emulator_bf16(kt_rng_normal(&rng));
    for (int r = 0; r < rows; r++) {
        double want[512], bound[512];
        float score[512];
        uint16_t keys[512 * INDEX_DIM];
        const int n = w->b.position[r] + 1;
        const kt_index_call c = {.problem = &problem,
                                 .q = x->q,
                                 .ldq = INDEX_HEADS * INDEX_DIM,
                                 .w = x->w,
                                 .ldw = INDEX_HEADS,
                                 .keys = keys,
                                 .ldk = INDEX_DIM,
                                 .n_keys = n};
        for (int t = 0; t < n; t++) {
            const uint32_t page = w->b.table[w->b.sequence[w->b.of[r]].page + t / KT_ATTN_PAGE];
            const int64_t at = before + (int64_t)page * KT_ATTN_PAGE + t % KT_ATTN_PAGE;
            memcpy(keys + t * INDEX_DIM, x->keys + at * INDEX_DIM, INDEX_DIM * 2);
        }
        kt_index_ref(&c, r, want, bound);
        for (int t = 0; t < n; t++) score[t] = (float)want[t];
        if (n > TOPK) kt_index_pick(score, n, TOPK, x->picked + r * TOPK);
    }
    w->index_row = before;
    w->step.pages.index = x->keys;
    w->step.pages.index_row = &w->index_row;
}

static void check_picked(bool has_sinks) {
    const attn_case c = {{16, 1, 64, 32, 0, KT_ATTN_BF16, true}, has_sinks, 2, {{9, 32}, {120, 2}}};
    int32_t span_of[40], first_page[2];
    index_side x;
    world w;

    make_world(&w, &c, KT_NODE_ATTEND_SPARSE, &kt_device_op_attend_sparse);
    make_index(&w, &x);
    for (int r = 0; r < w.b.rows; r++) span_of[r] = w.b.of[r];
    for (int s = 0; s < 2; s++) first_page[s] = w.first_page[s];
    w.step.span_of = span_of;
    w.step.first_page = first_page;
    for (int i = 0; i < LAYERS; i++) {
        w.node[i].index = (kt_index_rule){.heads = INDEX_HEADS, .dim = INDEX_DIM, .topk = TOPK};
        w.device_node[i].in2 = (kt_device_view){x.q, INDEX_HEADS * INDEX_DIM, 0};
        w.device_node[i].in3 = (kt_device_view){x.w, INDEX_HEADS, 0};
    }
    init_world(&w);
    run_layer(&w, 0);
    run_layer(&w, 2);
    w.b.call.picked = x.picked;
    w.b.call.topk = TOPK;
    attn_expect(&w.b, has_sinks ? "sparse attention with sinks" : "sparse attention");
    cr_expect_eq(fake.n_staged, 1);
    free(x.keys);
    drop_world(&w);
}

/* Rows on both sides of the number of picked keys, more than are scored at a time. */
Test(device_attn, picked_keys_are_those_of_the_best_scores, .timeout = 60) {
    check_picked(false);
    check_picked(true);
}

/* The last blocks are met in any case, and as many as may be picked: the row at the end of a block
 * meets what a window of so many keys has, those of the other sequence all that they see. */
Test(device_attn, picked_blocks_have_sinks, .timeout = 60) {
    enum { BLOCK = 16, BLOCKS = 4 };
    const attn_case c = {
        {8, 2, 32, 32, BLOCK * BLOCKS, KT_ATTN_INT8, false}, true, 2, {{127, 1}, {40, 2}}};
    int32_t span_of[3], first_page[2];
    index_side x;
    world w;

    make_world(&w, &c, KT_NODE_ATTEND_BLOCKS, &kt_device_op_attend_blocks);
    make_index(&w, &x);
    for (int r = 0; r < w.b.rows; r++) span_of[r] = w.b.of[r];
    for (int s = 0; s < 2; s++) first_page[s] = w.first_page[s];
    w.step.span_of = span_of;
    w.step.first_page = first_page;
    for (int i = 0; i < LAYERS; i++) {
        w.node[i].attention.window = 0;
        w.node[i].index = (kt_index_rule){
            .heads = 2, .dim = INDEX_DIM, .topk = BLOCKS, .block = BLOCK, .local = BLOCKS};
        w.device_node[i].in2 = (kt_device_view){x.q, INDEX_HEADS * INDEX_DIM, 0};
    }
    init_world(&w);
    run_layer(&w, 1);
    attn_expect(&w.b, "blocks with sinks");
    cr_expect(was_launched("attn_gather_blocks"));
    free(x.keys);
    drop_world(&w);
}

/* ---- what is left to the CPU ---- */

Test(device_attn, what_has_no_code_is_refused_by_name) {
    const attn_case c = {{4, 2, 32, 32, 0, KT_ATTN_BF16, false}, false, 1, {{3, 1}}};
    kt_device_ask ask;
    kt_node n;
    world w;

    make_world(&w, &c, KT_NODE_ATTEND, &kt_device_op_attend);
    ask = (kt_device_ask){.graph = &w.graph,
                          .plan = &w.plan,
                          .target = kt_device_about(NULL)->target,
                          .kv = w.step.pages.shape,
                          .max_rows = 4,
                          .max_context = 64};
    n = w.node[0];
    cr_expect_null(kt_device_op_attend.refuse(&ask, &n));
    ask.max_rows = 65535;
    cr_expect_str_eq(kt_device_op_attend.refuse(&ask, &n),
                     "steps of so many rows have more tiles than a grid has");
    ask.max_rows = 65534;
    cr_expect_null(kt_device_op_attend.refuse(&ask, &n));
    n.attention.k = n.attention.v = ask.kv.head_dim = 40;
    cr_expect_str_eq(kt_device_op_attend.refuse(&ask, &n),
                     "heads that attn_decode or attn_prefill has no code for (sizes of 16 up to "
                     "256)");
    n.attention.k = 64;
    cr_expect_str_eq(kt_device_op_attend.refuse(&ask, &n),
                     "pages have rows of another size than keys");
    ask.kv.head_dim = 64;
    cr_expect_str_eq(kt_device_op_attend.refuse(&ask, &n),
                     "pages have rows of another size than values");
    cr_expect_str_eq(kt_device_op_attend_sparse.refuse(&ask, &n),
                     "picked keys whose values have other rows");
    w.plane.v = 0;
    cr_expect_str_eq(kt_device_op_attend.refuse(&ask, &n),
                     "latent rows that attn_latent has no code for (sizes of 32, values of 16 up "
                     "to 512)");
    n.attention.v = 48;
    n.index = (kt_index_rule){.heads = 4, .dim = 24, .topk = 16};
    cr_expect_str_eq(kt_device_op_attend_sparse.refuse(&ask, &n),
                     "an indexer that attn_index has no code for");
    n.index.dim = 32;
    cr_expect_null(kt_device_op_attend_sparse.refuse(&ask, &n));
    drop_world(&w);
}
