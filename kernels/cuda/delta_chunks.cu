/* Linear attention by the gated delta rule in chunks of 64 rows, f32 throughout (arXiv 2412.06464).
 *
 * With G the sums of log alpha inside a chunk and w(t, s) = exp(G_t - G_s), the updates D of a
 * chunk and its results O follow from the state S before it:
 *   (I + L) D = beta (V - exp(G) K S),   L_ts = beta_t w(t, s) (k_t . k_s),  s < t
 *   O = exp(G) Q S + A D,                A_ts = w(t, s) (q_t . k_s),         s <= t
 *   S <- exp(G_last) S + sum over t of w(last, t) k_t d_t^T
 * prepare makes T = (I + L)^-1 beta and A of every chunk and head, all at once. chunks walks along
 * a span with 32 columns of a head's state in shared memory; gate ends the rows. The inverse is
 * safe: its numbers are products of keys with (I - beta k k^T) alpha between them, none over 1.
 * Sums of G are in double, as two floats: a difference of two of them is an exponent.
 *
 * Chunks begin where the position is a multiple of 64, so that prefill in pieces of whole pages
 * gives the same bits. Rows that a chunk lacks are zeros.
 *
 *   prepare  grid (heads, KT_DELTA_SLOTS(rows)), KT_DELTA_PREPARE_SHARED bytes of shared memory
 *   chunks   grid (heads * (values / 32 rounded up), spans), KT_DELTA_CHUNKS_SHARED
 *   gate     grid (heads / 8 rounded up, rows), none
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_delta.h"

#define THREADS KT_CONSTANT(0)
KT_REQUIRE(THREADS == 256, "shares of the threads");
enum { WARPS = 8, ROWS = KT_DELTA_PIECE, COLUMNS = 32 };

/* Bytes from row to row: of keys and queries, of L and T in prepare, of T and A in chunks, of
 * values. Those that are read 16 bytes at a time keep eight rows on different banks. */
enum { PITCH = 132 * 4, SQUARE = 65 * 4, WEIGHTS = 68 * 4, NARROW = COLUMNS * 4 };

/* A chunk's part of the room. */
enum {
    TURNED = 0,
    SEEN = 4096,
    FAR = 8192,
    REST = FAR + 64,
    KEY_UNIT = REST + 64,
    QUERY_UNIT = KEY_UNIT + 64
};

KT_DEVICE float *room_of(const kt_delta_batch *p, int slot, int head) {
    return p->room + ((int64_t)slot * p->heads + head) * KT_DELTA_ROOM;
}

/* 4 products each of a and b, added in order. */
KT_DEVICE float dot4(kt_u128 a, kt_u128 b, float sum) {
    sum = kt_fma(kt_float_bits(a.x), kt_float_bits(b.x), sum);
    sum = kt_fma(kt_float_bits(a.y), kt_float_bits(b.y), sum);
    sum = kt_fma(kt_float_bits(a.z), kt_float_bits(b.z), sum);
    return kt_fma(kt_float_bits(a.w), kt_float_bits(b.w), sum);
}

/* ---- prepare ---- */

/* Shared memory: keys and queries, later L and T; then of every row log alpha, its sums in two
 * floats, beta, and the factors that make keys and queries unit. */
enum {
    KEYS = 0,
    QUERIES = ROWS * PITCH,
    LOG_ALPHA = 2 * ROWS * PITCH,
    SUM_HIGH = LOG_ALPHA + 256,
    SUM_LOW = SUM_HIGH + 256,
    BETA = SUM_LOW + 256,
    KEY_FACTOR = BETA + 256,
    QUERY_FACTOR = KEY_FACTOR + 256,
    FOUND = QUERY_FACTOR + 256,
    PREPARE_BYTES = FOUND + 256
};

KT_DEVICE float row_f32(uint32_t at, int row) {
    return kt_shared_f32(at + (uint32_t)row * 4);
}

/* The span that has a slot of the room, or -1. */
KT_DEVICE int find_span(const kt_delta_batch *p, int slot) {
    if (kt_thread() == 0) kt_set_shared_u32(FOUND, 0xffffffffu);
    kt_sync();
    for (int i = kt_thread(); i < p->n_spans; i += THREADS) {
        const kt_state_span s = p->spans[i];
        const int chunk = slot - kt_delta_first_slot(&s);
        if (kt_delta_is_mine(p, &s) && chunk >= 0 && chunk < kt_delta_chunk_count(&s))
            kt_set_shared_u32(FOUND, (uint32_t)i);
    }
    kt_sync();
    return (int)kt_shared_u32(FOUND);
}

