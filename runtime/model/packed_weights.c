/* Weights of a folder that `kt convert` wrote (dispatch/model/packed.h): its files are mapped, and
 * their bytes are what kernels read. Only what this machine wants otherwise is copied: experts that
 * are cut over memory nodes, and matrices for kernels of another layout.
 *
 * Every byte is looked at once, to compare checksums: that also brings it into memory, so that no
 * step waits for a disk. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/err.h"
#include "dispatch/model/packed.h"
#include "kernels/formats/p64.h"
#include "runtime/model/bytes.h"
#include "runtime/model/weights_impl.h"

#define CHUNKS_AT_ONCE 1024 /* between which loading may be stopped */
#define ROWS_PER_TASK 64

/* A tensor of the files. */
typedef struct panel {
    const kt_tensor *tensor; /* NULL: an optional vector that is not there */
    kt_packed_piece piece;
    size_t chunks;      /* of each of piece.count matrices */
    size_t first_chunk; /* of all panels' in order */
    uint64_t expected;
} panel;

typedef struct mapper {
    const kt_weights_request *request;
    kt_weights *weights;
    const kt_checkpoint *files;
    panel *panels;
    int (*of)[KT_WEIGHT_PARTS]; /* [weights]: its panels */
    size_t n_panels, n_chunks;
    uint64_t *sums; /* [n_chunks] */
} mapper;

/* ---- finding ---- */

static kt_status read_checksum(mapper *m, panel *p, kt_err *err) {
    const char *said = kt_checkpoint_metadata(m->files, p->tensor), *mark = " checksum=";
    char want[KT_PACKED_TEXT], *end;
    size_t size;

    kt_packed_text(&p->piece, want, sizeof want);
    size = strlen(want);
    if (!said || strncmp(said, want, size) != 0 || strncmp(said + size, mark, strlen(mark)) != 0)
        return kt_tensor_fail(m->files, p->tensor, KT_E_MISMATCH, err,
                              "holds '%.120s', expected '%s'", said ? said : "", want);
    p->expected = strtoull(said + size + strlen(mark), &end, 16);
    if (*end == '\0') return KT_OK;
    return kt_tensor_fail(m->files, p->tensor, KT_E_FORMAT, err, "no checksum");
}

static kt_status find_panel(mapper *m, int weight, int run, panel *p, kt_err *err) {
    const kt_weight *w = &m->request->graph->weights[weight];
    int64_t shape[2];

    kt_packed_piece_of(m->request->graph, weight, run, m->request->plan->quant, &p->piece);
    shape[0] = p->piece.count;
    shape[1] = (int64_t)p->piece.bytes;
    p->tensor = NULL;
    p->first_chunk = m->n_chunks;
    if (w->is_optional && !kt_checkpoint_find(m->files, p->piece.name)) return KT_OK;
    KT_TRY(kt_checkpoint_need(m->files, p->piece.name, 2, shape, &p->tensor, err));
    if (p->tensor->dtype != KT_DTYPE_U8)
        return kt_tensor_fail(m->files, p->tensor, KT_E_FORMAT, err, "dtype %s, expected U8",
                              kt_dtype_name(p->tensor->dtype));
    if ((uintptr_t)p->tensor->data % 64 != 0)
        return kt_tensor_fail(m->files, p->tensor, KT_E_FORMAT, err,
                              "begins at no multiple of 64 bytes");
    p->chunks = kt_packed_chunks(p->piece.bytes);
    m->n_chunks += p->chunks * (size_t)p->piece.count;
    return read_checksum(m, p, err);
}

