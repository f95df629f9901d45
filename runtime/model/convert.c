/* A conversion from its beginning to its end. The packed form does not depend on the machine: it is
 * planned with the kernels whose layout is p64, which are all but libraries'.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/model/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checksum.h"
#include "base/err.h"
#include "dispatch/model/needs.h"
#include "runtime/model/bytes.h"
#include "runtime/model/convert_impl.h"
#include "runtime/model/weight_source.h"

#define MIB ((size_t)1 << 20)
#define DEFAULT_RAM (2048 * MIB)
#define LEAST_ROWS 512 /* of a step; kernels' layouts do not depend on it */

/* ---- what is asked ---- */

static kt_status check_formats(const kt_convert_work *w, kt_err *err) {
    const kt_quant quant = w->request->quant;

    if (w->request->budget && quant != KT_QUANT_NATIVE)
        return kt_fail(err, KT_E_INVALID,
                       "a budget and weights as %s: expected one of them, as a budget chooses what "
                       "each weight becomes",
                       kt_packed_quant_word(quant));
    if (w->request->importance && quant <= KT_QUANT_BF16 && !w->request->budget)
        return kt_fail(err, KT_E_INVALID,
                       "importance %.200s: these weights are not quantised; expected int8, int4 or "
                       "another format with searched scales",
                       w->request->importance);
    if (kt_checkpoint_panels(w->model.checkpoint))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: holds packed weights already; expected the checkpoint that they "
                       "were converted from",
                       w->model.folder);
    return kt_graph_check_quant(&w->model.graph, quant, w->model.name, err);
}

/* Are all tensors there that the draft head alone reads? */
static kt_status check_draft_head(const kt_convert_work *w, kt_err *err) {
    const kt_graph *g = &w->model.graph;
    kt_weight_finder finder;
    kt_status st = kt_weight_finder_init(&finder, w->model.checkpoint, g, err);

    for (int i = g->main_nodes; i < g->n_nodes && st == KT_OK; i++) {
        const kt_node *n = &g->nodes[i];
        const int weight[] = {n->weight, n->weight2, n->weight3, n->weight4};
        for (int j = 0; j < 4 && st == KT_OK; j++)
            if (weight[j] >= 0)
                st = kt_weight_check(&finder, &g->weights[weight[j]], w->request->quant, err);
    }
    kt_weight_finder_deinit(&finder);
    return st;
}

/* A head that cannot be read is no reason to refuse a model that is served without. */
static kt_status read_model(kt_convert_work *w, kt_err *err) {
    const char *model = w->request->model;
    kt_err why = {KT_OK, ""};

    if (w->request->without_draft_head) return kt_model_dir_read(model, &w->model, err);
    KT_TRY(kt_model_dir_read_drafting(model, &w->model, err));
    if (!w->model.checkpoint || !w->model.graph.draft_hidden ||
        kt_checkpoint_panels(w->model.checkpoint) || check_draft_head(w, &why) == KT_OK)
        return KT_OK;
    if (why.status == KT_E_NOMEM) return kt_fail(err, KT_E_NOMEM, "%s", why.message);
    kt_log_write(w->request->log, KT_LOG_WARN, "convert", "the draft head is left out: %s",
                 why.message);
    kt_model_dir_deinit(&w->model);
    return kt_model_dir_read(model, &w->model, err);
}

static kt_status open_model(kt_convert_work *w, kt_err *err) {
    const kt_convert_request *r = w->request;

    KT_TRY(read_model(w, err));
    if (!w->model.checkpoint) return kt_fail(err, w->model.why.status, "%s", w->model.why.message);
    KT_TRY(check_formats(w, err));
    if (!r->importance) return KT_OK;
    return kt_checkpoint_open_file(r->importance, &w->importance, err);
}

/* ---- the plan ---- */

static kt_status start_pool(kt_convert_work *w, kt_err *err) {
    const kt_pool_options options = {.n_threads = w->request->n_threads ? w->request->n_threads
                                                                        : kt_usable_cores()};

    return kt_pool_create(&options, &w->pool, err);
}