/* Rows of a chunk as they are, their rates, and what makes them unit; a warp a row. */
KT_DEVICE void load_chunk(const kt_delta_batch *p, int head, kt_delta_rows_of c) {
    const float scale = 1.0f / kt_sqrt((float)p->keys);

    for (int t = kt_warp(); t < ROWS; t += WARPS) {
        const int64_t row = c.row + (t < c.n ? t : 0);
        const int64_t at = row * p->ld + (int64_t)kt_delta_key_head(p, head) * p->keys;
        const float key = kt_delta_unit(p->k + at, p->keys),
                    query = kt_delta_unit(p->q + at, p->keys);
        const uint32_t to = (uint32_t)(t * PITCH), mine = (uint32_t)t * 4;
        for (int i = kt_lane(); i < p->keys; i += 32) {
            kt_set_shared_f32(KEYS + to + (uint32_t)i * 4, t < c.n ? p->k[at + i] : 0.0f);
            kt_set_shared_f32(QUERIES + to + (uint32_t)i * 4, t < c.n ? p->q[at + i] : 0.0f);
        }
        if (kt_lane() != 0) continue;
        kt_set_shared_f32(KEY_FACTOR + mine, t < c.n ? key : 0.0f);
        kt_set_shared_f32(QUERY_FACTOR + mine, t < c.n ? query * scale : 0.0f);
        kt_set_shared_f32(LOG_ALPHA + mine, t < c.n ? kt_delta_log_alpha(p, head, row) : 0.0f);
        kt_set_shared_f32(BETA + mine, t < c.n ? kt_delta_beta(p, head, row) : 0.0f);
    }
    kt_sync();
}

/* G of every row, up to it. */
KT_DEVICE void sum_rates(void) {
    const int t = kt_thread();
    double sum = 0;

    for (int i = 0; t < ROWS && i <= t; i++) sum += (double)row_f32(LOG_ALPHA, i);
    if (t < ROWS) {
        kt_set_shared_f32(SUM_HIGH + (uint32_t)t * 4, (float)sum);
        kt_set_shared_f32(SUM_LOW + (uint32_t)t * 4, (float)(sum - (double)(float)sum));
    }
    kt_sync();
}

/* exp(G_t - G_s), s <= t. */
KT_DEVICE float weight(int t, int s) {
    return kt_exp((row_f32(SUM_HIGH, t) - row_f32(SUM_HIGH, s)) +
                  (row_f32(SUM_LOW, t) - row_f32(SUM_LOW, s)));
}

/* Products of 4 x 4 pairs of rows a thread: rows t, t + 16 .. with keys s, s + 16 .. */
KT_DEVICE void multiply_rows(int keys, float *of_keys, float *of_queries) {
    const int t = kt_thread() / 16, s = kt_thread() % 16;

    KT_UNROLL
    for (int i = 0; i < 16; i++) of_keys[i] = of_queries[i] = 0;
    for (int x = 0; x < keys; x += 4) {
        kt_u128 key[4];
        KT_UNROLL
        for (int j = 0; j < 4; j++)
            key[j] = kt_shared_u128(KEYS + (uint32_t)((s + 16 * j) * PITCH + x * 4));
        KT_UNROLL
        for (int i = 0; i < 4; i++) {
            const uint32_t at = (uint32_t)((t + 16 * i) * PITCH + x * 4);
            const kt_u128 k = kt_shared_u128(KEYS + at), q = kt_shared_u128(QUERIES + at);
            KT_UNROLL
            for (int j = 0; j < 4; j++) {
                of_keys[i * 4 + j] = dot4(k, key[j], of_keys[i * 4 + j]);
                of_queries[i * 4 + j] = dot4(q, key[j], of_queries[i * 4 + j]);
            }
        }
    }
    kt_sync(); /* L and T come where keys and queries were */
}

/* A goes to the room, L to shared memory. */
KT_DEVICE void weigh(const float *of_keys, const float *of_queries, float *room) {
    KT_UNROLL
    for (int i = 0; i < 16; i++) {
        const int t = kt_thread() / 16 + i / 4 * 16, s = kt_thread() % 16 + i % 4 * 16;
        const float w = s <= t ? weight(t, s) * row_f32(KEY_FACTOR, s) : 0.0f;
        const float l = row_f32(BETA, t) * w * row_f32(KEY_FACTOR, t) * of_keys[i];
        room[SEEN + t * ROWS + s] = w * row_f32(QUERY_FACTOR, t) * of_queries[i];
        kt_set_shared_f32(KEYS + (uint32_t)(t * SQUARE + s * 4), s < t ? l : 0.0f);
    }
    kt_sync();
}

