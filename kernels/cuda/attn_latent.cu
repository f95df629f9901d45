/* Latent attention (DeepSeek, Kimi) in its absorbed form: one kv head, whose values are the first
 * numbers of the keys' rows, so that a row comes to shared memory once for both.
 *
 * A block has a tile of ROWS pairs of a row and a head (attn_calls.h) and one split of the keys.
 * Its eight warps share out the scores, by tiles of 16 pairs and 8 keys and what is left by the
 * numbers of a key; partial scores meet in shared memory, where each warp reads all of them. Then
 * each has an eighth of the values' columns. With `picked` a tile is of one row, and its keys are
 * the rows of that list, which copies gather one by one (DeepSeek-V3.2's sparse attention).
 *
 *   split  grid (splits, tiles)
 *   join   grid (ROWS, tiles), if splits is not 1
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_attn.h"

#define HEAD KT_CONSTANT(0)
#define VALUE KT_CONSTANT(1)
#define CACHE KT_CONSTANT(2)
#define ROWS KT_CONSTANT(3)
#define KEYS KT_CONSTANT(4)
#define STAGES KT_CONSTANT(5)
#define PIECES (HEAD / 32)                   /* of 32 numbers of a key */
#define SCORE_TILES (ROWS / 16 * (KEYS / 8)) /* of 16 pairs and 8 keys */
#define PARTS (WARPS / SCORE_TILES)          /* warps that share a tile's pieces */
#define GROUPS (VALUE / 16)                  /* of 16 columns of the values */
#define OWN_GROUPS ((GROUPS + WARPS - 1) / WARPS)
#define QUERY_BYTES (ROWS * KT_ATTN_PITCH(HEAD))
#define SCORE_BYTES (WARPS * 16 * 8 * 4)
#define WIDE_BYTES (KEYS * KT_ATTN_PITCH(HEAD))
#define STAGE_BYTES (CACHE == KT_ATTN_BF16 ? WIDE_BYTES : KEYS * HEAD)
#define SCORES_AT ((uint32_t)QUERY_BYTES)
#define SCALES_AT ((uint32_t)(QUERY_BYTES + SCORE_BYTES)) /* [stages][keys] */
#define STAGES_AT ((uint32_t)(QUERY_BYTES + SCORE_BYTES + STAGES * KEYS * 4))
enum { WARPS = 8, THREADS = 32 * WARPS, MAX_TILES = 2, MAX_GROUPS = 4, MAX_KEYS = 32 };
KT_REQUIRE(HEAD % 32 == 0 && VALUE % 16 == 0 && VALUE <= HEAD, "sizes of heads");
KT_REQUIRE(ROWS % 16 == 0 && KEYS % 16 == 0 && SCORE_TILES <= WARPS, "tiles of scores");
KT_REQUIRE(ROWS / 16 <= MAX_TILES && OWN_GROUPS <= MAX_GROUPS && STAGES >= 2, "registers");

/* What a block meets: a part of the keys, by their number or by a list. */
typedef struct kt_attn_latent_keys {
    const int32_t *list; /* NULL = keys are those of their number */
    int begin, end;
} kt_attn_latent_keys;

KT_DEVICE uint32_t stage_at(int stage) {
    return STAGES_AT + (uint32_t)(stage * STAGE_BYTES);
}

/* KEYS keys from `key` on; a warp copies whole rows. */
KT_DEVICE void fetch(const kt_attn_paged *p, const kt_attn_block *b,
                     const kt_attn_latent_keys *keys, int key, int stage) {
    const int chunks = CACHE == KT_ATTN_BF16 ? HEAD / 8 : HEAD / 16;
    const int pitch = CACHE == KT_ATTN_BF16 ? KT_ATTN_PITCH(HEAD) : HEAD;

    for (int i = kt_warp(); i < KEYS; i += WARPS) {
        const int is = key + i < keys->end;
        const int token = !is ? 0 : keys->list ? keys->list[key + i] : key + i;
        const uint32_t page = b->page[token / KT_ATTN_PAGE];
        const uint8_t *row = kt_attn_rows_at(&p->k, b->k, page, token);
        kt_attn_fetch(stage_at(stage) + (uint32_t)(i * pitch), pitch, row, 0, chunks, 1, is,
                      kt_lane(), 32);
        if (CACHE != KT_ATTN_BF16 && kt_lane() == 0)
            kt_set_shared_u32(
                SCALES_AT + (uint32_t)(stage * KEYS + i) * 4,
                is ? kt_bits_float(b->k_scale[(int64_t)page * KT_ATTN_PAGE + token % KT_ATTN_PAGE])
                   : 0);
    }
}