static kt_status find_panels(mapper *m, kt_err *err) {
    const kt_graph *g = m->request->graph;
    const size_t most = (size_t)g->n_weights * KT_WEIGHT_PARTS;

    m->panels = calloc(most, sizeof *m->panels);
    m->of = calloc((size_t)g->n_weights, sizeof *m->of);
    if (!m->panels || !m->of) return kt_fail(err, KT_E_NOMEM, "no memory for the list of panels");
    for (int i = 0; i < g->n_weights; i++)
        for (int r = 0; r < kt_packed_count(g, i, m->request->plan->quant); r++) {
            m->of[i][r] = (int)m->n_panels;
            KT_TRY(find_panel(m, i, r, &m->panels[m->n_panels++], err));
        }
    m->sums = malloc((m->n_chunks + 1) * sizeof *m->sums);
    return m->sums ? KT_OK : kt_fail(err, KT_E_NOMEM, "no memory for %zu checksums", m->n_chunks);
}

/* ---- reading and checking ---- */

/* The panel that a chunk belongs to. */
static const panel *panel_of(const mapper *m, size_t chunk) {
    size_t low = 0, high = m->n_panels;

    while (high - low > 1) {
        const size_t middle = (low + high) / 2;
        if (m->panels[middle].first_chunk <= chunk)
            low = middle;
        else
            high = middle;
    }
    return &m->panels[low];
}

typedef struct checking {
    const mapper *mapper;
    size_t first;
} checking;

static void check_chunks(void *arg, int64_t begin, int64_t end, int tid) {
    const checking *c = arg;
    const mapper *m = c->mapper;
    (void)tid;

    for (size_t i = c->first + (size_t)begin; i < c->first + (size_t)end; i++) {
        const panel *p = panel_of(m, i);
        const size_t inside = i - p->first_chunk, bytes = p->piece.bytes;
        const size_t at = inside % p->chunks * KT_PACKED_CHUNK;
        const size_t n = bytes - at < KT_PACKED_CHUNK ? bytes - at : KT_PACKED_CHUNK;
        const size_t offset = inside / p->chunks * bytes + at;
        kt_checkpoint_populate(m->files, p->tensor, offset, n);
        m->sums[i] = kt_checksum(p->tensor->data + offset, n);
    }
}

static kt_status compare(const mapper *m, kt_err *err) {
    for (size_t i = 0; i < m->n_panels; i++) {
        const panel *p = &m->panels[i];
        uint64_t found;
        if (!p->tensor) continue;
        found = kt_checksum(m->sums + p->first_chunk,
                            p->chunks * (size_t)p->piece.count * sizeof *m->sums);
        if (found != p->expected)
            return kt_tensor_fail(
                m->files, p->tensor, KT_E_FORMAT, err,
                "checksum %016llx, expected %016llx: the file is damaged, convert the source again",
                (unsigned long long)found, (unsigned long long)p->expected);
    }
    return KT_OK;
}

static size_t bytes_in_place(const mapper *m) {
    size_t total = 0;

    for (size_t i = 0; i < m->n_panels; i++)
        if (m->panels[i].tensor) total += m->panels[i].tensor->bytes;
    return total;
}

static kt_status check_panels(const mapper *m, kt_err *err) {
    const kt_weights_request *r = m->request;

    /* What is mapped counts as available, as long as nobody else takes it. */
    for (size_t first = 0; first < m->n_chunks; first += CHUNKS_AT_ONCE) {
        checking c = {m, first};
        const size_t left = m->n_chunks - first;
        kt_phase phase = {.run = check_chunks,
                          .arg = &c,
                          .n_tasks = (int64_t)(left < CHUNKS_AT_ONCE ? left : CHUNKS_AT_ONCE)};
        KT_TRY(kt_weights_watch(r, bytes_in_place(m), "packed weights", err));
        kt_pool_run(r->pool, &phase, 1);
        if (r->cancel && r->cancel(r->cancel_arg))
            return kt_fail(err, KT_E_CANCELLED, "loading was interrupted");
    }
    return compare(m, err);
}

/* ---- matrices for kernels of another layout ---- */

static bool is_in_place(const kt_problem_plan *p) {
    return kt_staging_has_blocks(p); /* the plan's layout is p64 */
}