/* T = (I + L)^-1, row after row; 4 lanes share the sum of a column, which no other warp touches. */
KT_DEVICE void invert(void) {
    const int column = kt_thread() / 4, part = kt_thread() % 4;

    for (int t = 0; t < ROWS; t++) {
        float sum = 0;
        for (int s = part; s < t; s += 4)
            sum = kt_fma(kt_shared_f32(KEYS + (uint32_t)(t * SQUARE + s * 4)),
                         kt_shared_f32(QUERIES + (uint32_t)(s * SQUARE + column * 4)), sum);
        sum += kt_warp_xor(sum, 1);
        sum += kt_warp_xor(sum, 2);
        if (part == 0)
            kt_set_shared_f32(QUERIES + (uint32_t)(t * SQUARE + column * 4),
                              (t == column ? 1.0f : 0.0f) - sum);
        kt_warp_sync();
    }
    kt_sync();
}

KT_DEVICE void prepare(const kt_delta_batch *p) {
    const int head = kt_block_x(), slot = kt_block_y(), found = find_span(p, slot);
    float of_keys[16], of_queries[16], *room = room_of(p, slot, head);
    kt_state_span s;
    kt_delta_rows_of c;

    if (found < 0) return;
    s = p->spans[found];
    c = kt_delta_chunk(&s, slot - kt_delta_first_slot(&s));
    load_chunk(p, head, c);
    sum_rates();
    multiply_rows(p->keys, of_keys, of_queries);
    weigh(of_keys, of_queries, room);
    invert();
    for (int i = kt_thread(); i < ROWS * ROWS; i += THREADS)
        room[TURNED + i] = row_f32(BETA, i % ROWS) *
                           kt_shared_f32(QUERIES + (uint32_t)(i / ROWS * SQUARE + i % ROWS * 4));
    if (kt_thread() >= ROWS) return;
    room[FAR + kt_thread()] = kt_exp(row_f32(SUM_HIGH, kt_thread()));
    room[REST + kt_thread()] = kt_thread() < c.n ? weight(c.n - 1, kt_thread()) : 0.0f;
    room[KEY_UNIT + kt_thread()] = row_f32(KEY_FACTOR, kt_thread());
    room[QUERY_UNIT + kt_thread()] = row_f32(QUERY_FACTOR, kt_thread());
}

/* ---- chunks ---- */

/* Shared memory: unit keys, then queries, then keys again; T, then A; the state; V - exp(G) K S; D;
 * of every row exp(G) and what its update is weighted with at the chunk's end. */
enum {
    UNIT = 0,
    MATRIX = ROWS * PITCH,
    STATE = MATRIX + ROWS * WEIGHTS,
    WANTED = STATE + KT_DELTA_MOST * NARROW,
    UPDATE = WANTED + ROWS * NARROW,
    ROW_FAR = UPDATE + ROWS * NARROW,
    ROW_REST = ROW_FAR + 256,
    CHUNKS_BYTES = ROW_REST + 256
};

/* The rows and columns of results that a thread has: rows t and t + 32, columns 4 c .. 4 c + 3. */
#define MY_ROW (kt_thread() / 8)
#define MY_COLUMN (kt_thread() % 8 * 4)

/* Rows of keys or queries as units; a warp a row. */
KT_DEVICE void load_units(const float *x, int64_t ld, int keys, kt_delta_rows_of c,
                          const float *unit) {
    for (int t = kt_warp(); t < ROWS; t += WARPS)
        for (int i = kt_lane(); i < keys; i += 32)
            kt_set_shared_f32(UNIT + (uint32_t)(t * PITCH + i * 4),
                              t < c.n ? x[(c.row + t) * ld + i] * unit[t] : 0.0f);
}

KT_DEVICE void load_matrix(const float *m) {
    for (int i = kt_thread(); i < ROWS * ROWS / 4; i += THREADS)
        kt_set_shared_u128(MATRIX + (uint32_t)(i / 16 * WEIGHTS + i % 16 * 16),
                           kt_load_stream(m + i * 4));
}

KT_DEVICE void add4(float a, kt_u128 b, float *sum) {
    sum[0] = kt_fma(a, kt_float_bits(b.x), sum[0]);
    sum[1] = kt_fma(a, kt_float_bits(b.y), sum[1]);
    sum[2] = kt_fma(a, kt_float_bits(b.z), sum[2]);
    sum[3] = kt_fma(a, kt_float_bits(b.w), sum[3]);
}