KT_DEVICE uint32_t widen(uint32_t from) {
    const uint32_t to = stage_at(STAGES);

    if (CACHE == KT_ATTN_BF16) return from;
    kt_attn_widen(to, from, HEAD, KEYS, CACHE, kt_thread(), THREADS);
    kt_sync();
    return to;
}

KT_DEVICE uint32_t score_at(int part, int pair, int key) {
    return SCORES_AT + (uint32_t)((part * ROWS + pair) * KEYS + key) * 4;
}

/* The warp's part of one tile of scores: every PARTS-th piece, its halves in sums of their own. */
KT_DEVICE void score(uint32_t k_at) {
    const int lane = kt_lane(), tile = kt_warp() % SCORE_TILES, part = kt_warp() / SCORE_TILES;
    const int pair = tile % (ROWS / 16) * 16, key = tile / (ROWS / 16) * 8;
    const uint32_t a_at = (uint32_t)((pair + (lane & 15)) * KT_ATTN_PITCH(HEAD) + (lane >> 4) * 16);
    const uint32_t b_at =
        k_at + (uint32_t)((key + (lane & 7)) * KT_ATTN_PITCH(HEAD) + (lane >> 3) * 16);
    float s[2][4];

    if (part >= PARTS) return;
    KT_UNROLL
    for (int x = 0; x < 4; x++) s[0][x] = s[1][x] = 0;
    KT_UNROLL
    for (int i = 0; i < (PIECES + PARTS - 1) / PARTS; i++) {
        const int piece = part + i * PARTS;
        uint32_t a[4], b[4];
        if (piece >= PIECES) break;
        kt_ldmatrix(b, b_at + (uint32_t)piece * 64);
        kt_ldmatrix(a, a_at + (uint32_t)piece * 64);
        kt_mma_bf16(s[0], a, b[0], b[1]);
        kt_ldmatrix(a, a_at + (uint32_t)piece * 64 + 32);
        kt_mma_bf16(s[1], a, b[2], b[3]);
    }
    KT_UNROLL
    for (int x = 0; x < 4; x++)
        kt_set_shared_u32(score_at(part, pair + lane / 4 + x / 2 * 8, key + lane % 4 * 2 + x % 2),
                          kt_bits_float(s[0][x] + s[1][x]));
}

/* Scores of 16 pairs as the sums of a warp that had made all of them. */
KT_DEVICE void read_scores(float *s, int pair) {
    KT_UNROLL
    for (int i = 0; i < KEYS / 2; i++) {
        const int row = pair + kt_lane() / 4 + i / 2 % 2 * 8;
        const int key = i / 4 * 8 + kt_lane() % 4 * 2 + i % 2;
        s[i] = kt_float_bits(kt_shared_u32(score_at(0, row, key)));
        KT_UNROLL
        for (int part = 1; part < PARTS; part++)
            s[i] += kt_float_bits(kt_shared_u32(score_at(part, row, key)));
    }
}

KT_DEVICE void scale_by_row(float *s, int stage) {
    KT_UNROLL
    for (int i = 0; i < KEYS / 2; i++) {
        const int key = i / 4 * 8 + kt_lane() % 4 * 2 + i % 2;
        s[i] *= kt_float_bits(kt_shared_u32(SCALES_AT + (uint32_t)(stage * KEYS + key) * 4));
    }
}

