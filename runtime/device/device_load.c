/* Weights go to a device from the checkpoint, a few blocks of rows at a time: the host holds no
 * second copy of them, only two pinned pieces that are filled in turn.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "kernels/cuda/device_weights.h"
#include "runtime/device/device_impl.h"
#include "runtime/loader/finite.h"
#include "runtime/model/bytes.h"

#define BLOCK KT_SOURCE_BLOCK  /* rows; those that share scales stay together */
#define BLOCKS_EACH 4          /* of a piece, for every thread: none waits long for the others */
#define PIECE_BYTES (32 << 20) /* of a piece that has more than a block for every thread */

/* ---- one load ---- */

/* Matrices that lie one behind the other on the device, in blocks of rows. */
typedef struct load {
    kt_device_step *d;
    const kt_device_pick *pick;
    const kt_weight *w;
    const kt_format *format;  /* of the plain rows */
    kt_matrix_source *source; /* [count] */
    int64_t n, k, count;
    int64_t blocks; /* of a matrix */
    size_t record;
    uint8_t *to; /* of the device */

    /* Of the piece that is filled. */
    int64_t first, end; /* blocks of all matrices */
    uint8_t *stage;
    kt_buffer desk; /* of each thread: floats, plain rows and, of heads, the whole matrix turned */
    size_t floats_bytes, plain_bytes, desk_bytes;
    atomic_int bad;
    kt_err why;
} load;

static void note(load *l, const kt_err *why) {
    if (!atomic_exchange(&l->bad, 1)) l->why = *why;
}

/* The row of all matrices that a block begins with. */
static int64_t row_of(const load *l, int64_t block) {
    return block / l->blocks * l->n + block % l->blocks * BLOCK;
}

/* Rows [begin, end) of a matrix as the format has them, at `plain`. */
static kt_status read_rows(const load *l, const kt_matrix_source *s, int64_t begin, int64_t end,
                           float *floats, uint8_t *plain, kt_matrix *out, kt_err *err) {
    size_t data, scales;

    l->format->plain_bytes(end - begin, s->k, &data, &scales);
    *out = (kt_matrix){.format = l->format->id, .n = end - begin, .k = s->k, .data = plain};
    if (scales) out->scales = plain + kt_bytes_round(data);
    kt_matrix_source_populate(s, l->d->home->setup->checkpoint, begin, end);
    if (!l->d->home->setup->allow_nonfinite)
        KT_TRY(kt_matrix_source_check_finite(l->d->home->setup->checkpoint, s, begin, end, err));
    return kt_matrix_source_encode_rows(s, l->format, begin, end, plain,
                                        scales ? plain + kt_bytes_round(data) : NULL, floats, err);
}

/* A transposed head is read whole; a block of its columns becomes rows. */
static kt_status read_turned(const load *l, const kt_matrix_source *s, int64_t begin, int64_t end,
                             float *floats, uint8_t *plain, kt_matrix *out, kt_err *err) {
    const uint16_t *stored = (const uint16_t *)(const void *)plain;
    uint16_t *turned = (uint16_t *)(void *)(plain + (size_t)(l->n * l->k) * sizeof *turned);

    KT_TRY(read_rows(l, s, 0, s->rows, floats, plain, out, err));
    for (int64_t r = begin; r < end; r++)
        for (int64_t i = 0; i < l->k; i++) turned[(r - begin) * l->k + i] = stored[i * l->n + r];
    *out = (kt_matrix){.format = KT_W_BF16, .n = end - begin, .k = l->k, .data = turned};
    return KT_OK;
}

static void pack_blocks(void *arg, int64_t begin, int64_t end, int tid) {
    load *l = arg;
    uint8_t *desk = (uint8_t *)l->desk.data + (size_t)tid * l->desk_bytes;
    float *floats = (float *)(void *)desk;
    kt_err why = {KT_OK, ""};

    for (int64_t b = l->first + begin; b < l->first + end; b++) {
        const int64_t row = b % l->blocks * BLOCK;
        const int64_t last = row + BLOCK < l->n ? row + BLOCK : l->n;
        const kt_matrix_source *s = &l->source[b / l->blocks];
        uint8_t *plain = desk + l->floats_bytes;
        kt_matrix rows;
        kt_status st = l->w->is_transposed
                           ? read_turned(l, s, row, last, floats, plain, &rows, &why)
                           : read_rows(l, s, row, last, floats, plain, &rows, &why);
        if (st == KT_OK)
            st = kt_device_weights_pack(
                &rows, 0, rows.n,
                l->stage + (size_t)(row_of(l, b) - row_of(l, l->first)) * l->record, &why);
        if (st != KT_OK) note(l, &why);
        if (last == l->n) kt_matrix_source_release(s, l->d->home->setup->checkpoint);
    }
}