/* sum[0 .. 3] += row t of a times b [n, 32], sum[4 .. 7] likewise of row t + 32. */
KT_DEVICE void product(uint32_t a, int pitch, uint32_t b, int n, float *sum) {
    for (int x = 0; x < n; x += 4) {
        const kt_u128 low = kt_shared_u128(a + (uint32_t)(MY_ROW * pitch + x * 4));
        const kt_u128 high = kt_shared_u128(a + (uint32_t)((MY_ROW + 32) * pitch + x * 4));
        const uint32_t l[4] = {low.x, low.y, low.z, low.w}, h[4] = {high.x, high.y, high.z, high.w};
        KT_UNROLL
        for (int i = 0; i < 4; i++) {
            const kt_u128 v = kt_shared_u128(b + (uint32_t)((x + i) * NARROW + MY_COLUMN * 4));
            add4(kt_float_bits(l[i]), v, sum);
            add4(kt_float_bits(h[i]), v, sum + 4);
        }
    }
}

KT_DEVICE kt_u128 pack4(const float *x) {
    kt_u128 v;
    v.x = kt_bits_float(x[0]), v.y = kt_bits_float(x[1]);
    v.z = kt_bits_float(x[2]), v.w = kt_bits_float(x[3]);
    return v;
}

KT_DEVICE void put_results(uint32_t at, const float *sum) {
    kt_set_shared_u128(at + (uint32_t)(MY_ROW * NARROW + MY_COLUMN * 4), pack4(sum));
    kt_set_shared_u128(at + (uint32_t)((MY_ROW + 32) * NARROW + MY_COLUMN * 4), pack4(sum + 4));
}

/* sum = V - exp(G) K S of this thread's results, sum being K S. `columns` exist from v on. */
KT_DEVICE void subtract(const float *v, int64_t ld, int columns, kt_delta_rows_of c, float *sum) {
    KT_UNROLL
    for (int i = 0; i < 8; i++) {
        const int t = MY_ROW + i / 4 * 32, column = MY_COLUMN + i % 4;
        const float value = t < c.n && column < columns ? v[(c.row + t) * ld + column] : 0.0f;
        sum[i] = kt_fma(-row_f32(ROW_FAR, t), sum[i], value);
    }
}

/* The state behind the chunk: 4 keys and 4 columns a thread. */
KT_DEVICE void leave_chunk(int keys, int n) {
    const uint32_t mine = STATE + (uint32_t)(MY_ROW * 4 * NARROW + MY_COLUMN * 4);
    const float decay = row_f32(ROW_FAR, n - 1);
    float state[16];

    if (MY_ROW * 4 >= keys) return;
    KT_UNROLL
    for (int i = 0; i < 4; i++) {
        const kt_u128 v = kt_shared_u128(mine + (uint32_t)(i * NARROW));
        state[i * 4] = kt_float_bits(v.x) * decay, state[i * 4 + 1] = kt_float_bits(v.y) * decay;
        state[i * 4 + 2] = kt_float_bits(v.z) * decay,
                      state[i * 4 + 3] = kt_float_bits(v.w) * decay;
    }
    KT_ROLLED /* more would spill from sm_100 on */
        for (int t = 0; t < n; t++) {
        const kt_u128 k = kt_shared_u128(UNIT + (uint32_t)(t * PITCH + MY_ROW * 16));
        const kt_u128 d = kt_shared_u128(UPDATE + (uint32_t)(t * NARROW + MY_COLUMN * 4));
        const float rest = row_f32(ROW_REST, t);
        add4(kt_float_bits(k.x) * rest, d, state);
        add4(kt_float_bits(k.y) * rest, d, state + 4);
        add4(kt_float_bits(k.z) * rest, d, state + 8);
        add4(kt_float_bits(k.w) * rest, d, state + 12);
    }
    KT_UNROLL
    for (int i = 0; i < 4; i++)
        kt_set_shared_u128(mine + (uint32_t)(i * NARROW), pack4(state + i * 4));
}

KT_DEVICE void clear8(float *sum) {
    KT_UNROLL
    for (int i = 0; i < 8; i++) sum[i] = 0;
}

/* One chunk of columns [first, first + 32) of a head: results of rows, and the state behind it.
 * Keys come twice, so that no thread has results of two products: from sm_100 on those spill. */