/* The warp's columns of the values, for all pairs: o[(tile * OWN_GROUPS + group) * 8 ..]. */
KT_DEVICE void add_values(float *o, uint32_t weight[][MAX_KEYS / 4], uint32_t v_at) {
    const int lane = kt_lane(), first = kt_warp() * OWN_GROUPS;
    const uint32_t b_at =
        v_at + (uint32_t)((lane & 15) * KT_ATTN_PITCH(HEAD) + (lane >> 4) * 16 + first * 32);

    KT_UNROLL
    for (int j = 0; j < KEYS / 16; j++) KT_UNROLL
    for (int i = 0; i < OWN_GROUPS; i++) {
        uint32_t b[4];
        if (first + i >= GROUPS) break;
        kt_ldmatrix_trans(b, b_at + (uint32_t)(j * 16 * KT_ATTN_PITCH(HEAD) + i * 32));
        KT_UNROLL
        for (int tile = 0; tile < ROWS / 16; tile++) {
            float *c = o + (tile * OWN_GROUPS + i) * 8;
            kt_mma_bf16(c, weight[tile] + 4 * j, b[0], b[1]);
            kt_mma_bf16(c + 4, weight[tile] + 4 * j, b[2], b[3]);
        }
    }
}

KT_DEVICE void meet(uint32_t at, int stage, int key, kt_attn_pairs *r, float *o) {
    uint32_t weight[MAX_TILES][MAX_KEYS / 4];

    score(at);
    kt_sync(); /* all parts are there */
    KT_UNROLL
    for (int tile = 0; tile < ROWS / 16; tile++) {
        float s[MAX_KEYS / 2], factor[2];
        read_scores(s, tile * 16);
        if (CACHE != KT_ATTN_BF16) scale_by_row(s, stage);
        kt_attn_mask(&r[tile], s, key, KEYS);
        kt_attn_soften(&r[tile], s, KEYS, factor);
        if (CACHE != KT_ATTN_BF16) scale_by_row(s, stage);
        kt_attn_rescale(o + tile * OWN_GROUPS * 8, factor, OWN_GROUPS * 16);
        KT_UNROLL
        for (int i = 0; i < KEYS / 4; i++) weight[tile][i] = kt_bf16_pair(s[2 * i], s[2 * i + 1]);
    }
    add_values(o, weight, at);
}

KT_DEVICE void write_pair(const kt_attn_paged *p, const kt_attn_block *b, int split, int pair,
                          float top, float total, const float *o) {
    const int row = kt_attn_row(b, pair), head = kt_attn_head(b, pair);
    const int first = kt_warp() * OWN_GROUPS;
    const float share = p->splits > 1 ? 1.0f : kt_attn_share(p, head, top, total);
    float *cell = kt_attn_cell(p, b, ROWS, pair, split, VALUE);
    float *out = p->splits > 1 ? cell : p->out + row * p->ldo + (int64_t)head * VALUE;

    KT_UNROLL
    for (int i = 0; i < OWN_GROUPS * 2; i++) {
        const int column = first * 16 + i * 8 + kt_lane() % 4 * 2;
        if (column >= VALUE) break;
        out[column] = o[4 * i] * share;
        out[column + 1] = o[4 * i + 1] * share;
    }
    if (p->splits == 1 || kt_warp() || kt_lane() % 4) return;
    cell[VALUE] = top;
    cell[VALUE + 1] = total;
}

/* The keys of the block's split: of a row that picks, places in its list. */
KT_DEVICE kt_attn_latent_keys keys_of(const kt_attn_paged *p, const kt_attn_block *b, int number) {
    kt_attn_latent_keys keys;
    const int position = p->position[b->tile.row], limit = (number + 1) * p->split_keys;
    int end = b->end;

    keys.list = 0;
    if (p->picked && position >= p->topk) {
        keys.list = p->picked + (int64_t)b->tile.row * p->topk;
        end = p->topk;
    }
    keys.begin = number * p->split_keys;
    if (keys.begin < b->begin) keys.begin = b->begin / KEYS * KEYS;
    keys.end = end < limit ? end : limit;
    return keys;
}