typedef struct unpacking {
    kt_weight_format format;
    int64_t n, k;
    const uint8_t *panels;
    void *data, *scales;
} unpacking;

static void unpack_rows(void *arg, int64_t begin, int64_t end, int tid) {
    const unpacking *u = arg;
    const int64_t last = end * ROWS_PER_TASK < u->n ? end * ROWS_PER_TASK : u->n;
    (void)tid;

    kt_p64_unpack_rows(u->format, u->k, u->panels, begin * ROWS_PER_TASK, last, u->data, u->scales);
}

static kt_status repack(const mapper *m, const kt_problem_plan *p, const uint8_t *panels,
                        uint8_t *packed, kt_err *err) {
    const kt_problem *q = &p->problem;
    unpacking u = {.format = q->weights, .n = q->n, .k = q->k, .panels = panels};
    kt_phase phase = {
        .run = unpack_rows, .arg = &u, .n_tasks = (q->n + ROWS_PER_TASK - 1) / ROWS_PER_TASK};
    kt_buffer plain;
    size_t data, scales;
    kt_matrix w;

    KT_TRY(kt_format_sizes(kt_format_find(q->weights), q->n, q->k, &data, &scales, err));
    KT_TRY(kt_buffer_create(kt_bytes_round(data) + scales, KT_PAGES_ADVISED, -1, &plain, err));
    u.data = plain.data;
    u.scales = scales ? (uint8_t *)plain.data + kt_bytes_round(data) : NULL;
    kt_pool_run(m->request->pool, &phase, 1);
    w = (kt_matrix){.format = q->weights, .n = q->n, .k = q->k, .data = u.data, .scales = u.scales};
    p->choices.choice[0].variant->pack_gemm(q, &w, packed);
    kt_buffer_destroy(&plain);
    return KT_OK;
}

/* Of a layer, what has to be packed anew. */
static kt_status count_repacked(const mapper *m, int64_t layer, size_t *bytes, kt_err *err) {
    const kt_graph *g = m->request->graph;

    *bytes = 0;
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        kt_run runs[KT_WEIGHT_PARTS];
        const int n = kt_weight_runs(w, m->request->plan->quant, runs);
        if ((w->layer < 0 ? g->numbers.layers : w->layer) != layer) continue;
        for (int r = 0; r < n; r++) {
            const kt_problem_plan *p = kt_model_plan_run(m->request->plan, i, r);
            if (is_in_place(p) && p->bytes != m->panels[m->of[i][r]].piece.bytes)
                return kt_fail(err, KT_E_INTERNAL, "%s of layer %d: %zu bytes, planned %zu",
                               w->role, w->layer, m->panels[m->of[i][r]].piece.bytes, p->bytes);
            if (is_in_place(p)) continue;
            if (w->kind == KT_WEIGHT_EXPERTS || !kt_p64_can_unpack(p->problem.weights))
                return kt_fail(err, KT_E_UNSUPPORTED,
                               "%s of layer %d: the table asks for layout '%s', into which packed "
                               "%s cannot be turned; expected p64",
                               w->role, w->layer, p->choices.choice[0].variant->layout,
                               kt_weight_format_name(p->problem.weights));
            *bytes += p->bytes * (size_t)(w->kind == KT_WEIGHT_HEADS ? w->count : 1);
        }
    }
    return KT_OK;
}

/* ---- weights ---- */

static const panel *panel_at(const mapper *m, int weight, int run) {
    return &m->panels[m->of[weight][run]];
}