KT_DEVICE void walk_chunk(const kt_delta_batch *p, int head, int first, kt_delta_rows_of c,
                          const float *room) {
    const int64_t key = (int64_t)kt_delta_key_head(p, head) * p->keys;
    const int64_t value = (int64_t)head * p->values + first;
    float sum[8];

    load_units(p->k + key, p->ld, p->keys, c, room + KEY_UNIT);
    load_matrix(room + TURNED);
    for (int i = kt_thread(); i < 2 * ROWS; i += THREADS)
        kt_set_shared_f32(ROW_FAR + (uint32_t)i * 4, room[FAR + i]);
    clear8(sum);
    kt_sync();
    product(UNIT, PITCH, STATE, p->keys, sum);
    subtract(p->v + value, p->ld, p->values - first, c, sum);
    put_results(WANTED, sum);
    clear8(sum);
    kt_sync();
    product(MATRIX, WEIGHTS, WANTED, ROWS, sum);
    put_results(UPDATE, sum);
    kt_sync();
    load_units(p->q + key, p->ld, p->keys, c, room + QUERY_UNIT);
    load_matrix(room + SEEN);
    clear8(sum);
    kt_sync();
    product(UNIT, PITCH, STATE, p->keys, sum);
    KT_UNROLL
    for (int i = 0; i < 8; i++) sum[i] *= row_f32(ROW_FAR, MY_ROW + i / 4 * 32);
    product(MATRIX, WEIGHTS, UPDATE, ROWS, sum);
    KT_UNROLL
    for (int i = 0; i < 8; i++) {
        const int t = MY_ROW + i / 4 * 32, column = MY_COLUMN + i % 4;
        if (t < c.n && first + column < p->values)
            p->out[(c.row + t) * (int64_t)p->ldo + value + column] = sum[i];
    }
    kt_sync();
    load_units(p->k + key, p->ld, p->keys, c, room + KEY_UNIT);
    kt_sync();
    leave_chunk(p->keys, c.n);
    kt_sync();
}

KT_DEVICE void chunks(const kt_delta_batch *p) {
    const int pieces = (p->values + COLUMNS - 1) / COLUMNS;
    const int head = kt_block_x() / pieces, first = kt_block_x() % pieces * COLUMNS;
    const kt_state_span s = p->spans[kt_block_y()];
    const int64_t state = (int64_t)head * p->keys * p->values + first;
    const int column = kt_lane(), is_there = first + column < p->values;

    if (!kt_delta_is_mine(p, &s)) return;
    for (int i = kt_warp(); i < p->keys; i += WARPS)
        kt_set_shared_f32(STATE + (uint32_t)(i * NARROW + column * 4),
                          is_there ? p->states[s.from * p->stride + state + i * p->values + column]
                                   : 0.0f);
    for (int i = 0; i < kt_delta_chunk_count(&s); i++)
        walk_chunk(p, head, first, kt_delta_chunk(&s, i),
                   room_of(p, kt_delta_first_slot(&s) + i, head));
    for (int i = kt_warp(); is_there && i < p->keys; i += WARPS)
        p->states[s.to * p->stride + state + i * p->values + column] =
            kt_shared_f32(STATE + (uint32_t)(i * NARROW + column * 4));
}

/* ---- gate ---- */

/* The end of rows that chunks made, in place; a warp a head. */
KT_DEVICE void gate(const kt_delta_batch *p) {
    const int head = kt_block_x() * WARPS + kt_warp();
    const int64_t row = kt_block_y();
    float *o = p->out + row * p->ldo + (int64_t)head * p->values;
    float square = 0;

    if (head >= p->heads || !kt_delta_is_mine(p, &p->spans[p->span[row]])) return;
    for (int i = kt_lane(); i < p->values; i += 32) square = kt_fma(o[i], o[i], square);
    square = kt_warp_sum(square);
    for (int i = kt_lane(); i < p->values; i += 32)
        o[i] = kt_delta_gate(p, head, row, i, o[i], square);
}

KT_ENTRY(delta_chunks_prepare, kt_delta_batch, prepare, THREADS)
KT_ENTRY(delta_chunks_walk, kt_delta_batch, chunks, THREADS)
KT_ENTRY(delta_chunks_gate, kt_delta_batch, gate, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

_Static_assert((int)PREPARE_BYTES <= (int)KT_DELTA_PREPARE_SHARED, "room of prepare");
_Static_assert((int)CHUNKS_BYTES == (int)KT_DELTA_CHUNKS_SHARED, "room of chunks");

static const int32_t threads_values[] = {256};
static const kt_param params[] = {{"threads", threads_values, 1, 256}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return config->value[0];
}

/* The most of all entries. */
static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return KT_DELTA_CHUNKS_SHARED;
}

KT_CUDA_KERNEL(delta_chunks) = {
    .name = "delta_chunks",
    .about = "gated delta rule in chunks of 64 rows",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 3,
    .entry = {{"delta_chunks_prepare", delta_chunks_prepare},
              {"delta_chunks_walk", delta_chunks_walk},
              {"delta_chunks_gate", delta_chunks_gate}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