static kt_status make_desks(load *l, kt_err *err) {
    const bool is_turned = l->w->is_transposed;
    const int64_t rows = is_turned ? l->source[0].rows : BLOCK, k = l->source[0].k;
    size_t data, scales;

    l->format->plain_bytes(rows, k, &data, &scales);
    l->plain_bytes = kt_bytes_round(data) + kt_bytes_round(scales);
    if (is_turned) l->plain_bytes += kt_bytes_round((size_t)(BLOCK * l->k) * 2);
    l->floats_bytes =
        kt_bytes_round(sizeof(float) * (size_t)(kt_matrix_source_rows(l->format) * k));
    l->desk_bytes = l->floats_bytes + l->plain_bytes;
    return kt_buffer_create(kt_bytes_times(l->desk_bytes, kt_pool_threads(l->d->home->setup->pool)),
                            KT_PAGES_ADVISED, -1, &l->desk, err);
}

/* Of a piece: in the end the threads wait for the last of them. */
static int64_t piece_blocks(const load *l) {
    const int64_t threads = kt_pool_threads(l->d->home->setup->pool), most = BLOCKS_EACH * threads;

    return l->record * BLOCK * (size_t)most <= PIECE_BYTES ? most : threads;
}

/* Two pinned pieces. */
static kt_status make_stages(load *l, kt_err *err) {
    struct kt_device_home *h = l->d->home;
    const size_t bytes = kt_bytes_times(l->record * BLOCK, piece_blocks(l));

    if (bytes <= h->stage_bytes) return KT_OK;
    KT_TRY(kt_device_sync(l->d->device, NULL, err));
    h->stage_bytes = 0;
    for (int i = 0; i < 2; i++) {
        void *at;
        kt_device_host_free(l->d->device, h->stage[i]);
        h->stage[i] = NULL;
        KT_TRY(kt_device_host_alloc(l->d->device, bytes, &at, err));
        h->stage[i] = at;
        if (!h->staged[i]) KT_TRY(kt_device_event_make(l->d->device, &h->staged[i], err));
        KT_TRY(kt_device_record(l->d->device, KT_STREAM_UPLOAD, h->staged[i], err));
    }
    h->stage_bytes = bytes;
    return KT_OK;
}

static kt_status load_piece(load *l, kt_err *err) {
    struct kt_device_home *h = l->d->home;
    const int i = h->next_stage;
    kt_phase phase = {.run = pack_blocks, .arg = l, .n_tasks = l->end - l->first};
    const int64_t row = row_of(l, l->first), end = row_of(l, l->end);

    KT_TRY(kt_device_sync(l->d->device, h->staged[i], err));
    l->stage = h->stage[i];
    kt_pool_run(h->setup->pool, &phase, 1);
    if (atomic_load(&l->bad)) {
        if (err) *err = l->why;
        return l->why.status;
    }
    KT_TRY(kt_device_upload(l->d->device, KT_STREAM_UPLOAD, l->to + (size_t)row * l->record,
                            l->stage, (size_t)(end - row) * l->record, err));
    h->next_stage = 1 - i;
    return kt_device_record(l->d->device, KT_STREAM_UPLOAD, h->staged[i], err);
}

static kt_status find_sources(load *l, kt_err *err) {
    kt_weight_finder *f = &l->d->home->packer.finder;

    for (int64_t i = 0; i < l->count; i++) {
        const int64_t which = l->pick->which ? l->pick->which[i] : i;
        if (l->w->kind == KT_WEIGHT_HEADS)
            KT_TRY(kt_weight_head_source(f, l->w, which, &l->source[i], err));
        else
            KT_TRY(
                kt_weight_source(f, l->w, l->pick->first, l->pick->n, which, &l->source[i], err));
    }
    l->n = l->w->is_transposed ? l->source[0].k : l->source[0].rows;
    l->k = l->w->is_transposed ? l->source[0].rows : l->source[0].k;
    return KT_OK;
}

