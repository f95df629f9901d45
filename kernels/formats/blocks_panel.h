/* Packing rows of a block format into a panel (p64_spec.h). Each format file has its own copy, with
 * its spec as a constant and its unpack() inside.
 *
 * A row's part of a packed block is a word of four codes in each line. All words of a row are made
 * first, in the order of the lines (an image of 16 to 192 bytes, in the first cache), and then
 * images are turned: four words of four rows become 16 bytes in each of four lines. Writing word by
 * word instead would touch a line for every four bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_BLOCKS_PANEL_H
#define KT_KERNELS_BLOCKS_PANEL_H

#include "kernels/formats/blocks.h"
#include "kernels/formats/p64.h"
#include "kernels/formats/p64_turn.h"

enum {
    KT_IMAGE_BYTES = 192, /* Q6_K: 256 inputs in planes of 4 and 2 bits */
    KT_IMAGE_LINES = KT_IMAGE_BYTES / 4
};

/* Bits [shift, shift + bits) of 32 codes as `bits` words: quad o in word o % bits at bit bits *
 * (o / bits) of each byte. is_all: they are all that codes have. Returns what follows. */
static inline __attribute__((always_inline)) uint8_t *
kt_plane_words(const uint8_t code[32], int shift, int bits, int is_all, uint8_t *to) {
    const __m128i mask = _mm_set1_epi8((char)((1 << bits) - 1));
    __m128i a = _mm_loadu_si128((const __m128i *)(const void *)code);
    __m128i b = _mm_loadu_si128((const __m128i *)(const void *)(code + 16));

    if (bits == 8) {
        _mm_storeu_si128((__m128i *)(void *)to, a);
        _mm_storeu_si128((__m128i *)(void *)(to + 16), b);
        return to + 32;
    }
    if (!is_all) {
        a = _mm_and_si128(_mm_srli_epi16(a, shift), mask);
        b = _mm_and_si128(_mm_srli_epi16(b, shift), mask);
    }
    a = _mm_or_si128(a, _mm_slli_epi16(b, 4)); /* quads o and o + 4 */
    if (bits == 4) {
        _mm_storeu_si128((__m128i *)(void *)to, a);
        return to + 16;
    }
    a = _mm_or_si128(a, _mm_slli_epi16(_mm_srli_si128(a, 8), 2)); /* o, o + 2, o + 4, o + 6 */
    if (bits == 2) {
        _mm_storel_epi64((__m128i *)(void *)to, a);
        return to + 8;
    }
    a = _mm_or_si128(a, _mm_slli_epi16(_mm_srli_si128(a, 4), 1));
    memcpy(to, &a, 4);
    return to + 4;
}

static inline __attribute__((always_inline)) int kt_block_lines(kt_p64_spec s) {
    return s.span / 32 * (s.low + s.high);
}

/* Where line i of a packed block begins. */
static inline __attribute__((always_inline)) size_t kt_block_line_at(kt_p64_spec s, int i) {
    const int of_run = kt_p64_run_inputs(s) / 32 * (s.low + s.high);

    return kt_p64_head_bytes(s) + (size_t)(i / of_run) * kt_p64_run_bytes(s) +
           256 * (size_t)(i % of_run);
}

static inline __attribute__((always_inline)) void kt_put_field(uint32_t bits, size_t field_bytes,
                                                               uint8_t *field, int r) {
    const uint16_t half = (uint16_t)bits;

    if (field_bytes == 256) memcpy(field + 4 * r, &bits, 4);
    if (field_bytes == 128) memcpy(field + 2 * r, &half, 2);
    if (field_bytes == 64) field[r] = (uint8_t)bits;
}

/* Scales and minima of one row's block, and what stands at its head. */
static inline __attribute__((always_inline)) void kt_put_fields(kt_p64_spec s, const kt_block *b,
                                                                uint8_t *to, int r) {
    const size_t head = kt_p64_head_bytes(s), scale = kt_p64_scale_bytes(s);
    const size_t minimum = kt_p64_minimum_bytes(s);
    const int groups = kt_p64_run_inputs(s) / s.group;

    if (head >= 128) kt_put_field(b->d, 128, to, r);
    if (head == 256) kt_put_field(b->dmin, 128, to + 128, r);
    for (int g = 0; g < s.span / s.group; g++) {
        uint8_t *run = to + head + (size_t)(g / groups) * kt_p64_run_bytes(s) +
                       (size_t)(kt_p64_run_inputs(s) / 32) * kt_p64_plane_bytes(s);
        kt_put_field(b->scale[g], scale, run + (size_t)(g % groups) * scale, r);
        kt_put_field(b->minimum[g], minimum,
                     run + (size_t)groups * scale + (size_t)(g % groups) * minimum, r);
    }
}