static kt_status make_plan(kt_convert_work *w, kt_err *err) {
    const kt_fingerprint machine = {0};
    const kt_graph *g = &w->model.graph;
    int64_t rows = g->numbers.max_context < LEAST_ROWS ? g->numbers.max_context : LEAST_ROWS;
    size_t n = 0;

    w->variants = calloc(kt_builtin_variant_count + 1, sizeof *w->variants);
    if (!w->variants) return kt_fail(err, KT_E_NOMEM, "no memory for a plan");
    for (size_t i = 0; i < kt_builtin_variant_count; i++) {
        const char *layout = kt_builtin_variants[i]->layout;
        if (!layout || !*layout || strcmp(layout, "p64") == 0)
            w->variants[n++] = kt_builtin_variants[i];
    }
    KT_TRY(kt_registry_create(w->variants, n, kt_isa_available(), &w->registry, err));
    KT_TRY(kt_planner_create(w->registry, NULL, &machine, NULL, &w->planner, err));
    return kt_model_plan_make(w->planner, g, w->request->quant, KT_W_BF16, kt_pool_threads(w->pool),
                              rows, rows, &w->plan, err);
}

/* ---- the list ---- */

static kt_status add_piece(kt_convert_work *w, kt_convert_shard *s, int weight, int run,
                           kt_err *err) {
    kt_convert_piece *p = &w->pieces[w->n_pieces];
    const bool is_small = w->model.graph.weights[weight].kind != KT_WEIGHT_MATRIX &&
                          w->model.graph.weights[weight].kind != KT_WEIGHT_HEADS &&
                          w->model.graph.weights[weight].kind != KT_WEIGHT_EXPERTS;
    size_t bytes;

    *p = (kt_convert_piece){.weight = weight, .run = run};
    kt_packed_piece_of(&w->model.graph, weight, run, w->request->quant, &p->piece);
    if (is_small) {
        KT_TRY(kt_packer_find_small(&w->packer, weight, &p->small, &bytes, err));
        if (!p->small) return KT_OK; /* optional, and not there */
        if (kt_bytes_round(bytes) != p->piece.bytes)
            return kt_fail(err, KT_E_INTERNAL, "'%s': %zu bytes, counted %zu", p->piece.name, bytes,
                           p->piece.bytes);
    } else if (kt_model_plan_run(&w->plan, weight, run)->bytes != p->piece.bytes) {
        return kt_fail(err, KT_E_INTERNAL, "'%s': %zu bytes, planned %zu", p->piece.name,
                       p->piece.bytes, kt_model_plan_run(&w->plan, weight, run)->bytes);
    }
    bytes = kt_bytes_times(p->piece.bytes, p->piece.count);
    s->data_bytes = kt_bytes_add(s->data_bytes, bytes);
    s->n_sums += kt_packed_chunks(p->piece.bytes) * (size_t)p->piece.count;
    s->n++;
    w->n_pieces++;
    if (s->data_bytes < SIZE_MAX / 4) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "'%s': too large to count", p->piece.name);
}

/* Shard s holds layer s, that of a draft head behind the others; the last one what is outside of
 * layers. */
static kt_status list_shard(kt_convert_work *w, int s, kt_err *err) {
    const kt_graph *g = &w->model.graph;
    kt_convert_shard *shard = &w->shards[s];

    snprintf(shard->name, sizeof shard->name, "model-%05d-of-%05d.safetensors", s + 1, w->n_shards);
    shard->first = w->n_pieces;
    for (int i = 0; i < g->n_weights; i++) {
        if ((g->weights[i].layer < 0 ? w->n_shards - 1 : g->weights[i].layer) != s) continue;
        for (int r = 0; r < kt_packed_count(g, i, w->request->quant); r++)
            KT_TRY(add_piece(w, shard, i, r, err));
    }
    KT_TRY(kt_convert_measure_shard(w, shard, err));
    w->bytes_total += shard->bytes;
    return KT_OK;
}