/* Blocks [first, end) of all matrices, several for each thread at a time. */
static kt_status load_blocks(load *l, int64_t first, int64_t end, kt_err *err) {
    const kt_device_setup *setup = l->d->home->setup;
    const int64_t piece = piece_blocks(l);

    for (l->first = first; l->first < end; l->first = l->end) {
        l->end = l->first + piece < end ? l->first + piece : end;
        KT_TRY(load_piece(l, err));
        if (setup->cancel && setup->cancel(setup->cancel_arg))
            return kt_fail(err, KT_E_CANCELLED, "loading was interrupted");
    }
    return KT_OK;
}

/* A matrix that was made of the same stored bytes, if there is one; else this one is remembered. */
static const uint8_t *find_twin(const load *l, int64_t i) {
    struct kt_device_home *h = l->d->home;
    const kt_device_twin me = {.stored = kt_matrix_source_stored(&l->source[i]),
                               .at = l->to + (size_t)(i * l->n) * l->record,
                               .format = l->format,
                               .n = l->n,
                               .k = l->k};

    for (int t = 0; t < h->n_twins; t++)
        if (h->twins[t].stored == me.stored && h->twins[t].format == me.format &&
            h->twins[t].n == me.n && h->twins[t].k == me.k)
            return h->twins[t].at;
    if (h->n_twins < KT_DEVICE_TWINS) h->twins[h->n_twins++] = me;
    return NULL;
}

static kt_status load_or_copy(load *l, int64_t i, kt_err *err) {
    const size_t bytes = (size_t)l->n * l->record;
    const uint8_t *twin = find_twin(l, i);

    if (!twin) return load_blocks(l, i * l->blocks, (i + 1) * l->blocks, err);
    return kt_device_copy(l->d->device, KT_STREAM_UPLOAD, l->to + (size_t)i * bytes, twin, bytes,
                          err);
}

static kt_status load_all(load *l, kt_device_matrices *out, kt_err *err) {
    const bool has_twins = l->d->home->setup->has_twins && l->w->use == KT_USE_EXPERTS;
    const kt_weight_format becomes =
        l->w->kind == KT_WEIGHT_HEADS ? KT_W_BF16
                                      : kt_weight_becomes(l->w, l->pick->first, l->d->plan->quant);
    size_t each;
    void *to;

    l->format = kt_format_find(becomes);
    KT_TRY(find_sources(l, err));
    KT_TRY(kt_device_weights_bytes(becomes, l->n, l->k, &each, err));
    l->record = kt_device_row_bytes(becomes, l->k);
    l->blocks = (l->n + BLOCK - 1) / BLOCK;
    l->d->home->counted =
        l->w->use == KT_USE_EXPERTS ? &l->d->home->bytes.experts : &l->d->home->bytes.dense;
    KT_TRY(kt_device_home_take(l->d, kt_bytes_times(each, l->count), &to, err));
    l->to = to;
    *out = (kt_device_matrices){.at = to,
                                .bytes = each,
                                .format = kt_device_weight_format(becomes),
                                .n = l->n,
                                .k = l->k,
                                .count = l->count};
    KT_TRY(make_desks(l, err));
    KT_TRY(make_stages(l, err));
    if (!has_twins) return load_blocks(l, 0, l->count * l->blocks, err);
    for (int64_t i = 0; i < l->count; i++) KT_TRY(load_or_copy(l, i, err));
    return KT_OK;
}

kt_status kt_device_load_matrices(kt_device_step *d, const kt_device_pick *pick,
                                  kt_device_matrices *out, kt_err *err) {
    load l = {.d = d, .pick = pick, .w = &d->graph->weights[pick->weight], .count = pick->count};
    kt_status st;

    *out = (kt_device_matrices){0};
    if (pick->count < 1) return KT_OK;
    l.source = calloc((size_t)pick->count, sizeof *l.source);
    st = l.source ? load_all(&l, out, err)
                  : kt_fail(err, KT_E_NOMEM, "no memory for %lld matrices", (long long)pick->count);
    kt_buffer_destroy(&l.desk);
    free(l.source);
    return st;
}