static kt_status map_matrix(mapper *m, int weight, uint8_t **memory, kt_err *err) {
    const kt_weight *w = &m->request->graph->weights[weight];
    kt_loaded *to = &m->weights->loaded[weight];
    const int n = kt_packed_count(m->request->graph, weight, m->request->plan->quant);

    for (int r = 0; r < n; r++) {
        const kt_problem_plan *p = kt_model_plan_run(m->request->plan, weight, r);
        const panel *from = panel_at(m, weight, r);
        to->data[r] = is_in_place(p) ? from->tensor->data : *memory;
        if (w->kind == KT_WEIGHT_HEADS) to->head_bytes = p->bytes;
        for (int64_t e = 0; !is_in_place(p) && e < from->piece.count; e++, *memory += p->bytes)
            KT_TRY(repack(m, p, from->tensor->data + (size_t)e * from->piece.bytes, *memory, err));
    }
    return KT_OK;
}

typedef struct slicing {
    const panel *from;
    const kt_placing *place;
} slicing;

static void cut_experts(void *arg, int64_t begin, int64_t end, int tid) {
    const slicing *s = arg;
    const kt_placing *p = s->place;
    (void)tid;

    for (int64_t e = begin; e < end; e++)
        for (int i = 0; i < p->n; i++)
            kt_moe_slice_pack(&p->whole, s->from->tensor->data + (size_t)e * s->from->piece.bytes,
                              p->begin[i], p->begin[i + 1], p->at[i * p->count + e]);
}

/* Nobody writes through the pointers of a placing that is in use. */
static kt_status map_experts(mapper *m, int weight, kt_err *err) {
    const panel *from = panel_at(m, weight, 0);
    uint8_t *base = (uint8_t *)(uintptr_t)from->tensor->data;
    kt_placing place;
    slicing s = {from, &place};
    kt_phase phase = {.run = cut_experts, .arg = &s};

    KT_TRY(kt_weights_place(m->weights, m->request, weight, base, &place, err));
    if (place.n > 1) {
        phase.n_tasks = place.count;
        kt_pool_run(m->request->pool, &phase, 1);
        kt_checkpoint_release(m->files, from->tensor, 0, from->tensor->bytes);
    }
    return kt_weights_finish_experts(m->weights, weight, &place, err);
}

static kt_status map_layer(mapper *m, int64_t layer, kt_err *err) {
    const kt_graph *g = m->request->graph;
    uint8_t *memory = NULL;
    size_t bytes;

    KT_TRY(count_repacked(m, layer, &bytes, err));
    if (bytes) {
        KT_TRY(kt_weights_take(m->weights, m->request->pool, bytes, -1, &m->weights->buffers[layer],
                               err));
        memory = m->weights->buffers[layer].data;
    }
    for (int i = 0; i < g->n_weights; i++) {
        const kt_weight *w = &g->weights[i];
        const panel *p = panel_at(m, i, 0);
        if ((w->layer < 0 ? g->numbers.layers : w->layer) != layer) continue;
        if (w->kind == KT_WEIGHT_EXPERTS) {
            KT_TRY(map_experts(m, i, err));
        } else if (w->kind == KT_WEIGHT_MATRIX || w->kind == KT_WEIGHT_HEADS) {
            KT_TRY(map_matrix(m, i, &memory, err));
        } else if (p->tensor) {
            m->weights->loaded[i].format = p->piece.format;
            m->weights->loaded[i].data[0] = p->tensor->data;
        }
    }
    return KT_OK;
}

static kt_status run(mapper *m, kt_err *err) {
    KT_TRY(find_panels(m, err));
    KT_TRY(check_panels(m, err));
    for (int64_t i = 0; i <= m->request->graph->numbers.layers; i++) KT_TRY(map_layer(m, i, err));
    if (m->weights->n_nodes == 1) m->weights->bytes += bytes_in_place(m);
    return KT_OK;
}

kt_status kt_weights_map_panels(kt_weights *w, const kt_weights_request *request, kt_err *err) {
    kt_checkpoint *files = kt_checkpoint_panels(request->checkpoint);
    mapper m = {.request = request, .weights = w, .files = files};
    kt_status st;

    kt_checkpoint_retain(files);
    w->panels = files;
    st = run(&m, err);
    free(m.panels);
    free(m.of);
    free(m.sums);
    return st;
}