static kt_status list_all(kt_convert_work *w, kt_err *err) {
    const kt_graph *g = &w->model.graph;
    size_t most_sums = 0;

    w->n_shards = kt_convert_shards(g);
    w->shards = calloc((size_t)w->n_shards, sizeof *w->shards);
    w->pieces = calloc((size_t)g->n_weights * KT_WEIGHT_PARTS, sizeof *w->pieces);
    if (!w->shards || !w->pieces) return kt_fail(err, KT_E_NOMEM, "no memory for a list of shards");
    for (int s = 0; s < w->n_shards; s++) {
        KT_TRY(list_shard(w, s, err));
        if (w->shards[s].n_sums > most_sums) most_sums = w->shards[s].n_sums;
    }
    w->sums = malloc((most_sums + 1) * sizeof *w->sums);
    return w->sums ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for checksums");
}

/* ---- memory ---- */

static size_t blocks_of(const kt_convert_work *w, const kt_convert_piece *p) {
    return (size_t)kt_packer_blocks(kt_model_plan_run(&w->plan, p->weight, p->run), p->piece.n);
}

/* A buffer for the largest piece that is not made in parts, and as many experts as there is room
 * for. */
static kt_status take_memory(kt_convert_work *w, kt_err *err) {
    const size_t fixed = kt_packer_bytes(&w->packer.request), asked = w->request->max_ram;
    size_t least = 64, most = 64, room, blocks = 1;

    for (int i = 0; i < w->n_pieces; i++) {
        const kt_convert_piece *p = &w->pieces[i];
        const bool in_parts = w->model.graph.weights[p->weight].kind == KT_WEIGHT_EXPERTS;
        const size_t all = kt_bytes_times(p->piece.bytes, p->piece.count);
        if ((in_parts ? p->piece.bytes : all) > least) least = in_parts ? p->piece.bytes : all;
        if (all > most) most = all;
    }
    if (asked && asked < kt_bytes_add(fixed, least))
        return kt_fail(err, KT_E_INVALID,
                       "--max-ram of %zu MiB: the largest matrix takes %zu MiB and staging for %d "
                       "threads %zu, expected at least %zu",
                       asked / MIB, least / MIB, kt_pool_threads(w->pool), fixed / MIB,
                       (fixed + least) / MIB + 1);
    room = asked ? asked : DEFAULT_RAM;
    room = room > fixed ? room - fixed : 0;
    if (room > most) room = most;
    if (room < least) room = least;
    for (int i = 0; i < w->n_pieces; i++) {
        const kt_convert_piece *p = &w->pieces[i];
        const size_t at_once = room / p->piece.bytes, count = (size_t)p->piece.count;
        const size_t n =
            p->piece.is_panels ? blocks_of(w, p) * (at_once < count ? at_once : count) : 0;
        if (n > blocks) blocks = n;
    }
    w->losses = calloc(blocks, sizeof *w->losses);
    if (!w->losses) return kt_fail(err, KT_E_NOMEM, "no memory for what encoding loses");
    KT_TRY(kt_buffer_create(room, KT_PAGES_ADVISED, -1, &w->buffer, err));
    KT_TRY(kt_packer_start(&w->packer, err));
    KT_TRY(kt_packer_measure(&w->packer, err));
    w->packer.losses.block = w->losses;
    return KT_OK;
}

/* ---- identity ---- */