/* ---- vectors, routers, tables ---- */

static kt_status upload_small(kt_device_step *d, int weight, const kt_tensor *t, size_t bytes,
                              kt_device_small_weight *out, kt_err *err) {
    uint8_t *plain = malloc(bytes);
    void *to;
    kt_status st;

    if (!plain) return kt_fail(err, KT_E_NOMEM, "no memory for a weight of %zu bytes", bytes);
    kt_packer_small(&d->home->packer, weight, t, plain);
    st = kt_packer_failure(&d->home->packer, err);
    d->home->counted = &d->home->bytes.dense;
    if (st == KT_OK) st = kt_device_home_take(d, bytes, &to, err);
    if (st == KT_OK) {
        out->at = to;
        st = kt_device_upload(d->device, KT_STREAM_UPLOAD, to, plain, bytes, err);
    }
    if (st == KT_OK) st = kt_device_sync(d->device, NULL, err);
    free(plain);
    return st;
}

kt_status kt_device_load_small(kt_device_step *d, int weight, const void **out,
                               kt_weight_format *format, kt_err *err) {
    kt_device_small_weight *s = &d->home->small[weight];
    const kt_tensor *t;
    size_t bytes;

    if (!s->is_loaded) {
        KT_TRY(kt_packer_find_small(&d->home->packer, weight, &t, &bytes, err));
        if (t) KT_TRY(upload_small(d, weight, t, bytes, s, err));
        s->format = kt_weight_kept_as(&d->graph->weights[weight]);
        s->is_loaded = true;
    }
    *out = s->at;
    if (format) *format = s->format;
    return KT_OK;
}

/* The rows `which` of `plain` move to its front, in their order. */
static void gather(uint8_t *plain, size_t row, const int32_t *which, int64_t n) {
    for (int64_t i = 0; i < n && which; i++)
        memmove(plain + (size_t)i * row, plain + (size_t)which[i] * row, row);
}

kt_status kt_device_load_rows(kt_device_step *d, int weight, int64_t count, const int32_t *which,
                              int64_t n, const float **out, kt_err *err) {
    const kt_tensor *t;
    uint8_t *plain = NULL;
    size_t bytes;
    void *to;
    kt_status st;

    *out = NULL;
    if (n < 1) return KT_OK;
    KT_TRY(kt_packer_find_small(&d->home->packer, weight, &t, &bytes, err));
    if (!t) return KT_OK;
    plain = malloc(bytes);
    if (!plain) return kt_fail(err, KT_E_NOMEM, "no memory for a weight of %zu bytes", bytes);
    kt_packer_small(&d->home->packer, weight, t, plain);
    gather(plain, bytes / (size_t)count, which, n);
    bytes = bytes / (size_t)count * (size_t)n;
    d->home->counted = &d->home->bytes.dense;
    st = kt_packer_failure(&d->home->packer, err);
    if (st == KT_OK) st = kt_device_home_take(d, bytes, &to, err);
    if (st == KT_OK) st = kt_device_upload(d->device, KT_STREAM_UPLOAD, to, plain, bytes, err);
    if (st == KT_OK) st = kt_device_sync(d->device, NULL, err);
    if (st == KT_OK) *out = to;
    free(plain);
    return st;
}

/* ---- all of it ---- */

kt_status kt_device_load_begin(kt_device_step *d, kt_err *err) {
    const kt_device_setup *setup = d->home->setup;
    const kt_packer_request request = {.checkpoint = setup->checkpoint,
                                       .graph = d->graph,
                                       .plan = d->plan,
                                       .importance = setup->importance,
                                       .allow_nonfinite = setup->allow_nonfinite,
                                       .n_nodes = 1,
                                       .pool = setup->pool};

    if (kt_checkpoint_panels(setup->checkpoint))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "a converted checkpoint holds panels for CPUs, expected the checkpoint that "
                       "it was made of");
    return kt_packer_init(&d->home->packer, &request, err);
}

void kt_device_load_end(kt_device_step *d) {
    struct kt_device_home *h = d->home;

    kt_device_sync(d->device, NULL, NULL);
    for (int i = 0; i < 2; i++) kt_device_host_free(d->device, h->stage[i]), h->stage[i] = NULL;
    h->stage_bytes = 0;
    kt_packer_deinit(&h->packer);
}
