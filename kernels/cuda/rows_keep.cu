/* Rows of keys and values, and index keys, go to the pages of their sequences.
 *
 * A warp writes one head of one row (kt_dev_keep.h). Index keys are one head of bfloat16.
 *
 * Entries of windows and rows that are only packed are a warp's, too.
 *
 *   put          grid (heads / WARPS rounded up, rows)
 *   entry, pack  grid (rows / WARPS rounded up, 1)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_keep.h"

#define FORMAT KT_CONSTANT(0)
#define WARPS KT_CONSTANT(1)
#define THREADS (32 * WARPS)
KT_REQUIRE(FORMAT >= KT_KEPT_BF16 && FORMAT <= KT_KEPT_FP8, "formats of pages");

KT_DEVICE void store(const float *x, int size, uint8_t *to, float *scale) {
    const kt_keep_row row = {x, 0, size};
    kt_keep_store(FORMAT, &row, to, scale);
}

KT_DEVICE void put(const kt_rows_keep *p) {
    const int head = kt_block_x() * WARPS + kt_warp();
    const int64_t row = kt_block_y();
    const float *x = p->x + row * p->ldx + (int64_t)head * p->size;
    const kt_keep_place place = kt_keep_place_of(&p->places, &p->kept, row, head);

    if (head < p->heads) store(x, p->size, place.to, place.scale);
}

/* ---- entries ---- */

KT_DEVICE void norm_row(float *x, const float *w, int size, float eps) {
    float sum = 0, r;

    for (int i = kt_lane(); i < size; i += 32) sum = kt_fma(x[i], x[i], sum);
    sum = kt_warp_sum(sum);
    r = 1.0f / kt_sqrt(sum / (float)size + eps);
    for (int i = kt_lane(); i < size; i += 32) x[i] = x[i] * r * w[i];
    kt_warp_sync();
}

KT_DEVICE void turn_row(float *x, const float *angle, int rotary, int is_interleaved) {
    const int half = rotary / 2;

    for (int i = kt_lane(); i < half; i += 32) {
        const int first = is_interleaved ? 2 * i : i,
                  second = is_interleaved ? first + 1 : i + half;
        const float a = x[first], b = x[second];
        x[first] = a * angle[i] - b * angle[half + i];
        x[second] = b * angle[i] + a * angle[half + i];
    }
    kt_warp_sync();
}

KT_DEVICE void entry(const kt_rows_keep_entry *p) {
    const int row = kt_block_x() * WARPS + kt_warp();
    float *x = p->x + (int64_t)row * p->ldx;
    int position, place;
    int64_t page;

    if (row >= p->rows) return;
    position = p->places.position[row];
    if ((position + 1) % p->ratio != 0) return;
    place = position % 64 / p->ratio;
    page =
        p->places.page[p->places.first_page[p->places.span[row]] + position / 64] * p->page_bytes;
    norm_row(x, p->norm, p->size, p->eps);
    turn_row(x + p->size - p->rotary, p->cos_sin + (int64_t)(position + 1 - p->ratio) * p->rotary,
             p->rotary, p->is_interleaved);
    store(x, p->size, p->to + page + (int64_t)place * p->row_bytes,
          FORMAT == KT_KEPT_BF16 ? 0 : p->scale + page / 4 + place);
}

KT_DEVICE void pack(const kt_rows_pack *p) {
    const int64_t row = kt_block_x() * WARPS + kt_warp();
    float *out = p->out + row * p->ldo;

    if (row < p->rows) store(p->x + row * p->ldx, p->size, (uint8_t *)out, out + p->scale);
}

KT_ENTRY(rows_keep_put, kt_rows_keep, put, THREADS)
KT_ENTRY(rows_keep_entry, kt_rows_keep_entry, entry, THREADS)
KT_ENTRY(rows_keep_pack, kt_rows_pack, pack, THREADS)

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

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(rows_keep) = {
    .name = "rows_keep",
    .about = "keys and values go to pages, BF16, INT8 or FP8",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 2,
    .entry_count = 3,
    .entry = {{"rows_keep_put", rows_keep_put},
              {"rows_keep_entry", rows_keep_entry},
              {"rows_keep_pack", rows_keep_pack}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
