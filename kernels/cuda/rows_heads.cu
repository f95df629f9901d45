/* Heads between their product and attention, in one launch: RMSNorm, rotation, pages.
 *
 * A warp has one head of one row in shared memory. Sums and products are those of rows_norm_heads,
 * rows_rope_turn and rows_keep_put, in their order: so are all bits. What a head's norm, angle and
 * place are is read before the launch before has ended.
 *
 *   rows_heads  grid (heads / WARPS rounded up, rows), 4 WARPS bytes of shared memory for each
 *               number of the longest head
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_keep.h"

#define FORMAT KT_CONSTANT(0)
#define WARPS KT_CONSTANT(1)
#define THREADS (32 * WARPS)
enum { HELD = 8 /* numbers of a head that a lane keeps: all, of heads up to 256 */ };
KT_REQUIRE(FORMAT >= KT_KEPT_BF16 && FORMAT <= KT_KEPT_FP8, "formats of pages");

/* One head of one row. */
typedef struct head {
    const kt_head_part *part;
    int64_t row;
    int number;  /* of the part's heads */
    uint32_t at; /* where it lies in shared memory */
    float *x;
    const float *angle;
} head;

/* What does not depend on the launch before. */
typedef struct early {
    kt_keep_place place;
    float w[HELD], cosine[HELD / 2], sine[HELD / 2];
} early;

KT_DEVICE int longest(const kt_rows_heads *p) {
    int size = 0;

    KT_UNROLL
    for (int i = 0; i < KT_HEAD_PARTS; i++)
        if (p->part[i].heads && p->part[i].size > size) size = p->part[i].size;
    return size;
}

KT_DEVICE head head_of(const kt_rows_heads *p, int number, int64_t row) {
    head h;

    h.part = &p->part[0];
    h.number = number;
    KT_UNROLL
    for (int i = 1; i < KT_HEAD_PARTS; i++) {
        if (h.part != &p->part[i - 1] || h.number < h.part->heads) continue;
        h.number -= h.part->heads;
        h.part = &p->part[i];
    }
    h.row = row;
    h.at = (uint32_t)(kt_warp() * longest(p) * 4);
    h.x = h.part->x + row * h.part->ld + (int64_t)h.number * h.part->size;
    h.angle = 0;
    if (h.part->cos_sin)
        h.angle = h.part->cos_sin + (int64_t)p->places.position[row] * h.part->rotary_dim;
    return h;
}

KT_DEVICE early early_of(const kt_rows_heads *p, const head *h) {
    const int half = h->part->rotary_dim / 2;
    early e;

    e.place.to = 0, e.place.scale = 0;
    if (h->part->kept.to) e.place = kt_keep_place_of(&p->places, &h->part->kept, h->row, h->number);
    KT_UNROLL
    for (int j = 0; j < HELD; j++) {
        const int i = kt_lane() + 32 * j;
        e.w[j] = h->part->w && i < h->part->size ? h->part->w[i] : 1.0f;
    }
    KT_UNROLL
    for (int j = 0; j < HELD / 2; j++) {
        const int i = kt_lane() + 32 * j, is = h->angle && i < half;
        e.cosine[j] = is ? h->angle[i] : 1.0f;
        e.sine[j] = is ? h->angle[half + i] : 0.0f;
    }
    return e;
}