static void add_file(const char *path, char *text, size_t bytes, uint64_t *sum) {
    struct stat info = {0};

    if (stat(path, &info) != 0) memset(&info, 0, sizeof info);
    snprintf(text, bytes, "%016llx %.3900s %lld %lld.%09ld", (unsigned long long)*sum, path,
             (long long)info.st_size, (long long)info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
    *sum = kt_checksum(text, strlen(text));
}

/* Of what is converted and how: what goes on must be the same. */
static void identify(kt_convert_work *w) {
    const kt_convert_request *r = w->request;
    char text[4096];
    uint64_t sum = (uint64_t)r->quant * KT_PACKED_VERSION + (uint64_t)r->budget * 64;

    for (int i = 0; *kt_checkpoint_file(w->model.checkpoint, i); i++)
        add_file(kt_checkpoint_file(w->model.checkpoint, i), text, sizeof text, &sum);
    if (!w->model.graph.is_gguf) {
        char config[KT_MODEL_PATH_BYTES + 16];
        snprintf(config, sizeof config, "%s/config.json", w->model.folder);
        add_file(config, text, sizeof text, &sum);
    }
    if (r->importance) add_file(r->importance, text, sizeof text, &sum);
    if (r->load) add_file(r->load, text, sizeof text, &sum);
    snprintf(w->identity, sizeof w->identity, "%016llx", (unsigned long long)sum);
}

/* ---- the whole ---- */

static kt_status start_packer(kt_convert_work *w, kt_err *err) {
    const kt_packer_request packing = {.checkpoint = w->model.checkpoint,
                                       .graph = &w->model.graph,
                                       .plan = &w->plan,
                                       .importance = w->importance,
                                       .n_nodes = 1,
                                       .pool = w->pool,
                                       .log = w->request->log};

    KT_TRY(kt_packer_init(&w->packer, &packing, err));
    KT_TRY(kt_packer_check(&w->packer, err));
    return KT_OK;
}

static kt_status write_rest(kt_convert_work *w, int done, kt_err *err) {
    size_t left = 0;

    for (int s = done; s < w->n_shards; s++) left += w->shards[s].bytes;
    w->bytes_done = w->bytes_total - left;
    KT_TRY(kt_convert_check_disk(w, left, err));
    KT_TRY(kt_convert_copy_files(w, err));
    if (done == w->n_shards) return kt_convert_write_index(w, err);
    KT_TRY(take_memory(w, err));
    for (int s = done; s < w->n_shards; s++) {
        KT_TRY(kt_convert_write_shard(w, s, err));
        w->bytes_done = w->bytes_total - (left -= w->shards[s].bytes);
    }
    return kt_convert_write_index(w, err);
}

/* The choice counted what surrounds pieces at most. */
static kt_status check_budget(kt_convert_work *w, kt_err *err) {
    kt_convert_tell_roles(w);
    if (w->bytes_total <= w->request->budget) return KT_OK;
    return kt_fail(err, KT_E_INTERNAL, "%.200s: %zu bytes chosen for a budget of %zu",
                   w->model.name, w->bytes_total, w->request->budget);
}

static kt_status convert(kt_convert_work *w, kt_err *err) {
    int done;

    KT_TRY(open_model(w, err));
    KT_TRY(start_pool(w, err));
    identify(w);
    if (w->request->budget) KT_TRY(kt_convert_choose(w, err));
    KT_TRY(make_plan(w, err));
    KT_TRY(start_packer(w, err));
    KT_TRY(list_all(w, err));
    if (w->request->budget) KT_TRY(check_budget(w, err));
    KT_TRY(kt_convert_take_folder(w, err));
    KT_TRY(kt_convert_open_journal(w, &done, err));
    w->result.shards = w->n_shards;
    w->result.resumed = done;
    w->result.bytes = w->bytes_total;
    w->result.was_complete = done == w->n_shards && kt_convert_has_index(w);
    if (!w->result.was_complete) KT_TRY(write_rest(w, done, err));
    return kt_convert_sum_up(w, err);
}

static void end_work(kt_convert_work *w) {
    kt_convert_close_journal(&w->journal);
    kt_packer_deinit(&w->packer);
    kt_buffer_destroy(&w->buffer);
    kt_model_plan_deinit(&w->plan);
    kt_pool_destroy(w->pool);
    kt_planner_destroy(w->planner);
    kt_registry_destroy(w->registry);
    kt_checkpoint_close(w->importance);
    kt_model_dir_deinit(&w->model);
    free(w->variants);
    free(w->errors);
    free(w->pieces);
    free(w->shards);
    free(w->sums);
    free(w->losses);
    free(w);
}

kt_status kt_convert(const kt_convert_request *request, kt_convert_result *out, kt_err *err) {
    kt_convert_work *w = calloc(1, sizeof *w);
    kt_status st;

    *out = (kt_convert_result){0};
    if (!w) return kt_fail(err, KT_E_NOMEM, "converting %.200s: no memory", request->model);
    w->request = request;
    w->journal.fd = -1;
    st = convert(w, err);
    if (st == KT_OK) *out = w->result;
    if (st == KT_E_NOMEM) st = kt_fail_prefix(err, st, "converting %.200s", request->model);
    end_work(w);
    return st;
}