static inline __attribute__((always_inline)) void kt_block_image(kt_p64_spec s, const kt_block *b,
                                                                 uint8_t *image) {
    for (int i = 0; i < s.span; i += 32) {
        if (s.high) image = kt_plane_words(b->code + i, s.low, s.high, 0, image);
        image = kt_plane_words(b->code + i, 0, s.low, !s.high, image);
    }
}

/* The first n words of `rows` images (a multiple of 4) to the lines of n / (lines of a block)
 * packed blocks. */
static inline __attribute__((always_inline)) void kt_turn_images(kt_p64_spec s,
                                                                 uint8_t image[][KT_IMAGE_BYTES],
                                                                 int rows, int n, uint8_t *panel,
                                                                 int at) {
    const int lines = kt_block_lines(s);
    size_t line_at[KT_IMAGE_LINES];

    for (int i = 0; i < n; i++)
        line_at[i] = (size_t)(i / lines) * kt_p64_block_bytes(s) + kt_block_line_at(s, i % lines);
    for (int r = 0; r < rows; r += 4)
        for (int i = 0; i < n; i += 4) {
            __m128i v[4];
            for (int j = 0; j < 4; j++)
                v[j] = _mm_load_si128((const __m128i *)(const void *)(image[r + j] + 4 * i));
            kt_turn_words(v);
            for (int j = 0; j < 4 && i + j < n; j++)
                _mm_storeu_si128((__m128i *)(void *)(panel + line_at[i + j] + 4 * (at + r)), v[j]);
        }
}

/* Rows behind the last: zero bytes, but w4g32 has zero weights. */
static inline void kt_block_pad(kt_weight_format id, kt_block *out) {
    memset(out, 0, sizeof *out);
    if (id == KT_W_INT4_G32) memset(out->code, 8, 32);
}

/* kt_format.pack_rows. Blocks of 32 inputs are taken four at a time: a line of each row is met
 * once. */
static inline __attribute__((always_inline)) void
kt_blocks_pack_rows(kt_weight_format id,
                    void (*unpack)(const kt_matrix *w, int64_t row, int64_t b, kt_block *out),
                    const kt_matrix *matrix, int64_t row, int rows, uint8_t *panel, int at) {
    const kt_p64_spec s = kt_p64_spec_of(id);
    const kt_matrix own = *matrix, *const w = &own; /* what no store of a byte can change */
    const int lines = kt_block_lines(s), at_once = s.span == 32 ? 4 : 1;
    const int64_t blocks = w->k / s.span;
    _Alignas(16) uint8_t image[KT_P64_ROWS][KT_IMAGE_BYTES];

    for (int64_t first = 0; first < blocks; first += at_once) {
        const int n = blocks - first < at_once ? (int)(blocks - first) : at_once;
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < n; j++) {
                kt_block block;
                if (row + r < w->n)
                    unpack(w, row + r, first + j, &block);
                else
                    kt_block_pad(id, &block);
                kt_block_image(s, &block, image[r] + 4 * lines * j);
                kt_put_fields(s, &block, panel + (size_t)j * kt_p64_block_bytes(s), at + r);
            }
        kt_turn_images(s, image, rows, n * lines, panel, at);
        panel += (size_t)n * kt_p64_block_bytes(s);
    }
}

/* The member pack_rows, from a file's unpack(), which is also a member: a call for every block took
 * a third of the time of Q4_K. */
#define KT_BLOCKS_PACK_ROWS(format)                                                           \
    __attribute__((flatten)) static void pack_rows(const kt_matrix *w, int64_t row, int rows, \
                                                   uint8_t *panel, int at) {                  \
        kt_blocks_pack_rows(format, unpack, w, row, rows, panel, at);                         \
    }

#endif