KT_DEVICE void split(const kt_attn_paged *p) {
    const kt_attn_block b = kt_attn_block_of(p, kt_block_y(), kt_block_x() / p->splits);
    const int number = b.begin / p->split_keys + kt_block_x() % p->splits;
    const kt_attn_latent_keys keys = keys_of(p, &b, number);
    kt_attn_pairs r[MAX_TILES];
    float o[MAX_TILES * MAX_GROUPS * 8];
    int stage = 0;

    if (keys.begin >= keys.end) return;
    KT_UNROLL
    for (int tile = 0; tile < ROWS / 16; tile++) {
        r[tile] = kt_attn_pairs_of(p, &b, tile * 16);
        KT_UNROLL
        for (int half = 0; half < 2; half++)
            if (keys.list && r[tile].last[half] >= 0) r[tile].last[half] = p->topk - 1;
    }
    KT_UNROLL
    for (int i = 0; i < ROWS / 16 * OWN_GROUPS * 8; i++) o[i] = 0;
    kt_attn_put_queries(p, &b, ROWS, HEAD, 0, THREADS);
    for (int s = 0; s < STAGES - 1; s++) {
        if (keys.begin + s * KEYS < keys.end) fetch(p, &b, &keys, keys.begin + s * KEYS, s);
        kt_copy_commit();
    }
    for (int key = keys.begin; key < keys.end; key += KEYS, stage = (stage + 1) % STAGES) {
        const int ahead = key + (STAGES - 1) * KEYS;
        KT_COPY_WAIT(STAGES - 2);
        kt_sync();
        if (ahead < keys.end) fetch(p, &b, &keys, ahead, (stage + STAGES - 1) % STAGES);
        kt_copy_commit();
        meet(widen(stage_at(stage)), stage, key, r, o);
    }
    KT_UNROLL
    for (int tile = 0; tile < ROWS / 16; tile++) {
        kt_attn_total(&r[tile]);
        KT_UNROLL
        for (int half = 0; half < 2; half++) {
            const int pair = tile * 16 + kt_lane() / 4 + 8 * half;
            if (pair < b.tile.pairs)
                write_pair(p, &b, number, pair, r[tile].top[half], r[tile].total[half],
                           o + tile * OWN_GROUPS * 8 + 2 * half);
        }
    }
}

KT_DEVICE void join(const kt_attn_paged *p) {
    kt_attn_join(p, ROWS, VALUE, THREADS);
}

KT_ENTRY_ALONE(attn_latent_split, kt_attn_paged, split, THREADS)
KT_ENTRY(attn_latent_join, kt_attn_paged, join, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t head_values[] = {512, 576}, value_values[] = {512},
                     cache_values[] = {KT_ATTN_BF16, KT_ATTN_INT8, KT_ATTN_FP8},
                     rows_values[] = {16, 32}, keys_values[] = {16, 32},
                     stages_values[] = {2, 3, 4};
static const kt_param params[] = {{"head", head_values, 2, 576}, {"value", value_values, 1, 512},
                                  {"cache", cache_values, 3, 0}, {"rows", rows_values, 2, 32},
                                  {"keys", keys_values, 2, 16},  {"stages", stages_values, 3, 3}};

static int threads(const kt_config *config) {
    (void)config;
    return THREADS;
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const int32_t *c = config->value;
    const int32_t pitch = KT_ATTN_PITCH(c[0]);
    const int32_t stages =
        c[2] == KT_ATTN_BF16 ? c[5] * c[4] * pitch : c[5] * c[4] * c[0] + c[4] * pitch;

    (void)k;
    return (size_t)(c[3] * pitch + SCORE_BYTES + c[5] * c[4] * 4 + stages);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const int32_t *c = config->value;

    if (c[0] % 32 || c[1] % 16) return "keys are no multiple of 32 numbers, or values of 16";
    if (c[1] < 1 || c[1] > c[0]) return "values are longer than keys";
    if (c[1] > MAX_GROUPS * 16 * WARPS) return "values have over 512 numbers: sums would spill";
    if (shared_bytes(config, 0) > (size_t)target->shared_bytes)
        return "its stages exceed a block's shared memory";
    return NULL;
}

KT_CUDA_KERNEL(attn_latent) = {
    .name = "attn_latent",
    .about = "latent attention over pages of keys that begin with their values, or picked ones",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 6,
    .entry_count = 2,
    .entry = {{"attn_latent_split", attn_latent_split}, {"attn_latent_join", attn_latent_join}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