/* Its own numbers, which a lane alone touches until the row is turned. */
KT_DEVICE void fetch(const head *h, const early *e) {
    const int size = h->part->size;
    float x[HELD], sum = 0, r;

    KT_UNROLL
    for (int j = 0; j < HELD; j++) x[j] = kt_lane() + 32 * j < size ? h->x[kt_lane() + 32 * j] : 0;
    for (int i = kt_lane() + 32 * HELD; i < size; i += 32)
        kt_set_shared_f32(h->at + (uint32_t)i * 4, h->x[i]);
    if (h->part->has_norm) {
        KT_UNROLL
        for (int j = 0; j < HELD; j++) sum = kt_fma(x[j], x[j], sum);
        for (int i = kt_lane() + 32 * HELD; i < size; i += 32) {
            const float v = kt_shared_f32(h->at + (uint32_t)i * 4);
            sum = kt_fma(v, v, sum);
        }
        sum = kt_warp_sum(sum);
        r = 1.0f / kt_sqrt(sum / (float)size + h->part->eps);
        KT_UNROLL
        for (int j = 0; j < HELD; j++) x[j] = x[j] * r * e->w[j];
        for (int i = kt_lane() + 32 * HELD; i < size; i += 32)
            kt_set_shared_f32(h->at + (uint32_t)i * 4, kt_shared_f32(h->at + (uint32_t)i * 4) * r *
                                                           (h->part->w ? h->part->w[i] : 1.0f));
    }
    KT_UNROLL
    for (int j = 0; j < HELD; j++)
        if (kt_lane() + 32 * j < size)
            kt_set_shared_f32(h->at + (uint32_t)(kt_lane() + 32 * j) * 4, x[j]);
}

KT_DEVICE void turn_pair(const head *h, int pair, float cosine, float sine) {
    const kt_head_part *t = h->part;
    const int first = t->is_interleaved ? 2 * pair : pair;
    const int second = t->is_interleaved ? 2 * pair + 1 : pair + t->rotary_dim / 2;
    const float sign = t->is_inverse ? -1.0f : 1.0f; /* of the angle, moved to b */
    const uint32_t a_at = h->at + (uint32_t)first * 4, b_at = h->at + (uint32_t)second * 4;
    float a = kt_shared_f32(a_at), b = sign * kt_shared_f32(b_at);

    kt_turn(&a, &b, cosine, sine);
    kt_set_shared_f32(a_at, a);
    kt_set_shared_f32(b_at, sign * b);
}

KT_DEVICE void turn(const head *h, const early *e) {
    const int half = h->part->rotary_dim / 2;

    kt_warp_sync();
    KT_UNROLL
    for (int j = 0; j < HELD / 2; j++)
        if (kt_lane() + 32 * j < half) turn_pair(h, kt_lane() + 32 * j, e->cosine[j], e->sine[j]);
    for (int i = kt_lane() + 16 * HELD; i < half; i += 32)
        turn_pair(h, i, h->angle[i], h->angle[half + i]);
    kt_warp_sync();
}

KT_DEVICE void heads(const kt_rows_heads *p) {
    const int number = kt_block_x() * WARPS + kt_warp(), is = number < p->heads;
    const head h = head_of(p, is ? number : p->heads - 1, kt_block_y());
    const early e = early_of(p, &h);
    const kt_keep_row row = {0, h.at, h.part->size};

    KT_LAUNCH_WAIT();
    if (!is) return;
    fetch(&h, &e);
    if (h.angle) turn(&h, &e);
    if (h.part->has_norm || h.angle)
        for (int i = kt_lane(); i < row.size; i += 32) h.x[i] = kt_keep_number(&row, i);
    if (e.place.to) kt_keep_store(FORMAT, &row, e.place.to, e.place.scale);
}

KT_ENTRY_EARLY(rows_heads, kt_rows_heads, heads, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t format_values[] = {KT_KEPT_BF16, KT_KEPT_INT8, KT_KEPT_FP8},
                     warps_values[] = {1, 2, 4, 8};
static const kt_param params[] = {{"format", format_values, 3, KT_KEPT_BF16},
                                  {"warps", warps_values, 4, 4}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[1];
}

/* k: numbers of the longest head. */
static size_t shared_bytes(const kt_config *config, int64_t k) {
    return (size_t)(config->value[1] * k) * 4;
}

KT_CUDA_KERNEL(rows_heads) = {
    .name = "rows_heads",
    .about = "norms, rotations and pages of queries, keys and values, in one launch",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 2,
    .entry_count = 1,
    .entry = {{"rows_heads", rows_heads}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
